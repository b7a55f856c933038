# SPDX-License-Identifier: GPL-3.0-or-later
"""
CPython's own multiprocessing suite against forkless.multiprocessing.

    python tests/upstream/cpython_suite.py                                  every Python, start method, open and sealed
    python tests/upstream/cpython_suite.py 3.13.0 --method spawn --sealed   one of them

The tests are those that ship with each Python, unchanged, run by the yardstick beside this project
(../shared/yardsticks/mp, or $FORKLESS_YARDSTICKS). What is known to differ, and why, is in cpython_known.toml: a test
that fails and is not in there is a regression, and one that is in there and passes is news; both end with status 1.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(ROOT / "src"))
from forkless.core import versions  # noqa: E402  # of this tree, whatever is installed

_WRITTEN = tomllib.loads((HERE / "cpython_known.toml").read_text())
KNOWN = _WRITTEN["differs"]
RACES = _WRITTEN["races"]
TARGETS = _WRITTEN["targets"]
PYTHONS = ("3.11.7", "3.12.1", "3.13.0")
# Where a Linux distribution puts its own, with the suite in a package beside it (Debian: libpython3.14-testsuite).
SYSTEM = tuple(f"/usr/bin/python{minor}" for minor in versions.PYTHONS)
METHODS = ("spawn", "forkserver", "fork")


class Missing(Exception):
    """Something that this run needs is not on this machine. The sentence says what."""


def yardstick() -> pathlib.Path:
    home = pathlib.Path(os.environ.get("FORKLESS_YARDSTICKS", ROOT.parent / "shared" / "yardsticks")) / "mp"
    if not (home / "mp_yardstick.py").exists():
        raise Missing(f"CPython's suite was NOT run: there is no yardstick at {home} (set FORKLESS_YARDSTICKS)")
    return home


@dataclass(frozen=True)
class Mode:
    python: str
    method: str
    sealed: bool

    @property
    def full(self) -> str:
        ask = "import platform; print(platform.python_version())"
        return subprocess.check_output([self.python, "-c", ask], text=True).strip()

    def __str__(self) -> str:
        return f"{self.python} {self.method} {'sealed' if self.sealed else 'open'}"


def interpreter(name: str) -> str:
    """A path, or a version that pyenv knows."""
    pyenv = os.environ.get("PYENV_ROOT") or os.path.expanduser("~/.pyenv")
    path = name if os.sep in name else f"{pyenv}/versions/{name}/bin/python3"
    if not os.path.exists(path):
        raise Missing(f"there is no Python {name} at {path}")
    return path


def on_this_machine() -> list[str]:
    """pyenv's, and those of the system that come with their tests. What is not here is said aloud."""
    found = []
    for name in PYTHONS:
        try:
            interpreter(name)
        except Missing as missing:
            print(f"not run: {missing}")
        else:
            found.append(name)
    suites = {
        path: pathlib.Path(f"/usr/lib/{pathlib.Path(path).name}/test/_test_multiprocessing.py") for path in SYSTEM
    }
    return found + [path for path, suite in suites.items() if os.path.exists(path) and suite.exists()]


# test.test_concurrent_futures is installed with 3.13 only. 3.11 has Debian's; 3.12 takes 3.13's with what it lacks
# taken out.
_FOR_312 = (
    (r"from test\.support import Py_GIL_DISABLED", "Py_GIL_DISABLED = False"),
    (r"^ *@support\.requires_gil_enabled\(.*\)\n", ""),
    (r"support\.check_sanitizer\(thread=True\)", "False"),
    (r"^ *@support\.skip_if_sanitizer\(.*\)\n", ""),
    (r"_start_joinable_thread", "_start_new_thread"),
    (r"class FailingInitializerResourcesTest\(unittest\.TestCase\):[\s\S]*?(?=^def )", ""),
)


