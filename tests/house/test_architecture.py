# SPDX-License-Identifier: GPL-3.0-or-later
"""The architecture, as tests: which room may import which, and what `import forkless` does not do."""

from __future__ import annotations

import ast
import pathlib
import subprocess
import sys

import pytest

import forkless

SOURCE = pathlib.Path(forkless.__file__).parent

# Each room, and the rooms that it may import; an arrow that is not here does not exist.
GROUND = {"_errors"}
ARROWS = {
    "_answers": GROUND,
    "_environment": set(),
    "_errors": set(),
    "_events": GROUND,
    "_disable": {"_errors"},
    "_platform": GROUND,
    "_spec": GROUND | {"_answers"},
    "_stop": GROUND | {"_events"},
    "_result": GROUND | {"_events"},
    "multiprocessing": {"_platform"},
    "modules": {"_disable", "_errors", "_events", "_platform", "_stop"},
    "ssh": {"_errors"},
    "engines": {
        "_answers",
        "_disable",
        "_errors",
        "_events",
        "_platform",
        "_spec",
        "_stop",
        "_result",
        "modules",
        "multiprocessing",
        "ssh",
    },
    "runner": {"_errors", "engines"},
    "jobs": {"_errors", "_platform"},
    "_spool": GROUND | {"_events"},
    "_limit": GROUND | {"_stop"},
    "_artifacts": GROUND | {"_events", "_spec"},
    "_run": {"_artifacts", "_errors", "_events", "_limit", "_spec", "_spool", "_stop", "_result", "engines"},
    "_aio": {"_errors", "_events", "_spec", "_stop", "_result", "_run"},
    "web": {"_errors", "_events", "jobs"},
    "cli": {
        "_answers",
        "_disable",
        "_errors",
        "_events",
        "_platform",
        "_spec",
        "_stop",
        "_result",
        "_run",
        "engines",
        "jobs",
        "modules",
        "ssh",
        "web",
        "__init__",
    },
    "__main__": {"cli"},
    "__init__": {"_errors", "_limit", "_events", "_spec", "_stop", "_result", "_run", "_aio"},
}
# Only these may import Ansible, and only these ansible-runner.
ANSIBLE = ("engines/threads", "engines/_", "modules/", "cli/")
RUNNER = ("engines/runner", "engines/_spawn", "runner")


def modules():
    return sorted(SOURCE.rglob("*.py"))


def room(path):
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports(path):
    """Every module that a file imports, at its top or later, under its full name."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            if node.module == "forkless":
                yield from (f"forkless.{alias.name}" for alias in node.names)
            else:
                yield str(node.module)


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(SOURCE)))
def test_arrows_only_go_down(path):
    here = room(path)
    for name in imports(path):
        if name.split(".")[0] != "forkless":
            continue
        there = name.split(".")[1] if "." in name else "__init__"
        if not (SOURCE / there).exists() and not (SOURCE / f"{there}.py").exists():
            there = "__init__"  # a public name, taken from the package itself
        assert there == here or there in ARROWS[here], f"{here} may not import {name}"


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(SOURCE)))
def test_only_their_rooms_import_ansible(path):
    where = str(path.relative_to(SOURCE)).removesuffix(".py")
    tops = {name.split(".")[0] for name in imports(path)}
    if not where.startswith(ANSIBLE) or where in RUNNER:
        assert "ansible" not in tops
    if where not in RUNNER:
        assert "ansible_runner" not in tops
        assert "pexpect" not in tops


def test_the_two_engines_never_import_each_other():
    for path in (SOURCE / "engines").glob("*.py"):
        names = set(imports(path))
        runner_side = path.stem in ("runner", "_spawn")
        other = "forkless.engines.threads" if runner_side else "forkless.engines.runner"
        assert other not in names, path


@pytest.mark.spawns
def test_importing_forkless_imports_no_ansible_and_changes_nothing():
    code = """
import os, signal, sys, threading, multiprocessing.context as c
before = (os.getcwd(), dict(os.environ), threading.enumerate(), [signal.getsignal(s) for s in signal.valid_signals()],
          sys.stdout, sys.stderr, os.fork, os._exit, dict(c._concrete_contexts), list(sys.meta_path), list(sys.path_hooks))
import forkless
after = (os.getcwd(), dict(os.environ), threading.enumerate(), [signal.getsignal(s) for s in signal.valid_signals()],
         sys.stdout, sys.stderr, os.fork, os._exit, dict(c._concrete_contexts), list(sys.meta_path), list(sys.path_hooks))
assert before == after, (before, after)
loaded = [m for m in sys.modules if m.split('.')[0] in ('ansible', 'ansible_runner', 'pexpect', 'asyncssh', 'boto3', 'rich')]
assert not loaded, loaded
import forkless.cli._ansible, forkless.engines.threads
assert 'asyncio' not in sys.modules, 'it takes its time, and most runs do not need it'
"""
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


def test_the_public_names_are_complete_both_ways():
    public = {
        name for name, thing in vars(forkless).items() if not name.startswith("_") and not hasattr(thing, "__path__")
    }
    public = {name for name in public if type(getattr(forkless, name)).__name__ != "module" and name != "annotations"}
    assert public == set(forkless.__all__)
    assert forkless.__all__ == sorted(forkless.__all__)


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(SOURCE)))
def test_every_file_names_its_licence(path):
    assert path.read_text().startswith("# SPDX-License-Identifier: GPL-3.0-or-later\n")
