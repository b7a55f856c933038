# SPDX-License-Identifier: GPL-3.0-or-later
"""What the README states: the demo's output, the table of versions, the size, the extras; and every link of the files at the root."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tomllib

import pytest

import docs_blocks
from docs_blocks import ROOT

README = (ROOT / "README.md").read_text()


@pytest.fixture(scope="module")
def tables():
    spec = importlib.util.spec_from_file_location("docs_tables", ROOT / "docs/_make/tables.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_table_of_versions_is_the_matrix(tables):
    assert tables.part(README, "compatibility") == tables.compatibility(), "run: python docs/_make/tables.py"


@pytest.mark.spawns
@pytest.mark.timeout(300)
def test_the_demo_prints_what_the_readme_shows():
    block = next(block for block in docs_blocks.blocks("README.md") if "make demo" in block.text)
    shown = dict(docs_blocks.commands(block))["make demo"]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(
        [sys.executable, "examples/demo.py"], cwd=ROOT, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert not docs_blocks.missing(shown, done.stdout), done.stdout
    assert "0 forks of this process" in done.stdout


def test_the_shim_stands_second_after_the_demo_with_what_was_measured():
    parts = re.split(r"^## ", README, flags=re.MULTILINE)[1:]
    assert "make demo" in parts[0]
    assert parts[1].startswith("Make the Ansible that you have faster in one line\n")
    howto = (ROOT / "docs/howto/shim.md").read_text()
    assert howto.startswith("# Make the Ansible that you have faster in one line\n")
    for text in (parts[1], howto):
        stated = " ".join(text.split())
        assert "between a quarter and a third" in stated
        measured = re.search(r"`molecule test`.*? ([\d.]+) s(?:econds)?(?: of CPU time)? against ([\d.]+)", stated)
        assert measured, stated
        assert 0.24 <= float(measured[1]) / float(measured[2]) <= 0.34


def test_the_pictures_are_shown_once_they_are_there():
    for path in sorted((ROOT / "docs").rglob("*.svg")):
        name = path.relative_to(ROOT).as_posix()
        assert re.search(rf"^!\[[^\]]+\]\({re.escape(name)}\)$", README, re.MULTILINE), (
            f"README.md does not show {name}"
        )


def test_every_extra_is_explained():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    told = set(re.findall(r"^\| `forkless\[(\w+)\]`", README, re.MULTILINE))
    assert told == set(extras)


@pytest.mark.parametrize("name", ["README.md", "ARCHITECTURE.md", *docs_blocks.pages()[1:]])
def test_links_lead_to_files(name):
    """In the repository; those of the built site are checked in test_site.py."""
    page = ROOT / name
    prose = re.sub(r"<!--.*?-->", "", docs_blocks.FENCE.sub("", page.read_text()), flags=re.DOTALL)
    made = {"design.md", "index.md", "changes.md"}  # pages of the site that are files elsewhere in the repository
    for link in re.findall(r"\]\(([^)\s]+)\)", prose):
        target = link.partition("#")[0]
        if target and not re.match(r"[a-z+]+:", target) and target not in made:
            assert (page.parent / target).exists(), f"{name}: {link}"