def _concurrent_futures(minor: str, vendor: pathlib.Path) -> None:
    if minor == "3.11":
        debian = pathlib.Path("/usr/lib/python3.11/test/test_concurrent_futures.py")
        if not debian.exists():
            raise Missing(
                "test_concurrent_futures.py for 3.11 is in Debian's package libpython3.11-testsuite: install it"
            )
        (vendor / "cf311").mkdir()
        (vendor / "cf311" / debian.name).symlink_to(debian)
    elif minor == "3.12":
        source = pathlib.Path(interpreter("3.13.0")).parent.parent / "lib/python3.13/test/test_concurrent_futures"
        target = vendor / "cf312" / source.name
        target.mkdir(parents=True)
        for file in source.glob("*.py"):
            text = file.read_text()
            for pattern, instead in _FOR_312:
                text = re.sub(pattern, instead, text, flags=re.MULTILINE)
            (target / file.name).write_text(text)


@contextlib.contextmanager
def scratch(minor: str, *, futures: bool) -> Iterator[pathlib.Path]:
    """The yardstick keeps its temporary files beside itself. Seen through links, that is a folder of our own."""
    home = yardstick()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="forkless-yardstick-"))
    try:
        for file in home.iterdir():
            if file.is_file():
                (folder / file.name).symlink_to(file)
        (folder / "vendor").mkdir()
        if futures:
            _concurrent_futures(minor, folder / "vendor")
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# What threads can pass is run again once when it fails, because a busy machine breaks the suite's timings. What needs a
# real process (class c of the yardstick) mostly fails, some of it by hanging: once is enough.
PASSES = {"ab": ("c", "60", "1"), "c": ("a,b,na,?", "20", "0")}


def run(
    mode: Mode, *, suite: str = "all", only: str = "", jobs: int = 2, classes: tuple[str, ...] = ("ab", "c")
) -> dict:
    """The yardstick's reports, as one."""
    full = mode.full
    minor = versions.minor_of(full)
    whole: dict = {"full": full, "minor": minor, "tests": {}, "seconds": 0, "target": {"pass": 0, "of": 0}}
    with scratch(minor, futures=suite != "mp") as folder:
        for name in classes:
            left_out, timeout, retries = PASSES[name]
            out = folder / f"{name}.json"
            command = [sys.executable, str(folder / "mp_yardstick.py"), mode.python]
            command += ["--impl", "forkless.multiprocessing", "--path", str(ROOT / "src")]
            command += ["--start-method", mode.method, "--suite", suite, "--only", only, "--skip-class", left_out]
            command += ["--jobs", str(jobs), "--timeout", timeout, "--retries", retries, "--out", str(out)]
            command += ["--seal"] if mode.sealed else []
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if not out.exists():
                tail = done.stdout[-2000:] + done.stderr[-2000:]
                raise RuntimeError(f"the yardstick ended with {done.returncode}:\n{tail}")
            report = json.loads(out.read_text())
            if mode.sealed:
                _check_seal(report)
            whole["tests"] |= report["tests"]
            whole["seconds"] += report["meta"]["seconds"]
            whole["target"] = report.get("target", whole["target"])
    if not whole["target"]["of"]:
        whole["target"] = target(whole, mode)
    return whole


def target(report: dict, mode: Mode) -> dict[str, int]:
    """
    What threads must pass (a + b), for a Python whose tests the yardstick has not classified: every test but those that skip
    themselves, that differ where processes are forbidden, and that race.
    """
    sealed = Mode(mode.python, mode.method, sealed=True)
    goal = [
        result["status"]
        for test, result in report["tests"].items()
        if result["status"] != "skip"
        and expected_to_differ(test, sealed, report["minor"]) is None
        and not is_race(test, mode, report["minor"])
    ]
    return {"pass": goal.count("pass"), "of": len(goal)}


def _check_seal(report: dict) -> None:
    for notes in report["meta"]["notes"].values():
        if notes.get("seal", {}).get("kernel", True) is not True:
            raise Missing(f"the kernel refuses the seal, so nothing was tested sealed: {notes['seal']['kernel']}")


