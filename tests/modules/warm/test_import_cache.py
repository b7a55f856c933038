# SPDX-License-Identifier: GPL-3.0-or-later
"""What a file of a payload imports is found out once, and is what Ansible itself finds out."""

from __future__ import annotations

import ast
import builtins
import inspect
import pathlib

import pytest

from forkless import modules
from forkless.modules.warm import import_cache


@pytest.fixture
def common(monkeypatch):
    monkeypatch.setattr(import_cache, "_read", set())
    monkeypatch.setattr(import_cache, "_found", {})
    import ansible.executor.module_common

    return ansible.executor.module_common


def asked(common, name, text, package=False):
    """As `recursive_finder` does in the ansible-core that is installed."""
    given = text
    if "module_data" not in inspect.signature(common.ModuleDepFinder).parameters:
        given = getattr(common, "compile", builtins.compile)(text, "<unknown>", "exec", ast.PyCF_ONLY_AST)
    finder = common.ModuleDepFinder(name, given, is_pkg_init=package)
    return finder.submodules, finder.optional_imports, getattr(finder, "embeds", set())


@pytest.mark.matrix
def test_it_finds_what_ansible_finds_the_first_time_and_every_time_after_it(common):
    root = pathlib.Path(common.__file__).parents[1] / "module_utils"
    files = [*sorted(root.glob("*.py")), *sorted(root.glob("common/**/*.py"))]
    names = {
        path: ".".join(("ansible", "module_utils", *path.relative_to(root).with_suffix("").parts)) for path in files
    }
    theirs = [asked(common, names[path], path.read_bytes(), path.stem == "__init__") for path in files]
    with modules.installed(actions=True):
        for _ in range(2):
            assert [asked(common, names[p], p.read_bytes(), p.stem == "__init__") for p in files] == theirs


def test_a_text_that_was_read_is_not_read_again_unless_it_is_looked_at(common, monkeypatch):
    made = []

    def compiled(source, *args, **kwargs):
        made.append(source)
        return builtins.compile(source, *args, **kwargs)

    text = b"from ansible.module_utils import basic\nVALUE = 1\n"
    monkeypatch.setattr(common, "compile", compiled, raising=False)
    with modules.installed(actions=True):
        first = asked(common, "ansible.modules.one", text)
        assert [asked(common, "ansible.modules.one", text) for _ in range(3)] == [first] * 3
        assert made == [text]
        tree = common.compile(text, "<unknown>", "exec", ast.PyCF_ONLY_AST)
        assert [type(one).__name__ for one in tree.body] == ["ImportFrom", "Assign"]
        assert asked(common, "ansible.modules.one", text + b"import ansible.module_utils.urls\n") != first
        # What a relative import means is a matter of who imports.
        relative = b"from .common import text\n"
        below, above = (
            asked(common, name, relative)[0] for name in ("ansible.module_utils.a.b", "ansible.module_utils.a")
        )
        assert below != above


def test_a_text_that_cannot_be_read_is_told_every_time(common):
    with modules.installed(actions=True):
        for _ in range(2):
            with pytest.raises(Exception, match="(?i)invalid syntax|Unable to compile"):
                asked(common, "ansible.modules.one", b"def (")


def test_it_can_be_switched_off(common, monkeypatch):
    monkeypatch.setenv("FORKLESS_DISABLE", "import-cache")
    with modules.installed(actions=True):
        asked(common, "ansible.modules.one", b"from ansible.module_utils import basic\n")
    assert not import_cache._found


def test_it_does_not_grow_without_end(common, monkeypatch):
    monkeypatch.setattr(import_cache, "MOST", 8)
    with modules.installed(actions=True):
        for number in range(30):
            asked(common, "ansible.modules.one", b"import ansible.module_utils.n%d\n" % number)
            assert len(import_cache._found) <= 8
            assert len(import_cache._read) <= 8
