# SPDX-License-Identifier: GPL-3.0-or-later
"""unset-options: what a plugin is told about its options is what ansible-core's own code says, wherever they are set."""

from __future__ import annotations

import random
import types

import pytest

import forkless
from forkless.engines.threads import context, importing
from forkless.engines.threads.speed import plugin_options

# Importing ansible-core starts ldconfig.
pytestmark = [pytest.mark.matrix, pytest.mark.spawns]

TYPES = (None, "str", "string", "bool", "boolean", "int", "integer", "float", "list", "dict", "path", "raw", "pathlist")
DEFAULTS = (
    None,
    None,
    "text",
    "",
    "5",
    5,
    0,
    True,
    False,
    1.5,
    "{{ 1 }}",
    "{text}",
    "~/file",
    "a,b",
    ["a"],
    {"a": 1},
    "relative",
)
VALUES = (None, "7", 7, True, False, 0, 1, 2.5, "", "text", "no", ["x", "y"], {"k": "v"})
NAMES = tuple(f"n{number}" for number in range(4))


class Manager:
    """ConfigManager with definitions of its own, and how often its own code is asked."""

    def __init__(self, kind, definitions):
        self.real = kind()
        self.real.initialize_plugin_configuration_definitions("connection", "made_up", definitions)
        self.asked = 0

    def counted(self, function):
        def ask(*args, **kwargs):
            self.asked += 1
            return function(*args, **kwargs)

        return ask


def entries(chance, source):
    found = [{"name": name} for name in chance.sample(NAMES, chance.randint(0, 2))]
    if found and chance.random() < 0.1:
        found[0]["deprecated"] = {
            "why": "old",
            "version": "9",
            "alternatives": "none",
            "collection_name": "ansible.builtin",
        }
    if source == "ini":
        return [{"section": "made_up", "key": one["name"]} for one in found]
    return found


def definition(chance):
    made = {"default": chance.choice(DEFAULTS), "type": chance.choice(TYPES)}
    for source in ("vars", "env", "ini", "keyword", "cli"):
        if chance.random() < (0.1 if source == "cli" else 0.5):
            made[source] = entries(chance, source)
    if chance.random() < 0.1:
        made["aliases"] = [chance.choice(NAMES)]
    if chance.random() < 0.1:
        made["required"] = True
    if chance.random() < 0.1:
        made["choices"] = ["text", "7", 7]
    return made


def some(chance, names):
    return {name: chance.choice(VALUES) for name in names if chance.random() < 0.25}


def said(ask):
    """What is answered, with its type and where it comes from, or the error."""
    try:
        value, origin = ask()
    except Exception as error:  # noqa: BLE001  # both must fail alike
        return type(error), str(error)
    return type(value), value, origin, repr(getattr(value, "_ansible_tags_mapping", None))


@pytest.fixture
def manager_type():
    importing.import_ansible(ours=False)
    from ansible.config import manager

    return manager.ConfigManager


def test_options_are_what_ansible_core_says_they_are(manager_type, monkeypatch):
    """Two thousand options that are made up, each asked for several times, with something set here and there."""
    chance = random.Random(18)
    definitions = {f"option{number}": definition(chance) for number in range(2000)}
    manager = Manager(manager_type, definitions)
    original = manager_type.get_config_value_and_origin
    ours = plugin_options.value_and_origin(manager.counted(original), "")
    run = types.SimpleNamespace(off=frozenset(), state={})
    monkeypatch.setattr(context, "current", lambda: run)
    compared = 0
    for name, made in definitions.items():
        for _ in range(6):
            for variable in NAMES:
                monkeypatch.delenv(variable, raising=False)
            for variable, value in some(chance, NAMES).items():
                if isinstance(value, str) and chance.random() < 0.5:
                    monkeypatch.setenv(variable, value)
            arguments = {
                "plugin_type": "connection", "plugin_name": "made_up",
                "keys": chance.choice((None, {}, some(chance, (*NAMES, name)))),
                "variables": chance.choice((None, {}, some(chance, NAMES))),
                "direct": chance.choice((None, {}, some(chance, (*NAMES, name)))),
            }  # fmt: skip
            expected = said(lambda: original(manager.real, name, **arguments))  # noqa: B023  # called at once
            assert said(lambda: ours(manager.real, name, **arguments)) == expected, (made, arguments)  # noqa: B023
            compared += 1
    assert manager.asked < compared * 0.9, "nothing was answered without ansible-core"


