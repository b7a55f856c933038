# SPDX-License-Identifier: GPL-3.0-or-later
"""A library that a play installs on the controller is there for the next task, as it was for a worker that had just been forked."""

from __future__ import annotations

import importlib.util
import os
import sys

import pytest

from engines_support import messages
from forkless.engines.threads import late_libraries

PLAIN = """
import threading
try:
    import fk_installed
    HAS_IT = True
except ImportError as error:
    fk_installed, HAS_IT = None, False
if HAS_IT:
    from fk_installed import WORD

    class Thing(fk_installed.Base):
        pass

    def asked():
        return WORD, len(LOCK_OF)
else:
    class Thing:
        pass

    def asked():
        return None
LOCK = threading.Lock()
LOCK_OF = []
COUNT = 1

def seamed():
    return "theirs"
"""
LIBRARY = "WORD = 'hello'\n\n\nclass Base:\n    pass\n"


@pytest.fixture
def packages(tmp_path, monkeypatch):
    folder = tmp_path / "site-packages"
    folder.mkdir()
    # A second ago: a folder's time may be no finer than the step between two lines of a test.
    os.utime(folder, (1, 1))
    monkeypatch.syspath_prepend(str(folder))
    yield folder
    for name in [name for name in sys.modules if name.startswith(("fk_installed", "ansible.fk_missing"))]:
        del sys.modules[name]


def imported(path, name, text):
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(name, path)
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def helper(tmp_path):
    return imported(tmp_path / "helper.py", "ansible.fk_missing_helper", PLAIN)


def test_a_module_gets_what_it_missed_and_keeps_what_others_put_into_it(packages, helper):
    def ours():
        return "ours"

    helper.seamed, helper.LOCK_OF, helper.COUNT = ours, [1, 2], 7
    lock, early = helper.LOCK, helper.asked
    (packages / "fk_installed.py").write_text(LIBRARY)
    late_libraries._bring_up_to_date(frozenset({"fk_installed"}))
    assert helper.HAS_IT is True
    assert helper.asked() == ("hello", 2), "it looks for names where everybody does"
    assert helper.Thing.__mro__[1].__name__ == "Base"
    assert (helper.seamed, helper.LOCK, helper.COUNT, early()) == (ours, lock, 7, None)


@pytest.mark.matrix
def test_a_module_that_imports_another_by_a_relative_name_gets_what_that_one_missed(packages, helper, tmp_path):
    """How the bytecode holds the number of dots differs between Pythons."""
    name = "ansible.fk_missing_user"
    user = imported(tmp_path / "user.py", name, "from .fk_missing_helper import HAS_IT\n")
    assert user.HAS_IT is False
    (packages / "fk_installed.py").write_text(LIBRARY)
    late_libraries._bring_up_to_date(frozenset({"fk_installed"}))
    assert user.HAS_IT is True


def test_a_module_is_not_run_again_for_a_library_that_it_does_not_ask_for(packages, helper, monkeypatch):
    again = []
    monkeypatch.setattr(late_libraries, "_again", again.append)
    (packages / "fk_other.py").write_text("")
    late_libraries._bring_up_to_date(frozenset({"fk_other"}))
    assert not again


def test_a_plugin_that_another_thread_takes_out_meanwhile_ends_no_run(packages, helper, monkeypatch):
    """A plugin of a project is in sys.modules only while it is loaded."""
    code = late_libraries._code

    def taken_out(module):
        if module is helper:
            sys.modules.pop(helper.__name__, None)
        return code(module)

    monkeypatch.setattr(late_libraries, "_code", taken_out)
    (packages / "fk_installed.py").write_text(LIBRARY)
    late_libraries._bring_up_to_date(frozenset({"fk_installed"}))
    assert helper.HAS_IT is False


LOOKUP = """
from ansible.plugins.lookup import LookupBase
from ..plugin_utils.helper import HAS_IT
class LookupModule(LookupBase):
    def run(self, terms, variables=None, **kwargs):
        return [HAS_IT]
"""


@pytest.mark.spawns
@pytest.mark.matrix
def test_what_a_play_installs_is_seen_by_the_plugins_of_its_next_task(project, packages):
    root = project.folder / "collections/ansible_collections/fk_missing/one/plugins"
    for name, text in (("lookup/it.py", LOOKUP), ("plugin_utils/helper.py", PLAIN)):
        (root / name).parent.mkdir(parents=True)
        (root / name).write_text(text)
    (packages.parent / "source.py").write_text(LIBRARY)
    tasks = f"""
    - debug: {{msg: "{{{{ lookup('fk_missing.one.it') }}}}"}}
      name: before
    - copy: {{src: {packages.parent}/source.py, dest: {packages}/fk_installed.py}}
    - debug: {{msg: "{{{{ lookup('fk_missing.one.it') }}}}"}}
      name: after
    """
    result = project.run(tasks, limit="h1")
    result.raise_for_failures()
    assert [messages(result, name)["h1"] for name in ("before", "after")] == [False, True]


@pytest.mark.spawns
def test_a_collections_plugin_sees_what_the_task_before_it_installed(packages, project):
    """Its file holds no state, so that workers share it; those that start after the installation share another."""
    project.write(
        "collections/ansible_collections/t/missing/plugins/filter/looks.py",
        """
        try:
            import fk_installed
            HAS_IT = True
        except ImportError:
            HAS_IT = False
        class FilterModule:
            def filters(self):
                return {"has_it": lambda _value: str(HAS_IT)}
        """,
    )
    told = "- debug: {msg: \"{{ '' | t.missing.has_it }}\"}\n"
    install = f"- copy: {{content: 'WORD = 1', dest: '{packages}/fk_installed.py'}}\n"
    result = project.run(told + install + told, limit="h1")
    assert result.rc == 0, result.stdout
    said = [e.event_data["res"].get("msg") for e in result.events if e.event == "runner_on_ok"]
    assert (said[0], said[-1]) == ("False", "True")
