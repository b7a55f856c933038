# SPDX-License-Identifier: GPL-3.0-or-later
"""What is kept for a run is never older than what stock would have seen, has a bound, and can be switched off by name."""

from __future__ import annotations

import inspect
import os
import types

import pytest

import forkless
from engines_support import messages, world_of_runs
from forkless.core import switches
from forkless.core.stop import Stop
from forkless.engines.threads import context
from forkless.engines.threads.speed import caches

pytestmark = pytest.mark.spawns


@pytest.fixture
def hits(monkeypatch):
    """How often each cache answered, of the last run."""
    counted = {}
    real = caches.cache_of

    def counting(run_context, name):
        found = real(run_context, name)
        if found is not None:
            counted[name] = found
        return found

    monkeypatch.setattr(caches, "cache_of", counting)
    return lambda: {name: cache.hits for name, cache in counted.items()}


PLAY = """
- debug: {msg: "{{ inventory_hostname }} {{ word | default('none') }}"}
- assert: {that: "inventory_hostname is match('h')"}
"""
# Where a host has facts, Ansible looks through the folders of all connections to clean them.
FACTS = "- set_fact: {known: 1, cacheable: true}\n"


@pytest.mark.matrix
def test_every_cache_answers_in_an_ordinary_run(project, hits):
    project.write("group_vars/all.yml", "word: kept\n")
    project.run(PLAY, limit="h1")  # what is kept for the process is there from the second run on
    result = project.run(FACTS + PLAY)
    assert result.rc == 0, result.stdout
    assert messages(result, "debug")["h3"] == "h3 kept"
    assert set(hits()) == set(caches.BOUNDS)
    assert all(hits().values()), hits()


@pytest.mark.matrix
@pytest.mark.parametrize("name", caches.BOUNDS)
def test_a_cache_that_is_switched_off_is_not_asked_and_the_answers_are_the_same(project, hits, name):
    project.write("group_vars/all.yml", "word: kept\n")
    result = project.run(FACTS + PLAY, env={"FORKLESS_DISABLE": f" {name},"}, limit="h1,h2")
    assert result.rc == 0, result.stdout
    assert messages(result, "debug") == {"h1": "h1 kept", "h2": "h2 kept"}
    assert set(hits()) == set(caches.BOUNDS) - {name}


def test_every_cache_has_a_name_that_switches_it_off():
    assert set(caches.BOUNDS) < set(switches.NAMES)


def test_a_cache_that_does_not_exist_is_named_in_one_sentence(project):
    with pytest.raises(forkless.SpecError) as caught:
        project.run(PLAY, env={"FORKLESS_DISABLE": "template-cache,no-such"})
    assert str(caught.value).startswith(
        "FORKLESS_DISABLE names no-such, and there is no such part; there are template-cache, "
    )


@pytest.mark.matrix
def test_the_same_text_with_other_variables_gives_another_answer(project):
    result = project.run('- debug: {msg: "{{ item + 1 }} {{ inventory_hostname }}"}\n  loop: [1, 2]\n')
    items = [e for e in result.events if e.event == "runner_item_on_ok"]
    said = {(e.host, e.event_data["res"]["msg"]) for e in items}
    assert said == {(f"h{n}", f"{m} h{n}") for n in range(1, 7) for m in (2, 3)}


@pytest.mark.matrix
def test_a_filter_or_test_of_constants_is_asked_each_time(project, tmp_path):
    """Up to 2.18 Jinja puts its result into the compiled template."""
    project.write(
        "filter_plugins/f.py",
        "import pathlib\n"
        + FILTER
        % "lambda x: pathlib.Path(x + '.' + str(len(list(pathlib.Path(x).parent.glob('count.*'))))).write_text('')",
    )
    tasks = (
        f"- debug: {{msg: \"{{{{ '{tmp_path}/count' | shout }}}}\"}}\n"
        f"- debug: {{msg: \"{{{{ '{tmp_path}/flag' is exists }}}}\"}}\n"
        f"- copy: {{content: x, dest: '{tmp_path}/flag'}}\n  delegate_to: localhost\n  vars: {{ansible_connection: local}}\n"
        f"- debug: {{msg: \"{{{{ '{tmp_path}/flag' is exists }}}}\"}}\n"
    )
    before = project.run(tasks, limit="h1")
    assert before.rc == 0, before.stdout
    assert str(messages(before)["h1"]) == "True"
    first = len(list(tmp_path.glob("count.*")))
    project.run(tasks, limit="h1,h2", forks=1)
    assert len(list(tmp_path.glob("count.*"))) == first + 2


