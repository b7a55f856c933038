# SPDX-License-Identifier: GPL-3.0-or-later
"""Facts are copied and filtered as by ansible-core itself, and nobody changes the facts of a host by changing what he was given."""

from __future__ import annotations

import copy
import random

import pytest

from engines_support import messages
from forkless.core.stop import Stop
from forkless.engines.threads import context
from forkless.engines.threads.speed import facts, native_results
from forkless.engines.threads.workers import copy_variables, worker_process

pytestmark = pytest.mark.spawns

KEYS = ("a", "b", "ansible_c", "_ansible_internal", "ansible_local", 7)
SCALARS = ("text", "", 3, 2.5, True, None, b"bytes", ("a", 1))


def _tree(dice, depth):
    kind = dice.choice(("scalar", "dict", "list", "table", "tagged", "tuple")) if depth else "scalar"
    if kind == "dict":
        return {dice.choice(KEYS): _tree(dice, depth - 1) for _ in range(dice.randrange(4))}
    if kind == "list":
        return [_tree(dice, depth - 1) for _ in range(dice.randrange(12))]
    if kind == "table":  # most rows are flat, some have a list or an internal key
        rows = [{"name": dice.choice(SCALARS), "size": row} for row in range(dice.randrange(6, 14))]
        if dice.random() < 0.5:
            dice.choice(rows)[dice.choice(KEYS)] = _tree(dice, depth - 1)
        return rows
    if kind == "tuple":
        return (_tree(dice, depth - 1),)
    if kind == "tagged":
        return _tagged(_tree(dice, depth - 1))
    return dice.choice(SCALARS)


def _tagged(value):
    try:
        from ansible._internal._datatag._tags import Origin
    except ImportError:  # 2.18 has no tags
        return value
    return Origin(path="/f").tag(value)


def _containers(value):
    """All dicts and lists in a value, tuples looked into."""
    if isinstance(value, dict):
        yield value
        for one in value.values():
            yield from _containers(one)
    elif isinstance(value, list | tuple):
        if isinstance(value, list):
            yield value
        for one in value:
            yield from _containers(one)


def _shape(value):
    """The value with the type of everything in it, and the order of its keys."""
    if isinstance(value, dict):
        return type(value), [(type(key), key, _shape(one)) for key, one in dict.items(value)]
    if isinstance(value, list | tuple):
        return type(value), [_shape(one) for one in value]
    return type(value), value


def _answer(function, value):
    try:
        return _shape(function(value))
    except Exception as error:
        return type(error), str(error)


@pytest.fixture
def run_context(monkeypatch):
    made = context.RunContext(ident="x", stop=Stop())
    monkeypatch.setattr(context, "current", lambda: made)
    yield made
    copy_variables.forget_types()


@pytest.mark.matrix
def test_random_values_are_copied_as_by_ansible_core_itself(run_context):
    from ansible.vars.clean import module_response_deepcopy as original

    dice = random.Random(1)
    ours = facts.response_copied(original, "")
    tables = 0
    for _ in range(400):
        value = _tree(dice, 4)
        made, theirs = ours(value), original(value)
        assert _shape(made) == _shape(theirs)
        # What ansible-core shares is shared, and nothing else.
        before = {id(one) for one in _containers(value)}
        assert [id(one) in before for one in _containers(made)] == [id(one) in before for one in _containers(theirs)]
        tables += any(
            copy_variables.are_flat_dicts(one, facts._ATOMS) for one in _containers(value) if type(one) is list
        )
    assert tables > 10


@pytest.mark.matrix
def test_random_facts_are_filtered_as_by_ansible_core_itself(run_context, monkeypatch):
    from ansible.utils.display import Display
    from ansible.vars.clean import clean_facts as original

    told: list[str] = []
    monkeypatch.setattr(Display, "warning", lambda _self, text, *_args, **_kwargs: told.append(text))
    dice = random.Random(2)
    asked = []
    ours = facts.facts_cleaned(lambda value: asked.append(value) or original(value), "")
    names = (
        "ansible_a",
        "b",
        "_ansible_facts_gathered",
        "ansible_local",
        "ansible_ssh_pass",
        "ansible_python_interpreter",
    )
    for _ in range(300):
        value = {name: _tree(dice, 3) for name in dice.sample(names, dice.randrange(5))}
        twin = copy.deepcopy(value)  # since 2.21 upstream changes what is in tuples of the facts themselves
        theirs = _answer(original, twin), told.copy(), _shape(twin)
        told.clear()
        assert (_answer(ours, value), told, _shape(value)) == theirs
        if theirs[0][0] is dict:
            shared = {id(one) for one in _containers(value)}
            both = [[id(one) in shared for one in _containers(function(value))] for function in (ours, original)]
            assert both[0] == both[1]
        told.clear()
    assert len(asked) < 400  # of 600: with a forbidden name every time, otherwise once for a set of names


