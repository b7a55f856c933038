# SPDX-License-Identifier: GPL-3.0-or-later
"""What is left out for speed comes to nothing: with it and without it, the same values, types and words."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import gc
import subprocess
import sys
import textwrap

import pytest

from engines_support import messages
from forkless.cli import ansible_command
from forkless.core import switches
from forkless.core.stop import Stop
from forkless.engines.threads import context
from forkless.engines.threads.patches import table
from forkless.engines.threads.speed import attributes, shortcuts
from forkless.engines.threads.workers import copy_variables
from forkless.patching import seams as patching

pytestmark = pytest.mark.spawns

# Attributes of all kinds, set, unset, inherited, templated, omitted, and in a loop.
PLAY = """
- name: "named {{ inventory_hostname }}"
  debug: {msg: "{{ word | default('none') }}"}
  when: [true, "1 == 1"]
  tags: [a, "b"]
  environment: [{A: "{{ inventory_hostname }}"}, {B: two}]
  vars: {word: "{{ other | default('inner') }}"}
  register: kept
- name: looped
  debug: {msg: "{{ item }} {{ my_index }}"}
  loop: [x, "{{ inventory_hostname }}"]
  loop_control: {index_var: my_index, label: "{{ item }}"}
  until: kept is defined
  retries: "{{ 2 }}"
  delay: "{{ 0 }}"
  changed_when: "item == 'x'"
  failed_when: []
- name: block
  become: "{{ false }}"
  ignore_errors: "{{ true }}"
  module_defaults: {debug: {msg: from the defaults}}
  block:
    - {name: defaults, debug: , throttle: "{{ 1 }}", delegate_to: "{{ omit }}", no_log: "{{ omit }}"}
    - {name: failing, assert: {that: "false"}, any_errors_fatal: false, timeout: 9, check_mode: "{{ no_such | default(omit) }}"}
    - {name: wrong, debug: {msg: x}, throttle: "{{ 'many' }}"}
