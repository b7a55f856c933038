# SPDX-License-Identifier: GPL-3.0-or-later
"""What a loader notes of ansible-core's folders is what ansible-core itself notes, in the first run of a process and in later ones."""

from __future__ import annotations

import itertools

import pytest

from forkless.core.stop import Stop
from forkless.engines.threads import context
from forkless.engines.threads.speed import plugin_folders

pytestmark = [pytest.mark.matrix, pytest.mark.spawns]  # ansible-core calls ldconfig when it is imported

NAMES = ("debug", "no_such_plugin", "set_fact", "own", "copy", "debug")
_numbers = itertools.count()


@pytest.fixture
def run_context(monkeypatch):
    made = context.RunContext(ident="x", stop=Stop())
    monkeypatch.setattr(context, "current", lambda: made)
    return made


@pytest.fixture
def known(monkeypatch):
    from ansible.plugins import loader as theirs

    found = {}
    monkeypatch.setitem(vars(theirs), "_forkless_folders", found)
    return found


def loader(kind="action"):
    from ansible.plugins.loader import PluginLoader

    return PluginLoader(f"Tested{next(_numbers)}", f"ansible.plugins.{kind}", [], f"{kind}_plugins")


def step(find, of, name, suffix=".py"):
    """What is found, and what the loader has noted then. A name that is found nowhere is looked for in collections, which are not set up here."""
    from ansible.plugins.loader import PluginLoadContext

    try:
        asked = PluginLoadContext("action", "ansible.plugins.action")
    except TypeError:  # 2.18
        asked = PluginLoadContext()
    try:
        found = find(of, name, asked, check_aliases=True, suffix=suffix)
    except Exception as error:
        found = error
    noted = {
        key: {one: (there.path, there.internal) for one, there in names.items()}
        for key, names in of._plugin_path_cache.items()
    }
    return getattr(found, "plugin_resolved_path", type(found)), noted, set(of._searched_paths), asked.load_attempts


def theirs():
    from ansible.plugins.loader import PluginLoader

    return PluginLoader._find_plugin_legacy


def own_folder(tmp_path):
    for name in ("own.py", "debug.py", "other.yml", "notes.txt"):
        (tmp_path / name).write_text("")
    return str(tmp_path)


@pytest.mark.parametrize("when", ["never", "before", "between"])
def test_the_same_is_noted_as_by_ansible_core(run_context, known, tmp_path, when):
    """Also beside a project's folder, whether its plugins are looked for before or after those of ansible-core."""
    ours = plugin_folders.find_in_folders(theirs(), "")
    step(ours, loader(), "debug")
    assert known
    for names in itertools.permutations(NAMES[:5], 3):
        stock, with_known = loader(), loader()
        if when == "before":
            for one in (stock, with_known):
                one.add_directory(own_folder(tmp_path))
        for number, name in enumerate(names):
            if when == "between" and number == 1:
                for one in (stock, with_known):
                    one.add_directory(own_folder(tmp_path))
            assert step(theirs(), stock, name) == step(ours, with_known, name), (names, name)


def test_ansible_cores_folder_is_looked_through_once(run_context, known, monkeypatch):
    ours = plugin_folders.find_in_folders(theirs(), "")
    step(ours, loader(), "debug")
    listed = []
    monkeypatch.setattr("os.listdir", lambda path: listed.append(path) or [])
    assert str(step(ours, loader(), "copy")[0]).endswith("copy.py")
    assert listed == []


def test_a_projects_folder_is_not_kept(run_context, known, tmp_path):
    ours = plugin_folders.find_in_folders(theirs(), "")
    first = loader()
    first.add_directory(own_folder(tmp_path))
    step(ours, first, "own")
    step(ours, first, "copy")
    assert known == {}


def test_it_can_be_switched_off_and_is_for_runs_only(run_context, known, monkeypatch):
    ours = plugin_folders.find_in_folders(theirs(), "")
    run_context.off = frozenset({"plugin-cache"})
    step(ours, loader(), "debug")
    monkeypatch.setattr(context, "current", lambda: None)
    step(ours, loader(), "debug")
    assert known == {}
