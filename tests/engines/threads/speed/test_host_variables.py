# SPDX-License-Identifier: GPL-3.0-or-later
"""What `hostvars` tells of a host is what ansible-core would merge at that moment, and each worker has it for itself."""

from __future__ import annotations

import random
import types

import pytest

from engines_support import messages
from forkless.core import versions
from forkless.core.stop import Stop
from forkless.engines.threads import context, importing
from forkless.engines.threads.speed import caches, facts, host_variables
from forkless.patching import seams

pytestmark = [pytest.mark.spawns, pytest.mark.matrix]

NAMES = ("one", "two", "three")
KEPT = versions.nearest(seams.version()) in versions.since("2.19")


@pytest.fixture
def manager(monkeypatch):
    importing.import_ansible(ours=False)
    import ansible.plugins.cache.memory  # noqa: F401  # before a plugin loader does, which would not tell the package of it
    from ansible import context as command
    from ansible.inventory.manager import InventoryManager
    from ansible.parsing.dataloader import DataLoader
    from ansible.utils.context_objects import CLIArgs
    from ansible.vars.manager import VariableManager

    monkeypatch.setattr(command, "CLIARGS", CLIArgs({"extra_vars": (), "basedir": None}))
    monkeypatch.setattr(caches, "only_own_vars_plugin", lambda: True)
    loader = DataLoader()
    inventory = InventoryManager(loader=loader, sources=None, parse=False)
    for group in "abc":
        inventory.add_group(group)
    for host, group in (("h1", "a"), ("h2", "a"), ("h1", "b")):
        inventory.add_host(host, group)
    inventory.groups["b"].set_variable("word", "b")
    inventory.reconcile_inventory()
    return VariableManager(loader=loader, inventory=inventory, version_info={})


class Steps:
    """Changes of what the variables of a host are merged from."""

    def __init__(self, manager, dice):
        self.manager, self.inventory, self.dice = manager, manager._inventory, dice
        self.every = [getattr(self, name) for name in dir(self) if name.startswith("step_")]

    def value(self):
        return self.dice.choice([1, "text", ["x"], {"key": ["y"]}, None])

    def host(self):
        return self.inventory.get_host(self.dice.choice(["h1", "h2"]))

    def step_nothing(self):
        pass

    def step_host_variable(self):
        self.host().set_variable(self.dice.choice(NAMES), self.value())

    def step_group_variable(self):
        self.inventory.groups[self.dice.choice(["all", "a", "b", "c"])].set_variable(
            self.dice.choice(NAMES), self.value()
        )

    def step_priority(self):
        self.inventory.groups[self.dice.choice("ab")].set_priority(self.dice.randrange(3))

    def step_join(self):
        self.inventory.groups["c"].add_host(self.host())
        self.inventory.reconcile_inventory()

    def step_leave(self):
        self.inventory.groups["c"].remove_host(self.host())
        self.inventory.reconcile_inventory()

    def step_facts(self):
        facts = {f"ansible_{self.dice.choice(NAMES)}": self.value() for _ in range(2)}
        self.manager.set_host_facts(self.host().name, facts)

    def step_no_facts(self):
        self.manager.clear_facts(self.host().name)

    def step_set_fact(self):
        self.manager.set_nonpersistent_facts(self.host().name, {self.dice.choice(NAMES): self.value()})

    def step_registered(self):
        self.manager.set_host_variable(self.host().name, self.dice.choice(NAMES), self.value())

    def step_extra(self):
        self.manager._extra_vars["extra"] = self.value()

    def step_folder(self):
        self.manager._loader.set_basedir(self.dice.choice(["/", "/tmp"]))

    def step_in_place(self):
        """Nobody should, but a plugin of the strategy can: a fork would have seen it."""
        host = self.host()
        places = [host.vars, self.manager._nonpersistent_fact_cache.get(host.name, {})]
        try:
            places.append(self.manager._fact_cache.get(host.name))
        except KeyError:
            pass
        for place in places:
            for value in place.values():
                if type(value) is list:
                    value.append(self.dice.randrange(100))
                elif type(value) is dict and self.dice.random() < 0.5:
                    value["key"].append(self.dice.randrange(100))
                elif type(value) is dict:
                    value[self.dice.choice(NAMES)] = self.value()


def _told(value):
    """A value with its order, types and tags."""
    tags = sorted(map(repr, getattr(value, "_ansible_tags_mapping", {}).values()))
    if isinstance(value, dict):
        return type(value).__name__, tags, [(key, _told(one)) for key, one in value.items()]
    if isinstance(value, list):
        return type(value).__name__, tags, [_told(one) for one in value]
    return type(value).__name__, tags, repr(value)