"""


def _swap(monkeypatch, site, stand_in):
    """Put another stand-in at a site."""
    seams = [dataclasses.replace(one, stand_in=stand_in) if one.site.endswith(site) else one for one in table.SEAMS]
    monkeypatch.setattr(table, "SEAMS", tuple(seams))


def _here():
    """The seams of the installed ansible-core."""
    return patching.for_minor(table.SEAMS, patching.minor(patching.version()))


def _outcome(validate, thing, templar):
    """All attributes as they are afterwards, or the error."""
    try:
        validate(thing, templar)
    except Exception as error:
        return type(error), str(error)
    return _slots(thing), thing._finalized


def _slots(thing):
    """What is stored, by attribute: unset is not the same as set to the default."""
    stored = {
        attribute.name: vars(thing).get(f"_{attribute.name}", "unset") for attribute in thing.fattributes.values()
    }
    stored |= {one.alias: vars(thing).get(f"_{one.alias}", "unset") for one in thing.fattributes.values() if one.alias}
    made = {name: "LoopControl" if type(value).__name__ == "LoopControl" else value for name, value in stored.items()}
    return {name: (type(value), value) for name, value in made.items()}


@pytest.mark.matrix
def test_attributes_come_out_as_from_ansible_core_itself(project, monkeypatch):
    seen, wrong = set(), []

    def both(original, site):
        ours = attributes.post_validate(original, site)
        if ours is original:
            wrong.append("ansible-core's own loop was not recognized")

        def validate(thing, templar):
            theirs = _outcome(original, copy.copy(thing), templar)
            mine = _outcome(ours, copy.copy(thing), templar)
            if mine != theirs:
                wrong.append((mine, theirs))
            seen.add(type(thing).__name__)
            ours(thing, templar)

        return validate

    _swap(monkeypatch, "Base.post_validate", both)
    result = project.run(PLAY, limit="h1,h2")
    assert not wrong
    assert messages(result, "defaults")["h1"] == "from the defaults", result.stdout
    assert "many" in result.stdout, "the wrong value was not told of"
    if patching.minor(patching.version()) != "2.18":  # which has this in one piece with more: it is left alone
        assert {"Task", "Block", "PlayContext", "LoopControl", "Play"} <= seen


VALUES = (None, True, 0, 7, 1.5, "text", "{{ 1 }}", [], ["a"], ["{{ 1 }}"], {}, {"a": 1})


def _things(base):
    """One of every class of playbook objects that can be made of nothing; a task below a block, and an import_role besides."""
    kinds, waiting = {}, [base]
    while waiting:
        kind = waiting.pop()
        waiting += kind.__subclasses__()
        with contextlib.suppress(Exception):  # of a base class, or of one that wants more
            kinds[kind.__name__] = kind
            kind()
    made = {}
    for name, kind in kinds.items():
        with contextlib.suppress(Exception):
            made[name] = functools.partial(_made, kind)
            made[name]()
    below, statically = made["Task"], made["IncludeRole"]
    made["Task in a block"] = lambda: _below(below(), made["Block"]())
    made["import_role"] = lambda: _changed(statically(), statically_loaded=True)
    made["Task, squashed"] = lambda: _changed(below(), _squashed=True)
    return made


def _made(kind):
    return kind()


def _changed(thing, **changes):
    vars(thing).update(changes)
    return thing


def _below(task, block):
    block.collections, block.tags, block.become, block.throttle = ["ns.one"], ["above"], True, 3
    task._parent = block
    return task


@pytest.mark.matrix
def test_of_every_class_and_attribute_the_same_is_stored_as_by_ansible_core_itself(project, monkeypatch):
    wrong, tried = [], set()

    def walk(original, ours, base, templar):
        for name, make in _things(base).items():
            for attribute in (None, *make().fattributes):
                for value in VALUES if attribute else (None,):
                    outcomes = []
                    for validate in (original, ours):
                        thing = make()
                        if attribute:
                            setattr(thing, attribute, copy.copy(value))
                        outcomes.append((_outcome(validate, thing, templar), _slots(thing)))
                    tried.add((name, attribute))
                    if outcomes[0] != outcomes[1]:
                        wrong.append((name, attribute, value, outcomes))

    def first_walks(original, site):
        ours = attributes.post_validate(original, site)
        waiting = [] if ours is original else [walk]

        def validate(thing, templar):
            if waiting and type(thing).__name__ == "Task":
                base = next(kind for kind in type(thing).__mro__ if kind.__name__ == "FieldAttributeBase")
                waiting.pop()(original, ours, base, templar)
            ours(thing, templar)

        return validate

    _swap(monkeypatch, "Base.post_validate", first_walks)
    result = project.run("- debug: {msg: done}\n", limit="h1")
    assert messages(result) == {"h1": "done"}, result.stdout
    assert not wrong
    if patching.minor(patching.version()) != "2.18":  # which has this in one piece with more: it is left alone
        kinds = {
            "Task",
            "Handler",
            "Block",
            "Play",
            "PlayContext",
            "LoopControl",
            "RoleMetadata",
            "IncludeRole",
            "import_role",
        }
        assert kinds <= {name for name, _ in tried}


COLLECTIONS = """
- hosts: h1
  gather_facts: false
  collections: [ns.c]
  roles: [top]
