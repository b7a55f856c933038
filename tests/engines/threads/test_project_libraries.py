# SPDX-License-Identifier: GPL-3.0-or-later
"""A project's own library, in a folder that its plugins add to sys.path: never that of another project, nor of the program."""

from __future__ import annotations

import sys
import textwrap

import pytest

from engines_support import messages
from forkless.core.stop import Stop
from forkless.engines.threads import context
from forkless.engines.threads.patches import project_libraries

pytestmark = pytest.mark.spawns

PLUGIN = """
import os, sys
sys.path.{how}
from ansible.plugins.lookup import LookupBase
{first}

class LookupModule(LookupBase):
    def run(self, terms, variables=None, **kwargs):
        {late}
        return [{said}]
"""
LIB = "os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), 'lib')"
FILES = {
    "t_helper.py": "NAME = {name!r}\nSEEN = []\n",
    "t_package/__init__.py": "from .inner import NAME\n",
    "t_package/inner.py": "from . import deep\nfrom .deep.core import NAME\n",
    "t_package/deep/__init__.py": "",
    "t_package/deep/core.py": "import t_helper\nfrom ..typed import Thing\nNAME = Thing(t_helper.NAME).name\n",
    "t_package/typed.py": "from __future__ import annotations\nimport dataclasses\n@dataclasses.dataclass\nclass Thing:\n    name: str\n",
    "t_namespace/part.py": "NAME = {name!r}\n",
}
WAYS = {
    "at the top": ("import t_helper", "pass", "t_helper.NAME"),
    "in a function": ("", "import t_helper", "t_helper.NAME"),
    "from": ("from t_helper import NAME", "pass", "NAME"),
    "star": ("from t_helper import *", "pass", "NAME"),
    "a package": ("import t_package", "pass", "t_package.NAME"),
    "a submodule": ("import t_package.deep.core", "pass", "t_package.deep.core.NAME"),
    "from a package": ("from t_package import inner", "pass", "inner.NAME"),
    "as": ("import t_package.deep.core as core", "pass", "core.NAME"),
    "a namespace package": ("from t_namespace import part", "pass", "part.NAME"),
    "import_module": ("import importlib", "x = importlib.import_module('t_package.inner')", "x.NAME"),
    "__import__": ("", "x = __import__('t_helper')", "x.NAME"),
    "find_spec": ("import importlib.util", "x = importlib.util.find_spec('t_helper')", "__import__('pathlib').Path(x.origin).read_text().split(chr(39))[1]"),
    "from find_spec": ("from importlib.util import find_spec", "x = find_spec('t_package.none')", "str(x) and __import__('t_helper').NAME"),
    "sys.modules": ("import t_package.inner", "pass", "str('t_helper' in sys.modules and sys.path is sys.path) and t_package.inner.NAME"),
}  # fmt: skip
HOW = {
    "insert": f"insert(0, {LIB})",
    "append": f"append({LIB})",
    "assigned": f"__class__; sys.path = [{LIB}, *sys.path]",
    "beside a Path": f"insert(0, __import__('pathlib').Path('/none')); sys.path.append({LIB})",
}


@pytest.fixture
def project_named(projects):
    def make(name, way="at the top", how="insert"):
        made = projects(name, hosts=2)
        first, late, said = WAYS[way]
        made.write("lookup_plugins/who.py", PLUGIN.format(how=HOW[how], first=first, late=late, said=said))
        for path, text in FILES.items():
            made.write(f"lib/{path}", text.format(name=name))
        return made

    return make


TASK = "- debug: {msg: \"{{ lookup('who') }}\"}\n"


EACH = [(way, "insert") for way in WAYS] + [
    (way, how) for how in ("append", "assigned", "beside a Path") for way in ("at the top", "a package")
]


@pytest.mark.parametrize(("way", "how"), EACH)
def test_each_project_gets_its_own(project_named, way, how):
    before, known = list(sys.path), set(sys.modules)
    for name in ("one", "two", "one"):
        result = project_named(name, way, how).run(TASK, forks=2)
        assert result.rc == 0, result.stdout
        assert messages(result) == {"h1": name, "h2": name}
    assert sys.path == before
    assert not [name for name in set(sys.modules) - known if name.startswith("t_")]


