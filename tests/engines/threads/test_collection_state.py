# SPDX-License-Identifier: GPL-3.0-or-later
"""Module-level state of a collection's plugins belongs to one worker, as it did when workers were processes."""

from __future__ import annotations

import logging
import os
import shutil
import sys
import textwrap

import pytest

import prepare_collections
from collection_state import KINDS, messages, write_collection
from forkless.engines.threads.patches import collection_modules, stateless_files

# Importing ansible-core for another folder of collections starts ldconfig.
pytestmark = pytest.mark.spawns
COLLECTIONS = prepare_collections.FOLDER


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("collections") / "project"


@pytest.fixture
def project(folder, projects):
    """One folder for all tests: ansible-core is imported anew for every other."""
    shutil.rmtree(folder, ignore_errors=True)
    made = projects(folder)
    (folder / "collections").mkdir()
    return made


FILTER = """

class FilterModule:
    def filters(self):
        return {"calls": lambda _value: str(calls())}
"""


@pytest.mark.parametrize("kind", KINDS)
def test_state_of_a_filter_is_the_workers_own(project, kind):
    """Two calls in one task see each other; no other task, host or run sees either."""
    write_collection(project, {"plugins/filter/counts.py": textwrap.dedent(KINDS[kind]) + FILTER})
    for _ in range(2):
        result = project.run(
            "- debug: {msg: \"{{ ['' | t.state.calls, '' | t.state.calls] | join(',') }}\"}\n" * 2,
            forks=3,
            limit="h1,h2,h3",
        )
        assert messages(result) == ["1,2"] * 6
    assert "forkless_test_entry" not in sys.modules
    assert "FORKLESS_TEST_CALLS" not in os.environ
    assert not hasattr(os, "replaced")
    assert not logging.getLogger("forkless.test.handler").handlers


WAYS = {
    "at the top": "from ansible_collections.t.state.plugins.module_utils.counter import calls\n",
    "relatively": "from ..module_utils.counter import calls\n",
    "the module": "from ansible_collections.t.state.plugins.module_utils import counter\ncalls = lambda: counter.calls()\n",
    "by its path": """
        import ansible_collections.t.state.plugins.module_utils.counter
        def calls():
            return ansible_collections.t.state.plugins.module_utils.counter.calls()
    """,
    "under another name": "import ansible_collections.t.state.plugins.module_utils.counter as c\ncalls = lambda: c.calls()\n",
    "in the function": """
        def calls():
            from ansible_collections.t.state.plugins.module_utils.counter import calls
            return calls()
    """,
    "by importlib": """
        import importlib
        def calls():
            return importlib.import_module("ansible_collections.t.state.plugins.module_utils.counter").calls()
    """,
    "by __import__": """
        def calls():
            name = "ansible_collections.t.state.plugins.module_utils.counter"
            return __import__(name, fromlist=["calls"]).calls()
    """,
    "by exec": """
        def calls():
            space = {}
            exec("from ansible_collections.t.state.plugins.module_utils.counter import calls", space)
            return space["calls"]()
    """,
    "in sys.modules": """
        import sys
        from ansible_collections.t.state.plugins.module_utils import counter
        def calls():
            return sys.modules["ansible_collections.t.state.plugins.module_utils.counter"].calls()
    """,
    "from a package": "from ansible_collections.t.state.plugins.module_utils.package import calls\n",
    "through a file without state": "from ansible_collections.t.state.plugins.module_utils.passes import calls\n",
    "in a function of a file without state": "from ansible_collections.t.state.plugins.module_utils.later import calls\n",
    "of another collection": "from ansible_collections.t.other.plugins.module_utils.counter import calls\n",
    "redirected": "from ansible_collections.t.state.plugins.module_utils.old import calls\n",
    "by the stdlib's own import": """
        import pkgutil
        def calls():
            return pkgutil.resolve_name("ansible_collections.t.state.plugins.module_utils.counter:calls")()
    """,
    "set from outside": """
        from ansible_collections.t.state.plugins.module_utils import constants
        def calls():
            constants.N = constants.N + 1
            return constants.n()
    """,
}


