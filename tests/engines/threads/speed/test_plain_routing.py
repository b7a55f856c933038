# SPDX-License-Identifier: GPL-3.0-or-later
"""Tables of moved plugins come out as from ansible-core itself, whether their entries are plain or not."""

from __future__ import annotations

import pathlib
import random

import pytest

from forkless.core.stop import Stop
from forkless.engines.threads import context
from forkless.engines.threads.speed import routing

pytestmark = pytest.mark.matrix

PLAIN = "plugin_routing:\n  modules:\n    one:\n      redirect: a.b.one\n    two.three:\n      redirect: a.b.c.two\n"
TEXTS = [
    PLAIN, f"---\n{PLAIN}", f"# told\n{PLAIN}\n", f"{PLAIN}  # told\n  action:\n    on:\n      redirect: a.b.c\n", PLAIN.replace("\n", "\r\n"),
    f"{PLAIN}    four:\n      deprecation:\n        removal_version: '2.99'\n        warning_text: |\n          a\n        # b\n",
    f"{PLAIN}    four:\n      tombstone: {{removal_date: 2019-11-06, warning_text: 'a: b'}}\n      redirect: x.y.z\n    five:\n      redirect: x.y.z\n",
    f"{PLAIN}    one:\n      redirect: x.y.z\n", f"{PLAIN}  modules:\n    x:\n      redirect: x.y.z\n", f"{PLAIN}{PLAIN}",
    f"{PLAIN}import_redirection:\n  a.b:\n    redirect: c.d\naction_groups:\n  g:\n  - a\n  - b\n", f"requires_ansible: '>=2.9'\n{PLAIN}",
    f"{PLAIN}other:\n  a: b\n# told\n  c:\n    d:\n      redirect: x.y.z\n", f"{PLAIN}other: 1\n  c:\n", f"{PLAIN}other:\n- a\n- b\n",
    f"{PLAIN}    four: &x\n      redirect: a.b.c\n    five: *x\n", f"{PLAIN}    - four\n", f"{PLAIN}    four\n", f"{PLAIN}    ? four\n    : five\n",
    f"{PLAIN}  action:\n", f"{PLAIN}  action:\n  cache:\n    x:\n      redirect: a.b.c\n", "plugin_routing:\n", "plugin_routing: {}\n", "plugin_routing:\n  modules:\n",
    "", "\n", "[]", "a", f"{PLAIN}...\n", f"{PLAIN}---\nb: c\n", f"{PLAIN}    four:\n      redirect: a.b.c\n\n      tombstone: x\n", f"{PLAIN[:-1]}",
    f"{PLAIN}\n\n", f"{PLAIN}\nother: x\n", f"{PLAIN}# \u0085x\n", f"{PLAIN}# \x07\n", f"{PLAIN}# \rother: x\n", f"{PLAIN}      deeper: x\n", f"{PLAIN}        more\n",
    *(PLAIN.replace("one", word, 1) for word in ("yes", "No", "null", "1", "1.5", "~", "true", "y", "on", "x-y", "'x'", '"x"', "x y", "2019-11-06")),
    *(PLAIN.replace("a.b.one", word) for word in ("null", "1.5", "1.2.3", "on", "a.b", "a.b.", "a.b.c d", "a.b.c #d", "a.b.c: d", "'a.b.c'", "|", ">", "")),
]  # fmt: skip


@pytest.fixture
def run_context(monkeypatch):
    made = context.RunContext(ident="x", stop=Stop())
    monkeypatch.setattr(context, "current", lambda: made)
    return made


def theirs():
    from ansible.utils.collection_loader._collection_meta import _meta_yml_to_dict

    return _meta_yml_to_dict


def outcome(function, text):
    try:
        return repr(function(text, None))  # the order, and str against other types, are part of it
    except Exception as error:
        return type(error), str(error)


def core_table():
    import ansible.config

    return pathlib.Path(ansible.config.__file__).with_name("ansible_builtin_runtime.yml").read_bytes()