FILTER = "class FilterModule:\n    def filters(self):\n        return {'shout': %s}\n"
TAKES_CONTEXT = (
    "try:\n    from jinja2 import pass_context\nexcept ImportError:\n    raise\n"
    "@pass_context\ndef shout(context, x):\n    return x + '!' + context['inventory_hostname']\n" + FILTER % "shout"
)


@pytest.mark.matrix
def test_a_filter_of_another_shape_is_seen_by_the_next_run(project):
    """Jinja compiles a call differently for a filter that wants the context."""
    file = project.write("filter_plugins/f.py", FILTER % "lambda x: x + '?'")
    tasks = "- debug: {msg: \"{{ 'a' | shout }}\"}\n"
    assert messages(project.run(tasks, limit="h1")) == {"h1": "a?"}
    file.unlink()
    project.write("filter_plugins/g.py", TAKES_CONTEXT)
    assert messages(project.run(tasks, limit="h1")) == {"h1": "a!h1"}


@pytest.mark.matrix
def test_a_filter_of_a_role_that_comes_later_in_the_run_is_seen(project):
    project.write("roles/loud/filter_plugins/f.py", TAKES_CONTEXT)
    project.write("roles/loud/tasks/main.yml", "- debug: {msg: \"{{ 'a' | shout }}\"}\n")
    result = project.run(
        "- debug: {msg: \"{{ 'a' | shout }}\"}\n  ignore_errors: true\n- include_role: {name: loud}\n", limit="h1"
    )
    assert result.rc == 0, result.stdout
    assert messages(result, "debug") == {"h1": "a!h1"}


@pytest.mark.matrix
def test_a_changed_variable_file_is_seen_by_the_next_run(project):
    for word in ("one", "two"):
        project.write("group_vars/all.yml", f"word: {word}\n")
        project.write("host_vars/h2.yml", f"word: {word} of h2\n")
        said = messages(project.run(PLAY, limit="h1,h2"), "debug")
        assert said == {"h1": f"h1 {word}", "h2": f"h2 {word} of h2"}


@pytest.mark.matrix
def test_a_host_that_joins_a_group_gets_its_variables(project):
    project.write("group_vars/late.yml", "word: late\n")
    result = project.run("- group_by: {key: late}\n  when: inventory_hostname == 'h1'\n" + PLAY, limit="h1,h2")
    assert messages(result, "debug") == {"h1": "h1 late", "h2": "h2 none"}


VARS_PLUGIN = """
import itertools
from ansible.plugins.vars import BaseVarsPlugin
N = itertools.count()
class VarsModule(BaseVarsPlugin):
    REQUIRES_ENABLED = False
    def get_vars(self, loader, path, entities, cache=True):
        return {'word': next(N)}
"""


@pytest.mark.matrix
def test_a_vars_plugin_that_says_something_else_each_time_is_asked_each_time(project):
    project.write("vars_plugins/counts.py", VARS_PLUGIN)
    tasks = "- {name: first, debug: {msg: '{{ word }}'}}\n- {name: second, debug: {msg: '{{ word }}'}}\n"
    result = project.run(tasks, limit="h1")
    assert result.rc == 0, result.stdout
    assert messages(result, "first") != messages(result, "second")


ACTION = "from ansible.plugins.action import ActionBase\nclass ActionModule(ActionBase):\n    def run(self, tmp=None, task_vars=None):\n        return {'msg': %r}\n"


@pytest.mark.matrix
def test_a_plugin_in_a_search_path_that_a_role_adds_is_found_and_one_that_changed_is_seen_by_the_next_run(project):
    project.write("roles/r/action_plugins/who.py", ACTION % "the role's")
    project.write("roles/r/tasks/main.yml", "- who:\n")
    project.write("roles/r/meta/main.yml", "{}\n")
    result = project.run("- include_role: {name: r}\n", limit="h1")
    assert messages(result) == {"h1": "the role's"}, result.stdout
    project.write("action_plugins/who.py", ACTION % "the play's")
    assert messages(project.run("- who:\n", limit="h1")) == {"h1": "the play's"}
    project.write("action_plugins/who.py", ACTION % "another")
    assert messages(project.run("- who:\n", limit="h1")) == {"h1": "another"}