@pytest.mark.parametrize("way", WAYS)
def test_state_of_what_a_plugin_imports_is_the_workers_own(project, way):
    counter = KINDS["a module's dict"]
    write_collection(project, {"plugins/module_utils/counter.py": counter}, "t/other")
    write_collection(
        project,
        {
            "meta/runtime.yml": """
                import_redirection:
                  ansible_collections.t.state.plugins.module_utils.old:
                    redirect: ansible_collections.t.state.plugins.module_utils.counter
            """,
            "plugins/module_utils/__init__.py": "",
            "plugins/module_utils/counter.py": counter,
            "plugins/module_utils/constants.py": "N = 0\ndef n():\n    return N\n",
            "plugins/module_utils/package/__init__.py": counter,
            "plugins/module_utils/passes.py": "from .counter import calls\n",
            "plugins/module_utils/later.py": "def calls():\n    from .counter import calls\n    return calls()\n",
            "plugins/filter/counts.py": textwrap.dedent(WAYS[way]) + FILTER,
        },
    )
    result = project.run(
        "- debug: {msg: \"{{ ['' | t.state.calls, '' | t.state.calls] | join(',') }}\"}\n" * 2,
        forks=3,
        limit="h1,h2,h3",
    )
    assert messages(result) == ["1,2"] * 6


PLUGINS = {
    "plugins/test/counts.py": """
        from ..module_utils.counter import calls
        class TestModule:
            def tests(self):
                return {"first": lambda _value: calls() == 1}
    """,
    "plugins/lookup/counts.py": """
        from ansible.plugins.lookup import LookupBase
        from ..module_utils.counter import calls
        class LookupModule(LookupBase):
            def run(self, terms, variables=None, **kwargs):
                return [str(calls())]
    """,
    "plugins/action/counts.py": """
        from ansible.plugins.action import ActionBase
        from ..module_utils.counter import calls
        class ActionModule(ActionBase):
            def run(self, tmp=None, task_vars=None):
                return {"msg": str(calls())}
    """,
    "plugins/connection/counts.py": """
        DOCUMENTATION = "name: counts\\nshort_description: x\\ndescription: x\\noptions: {}"
        from ansible.plugins.connection.local import Connection as Local
        from ..module_utils.counter import calls
        class Connection(Local):
            transport = "t.state.counts"
            def exec_command(self, *args, **kwargs):
                return (0, str(calls()).encode(), b"")
    """,
    "plugins/shell/counts.py": """
        DOCUMENTATION = "name: counts\\nshort_description: x\\ndescription: x\\noptions: {}"
        from ansible.plugins.shell.sh import ShellModule as Sh
        class ShellModule(Sh):
            pass
    """,
    "plugins/module_utils/counter.py": KINDS["a global statement"],
}
USES = {
    "test": "- debug: {msg: \"{{ '' is t.state.first }}\"}",
    "lookup": "- debug: {msg: \"{{ lookup('t.state.counts') }}\"}",
    "action": "- t.state.counts:",
    "connection": "- {raw: x, register: it, vars: {ansible_connection: t.state.counts}}\n- debug: {msg: '{{ it.stdout }}'}",
}


@pytest.mark.parametrize("kind", USES)
@pytest.mark.matrix_ends
def test_state_of_every_kind_of_plugin_is_the_workers_own(project, kind):
    write_collection(project, PLUGINS)
    result = project.run((USES[kind] + "\n") * 2, forks=3, limit="h1,h2,h3")
    assert set(messages(result)) == {True if kind == "test" else "1"}