def test_an_option_that_is_defined_anew_has_its_new_default(manager_type, monkeypatch):
    manager = Manager(manager_type, {"option": {"default": "old", "type": "str"}})
    ours = plugin_options.value_and_origin(manager_type.get_config_value_and_origin, "")
    run = types.SimpleNamespace(off=frozenset(), state={})
    monkeypatch.setattr(context, "current", lambda: run)
    asked = {"plugin_type": "connection", "plugin_name": "made_up"}
    assert [ours(manager.real, "option", **asked)[0] for _ in range(2)] == ["old", "old"]
    manager.real.initialize_plugin_configuration_definitions(
        "connection", "made_up", {"option": {"default": "new", "type": "str"}}
    )
    assert ours(manager.real, "option", **asked)[0] == "new"


@pytest.fixture
def one_option(manager_type, monkeypatch):
    """Asks for an option that variable `n0` and the command line set, and how often ansible-core's own code was asked; the run's state."""
    definition = {"type": "str", "vars": [{"name": "n0"}], "cli": [{"name": "n1"}]}
    manager = Manager(manager_type, {"option": definition})
    ours = plugin_options.value_and_origin(manager.counted(manager_type.get_config_value_and_origin), "")
    run = types.SimpleNamespace(off=frozenset(), state={})
    monkeypatch.setattr(context, "current", lambda: run)

    def ask(**places):
        value, _ = ours(manager.real, "option", plugin_type="connection", plugin_name="made_up", **places)
        return value, manager.asked

    return ask, run.state


def test_what_a_variable_or_the_caller_sets_is_converted_once(one_option):
    ask, _ = one_option
    assert [ask(variables={"n0": text}) for text in ("a", "b", "a", "b")] == [("a", 1), ("b", 2), ("a", 2), ("b", 2)]
    assert [ask(direct={"option": 5}) for _ in range(2)] == [("5", 3)] * 2
    assert [ask(keys={"option": text}) for text in ("a", "a")] == [("a", 4)] * 2
    assert ask(direct={"option": "b"}, variables={"n0": "a"})[0] == "b"


def test_equal_text_of_two_places_keeps_what_ansible_core_knows_of_each(one_option):
    ask, _ = one_option
    tags = pytest.importorskip("ansible._internal._datatag._tags", reason="ansible-core tags values since 2.19")
    Origin = tags.Origin  # noqa: N806

    first, second = (Origin(path=f"/{name}").tag("text") for name in ("one", "two"))
    for one in (first, second, first, second):
        assert Origin.get_required_tag(ask(variables={"n0": one})[0]).path == Origin.get_required_tag(one).path
    assert ask(variables={"n0": first})[1] == 2


def test_an_option_of_the_command_line_is_found_again_when_that_has_changed(one_option):
    ask, state = one_option
    assert [ask()[1] for _ in range(2)] == [1, 1]
    state["cliargs"] = {"n1": "x"}
    assert [ask()[1] for _ in range(2)] == [2, 2]


def test_it_is_on_in_an_ordinary_run_unless_it_is_switched_off(tmp_path, monkeypatch):
    """Each value is found once in a run, however many tasks ask for it."""
    found = []

    def can_be_kept(value):
        found.append(value)
        return kept(value)

    kept = plugin_options._can_be_kept
    monkeypatch.setattr(plugin_options, "_can_be_kept", can_be_kept)
    counts = []
    for tasks, off in ((1, ""), (5, ""), (1, plugin_options.NAME)):
        found.clear()
        play = tmp_path / "play.yml"
        play.write_text("- hosts: localhost\n  gather_facts: false\n  tasks:\n" + "  - debug: msg=said\n" * tasks)
        result = forkless.run(
            play, engine="threads", cwd=tmp_path, inventory="localhost,", env={"FORKLESS_DISABLE": off, "ANSIBLE_TRANSPORT": "local"}
        )  # fmt: skip
        assert result.rc == 0, result.stdout
        counts.append(len(found))
    assert counts[0] == counts[1] > 0, counts
    assert counts[2] == 0, counts