@pytest.mark.skipif(not KEPT, reason="2.18 merges them each time")
def test_after_random_changes_the_variables_are_those_that_ansible_core_merges(manager, monkeypatch):
    from ansible.vars import manager as upstream
    from ansible.vars.manager import VariableManager

    for name, stand_in in (("clean_facts", facts.facts_cleaned), ("namespace_facts", facts.facts_namespaced)):
        monkeypatch.setattr(upstream, name, stand_in(getattr(upstream, name), ""))
    run_context = context.RunContext(ident="a run", stop=Stop())
    monkeypatch.setattr(context, "current", lambda: run_context)
    monkeypatch.setattr(context, "current_worker", lambda: types.SimpleNamespace(state={}))
    merged = []
    theirs = VariableManager.get_vars

    def counted(*args, **kwargs):
        merged.append(kwargs["host"].name)
        return theirs(*args, **kwargs)

    ours = host_variables.of_a_host(counted, "")
    dice = random.Random(5)
    steps = Steps(manager, dice)
    kept = 0
    for _ in range(400):
        dice.choice(steps.every)()
        for name in ("h1", "h2"):
            host = manager._inventory.get_host(name)
            merged.clear()
            found = ours(manager, host=host, include_hostvars=False)
            kept += not merged
            assert _told(found) == _told(theirs(manager, host=host, include_hostvars=False))
    assert kept > 100, "it was merged nearly each time"


@pytest.mark.skipif(not KEPT, reason="2.18 merges them each time")
@pytest.mark.parametrize("why", ["switched off", "vars plugins", "not in a worker", "merge", "debug"])
def test_where_the_sources_are_not_known_ansible_core_merges_each_time(manager, monkeypatch, why):
    from ansible.vars import manager as upstream

    run_context = context.RunContext(ident="a run", stop=Stop())
    run_context.off = frozenset({"vars-cache"} if why == "switched off" else ())
    monkeypatch.setattr(context, "current", lambda: run_context)
    monkeypatch.setattr(
        context, "current_worker", lambda: None if why == "not in a worker" else types.SimpleNamespace(state={})
    )
    if why == "vars plugins":
        monkeypatch.setattr(caches, "only_own_vars_plugin", lambda: False)
    if why == "merge":
        monkeypatch.setattr(upstream.C, "DEFAULT_HASH_BEHAVIOUR", "merge")
    if why == "debug":
        monkeypatch.setattr(upstream.C, "DEFAULT_DEBUG", True)
    merged = []
    ours = host_variables.of_a_host(lambda *_args, **_kwargs: merged.append(1), "")
    for _ in range(3):
        ours(manager, host=manager._inventory.get_host("h1"), include_hostvars=False)
    assert len(merged) == 3


CHANGING = """
class FilterModule:
    def filters(self):
        return {"change": self.change}

    def change(self, hostvars):
        words = hostvars.raw_get("h1")["words"]
        words.append("changed")
        return len(words)
"""


@pytest.mark.parametrize("off", ["", "vars-cache"])
def test_a_worker_that_changes_what_it_was_given_changes_its_own_copy(project, off):
    project.write("filter_plugins/change.py", CHANGING)
    lengths = "{{ ['h1', 'h2', 'h3'] | map('extract', hostvars, 'words') | map('length') | join(' ') }}"
    tasks = f"""
        - set_fact: {{words: [one]}}
        - debug: {{msg: "{{{{ hostvars | change }}}}"}}
        - debug: {{msg: "{lengths}"}}
        - set_fact: {{words: [one, two]}}
        - debug: {{msg: "{lengths}"}}
    """
    result = project.run(tasks, limit="h1,h2,h3", env={"FORKLESS_DISABLE": off})
    assert result.rc == 0, result.stdout
    done = [event.event_data["res"] for event in result.events if event.event == "runner_on_ok"]
    assert [str(one["msg"]) for one in done if "msg" in one] == ["2"] * 3 + ["1 1 1"] * 3 + ["2 2 2"] * 3


@pytest.mark.skipif(not KEPT, reason="2.18 merges them each time")
def test_hosts_that_read_each_others_variables_merge_them_once_after_each_change(project, monkeypatch):
    merges = []
    real = host_variables._merge
    monkeypatch.setattr(host_variables, "_merge", lambda *args: merges.append(args[2].name) or real(*args))
    tasks = """
        - set_fact: {word: "of {{ inventory_hostname }}"}
        - debug: {msg: "{{ ['h1', 'h2', 'h3'] | map('extract', hostvars, 'word') | join(' ') }}"}
        - set_fact: {word: "new of {{ inventory_hostname }}"}
          when: inventory_hostname == 'h2'
        - debug: {msg: "{{ ['h1', 'h2', 'h3'] | map('extract', hostvars, 'word') | join(' ') }}"}
    """
    result = project.run(tasks, limit="h1,h2,h3")
    assert result.rc == 0, result.stdout
    assert set(messages(result, "debug").values()) == {"of h1 new of h2 of h3"}
    assert sorted(merges) == ["h1", "h2", "h2", "h3"]