def test_the_run_itself_keeps_the_state_of_its_plugins(project):
    """A callback lives as long as the run; the next run's starts anew."""
    write_collection(
        project,
        {
            "plugins/callback/counts.py": """
                DOCUMENTATION = "name: counts\\ntype: aggregate\\nshort_description: x\\ndescription: x"
                from ansible.plugins.callback import CallbackBase
                from ..module_utils.counter import calls
                class CallbackModule(CallbackBase):
                    CALLBACK_NAME = "t.state.counts"
                    def v2_runner_on_ok(self, result, **kwargs):
                        self._display.display("ok number %s" % calls())
            """,
            "plugins/module_utils/counter.py": KINDS["a global statement"],
        },
    )
    for _ in range(2):
        result = project.run("- debug:\n", limit="h1,h2,h3", env={"ANSIBLE_CALLBACKS_ENABLED": "t.state.counts"})
        assert [f"ok number {n}" in result.stdout for n in (1, 2, 3, 4)] == [True, True, True, False], result.stdout


@pytest.mark.matrix_ends
def test_objects_of_a_workers_modules_are_found_by_their_names(project):
    """Pickle, dataclasses, inspect, typing and isinstance look in sys.modules and find what the worker has."""
    write_collection(
        project,
        {
            "plugins/module_utils/things.py": """
                from __future__ import annotations
                import dataclasses, enum, typing
                SEEN = []
                @dataclasses.dataclass
                class Thing:
                    kind: typing.ClassVar[str] = "thing"
                    name: str = ""
                class Colour(enum.Enum):
                    RED = 1
                class Wrong(Exception):
                    pass
            """,
            "plugins/filter/things.py": """
                import copy, inspect, pickle, sys, typing
                from ansible_collections.t.state.plugins.module_utils import things
                from ansible_collections.t.state.plugins.module_utils.things import Thing, Colour, Wrong
                def check(_value):
                    from ..module_utils.things import Thing as again
                    assert again is Thing is things.Thing
                    one = pickle.loads(pickle.dumps(Thing("a")))
                    assert type(one) is Thing and one == Thing("a")
                    assert pickle.loads(pickle.dumps(Colour.RED)) is Colour.RED
                    assert isinstance(copy.deepcopy(one), Thing)
                    assert list(Thing.__dataclass_fields__) == ["kind", "name"]
                    assert typing.get_type_hints(Thing)["name"] is str
                    assert inspect.getmodule(Thing).Thing is Thing
                    assert "class Thing" in inspect.getsource(Thing)
                    assert sys.modules[Thing.__module__].Thing is Thing
                    assert vars(sys.modules[__name__])["check"] is check
                    try:
                        raise things.Wrong("x")
                    except Wrong:
                        return "fine"
                class FilterModule:
                    def filters(self):
                        return {"check": check}
            """,
        },
    )
    result = project.run("- debug: {msg: \"{{ '' | t.state.check }}\"}\n", forks=6)
    assert messages(result) == ["fine"] * 6


@pytest.mark.matrix_ends
def test_a_file_that_fails_to_import_says_so_where_it_is_imported(project):
    write_collection(
        project,
        {
            "plugins/module_utils/needs.py": "import forkless_no_such_library\nSTATE = {}\n",
            "plugins/filter/tries.py": """
                try:
                    from ansible_collections.t.state.plugins.module_utils import needs
                except ImportError as error:
                    why = str(error)
                class FilterModule:
                    def filters(self):
                        return {"why": lambda _value: why}
            """,
        },
    )
    result = project.run("- debug: {msg: \"{{ '' | t.state.why }}\"}\n", forks=6)
    assert messages(result) == ["No module named 'forkless_no_such_library'"] * 6


@pytest.mark.skipif(
    not (COLLECTIONS / "ansible_collections/community/general").is_dir(), reason="needs community.general"
)
def test_to_months_of_community_general_does_not_remember_another_tasks_month(project):
    """Its table of factors is the module's, and is changed by the arguments of whoever calls."""
    result = project.run(
        """
        - debug: {msg: "{{ '30d' | community.general.to_weeks(month=28) }}"}
        - debug: {msg: "{{ '30d' | community.general.to_months }}"}
        """,
        limit="h1",
        env={"ANSIBLE_COLLECTIONS_PATH": str(COLLECTIONS)},
    )
    assert messages(result)[1] in (1.0, "1.0")


