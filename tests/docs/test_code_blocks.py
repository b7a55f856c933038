# SPDX-License-Identifier: GPL-3.0-or-later
"""Every code block of the README and of docs/ is run, or says why not."""

from __future__ import annotations

import configparser
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import tomllib

import pytest
import yaml

import docs_blocks
from docs_blocks import ROOT

pytestmark = [pytest.mark.spawns, pytest.mark.timeout(900)]


@pytest.fixture
def env(tmp_path):
    """A reader's: forkless is installed, the home is empty, and what is temporary is gone afterwards."""
    # Not below tmp_path: the name of a socket must be short.
    with tempfile.TemporaryDirectory(prefix="fk-docs-", ignore_cleanup_errors=True) as temporary:
        yield environ(tmp_path, temporary)


def environ(tmp_path, temporary):
    home = tmp_path / "home"
    home.mkdir()
    places = [os.path.dirname(sys.executable), os.environ["PATH"], "/usr/sbin"]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ANSIBLE_", "FORKLESS_"))}
    kept.pop("PYTHONDONTWRITEBYTECODE", None)
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    # The command as an installed package has it, for environments in which only the source tree is on the path.
    for name, words in (("forkless", "-m forkless"), ("python", ""), ("python3", "")):
        (bin_ / name).write_text(f'#!/bin/sh\nexec {sys.executable} {words} "$@"\n')
        (bin_ / name).chmod(0o755)
    return {
        **kept,
        "HOME": str(home),
        "TMPDIR": temporary,
        "PATH": ":".join([str(bin_), *places]),
        "PYTHONPATH": str(ROOT / "src"),
        # Jobs are found again by their name on the host, also those of an earlier reader: each has a folder of its own.
        "ANSIBLE_ASYNC_DIR": str(home / ".ansible_async"),
        "NO_COLOR": "1",
        "COLUMNS": "100",
        "LC_ALL": "C.UTF-8",
        "C_FORCE_ROOT": "1",  # Celery's word for: yes, as root
    }


@pytest.mark.parametrize("page", docs_blocks.pages())
def test_every_block_of_the_page_does_what_it_says(page, tmp_path, env):
    todo = [
        block
        for block in docs_blocks.blocks(page)
        if not block.reason and (block.title or block.lang in docs_blocks.RUN)
    ]
    for program in ("curl",):
        if any(f"{program} " in block.text for block in todo if not block.title) and not shutil.which(program):
            pytest.skip(f"{program} is not installed (apt-get install {program})")
    folder = tmp_path / "empty"
    folder.mkdir()
    session = docs_blocks.Session(folder, env)
    try:
        for block in todo:
            session.run(block)
    finally:
        session.close()


@pytest.mark.parametrize("page", docs_blocks.pages())
def test_every_block_has_a_language_and_reads_as_it(page):
    for block in docs_blocks.blocks(page):
        assert block.lang in (*docs_blocks.RUN, *docs_blocks.FILES, "text"), f"{block}: language {block.lang!r}"
        if block.lang == "yaml":
            yaml.safe_load(block.text)
        elif block.lang == "json":
            json.loads(block.text)
        elif block.lang == "toml":
            tomllib.loads(block.text)
        elif block.lang == "ini":
            configparser.ConfigParser(allow_no_value=True, delimiters="=").read_string(block.text)
        if block.lang in docs_blocks.FILES and block.lang != "python":
            assert block.title or block.reason, f"{block}: a file without a title= is run by nobody"


@pytest.mark.parametrize("page", docs_blocks.pages())
def test_every_file_of_the_page_is_used_on_it(page):
    found = docs_blocks.blocks(page)
    for number, block in enumerate(found):
        if block.title and not block.reason:
            name = pathlib.PurePath(block.title).name
            others = [one.text for one in found[:number] + found[number + 1 :] if not one.reason]
            words = (name, name.removesuffix(".py"), str(pathlib.PurePath(block.title).parts[0]))
            implied = name == "ansible.cfg"
            assert implied or any(word in text for text in others for word in words), (
                f"{block}: nothing uses {block.title}"
            )


def test_blocks_that_are_not_run_are_few_and_say_why(capsys):
    found = [block for page in docs_blocks.pages() for block in docs_blocks.blocks(page) if block.lang != "text"]
    idle = [block for block in found if block.reason]
    with capsys.disabled():
        print(f"\ncode blocks: {len(found)}, of which {len(idle)} are not run:")
        for block in idle:
            print(f"  {block} ({block.lang}): {block.reason}")
    assert all(len(block.reason) > 10 for block in idle)
    assert len(idle) <= len(found) / 5


def test_a_page_that_lies_is_found_out(tmp_path, env):
    folder = tmp_path / "empty"
    folder.mkdir()
    session = docs_blocks.Session(folder, env)

    def block(lang, text, mark="", title=""):
        return docs_blocks.Block("page.md", 1, lang, title, text, mark)

    try:
        session.run(block("console", "$ echo 3 apples\n7 apples\n"))
        session.run(block("console", "$ mkdir -p sub && cd sub\n$ pwd\n/anywhere/sub\n"))
        session.run(block("bash", "exit 3\n", "exits: 3"))
        session.run(block("python", "import asyncio\nx = 1\nawait asyncio.sleep(0)\n"))
        session.run(block("python", "assert x == 1\n"))
        for lie in (
            block("console", "$ echo 3 apples\n3 pears\n"),
            block("console", "$ false\n"),
            block("bash", "false\n"),
            block("python", "print(no_such_name)\n"),
        ):
            with pytest.raises(AssertionError, match=r"page\.md:1"):
                session.run(lie)
    finally:
        session.close()
    assert subprocess.run(["pgrep", "-f", str(folder)], stdout=subprocess.DEVNULL, check=False).returncode != 0