@pytest.mark.matrix
def test_a_switch_gives_ansible_cores_functions_back(run_context):
    run_context.off = frozenset({"fast-copies"})
    for stand_in in (facts.response_copied, facts.facts_cleaned):
        asked = []
        assert stand_in(lambda value, asked=asked: asked.append(value) or "theirs", "")({"a": [1]}) == "theirs"
        assert asked == [{"a": [1]}]


PLUGIN = """
from ansible.plugins.action import ActionBase


class ActionModule(ActionBase):
    def run(self, tmp=None, task_vars=None):
        if self._task.args.get('make'):
            table = [{'name': 'n%d' % n, 'size': n} for n in range(20)]
            return {'ansible_facts': {'ansible_table': table, 'deep': {'_ansible_x': 1, 'y': [1]}, '_ansible_z': 1}}
        host = task_vars['inventory_hostname']
        for table in (task_vars['ansible_facts']['table'], task_vars['ansible_table']):
            table[0]['name'] = 'changed by ' + host
            table.append(host)
        task_vars['ansible_facts']['deep']['y'].append(host)
        return {'changed': False}
"""
READ = "{{ ansible_facts.table[0].name }} {{ ansible_facts.table | length }} {{ ansible_table[0].name }} {{ ansible_facts.deep }} {{ deep }}"
TASKS = f"""
- change_facts: {{make: true}}
- debug: {{msg: "{READ}"}}
- change_facts:
- {{name: "{{{{ ansible_facts.table[0].name }}}}", debug: {{msg: "{READ}"}}}}
"""


def _write(project):
    project.write("action_plugins/change_facts.py", PLUGIN)
    project.write("library/change_facts.py", "#!/usr/bin/python\n")


@pytest.mark.matrix
@pytest.mark.parametrize("off", ["", "fast-copies"])
def test_a_plugin_that_changes_facts_changes_its_own_copy(project, off):
    _write(project)
    result = project.run(TASKS, limit="h1,h2", env={"FORKLESS_DISABLE": off, "ANSIBLE_DEPRECATION_WARNINGS": "0"})
    assert result.rc == 0, result.stdout
    expected = "n0 20 n0 {'_ansible_x': 1, 'y': [1]} {'y': [1]}"
    assert messages(result) == {"h1": expected, "h2": expected}
    assert "TASK [n0]" in result.stdout


CALLBACK = """
from ansible.plugins.callback import CallbackBase


class CallbackModule(CallbackBase):
    CALLBACK_VERSION = 2.0
    CALLBACK_NAME = 'changes'

    def v2_playbook_on_play_start(self, play):
        self.play = play

    def v2_playbook_on_task_start(self, task, is_conditional):
        manager = self.play.get_variable_manager()
        for host in manager._inventory.get_hosts():
            seen = manager.get_vars(play=self.play, host=host, task=task)
            for table in (seen['ansible_facts'].get('table'), seen.get('ansible_table')):
                if table:
                    table[0]['name'] = 'changed by a callback'
"""


@pytest.mark.matrix
def test_a_callback_that_changes_facts_changes_its_own_copy(project):
    _write(project)
    project.write("callback_plugins/changes.py", CALLBACK)
    environ = {"ANSIBLE_CALLBACKS_ENABLED": "changes", "ANSIBLE_DEPRECATION_WARNINGS": "0"}
    result = project.run(TASKS, limit="h1", env=environ)
    assert messages(result) == {"h1": "n0 20 n0 {'_ansible_x': 1, 'y': [1]} {'y': [1]}"}


