# SPDX-License-Identifier: GPL-3.0-or-later
"""
Runs ansible-runner's own tests, and pexpect's, with the stock spawn and with ours, and compares test by test.

    python tests/upstream/runner_suites.py                     # all of it: some twenty minutes
    python tests/upstream/runner_suites.py --suite unit        # one suite
    python tests/upstream/runner_suites.py --suite integration -k password_prompt

The suites come from the sdists on PyPI, unchanged, and run in an environment of their own under .nox/upstream-runner.
Ends with 1 if a test passes with the stock spawn and does not with ours. Tests that need a container engine are left
out; tests that fail with both are counted, and so show what this machine lacks (a network, a locale, a zsh).
"""

from __future__ import annotations

import argparse
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tarfile
import xml.etree.ElementTree as ET

ROOT = pathlib.Path(__file__).resolve().parents[2]
PLUGIN = ROOT / "tests" / "upstream" / "spawn_in_place"
SOURCES = {"ansible-runner": "2.4.3", "pexpect": "4.9.0"}

# name: (whose, folder, arguments, what stands for "ours")
SUITES = {
    "unit": ("ansible-runner", "test/unit", ["-n", "2"], "runner"),
    "integration": (
        "ansible-runner",
        "test/integration",
        ["--ignore=test/integration/containerized", "-k", "not docker and not podman"],
        "runner",
    ),
    "pexpect": ("pexpect", "tests", [], "pexpect"),
}

# Known, and on purpose.
EXCUSED = {
    # A hundred thousand lines against a limit of sixty seconds: the stock spawn misses it too on a busy machine.
    "test_100000",
}


def environment(folder: pathlib.Path, core: str) -> pathlib.Path:
    python = folder / f"venv-{core}" / "bin" / "python"
    if not (python.parent / "ready").exists():
        uv = shutil.which("uv", path=os.path.dirname(sys.executable) + os.pathsep + os.environ.get("PATH", ""))
        if uv is None:
            raise SystemExit("uv is not there; pip install uv")
        wanted = [f"ansible-core=={core}", *(f"{name}=={version}" for name, version in SOURCES.items())]
        wanted += ["pytest", "pytest-mock", "pytest-timeout", "pytest-xdist", "pip"]
        subprocess.run([uv, "venv", "-q", "--clear", "--python", sys.executable, str(python.parent.parent)], check=True)
        subprocess.run([uv, "pip", "install", "-q", "--python", str(python), *wanted], check=True)
        (python.parent / "ready").touch()
    return python


def source(folder: pathlib.Path, python: pathlib.Path, name: str) -> pathlib.Path:
    unpacked = folder / f"{name}-{SOURCES[name]}"
    if not unpacked.exists():
        subprocess.run(
            [
                str(python),
                "-m",
                "pip",
                "download",
                "-q",
                "--disable-pip-version-check",
                "--no-deps",
                "--no-binary",
                ":all:",
            ]
            + ["-d", str(folder), f"{name}=={SOURCES[name]}"],
            check=True,
        )
        (archive,) = folder.glob(f"{name.replace('-', '[-_]')}-{SOURCES[name]}.tar.gz")
        with tarfile.open(archive) as tar:
            top = tar.getnames()[0].split("/")[0]
            tar.extractall(folder / "unpacking", filter="data")
        (folder / "unpacking" / top).rename(unpacked)
        # The package itself is installed; the sdist's copy must not be found first.
        for shadow in ("src", "ansible_runner", "pexpect"):
            shutil.rmtree(unpacked / shadow, ignore_errors=True)
    return unpacked


def run(python: pathlib.Path, where: pathlib.Path, tests: str, arguments: list[str], ours: str) -> dict[str, str]:
    """Every test and how it went. `ours` is empty for the stock spawn."""
    report = where / f"report-{ours or 'stock'}.xml"
    report.unlink(missing_ok=True)
    env = {key: value for key, value in os.environ.items() if key not in ("PYTHONUNBUFFERED", "PYTHONPATH")}
    env |= {"LC_ALL": "C.UTF-8", "PATH": f"{python.parent}{os.pathsep}{env.get('PATH', os.defpath)}"}
    plugin = []
    if ours:
        env |= {"FORKLESS_SPAWN_IN_PLACE": ours, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{PLUGIN}"}
        plugin = ["-p", "spawn_in_place"]
    command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout=300", f"--junitxml={report}"]
    done = subprocess.run(
        [*command, *plugin, *arguments, tests], cwd=where, env=env, check=False, capture_output=True, text=True
    )
    if ours and "spawn in place" not in done.stdout:
        raise SystemExit(f"our spawn was not in place:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    if not report.exists():
        raise SystemExit(f"the suite did not run:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    told = {}
    for case in ET.parse(report).getroot().iter("testcase"):
        outcome = "passed"
        for child in case:
            if child.tag in ("failure", "error", "skipped"):
                outcome = {"failure": "failed", "error": "failed"}.get(child.tag, child.tag)
        told[f"{case.get('classname')}::{case.get('name')}"] = outcome
    return told


def compare(name: str, folder: pathlib.Path, core: str, more: list[str]) -> list[str]:
    """Runs one suite both ways; returns what passes with the stock spawn and not with ours."""
    whose, tests, arguments, ours = SUITES[name]
    python = environment(folder, core)
    where = source(folder, python, whose)
    if whose == "pexpect":
        where, tests = where / "tests", "."
    both = {kind: run(python, where, tests, [*arguments, *more], kind) for kind in ("", ours)}
    for kind, told in both.items():
        counts = {what: list(told.values()).count(what) for what in ("passed", "failed", "skipped")}
        print(f"{name:12} {kind and 'ours' or 'stock':6} {counts}", flush=True)
    worse = [
        test
        for test, outcome in both[""].items()
        if outcome == "passed" and both[ours].get(test) != "passed" and test.rpartition("::")[2] not in EXCUSED
    ]
    if not any(outcome == "passed" for outcome in both[""].values()):
        worse.append(f"{name}: nothing passed with the stock spawn, so nothing was compared")
    return worse


def heed_signals() -> None:
    """
    Ctrl-C and a hang-up end what we start, whoever started us.

    The background job of a shell has Ctrl-C ignored, one under nohup hang-ups; children inherit it, and tests that send
    either to their own children wait for ever.
    """
    for number, action in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, action)


def main() -> int:
    import ansible.release

    heed_signals()

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", choices=SUITES, action="append")
    parser.add_argument("--core", default=ansible.release.__version__, help="version of ansible-core to run with")
    parser.add_argument("--folder", type=pathlib.Path, default=ROOT / ".nox" / "upstream-runner")
    options, more = parser.parse_known_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    worse = []
    for name in options.suite or SUITES:
        worse += compare(name, options.folder.resolve(), options.core, more)
    for test in worse:
        print(f"passes with the stock spawn, not with ours: {test}")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