"""


@pytest.mark.matrix
def test_a_role_that_imports_roles_finds_each_in_the_collections_of_its_play(project):
    inside = "collections/ansible_collections/ns/c/roles"
    for name, path in {"z": f"{inside}/z", "b": f"{inside}/b", "elsewhere": "roles/b"}.items():
        project.write(f"{path}/tasks/main.yml", f"- {{name: told, debug: {{msg: {name}}}}}\n")
    imports = "".join(f"- import_role: {{name: {name}}}\n" for name in ("z", "z", "b"))
    project.write(f"{inside}/top/tasks/main.yml", imports)
    project.write("play.yml", COLLECTIONS)
    result = project.run(env={"ANSIBLE_COLLECTIONS_PATH": str(project.folder / "collections")})
    told = [event.event_data["res"]["msg"] for event in result.events if event.event == "runner_on_ok"]
    assert told == ["z", "z", "b"], result.stdout


@pytest.mark.matrix
def test_copies_of_tasks_and_blocks_have_all_that_ansible_cores_have(project, monkeypatch):
    kinds, wrong = set(), []

    def both(original, site):
        ours = shortcuts.copied(original, site)
        if ours is original:
            wrong.append("ansible-core's own copy was not recognized")

        def twin(thing):
            theirs, made = vars(original(thing)), ours(thing)
            kinds.add(type(made).__name__)
            if {name: type(value) for name, value in vars(made).items()} != {
                name: type(value) for name, value in theirs.items()
            }:
                wrong.append((vars(made), theirs))
            for name, value in vars(made).items():
                if isinstance(value, list | dict) and (
                    value != theirs[name] or (name not in shortcuts._BESIDE and value is vars(thing)[name])
                ):
                    wrong.append((name, value, theirs[name]))
            return made

        return twin

    _swap(monkeypatch, "Base.copy", both)
    project.run(PLAY, limit="h1,h2")
    assert not wrong
    assert {"Task", "Block", "PlayContext"} <= kinds


@pytest.mark.matrix
def test_what_is_told_of_a_task_is_what_ansible_core_tells(project, monkeypatch):
    told, wrong = [], []

    def both(original, site):
        ours = shortcuts.dumped(original, site)
        if ours is original:
            wrong.append("ansible-core's own was not recognized")

        def dump(thing):
            mine, theirs = ours(thing), original(thing)
            told.append(type(thing).__name__)
            if list(mine.items()) != list(theirs.items()):
                wrong.append((mine, theirs))
            return mine

        return dump

    _swap(monkeypatch, "Base.dump_attrs", both)
    project.run(PLAY, limit="h1,h2")
    assert not wrong
    assert {"Task", "LoopControl"} <= set(told)


@pytest.mark.matrix
def test_arguments_are_copied_deeply_before_they_are_checked(project, monkeypatch):
    copies = []

    def watched(original, site):
        quick = shortcuts.deep_copy(original, site)

        def copy_(value):
            made, theirs = quick(value), original(value)
            same = (type(made), made) == (type(theirs), theirs) and made is not value
            copies.append(same and all(made[key] is not one for key, one in value.items() if isinstance(one, list)))
            return made

        return copy_

    _swap(monkeypatch, "arg_spec:deepcopy", watched)
    tasks = "- debug: {msg: [a, {b: [1, 2.5, null]}]}\n- assert: {that: ['1 == 1', &a 'true', *a], quiet: true}\n"
    assert project.run(tasks, limit="h1").rc == 0
    assert copies
    assert all(copies)


@pytest.mark.matrix
def test_what_is_read_from_a_file_is_copied_deeply(project, monkeypatch):
    wrong = []

    def no_container_of(one, other):
        if isinstance(one, list | dict):
            below = zip(one, other, strict=True) if isinstance(one, list) else ((one[key], other[key]) for key in one)
            return one is not other and type(one) is type(other) and all(no_container_of(*pair) for pair in below)
        return type(one) is type(other)

    def watched(original, site):
        view = shortcuts.deep_copies(original, site)
        quick = view.deepcopy

        def copy_(value):
            made = quick(value)
            if made != original.deepcopy(value) or not no_container_of(made, value):
                wrong.append((made, value))
            return made

        type(view).deepcopy = staticmethod(copy_)
        return view

    _swap(monkeypatch, "dataloader:copy", watched)
    project.write("group_vars/all.yml", "word: {deep: [1, {er: [2.5, null, 'x']}]}\n")
    result = project.run(PLAY + "- {name: last, debug: {msg: '{{ word.deep[1].er }}'}}\n", limit="h1,h2")
    assert not wrong
    assert result.events


def test_what_is_no_plain_tree_is_left_to_the_stdlib():
    inner = [1]
    round_about = []
    round_about.append(round_about)
    for value in ([inner, inner], round_about, [({},)], {"a": {1, 2}}, [object()]):
        assert not copy_variables.is_plain_tree(value)
    assert copy_variables.is_plain_tree({"a": [1, "b", {"c": None}], "d": 2.5})


@pytest.mark.matrix
def test_text_within_a_template_comes_out_as_from_ansible_core_itself(project, monkeypatch):
    if patching.minor(patching.version()) == "2.18":  # templates another way there
        assert not [one for one in _here() if one.site.endswith("TemplateEngine.template")]
        return
    differ, quick_ones = [], []

    def watched(original, site):
        assert shortcuts.text_within(original, site) is not original
        asked = []

        @functools.wraps(original)
        def spy(*args, **kwargs):
            asked.append(1)
            return original(*args, **kwargs)

        monkeypatch.setattr(shortcuts, "uses_only", lambda *_: True)
        quick = shortcuts.text_within(spy, site)

        def template(engine, variable, **how):
            before = len(asked)
            made = quick(engine, variable, **how)
            if len(asked) == before:
                quick_ones.append(variable)
                theirs = original(engine, variable, **how)
                if (type(made), made) != (type(theirs), theirs):
                    differ.append((variable, made, theirs))
            return made

        return template

    _swap(monkeypatch, "TemplateEngine.template", watched)
    _swap(monkeypatch, "_AnsibleLazyTemplateList._proxy_or_render_lazy_values", lambda original, _site: original)
    project.write(
        "group_vars/all.yml",
        r"""words: [plain, '{{ inventory_hostname }}', "#jinja2: variable_start_string: '[['\n[[ inventory_hostname }}", '{% raw %}{{{% endraw %}', '{', '', !unsafe '{{ no }}', 7]