STATELESS = {
    "constants and functions": "A = 1\nB = (1, 'x')\nC = 'a' + str(A)\ndef f(x, y=None):\n    z = []\n    z.append(x)\n    return z\n",
    "a plugin": """
        from ansible.plugins.lookup import LookupBase
        from ansible.utils.display import Display
        import os, re
        display = Display()
        RE = re.compile("x")
        class LookupModule(LookupBase):
            def run(self, terms, variables=None, **kwargs):
                self.set_options(var_options=variables, direct=kwargs)
                self.found = {}
                return [os.environ.get(term) for term in terms]
    """,
    "a library that may be missing": """
        import traceback
        try:
            import forkless_no_such_library
            HAS = True
        except ImportError:
            HAS = False
            WHY = traceback.format_exc()
        if __name__ == "__main__":
            main()
    """,
}  # fmt: skip


@pytest.mark.parametrize("kind", STATELESS)
def test_a_file_that_can_hold_no_state_is_known(kind):
    assert stateless_files.examine(textwrap.dedent(STATELESS[kind]).encode()).state == []


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in (
    # State of the stdlib's own modules, which have a view for each worker.
    "an entry in sys.modules", "os.environ",
)])  # fmt: skip
def test_a_file_that_may_hold_state_is_known(kind):
    assert stateless_files.examine(textwrap.dedent(KINDS[kind]).encode()).state


@pytest.mark.parametrize(
    "text", ['f"{uuid.uuid4()}"', 'f"{1:{uuid.uuid4()}}"', 'f"{uuid.uuid4()}".upper()', 'f"a" + f"{uuid.uuid4()}"']
)
def test_a_text_that_another_import_would_make_differently_counts_as_state(text):
    assert stateless_files.examine(f"import uuid\nSTAMP = {text}\n".encode()).state
    assert stateless_files.examine(b'import os\nA = 1\nPLAIN = f"{A} {os.sep}"\n').state == []


def test_a_name_that_no_plugin_imports_is_not_asked_for(project):
    """ansible-core warns when a deprecated name is asked for; many collections name one for older releases only."""
    files = """
        try:
            from ansible.errors import AnsibleError as Error
        except ImportError:
            from ansible.errors import AnsibleFilterTypeError as Error

        class FilterModule:
            def filters(self):
                return {"same": lambda value: value}
    """
    write_collection(project, {"plugins/filter/same.py": textwrap.dedent(files)})
    result = project.run('- debug: {msg: "{{ 1 | t.state.same }}"}\n')
    assert messages(result)
    assert "AnsibleFilterTypeError" not in result.stdout


@pytest.mark.matrix
def test_a_file_without_state_may_import_a_name_that_ansible_core_warns_of(project):
    """ansible-core looks for who is to blame on the stack, and the stdlib's inspect then asks for the module of each frame."""
    action = """
        from ansible.errors import AnsibleFilterTypeError
        from ansible.plugins.action import ActionBase

        class ActionModule(ActionBase):
            def run(self, tmp=None, task_vars=None):
                return {"msg": issubclass(AnsibleFilterTypeError, Exception)}
    """
    write_collection(project, {"plugins/action/old.py": textwrap.dedent(action)})
    assert set(messages(project.run("- t.state.old:\n"))) == {True}


def test_a_file_without_state_is_executed_once(project):
    write_collection(
        project,
        {
            "plugins/module_utils/one.py": "class One:\n    pass\n",
            "plugins/filter/tells.py": """
                from ..module_utils.one import One
                class FilterModule:
                    def filters(self):
                        return {"which": lambda _value: str(id(One))}
            """,
        },
    )
    told = messages(project.run("- debug: {msg: \"{{ '' | t.state.which }}\"}\n" * 2, forks=6))
    assert len(told) == 12
    assert len(set(told)) == 1
    assert not collection_modules._shared.modules, "what was shared ends with the last run"