def expected_to_differ(test: str, mode: Mode, minor: str) -> str | None:
    """Why this test is not expected to pass; None if it is."""
    for rule in KNOWN:
        if (
            rule.get("sealed", mode.sealed) == mode.sealed
            and mode.method in rule.get("methods", METHODS)
            and minor in rule.get("pythons", (minor,))
            and any(re.fullmatch(pattern, test) for pattern in rule["tests"])
        ):
            return str(rule["why"])
    return None


def is_race(test: str, mode: Mode, minor: str) -> bool:
    return any(
        minor in rule.get("pythons", (minor,))
        and mode.method in rule.get("methods", METHODS)
        and any(re.fullmatch(pattern, test) for pattern in rule["tests"])
        for rule in RACES
    )


def judge(report: dict, mode: Mode, *, whole: bool = False) -> list[str]:
    """
    One line for every test that did not do what is known of it. Tests that skip themselves say nothing either way. Of the whole
    suite there must also be as many tests for threads to pass as were counted.
    """
    lines = []
    counted = TARGETS.get(report.get("full"), 0) if whole and mode.method == "spawn" else 0
    if report.get("target", {"of": counted})["of"] < counted:
        lines.append(f"only {report['target']['of']} of the {counted} tests that threads can pass were run")
    for test, result in report["tests"].items():
        if is_race(test, mode, report["minor"]):
            continue
        why = expected_to_differ(test, mode, report["minor"])
        status = result["status"]
        if status == "pass" and why is not None:
            lines.append(f"{test} passes now: take it out of cpython_known.toml ({why})")
        elif status not in ("pass", "skip") and why is None:
            lines.append(f"{test}: {status}\n{result.get('msg', '')[-1500:]}")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "pythons", nargs="*", help="a version that pyenv knows, or a path; without any, all that are on this machine"
    )
    parser.add_argument("--method", action="append", choices=METHODS)
    sides = parser.add_mutually_exclusive_group()
    sides.add_argument("--sealed", action="store_true", help="only with processes forbidden by the kernel")
    sides.add_argument("--open", action="store_true", help="only without the seal")
    parser.add_argument("--suite", choices=("mp", "cf", "all"), default="all")
    parser.add_argument("--only", default="", help="regular expression on Class.test")
    parser.add_argument(
        "--classes", action="append", choices=list(PASSES), help="ab: what threads can pass; c: the rest"
    )
    parser.add_argument("--jobs", type=int, default=2, help="classes at a time; they sleep more than they work")
    parser.add_argument("--keep", type=pathlib.Path, help="a folder to keep the reports in")
    a = parser.parse_args()
    surprises = 0
    for python in a.pythons or on_this_machine():
        for method in a.method or METHODS:
            for sealed in [True] * (not a.open) + [False] * (not a.sealed):
                mode = Mode(interpreter(python), method, sealed)
                report = run(mode, suite=a.suite, only=a.only, jobs=a.jobs, classes=tuple(a.classes or PASSES))
                whole = a.suite == "all" and not a.only and not a.classes
                lines = judge(report, mode, whole=whole)
                surprises += len(lines)
                goal = report["target"]
                passed = sum(result["status"] == "pass" for result in report["tests"].values())
                print(
                    f"{python} {method:10} {'sealed' if sealed else 'open':6}  a+b {goal['pass']}/{goal['of']}"
                    f"  all {passed}/{len(report['tests'])}  {report['seconds']} s  surprises {len(lines)}",
                    flush=True,
                )
                for line in lines:
                    print("    " + line.replace("\n", "\n        "), flush=True)
                if a.keep:
                    a.keep.mkdir(parents=True, exist_ok=True)
                    name = f"{python}-{method}-{'sealed' if sealed else 'open'}.json".replace(os.sep, "_")
                    (a.keep / name).write_text(json.dumps(report, indent=1))
    return 1 if surprises else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Missing as missing:
        sys.exit(f"cpython_suite: {missing}")