other: '{{ words }}'
""",
    )
    tasks = """
        - debug: {msg: "{{ inventory_hostname in groups['all'] }} {{ other }} {{ words | join(',') }}"}
        - assert: {that: ["'plain' in words", "inventory_hostname in words", "other | length == 8"]}
    """
    result = project.run(tasks, limit="h1,h2")
    assert result.rc == 0, result.stdout
    assert "plain,h1,h1,{{,{,,{{ no }},7" in messages(result, "debug")["h1"]
    assert {"h1", "plain"} <= set(quick_ones)
    assert not [one for one in quick_ones if "{" in one or one.startswith("#jinja2:")]
    assert not differ


@pytest.mark.matrix
def test_a_list_of_nothing_but_text_has_in_it_what_ansible_core_finds_there(project, monkeypatch):
    name = "_AnsibleLazyTemplateList._proxy_or_render_lazy_values"
    if patching.minor(patching.version()) == "2.18":  # templates another way there
        assert not [one for one in _here() if one.site.endswith(name)]
        return
    differ, quick_ones, slow_ones = [], [], []

    def watched(original, site):
        assert shortcuts.texts_within(original, site) is not original
        asked = []

        @functools.wraps(original)
        def spy(values):
            asked.append(1)
            return original(values)

        monkeypatch.setattr(shortcuts, "uses_only", lambda *_: True)
        quick = shortcuts.texts_within(spy, site)

        def render(values):
            before, theirs = len(asked), copy.copy(values)
            quick(values)
            raw = list(list.__iter__(values))
            if len(asked) > before:
                slow_ones.append(raw)
                return
            quick_ones.append(raw)
            original(theirs)
            expected = list(list.__iter__(theirs))
            if list(map(type, raw)) != list(map(type, expected)) or raw != expected:
                differ.append((raw, expected))

        return render

    _swap(monkeypatch, name, watched)
    project.write("group_vars/all.yml", "words: [plain, '{{ inventory_hostname }}']\nnumbers: [1, 2]\n")
    tasks = """
        - assert: {that: ["inventory_hostname in groups['all']", "'h3' in groups['all']", "'x' not in groups['all']", "groups['all'] == groups['all']"]}
        - assert: {that: ["inventory_hostname in words", "2 in numbers", "groups['all'].index('h1') == 0"]}
        - assert: {that: ["missing in groups['all']"]}
          ignore_errors: true
    """
    result = project.run(tasks, limit="h1,h2")
    assert result.rc == 0, result.stdout
    assert "'missing' is undefined" in result.stdout
    assert [one for one in quick_ones if one[:2] == ["h1", "h2"]]
    assert [1, 2] in slow_ones
    assert ["plain", "h1"] in slow_ones
    assert not differ


@pytest.mark.matrix
def test_what_is_tagged_for_vars_is_what_ansible_core_tags(monkeypatch):
    tagging = [one for one in _here() if one.site.endswith(":_DEPRECATE_VARS")]
    if not tagging:
        assert patching.minor(patching.version()) in ("2.18", "2.19"), "`vars` is a plain copy there"
        return
    from ansible._internal._datatag._tags import Origin
    from ansible.module_utils._internal._datatag import AnsibleTagHelper
    from ansible.vars import manager

    run_context = context.RunContext(ident="x", stop=Stop())
    monkeypatch.setattr(context, "current", lambda: run_context)
    original = manager._DEPRECATE_VARS
    quick = shortcuts.variables_again(original, "")
    inner = ["x"]
    values = [
        "",
        "text",
        7,
        1.5,
        True,
        None,
        inner,
        {"a": inner},
        Origin(path="/f").tag("told"),
        Origin(path="/f").tag([1]),
    ]
    for off in (frozenset(), frozenset({"fast-copies"})):
        run_context.off = off
        for value in values:
            ours, theirs = quick.tag(value), original.tag(value)
            assert (type(ours), ours) == (type(theirs), theirs)
            assert AnsibleTagHelper.tags(ours) == AnsibleTagHelper.tags(theirs)
            assert (ours is value) == (theirs is value)
    assert quick.tag({"a": inner})["a"] is inner
    assert quick.msg == original.msg
    run_context.off = frozenset()
    text, number = "te" + str(1), Origin(path="/f").tag(7)
    assert quick.tag(text) is quick.tag(text), "the tagged copy of a text is made once for the run"
    assert quick.tag(number) is quick.tag(number)
    assert quick.tag(inner) is not quick.tag(inner)
    # Another object may get the id of one that is gone, and has its own tagged copy.
    assert [quick.tag(str(n) * 3) for n in range(100)] == [str(n) * 3 for n in range(100)]
    monkeypatch.setattr(shortcuts, "_TAGGED_AT_MOST", 3)
    assert [quick.tag(str(n) * 3) for n in range(100)] == [str(n) * 3 for n in range(100)]
    assert len(run_context.state[shortcuts._TAGGED]) <= 3


@pytest.mark.matrix
@pytest.mark.parametrize("name", shortcuts.NAMES)
def test_a_shortcut_that_is_switched_off_gives_the_same_answers(project, name):
    with_it, without = (project.run(PLAY, limit="h1", env={"FORKLESS_DISABLE": off}) for off in ("", name))
    assert with_it.stdout == without.stdout
    assert "from the defaults" in without.stdout


def test_every_shortcut_has_a_name_that_switches_it_off():
    assert set(shortcuts.NAMES) < set(switches.NAMES)


def test_a_function_of_ansible_core_that_does_more_than_we_know_is_left_alone():
    def copy_(self):
        made = self.__class__()
        made._something_new = self._something_new
        return made

    assert shortcuts.copied(copy_, "") is copy_
    assert attributes.post_validate(copy_, "") is copy_


PROFILED = """
    import cProfile, threading
    from forkless.engines.threads.workers.interrupt import Interrupt, WorkerStopped

    def work(stop):
        reach = Interrupt()
        try:
            reach.begin()
            if stop:
                reach.trigger(WorkerStopped)
                while True:
                    pass
        except WorkerStopped:
            pass
        reach.end()

    for stop in (False, True):
        thread = threading.Thread(target=work, args=[stop])
        thread.start()
        thread.join()
    print(cProfile.Profile().runcall(sorted, [2, 1], key=lambda x: x))
"""


def test_a_worker_that_ended_leaves_no_flag_by_which_a_profiler_would_stand_still():
    """Up to Python 3.12 an error that is taken back by sending NULL slows every later call down, and stops a profiled one for ever."""
    line = [sys.executable, "-c", textwrap.dedent(PROFILED)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=240, check=True)
    assert (done.stdout, done.stderr) == ("[1, 2]\n", "")


@pytest.mark.matrix
def test_the_collector_is_as_it_was_after_a_command(monkeypatch):
    before = gc.get_threshold()
    with monkeypatch.context() as env:
        env.setenv("FORKLESS_DISABLE", "gc-tuning")
        with ansible_command._rarely_collecting():
            assert gc.get_threshold() == before
    with ansible_command._rarely_collecting():
        assert gc.get_threshold()[0] > before[0]
    assert gc.get_threshold() == before


def test_a_run_in_a_program_leaves_the_collector_alone(project, monkeypatch):
    monkeypatch.setattr(gc, "set_threshold", lambda *_: pytest.fail("the program's collector was touched"))
    assert project.run("- debug: {msg: hi}\n", limit="h1").rc == 0