LOOKUP = """
from ansible.plugins.lookup import LookupBase


class LookupModule(LookupBase):
    def run(self, terms, variables=None, **kwargs):
        variables['ansible_facts']['deep']['y'].append('by a lookup')
        return ['changed']
"""


@pytest.mark.matrix
def test_a_lookup_in_the_name_of_a_task_that_changes_facts_changes_its_own_copy(project):
    _write(project)
    project.write("lookup_plugins/changes.py", LOOKUP)
    named = "- {name: \"{{ lookup('changes') }}\", debug: {msg: named}}\n"
    tasks = f'- change_facts: {{make: true}}\n{named * 2}- debug: {{msg: "{READ}"}}\n'
    result = project.run(tasks, limit="h1", env={"ANSIBLE_DEPRECATION_WARNINGS": "0"})
    assert messages(result) == {"h1": "n0 20 n0 {'_ansible_x': 1, 'y': [1]} {'y': [1]}"}
    assert "TASK [changed]" in result.stdout


@pytest.mark.matrix
def test_only_a_strategy_of_ansible_core_without_a_debugger_is_given_the_facts_themselves(project, monkeypatch):
    given = []
    is_for_strategy = worker_process._is_for_strategy

    def watched(run_context, asked):
        given.append(is_for_strategy(run_context, asked))
        return given[-1]

    monkeypatch.setattr(worker_process, "_is_for_strategy", watched)
    _write(project)
    project.write(
        "strategy_plugins/ours.py",
        "from ansible.plugins.strategy.linear import StrategyModule as Linear\n\n\nclass StrategyModule(Linear):\n    pass\n",
    )
    for head, task, environ, expected in (
        ("", "", {}, True),
        ("strategy: free", "", {}, True),
        ("strategy: ours", "", {}, False),
        ("strategy: debug", "", {}, False),
        ("", "debugger: never", {}, False),
        ("", "", {"ANSIBLE_ENABLE_TASK_DEBUGGER": "1"}, False),
    ):
        given.clear()
        tasks = f"- debug:\n  {task}\n- debug:\n  {task}\n"
        assert project.run(tasks, head=head, limit="h1", env=environ).rc == 0
        assert any(given) is expected, (head, task, environ)


@pytest.mark.matrix
def test_random_results_are_made_native_as_by_ansible_core_itself(run_context):
    try:
        from ansible._internal._json import AnsibleVariableVisitor as Visitor
    except ImportError:
        return  # 2.18 has no visitor
    from ansible._internal._datatag._tags import Origin
    from ansible._internal._json import EncryptedStringBehavior
    from ansible.parsing.vault import EncryptedString

    native = {name: True for name in ("convert_mapping_to_dict", "convert_sequence_to_list", "convert_custom_scalars")}
    kinds = (
        {},
        {
            **native,
            "convert_to_native_values": True,
            "apply_transforms": True,
            "visit_keys": True,
            "encrypted_string_behavior": EncryptedStringBehavior.REDACT,
        },
        {"trusted_as_template": True},
        {"origin": Origin(path="/f")},
    )
    asked = []

    def original(visitor, value):
        asked.append(visitor)
        return Visitor.visit(visitor, value)

    ours = native_results.visited(original, "")
    dice = random.Random(3)
    odd = (EncryptedString(ciphertext="x"), {1}, object, Origin(path="/f").tag("text"))
    for turn in range(300):
        value = {"first": _tree(dice, 4), _tagged("second"): _tree(dice, 3), "third": 1}
        if turn % 5 == 0:
            value["odd"] = dice.choice(odd)
            value["keys"] = {_tagged("key"): [1]}
            value["rows"] = [{_tagged("key"): row} for row in range(9)]
        for kind in kinds:
            theirs, made = (
                _answer(lambda value, visit=visit, kind=kind: visit(Visitor(**kind), value), value)
                for visit in (Visitor.visit, ours)
            )
            assert made == theirs
        plain = {"table": [{"name": "n", "size": n} for n in range(9)], "text": "x"}
        copied = ours(Visitor(**kinds[1]), plain)
        assert {id(one) for one in _containers(copied)}.isdisjoint(id(one) for one in _containers(plain))
    assert all(visitor.trusted_as_template or visitor.origin for visitor in asked)