def test_a_redirection_is_told_of_each_time_as_with_stock(project):
    """In each run, and for each host."""
    folder = "collections/ansible_collections/t/c"
    project.write(f"{folder}/meta/runtime.yml", "plugin_routing: {lookup: {old: {redirect: t.c.new}}}\n")
    project.write(
        f"{folder}/plugins/lookup/new.py",
        """
        from ansible.plugins.lookup import LookupBase
        class LookupModule(LookupBase):
            def run(self, terms, variables=None, **kwargs):
                return ["new"]
        """,
    )
    task = "- debug: {msg: \"{{ lookup('t.c.old') }}\"}\n"
    for _ in range(2):
        told = project.run(task, limit="h1,h2", verbosity=2).stdout
        assert told.count("redirecting (type: lookup) t.c.old to t.c.new") == 2
    assert "redirecting" not in project.run(task, limit="h1", verbosity=1).stdout


def test_a_plugin_whose_file_is_gone_is_looked_for_again(tmp_path):
    class Found:
        resolved, deprecated, error_list, import_error_list, redirect_list = True, False, [], [], []

        def __init__(self, path):
            self.plugin_resolved_path = str(path)

    class Loader:
        _extra_dirs = []

    asked = []

    def search(loader, name, *rest):
        asked.append(name)
        return Found(tmp_path / f"{len(asked)}.py")

    find = caches.plugin(search, "")
    (tmp_path / "1.py").touch()
    with context.enter(context.RunContext(ident="x", stop=Stop())):
        loader = Loader()
        assert find(loader, "a") is not find(loader, "a")  # whoever asks may write to what it gets
        assert asked == ["a"]
        (tmp_path / "1.py").unlink()
        assert find(loader, "a").plugin_resolved_path.endswith("2.py")
        loader._extra_dirs = ["more"]
        find(loader, "a")
        assert len(asked) == 3


def test_a_new_file_in_a_folder_of_plugins_is_listed(tmp_path):
    class Loader:
        def _get_paths_with_context(self):
            return [str(tmp_path)]

    asked = []

    def listing(loader, path_only):
        asked.append(1)
        yield from sorted(str(path) for path in tmp_path.iterdir())

    list_all = caches.folder(listing, "")
    with context.enter(context.RunContext(ident="x", stop=Stop())):
        loader = Loader()
        assert list(list_all(loader, path_only=True)) == list(list_all(loader, path_only=True)) == []
        assert len(asked) == 1
        (tmp_path / "new.py").touch()
        assert list(list_all(loader, path_only=True)) == [str(tmp_path / "new.py")]


OPTION = """
- debug: {msg: "{{ lookup('config', 'display_ok_hosts', plugin_type='callback', plugin_name='default') }}"}
"""


@pytest.mark.matrix
def test_options_of_a_plugin_are_each_runs_own_and_another_documentation_is_seen(project, monkeypatch):
    monkeypatch.setattr(caches, "PROCESS_CACHES", {"option-cache": caches.BoundedCache(64)})
    assert set(messages(project.run(OPTION, limit="h1")).values()) == {True}
    kept = dict(caches.PROCESS_CACHES["option-cache"])
    assert kept
    assert None in kept.values(), "that there are none is kept as well: host_list has none"
    # The same plugin with other words: they are read.
    host_list = world_of_runs()["ansible.plugins.inventory.host_list"]
    other = host_list.DOCUMENTATION + "\n    options: {new_one: {default: 7}}\n"
    monkeypatch.setattr(host_list, "DOCUMENTATION", other)
    assert project.run(PLAY, limit="h1").rc == 0
    (found,) = [value for key, value in caches.PROCESS_CACHES["option-cache"].items() if key[-1] == other]
    assert found == {"new_one": {"default": 7}}