def test_a_table_is_what_ansible_core_reads(run_context):
    ours = routing.routing(theirs(), "")
    chance = random.Random(19)
    lines = [*{line for text in TEXTS for line in text.splitlines(keepends=True)}]
    mixed = ["".join(chance.choices(sorted(lines), k=chance.randrange(1, 9))) for _ in range(500)]
    for text in [*TEXTS, *mixed, *(PLAIN + one for one in mixed)]:
        for given in (text, text.encode()):
            assert outcome(ours, given) == outcome(theirs(), given), repr(given)


def test_of_ansible_cores_own_table_few_entries_are_yaml(run_context):
    asked = []

    def read(text, content_id):
        asked.append(text)
        return theirs()(text, content_id)

    assert repr(routing.routing(read, "")(core_table(), None)) == repr(theirs()(core_table(), None))
    assert sum(map(len, asked)) < len(core_table()) / 50


def test_a_program_reads_ansible_cores_table_once_and_no_run_changes_anothers(run_context):
    asked = []

    def read(text, content_id):
        asked.append(text)
        return theirs()(text, content_id)

    expected = repr(theirs()(core_table(), None))
    first = routing.routing(read, "")(core_table(), None)
    assert asked
    asked.clear()
    first["plugin_routing"]["modules"].clear()
    first["action_groups"]["aws"].clear()
    second = routing.routing(read, "")(core_table(), None)
    assert repr(second) == expected
    second["plugin_routing"]["action"]["aws_s3"]["redirect"] = "somebody.elses.action"
    second["action_groups"]["aws"][0]["metadata"].clear()
    assert repr(routing.routing(read, "")(core_table(), None)) == expected
    assert asked == []
    routing.routing(lambda *given: read(*given), "")(core_table(), None)  # another ansible-core's
    assert asked


def test_the_next_run_gets_the_table_of_one_that_has_ended_if_it_was_not_changed(run_context, monkeypatch):
    monkeypatch.setattr(routing, "_last_large", routing._LastLarge())
    expected = repr(theirs()(core_table(), None))
    read = routing.routing(theirs(), "")

    def end_of_run():
        while run_context.at_end:
            run_context.at_end.pop()()

    made = read(core_table(), None)
    end_of_run()
    first = read(core_table(), None)
    assert first is made, "the second run of a program gets the table that the first one has read"
    second = read(core_table(), None)
    assert second is not first, "the other run is still there"
    end_of_run()
    third = read(core_table(), None)
    assert third is first or third is second
    assert repr(third) == expected
    third["plugin_routing"]["action"]["aws_s3"]["redirect"] = "somebody.elses.action"
    end_of_run()
    fourth = read(core_table(), None)
    assert fourth is not third
    assert repr(fourth) == expected
    run_context.abandoned.append("a worker that may still change it")
    end_of_run()
    assert read(core_table(), None) is not fourth


def test_a_command_at_a_terminal_keeps_no_copy_because_its_process_has_no_later_run(run_context, monkeypatch):
    kept = routing._LastLarge()
    monkeypatch.setattr(routing, "_last_large", kept)
    run_context.terminal = object()
    expected = repr(theirs()(core_table(), None))
    assert repr(routing.routing(theirs(), "")(core_table(), None)) == expected
    assert kept._read is None
    run_context.terminal = None
    assert repr(routing.routing(theirs(), "")(core_table(), None)) == expected
    assert kept._read is not None


def test_it_can_be_switched_off_and_is_for_runs_only(run_context, monkeypatch):
    asked = []
    read = routing.routing(lambda *given: asked.append(given), "")
    run_context.off = frozenset({routing.NAME})
    read(PLAIN, 1)
    monkeypatch.setattr(context, "current", lambda: None)
    read(PLAIN, 2)
    assert asked == [(PLAIN, 1), (PLAIN, 2)]
