# SPDX-License-Identifier: GPL-3.0-or-later
"""What is known of a file's imports beforehand is what the installed ansible-core finds, and is known for all of its files."""

from __future__ import annotations

import hashlib
import json
import pathlib

import pytest

from forkless import modules
from forkless.core import versions
from forkless.modules.warm import import_cache, known_imports
from forkless.patching import seams

pytestmark = pytest.mark.matrix
TESTED = {release for core in versions.CORES for release in (core.oldest, core.newest)}


@pytest.fixture
def common(monkeypatch):
    monkeypatch.setattr(import_cache, "_read", set())
    monkeypatch.setattr(import_cache, "_found", {})
    import ansible.executor.module_common

    return ansible.executor.module_common


def files(common):
    """Name, text, and whether it is a package: of all files that ansible-core itself may put into an archive."""
    root = pathlib.Path(common.__file__).parents[1]
    for path in sorted([*root.glob("module_utils/**/*.py"), *root.glob("modules/*.py")]):
        parts = ("ansible", *path.relative_to(root).with_suffix("").parts)
        package = parts[-1] == "__init__"
        yield ".".join(parts[:-1] if package else parts), path.read_bytes(), package


def test_it_is_what_ansible_finds(common):
    wrong, missing = [], []
    for name, text, package in files(common):
        theirs = known_imports._found_by(common.ModuleDepFinder, name, text, package)
        known = known_imports.find(name, hashlib.sha256(text).digest(), package)
        if known is None:
            missing += [] if getattr(theirs, "embeds", None) else [name]
        elif known != (theirs.submodules, theirs.optional_imports):
            wrong.append(name)
    assert not wrong
    if seams.version() in TESTED:
        assert not missing, "nox -s fingerprints writes them"


def test_no_file_of_ansible_is_parsed_for_a_module(common, monkeypatch):
    if seams.version() not in TESTED:
        pytest.skip("files of other releases may be unknown")
    parsed = []
    monkeypatch.setattr(common.ModuleDepFinder, "generic_visit", lambda self, _node: parsed.append(self.module_fqn))
    monkeypatch.setattr(common.ModuleDepFinder, "visit", common.ModuleDepFinder.generic_visit)
    name, text, _ = next(one for one in files(common) if one[0] == "ansible.modules.copy")
    with modules.installed(actions=True):
        given = text
        if "module_data" not in common.ModuleDepFinder.__init__.__wrapped__.__code__.co_varnames:
            given = common.compile(text, "<unknown>", "exec", 1024)
        found = common.ModuleDepFinder(name, given)
    assert ("ansible", "module_utils", "basic", "AnsibleModule") in found.submodules
    assert not parsed


def test_another_text_another_name_and_another_finder_are_not_answered_for(common, tmp_path, monkeypatch):
    name, text, package = next(one for one in files(common) if one[0] == "ansible.module_utils.basic")
    digest = hashlib.sha256(text).digest()
    if seams.version() in TESTED:
        assert known_imports.find(name, digest, package)
    assert known_imports.find(name, hashlib.sha256(text + b"\n").digest(), package) is None
    assert known_imports.find(f"{name}s", digest, package) is None
    assert known_imports.find(name, digest, True) is None
    changed = tmp_path / "module_common.py"
    changed.write_bytes(pathlib.Path(common.__file__).read_bytes() + b"\n")
    monkeypatch.setattr(common, "__file__", str(changed))
    assert known_imports.find(name, digest, package) is None
    assert not known_imports.has_text(digest)


def test_what_is_written_is_read_again(common, tmp_path):
    known_imports.write(str(tmp_path), anew=True)
    (written,) = tmp_path.iterdir()
    table = json.loads(written.read_text())
    own = known_imports._read(
        common.__file__, versions.KNOWN[0] if written.stem not in versions.KNOWN else written.stem
    )
    assert table["imports"]
    if seams.version() in TESTED:
        assert table["imports"].items() <= own["imports"].items()
    before = written.read_text()
    known_imports.write(str(tmp_path), anew=False)
    assert written.read_text() == before