def test_a_command_at_a_terminal_keeps_only_that_a_plugin_has_no_options(project, monkeypatch):
    """No later run could use the others, and within the run ansible-core keeps them itself."""
    monkeypatch.setattr(caches, "PROCESS_CACHES", {"option-cache": caches.BoundedCache(64)})

    def at_a_terminal():
        """The thread's run, which only the caches see at a terminal: signals and prompts stay the program's."""
        run_context = context.current()
        return run_context and types.SimpleNamespace(off=run_context.off, state=run_context.state, terminal=object())

    monkeypatch.setattr(caches, "context", types.SimpleNamespace(current=at_a_terminal))
    assert project.run(PLAY, limit="h1").rc == 0
    kept = list(caches.PROCESS_CACHES["option-cache"].values())
    assert kept
    assert not any(kept)


@pytest.mark.matrix
def test_a_project_with_parts_of_documentation_of_its_own_has_options_read_anew(project, monkeypatch):
    monkeypatch.setattr(caches, "PROCESS_CACHES", {"option-cache": caches.BoundedCache(64)})
    project.write("fragments/mine.py", "class ModuleDocFragment:\n    DOCUMENTATION = 'options: {}'\n")
    project.run(OPTION, limit="h1", env={"ANSIBLE_DOC_FRAGMENT_PLUGINS": str(project.folder / "fragments")})
    assert not caches.PROCESS_CACHES["option-cache"]


def test_the_folders_of_ansible_core_are_read_again_when_they_change(tmp_path, monkeypatch):
    run_context = context.RunContext(ident="x", stop=Stop())
    monkeypatch.setattr(context, "current", lambda: run_context)
    monkeypatch.setattr(caches.plugin_loader, "own_files", lambda path: path == str(tmp_path))
    pattern = str(tmp_path / "*.py")
    reads = []
    real = caches.glob.glob
    monkeypatch.setattr(caches.glob, "glob", lambda pattern: reads.append(pattern) or real(pattern))
    assert caches.glob_view.glob(pattern) == []
    (tmp_path / "one.py").touch()
    os.utime(tmp_path, ns=(1, 1))
    for _ in range(2):
        found = caches.glob_view.glob(pattern)
        assert found == [str(tmp_path / "one.py")]
        found.clear()  # it is the caller's own
    assert len(reads) == 2
    run_context.off = frozenset({"folder-cache"})
    caches.glob_view.glob(pattern)
    assert len(reads) == 3


def test_what_an_option_takes_is_found_out_once_and_anew_for_another(monkeypatch):
    run_context = context.RunContext(ident="x", stop=Stop())
    monkeypatch.setattr(context, "current", lambda: run_context)

    def one(a, b=1): ...
    def two(c): ...

    for function in (one, two):
        assert caches.inspect_view.signature(function) == inspect.signature(function)
        assert caches.inspect_view.signature(function) is caches.inspect_view.signature(function)
    run_context.off = frozenset({"option-cache"})
    assert caches.inspect_view.signature(one) is not caches.inspect_view.signature(one)


def test_another_user_is_seen(monkeypatch):
    with context.enter(context.RunContext(ident="x", stop=Stop())):
        monkeypatch.setenv("LOGNAME", "ada")
        assert caches.getpass_view.getuser() == "ada"
        monkeypatch.setenv("LOGNAME", "grace")
        assert caches.getpass_view.getuser() == "grace"


def test_a_full_cache_is_emptied_and_goes_on():
    cache = caches.BoundedCache(3)
    for n in range(10):
        cache.store(n, n)
        assert len(cache) <= 3
        assert cache[n] == n


@pytest.mark.matrix
def test_nothing_that_was_kept_outlives_its_run(project, monkeypatch):
    made = []
    kept = caches.BoundedCache.__init__

    def init(self, bound):
        made.append(self)
        kept(self, bound)

    monkeypatch.setattr(caches.BoundedCache, "__init__", init)
    project.run(FACTS + PLAY, limit="h1")
    first = len(made)
    project.run(FACTS + PLAY, limit="h1")
    assert first == len(caches.BOUNDS) - len(caches.PROCESS_CACHES)
    assert len(made) == 2 * first, "the second run made its own"


@pytest.mark.matrix
def test_types_that_were_looked_at_are_forgotten_with_the_stage(project):
    from forkless.engines.threads.workers import copy_variables

    project.run(PLAY, limit="h1")
    assert {kind.__module__ for kind in copy_variables._copiers} == {"builtins"}
    assert {kind.__module__ for kind in copy_variables._ATOMS} == {"builtins"}
