# SPDX-License-Identifier: GPL-3.0-or-later
"""
Runs the unit tests of collections for network devices in a worker of ansible-playbook and in one of forkless, and compares test by test.

    git clone --bare https://github.com/ansible-collections/cisco.ios
    python tests/upstream/network_suites.py cisco.ios=cisco.ios.git@v11.1.1
    python tests/upstream/network_suites.py cisco.ios=cisco.ios.git@v11.1.1 -- -k test_ios_command

The package `ansible` holds the collections without their tests, so each collection comes from a git repository on this machine, at a tag
or commit. netcommon and utils are those of tests/prepare_collections.py. An action plugin calls pytest, so that a test imports the
collection as a task does: in forkless, by the seams, with the module-level state of one worker. Ends with 1 if a test passes with stock
and does not with forkless, or if fewer than half pass with stock; tests that fail with both are counted.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import xml.etree.ElementTree as ET

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import prepare_collections

ACTION = """\
from ansible.module_utils import basic
from ansible.plugins.action import ActionBase
import pytest

class OldArguments:
    # Tests from before ansible-core 2.19 set a module's arguments without naming the form that they have.
    @pytest.fixture(autouse=True)
    def profile(self, monkeypatch):
        if hasattr(basic, "_ANSIBLE_PROFILE"):
            monkeypatch.setattr(basic, "_ANSIBLE_PROFILE", "legacy")

class ActionModule(ActionBase):
    def run(self, tmp=None, task_vars=None):
        code = pytest.main(self._task.args["words"], plugins=[OldArguments()])
        return {**super().run(tmp, task_vars), "code": int(code), "failed": int(code) not in (0, 1)}
"""
PLAY = "- hosts: localhost\n  gather_facts: false\n  tasks: [call_pytest: {words: %r}]\n"
# What the programs are named below, and how they are started.
PROGRAMS = {"stock": ["ansible-playbook"], "forkless": ["forkless", "playbook"]}
# Not pytest's terminal and capture: both would take the streams of the whole program. The collection's own options are not read.
PYTEST = ["-p", "no:terminal", "-p", "no:cacheprovider", "-p", "no:xdist", "-s", "-c", os.devnull]


def unpack(repository: str, commit: str, name: str, folder: pathlib.Path) -> pathlib.Path:
    """A tree of collections: this one as it is at `commit`, and those that it needs. Returns the folder of this one."""
    space, _, short = name.partition(".")
    where = folder / "ansible_collections" / space / short
    where.mkdir(parents=True)
    archive = folder / "archive.tar"
    done = subprocess.run(
        ["git", "-C", repository, "archive", "-o", str(archive), commit], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{repository} has no {commit}: {done.stderr.strip()}")
    with tarfile.open(archive) as tar:
        tar.extractall(where, filter="data")
    if not (where / "tests" / "unit").is_dir():
        raise SystemExit(f"{repository} has no tests/unit at {commit}")
    needed = folder / "ansible_collections" / "ansible"
    needed.mkdir(exist_ok=True)
    for one in ("netcommon", "utils"):
        (needed / one).symlink_to(prepare_collections.FOLDER / "ansible_collections" / "ansible" / one)
    return where


def install(where: pathlib.Path, folder: pathlib.Path) -> None:
    """The Python packages that the collection's own list names, in a folder of theirs."""
    packages = folder / "packages"
    packages.mkdir()
    if (where / "requirements.txt").exists():
        uv = [str(pathlib.Path(sys.executable).parent / "uv"), "pip", "install", "--quiet", "--python", sys.executable]
        subprocess.run([*uv, "--target", str(packages), "-r", str(where / "requirements.txt")], check=True)


def run(kind: str, where: pathlib.Path, folder: pathlib.Path, more: list[str]) -> dict[str, str]:
    """Each test and its outcome."""
    report, project = folder / f"{kind}.xml", folder / "project"
    (project / "action_plugins").mkdir(parents=True, exist_ok=True)
    (project / "action_plugins" / "call_pytest.py").write_text(ACTION)
    words = [*PYTEST, f"--rootdir={where}", f"--junitxml={report}", *more, str(where / "tests" / "unit")]
    (project / "play.yml").write_text(PLAY % words)
    first, *rest = PROGRAMS[kind]
    env = {key: value for key, value in os.environ.items() if key not in ("PYTHONDONTWRITEBYTECODE", "PYTEST_ADDOPTS")}
    env["ANSIBLE_COLLECTIONS_PATH"], env["PYTHONPATH"] = str(folder), str(folder / "packages")
    done = subprocess.run(
        [str(pathlib.Path(sys.executable).parent / first), *rest, "-i", "localhost,", "-c", "local", "play.yml"],
        cwd=project, env=env, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode or not report.exists():
        why = [one.text or "" for one in ET.parse(report).getroot().iter("error")] if report.exists() else []
        raise SystemExit(f"{kind}: the suite did not run:\n{(why or [done.stdout + done.stderr])[0][-3000:]}")
    return outcomes(report)


def outcomes(report: pathlib.Path) -> dict[str, str]:
    told = {}
    for case in ET.parse(report).getroot().iter("testcase"):
        kinds = {child.tag for child in case}
        outcome = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
        told[f"{case.get('classname')}::{case.get('name')}"] = outcome
    return told


def compare(name: str, both: dict[str, dict[str, str]]) -> list[str]:
    """Prints the counts; returns the tests that pass with stock and not with forkless."""
    for kind, told in both.items():
        counts = {what: list(told.values()).count(what) for what in ("passed", "failed", "skipped")}
        print(f"{name:24} {kind:9} {counts}", flush=True)
    worse = [test for test, how in both["stock"].items() if how == "passed" and both["forkless"].get(test) != "passed"]
    passed = list(both["stock"].values()).count("passed")
    if 2 * passed < len(both["stock"]):
        worse.append(f"{name}: only {passed} of {len(both['stock'])} passed with stock, so too little was compared")
    return worse


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("collections", nargs="+", metavar="NAME=REPOSITORY@COMMIT")
    own, more = sys.argv[1:], []
    if "--" in own:
        own, more = own[: own.index("--")], own[own.index("--") + 1 :]
    options = parser.parse_args(own)
    prepare_collections.prepare()
    worse = []
    for one in options.collections:
        name, _, place = one.partition("=")
        repository, _, commit = place.rpartition("@")
        if not repository or name.count(".") != 1:
            parser.error(f"{one} is not NAME=REPOSITORY@COMMIT")
        folder = pathlib.Path(tempfile.mkdtemp(prefix="network-suites-"))
        try:
            where = unpack(os.path.expanduser(repository), commit, name, folder)
            install(where, folder)
            worse += compare(name, {kind: run(kind, where, folder, more) for kind in PROGRAMS})
        finally:
            shutil.rmtree(folder)
    for test in worse:
        print(f"passes with stock, not with forkless: {test}")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
