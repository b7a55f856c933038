# SPDX-License-Identifier: GPL-3.0-or-later
"""Which files belong to ansible-core, also where links lead into it or out of it."""

from __future__ import annotations

import os
import sys
import types

import pytest

from forkless.engines.threads.patches import core_files


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder in place of ansible-core's, with links in both directions."""
    core, project = tmp_path / "core", tmp_path / "project"
    for path in ("core/plugins/own.py", "core/__init__.py", "project/plugins/its.py"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    (tmp_path / "way").symlink_to(core)
    (core / "plugins/foreign.py").symlink_to(project / "plugins/its.py")
    (project / "plugins/borrowed.py").symlink_to(core / "plugins/own.py")
    (project / "library").symlink_to(core / "plugins")
    # By way of a link: an environment's folder may be one.
    ansible = types.SimpleNamespace(__file__=str(tmp_path / "way/__init__.py"))
    monkeypatch.setitem(sys.modules, "ansible", ansible)
    monkeypatch.chdir(core)
    return tmp_path


@pytest.mark.parametrize(
    ("path", "is_own"),
    [
        ("core/plugins/own.py", True),
        ("core/plugins/absent.py", True),
        ("way/plugins/own.py", True),
        ("core/plugins", True),
        ("core/plugins/foreign.py", False),
        ("project/plugins/its.py", False),
        ("project/plugins/borrowed.py", True),
        ("project/library/own.py", True),
        ("project/library/foreign.py", False),
        ("project/library/..", False),
        ("core/plugins/..", False),
        ("core/plugins/../plugins/own.py", True),
        ("core-of-another/own.py", False),
        ("plugins/own.py", True),
    ],
)
def test_a_file_belongs_to_ansible_core_if_it_is_below_its_folder_when_all_links_are_followed(folder, path, is_own):
    given = path if path == "plugins/own.py" else f"{folder}/{path}"
    real = os.path.realpath(given).startswith(f"{folder}/core/")
    assert real is is_own, "the test itself"
    assert core_files.own_files.__wrapped__(given) is is_own


def test_the_folder_of_many_files_is_followed_once(folder, monkeypatch):
    asked = []
    real = os.path.realpath
    monkeypatch.setattr(os.path, "realpath", lambda path: asked.append(path) or real(path))
    for number in range(20):
        assert core_files.own_files.__wrapped__(f"{folder}/core/plugins/{number}.py")
    assert sorted(asked) == [f"{folder}/core/plugins", f"{folder}/way/__init__.py"]


def test_a_relative_path_is_where_the_working_directory_is_now(folder, monkeypatch):
    assert core_files.own_files.__wrapped__("plugins/own.py")
    monkeypatch.chdir(folder / "project")
    assert not core_files.own_files.__wrapped__("plugins/own.py")