def test_its_state_is_the_workers_own(project_named):
    project = project_named("one")
    project.write(
        "lookup_plugins/who.py",
        PLUGIN.format(
            how=HOW["insert"], first="import t_helper", late="t_helper.SEEN.append(1)", said="len(t_helper.SEEN)"
        ),
    )
    result = project.run(TASK * 2, forks=1)
    assert [one.event_data["res"]["msg"] for one in result.events if one.event == "runner_on_ok"] == [1] * 4


def test_sys_path_is_the_workers_own(project_named):
    """A forked worker's list ended with it: here it would grow with each task, and one worker would take back what another has added."""
    project = project_named("one")
    project.write(
        "lookup_plugins/who.py",
        PLUGIN.format(how=HOW["append"], first="", late="pass", said=f"sys.path.count({LIB})"),
    )
    result = project.run(TASK * 2, forks=2)
    assert [one.event_data["res"]["msg"] for one in result.events if one.event == "runner_on_ok"] == [1] * 4


def test_the_programs_module_of_that_name_is_not_taken_for_it(project_named, tmp_path, monkeypatch):
    tmp_path.joinpath("t_helper.py").write_text("NAME = 'of the program'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import t_helper

    try:
        result = project_named("one").run(TASK, limit="h1")
        assert messages(result) == {"h1": "one"}, result.stdout
        assert sys.modules["t_helper"] is t_helper
    finally:
        del sys.modules["t_helper"]


def test_what_is_missing_is_named_as_the_plugin_wrote_it(project_named):
    project = project_named("one")
    project.write("lib/t_helper.py", textwrap.dedent("""
        NAME = said = []
        for name in ("t_package.none", "t_none", "t_package.inner.none"):
            try:
                __import__(name)
            except ModuleNotFoundError as error:
                said.append([str(error), error.name])
        try:
            from t_package import none
        except ImportError as error:
            said.append("cannot import name 'none'" in str(error))
    """))  # fmt: skip
    result = project.run(TASK, limit="h1")
    assert result.rc == 0, result.stdout
    [none, t_none, inner, last] = messages(result)["h1"]
    assert none == ["No module named 't_package.none'", "t_package.none"]
    assert t_none == ["No module named 't_none'", "t_none"]
    assert inner == [
        "No module named 't_package.inner.none'; 't_package.inner' is not a package",
        "t_package.inner.none",
    ]
    assert last is True


INSTALLED = "os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), 'site-packages')"


def test_a_folder_of_installed_packages_leaves_sys_path_with_the_run(project_named):
    """Another project, or the program, would import what it did not ask for."""
    project = project_named("one")
    said = "[t_installed.NAME, t_installed.__name__, t_installed.more()]"
    project.write(
        "lookup_plugins/who.py",
        PLUGIN.format(how=f"append({INSTALLED})", first="import t_installed", late="pass", said=said),
    )
    project.write(
        "site-packages/t_installed.py", "NAME = 'one'\ndef more():\n    import t_more\n    return t_more.NAME\n"
    )
    project.write("site-packages/t_more.py", "NAME = 'more'\n")
    before = list(sys.path)
    try:
        for _ in range(2):
            result = project.run(TASK, forks=2)
            assert messages(result) == dict.fromkeys(("h1", "h2"), ["one", "t_installed", "more"]), result.stdout
            assert sys.path == before
            sys.modules.pop("t_more")
    finally:
        del sys.modules["t_installed"]
    assert project_libraries._askers == {}


def test_a_folder_of_installed_packages_stays_until_the_last_run_ends_that_asked_for_it(tmp_path, monkeypatch):
    folder = str(tmp_path / "site-packages")
    monkeypatch.setattr(sys, "path", list(sys.path))
    runs = [context.RunContext(ident=ident, stop=Stop()) for ident in ("one", "two")]
    for run_context in (*runs, runs[0]):
        with context.enter(run_context):
            if folder not in project_libraries.path():  # the second plugin sees what the first one has added
                project_libraries.path().append(folder)
            project_libraries.library_name("t_none")
    assert sys.path.count(folder) == 1
    for run_context, left in zip(runs, (1, 0), strict=True):
        for end in run_context.at_end:
            end()
        assert sys.path.count(folder) == left
