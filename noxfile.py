# SPDX-License-Identifier: GPL-3.0-or-later
"""Every Python and ansible-core that exist together. `nox -s matrix` runs what differs between versions on a few of them, `nox -s full` everything on all."""

from __future__ import annotations

import concurrent.futures
import functools
import glob
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import nox

if TYPE_CHECKING:
    from collections.abc import Iterator

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "src"))
from forkless.core import versions  # of this tree, whatever is installed

nox.options.default_venv_backend = "uv"
nox.options.reuse_existing_virtualenvs = True

# The one that was installed beside nox; it need not be on PATH.
UV = shutil.which("uv", path=os.path.dirname(sys.executable) + os.pathsep + os.environ.get("PATH", "")) or "uv"
# The minors of ansible-core that differ most.
ENDS = {versions.KNOWN[0], versions.KNOWN[-1]}
WORKERS = int(os.environ.get("TEST_WORKERS", "2"))
# The virtual environments of the pairs, for all sessions.
PAIRS = os.path.abspath(os.path.join(".nox", "pairs"))


# The folder of a Linux system whose Pythons are tested as well; CONTRIBUTING.md says how to make one.
ROOT = os.environ.get("FORKLESS_TEST_ROOT", "")
# Its Pythons need its own C library, so they run in a chroot. The checkout is there under the same path, and so is the folder of uv. Mounts
# and processes are of a namespace and end with it. The shell stays the first process there: it reaps the orphans that tests leave.
CHROOT = """
root=$1 checkout=$2 uv=$3; shift 3
cp -L /etc/resolv.conf "$root/etc/resolv.conf"
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount --rbind /dev "$root/dev"
mount -t tmpfs -o mode=1777 shm "$root/dev/shm"
mount -t tmpfs -o mode=755 run "$root/run"
mkdir -p "$root/run/sshd" "$root/run/lock" "$root$checkout" "$root$uv"
mount --bind "$checkout" "$root$checkout"
mount --bind "$uv" "$root$uv"
chroot "$root" /usr/bin/env --chdir="$checkout" PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root "$@" || exit $?
"""


@dataclass(frozen=True)
class Interpreter:
    """A Python that really starts: its full version, its path, and what its commands begin with."""

    full: str
    path: str
    prefix: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        return f"{self.full}-root" if self.prefix else self.full


def _in_root() -> tuple[str, ...]:
    unshare = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--propagation", "private")
    return (*unshare, "sh", "-ec", CHROOT, "sh", os.path.abspath(ROOT), os.getcwd(), os.path.dirname(UV))


def _ask(path: str, prefix: tuple[str, ...] = ()) -> Interpreter | None:
    ask = [*prefix, path, "-c", "import platform; print(platform.python_version())"]
    answer = subprocess.run(ask, capture_output=True, text=True, check=False)
    if prefix and answer.returncode not in (0, 127):  # 127: the root works, and has no such Python
        raise RuntimeError(f"FORKLESS_TEST_ROOT={ROOT} cannot be used: {answer.stderr.strip()}")
    return Interpreter(answer.stdout.strip(), path, prefix) if answer.returncode == 0 else None


@functools.cache
def interpreters(version: str) -> list[Interpreter]:
    """The Pythons of that minor on PATH, among pyenv's, beside our own, or in FORKLESS_TEST_ROOT: oldest first, each release once."""
    # Where pyenv is known, or where the Python that we run on has its siblings.
    pyenv = os.path.join(os.environ.get("PYENV_ROOT", os.path.expanduser("~/.pyenv")), "versions")
    homes = (pyenv, os.path.dirname(sys.base_prefix))
    beside = [path for home in homes for path in sorted(glob.glob(f"{home}/{version}.*/bin/python"))]
    on_path = [
        os.path.join(folder, f"python{version}") for folder in os.environ.get("PATH", os.defpath).split(os.pathsep)
    ]
    asked = [_ask(path) for path in [sys.executable, *filter(os.path.exists, on_path), *beside]]
    if ROOT:
        asked.append(_ask(f"/usr/bin/python{version}", _in_root()))
    found: dict[str, Interpreter] = {}
    for one in asked:
        if one is not None and one.full.startswith(f"{version}."):
            found.setdefault(one.full, one)
    return sorted(found.values(), key=lambda one: [int(part) for part in re.findall(r"\d+", one.full)])


def oldest_and_newest(version: str) -> list[Interpreter]:
    found = interpreters(version)
    return found if len(found) < 2 else [found[0], found[-1]]


def releases(core: versions.Core) -> list[str]:
    """What pip is asked for: the oldest patch release, and the newest that there is now. Before its first release a minor has only one."""
    newest = f"~={core.minor}.0" if core.newest.replace(".", "").isdigit() else f"=={core.newest}"
    return [newest] if core.oldest == core.newest else [f"=={core.oldest}", newest]


def _name(python: Interpreter, core: str) -> str:
    return f"py{python.label}-core{core.strip('=~')}{'+' if core.startswith('~') else ''}"


def _environment(session: nox.Session, python: Interpreter, core: str) -> str:
    """The folder of a virtual environment with this Python and ansible-core, which is made unless it is there."""
    venv = os.path.join(PAIRS, _name(python, core))
    ready = os.path.join(venv, ".ready")
    if not os.path.exists(ready):
        os.makedirs(PAIRS, exist_ok=True)
        make = [UV, "venv", "--quiet", "--clear", "--seed", "--python", python.path, venv]
        install = [UV, "pip", "install", "--quiet", "--python", f"{venv}/bin/python", "-e", ".[dev]"]
        session.run(*python.prefix, *make, external=True)
        session.run(*python.prefix, *install, f"ansible-core{core}", external=True)
        open(ready, "w").close()
    return venv


def _pytest(venv: str, workers: int) -> list[str]:
    return [f"{venv}/bin/python", "tests/run_tests.py", "--workers", str(workers)]


def _everything(session: nox.Session, python: Interpreter, core: str) -> None:
    """All tests on one pair, also those that need collections, which differ between ansible-cores."""
    venv = _environment(session, python, core)
    env: dict[str, str] = {}

    def run(*command: str) -> None:
        session.run(*python.prefix, *command, env=env, external=True)

    run(f"{venv}/bin/python", "tests/prepare_collections.py")
    if python.prefix:  # the servers that `make test` has set up do not start in the root
        env["FORKLESS_JOBS_SERVERS"] = os.path.join(PAIRS, f"servers-{python.label}")
        run(f"{venv}/bin/python", "tests/prepare_jobs.py")
    print(f"-- Python {python.label}, ansible-core{core}", flush=True)
    run(*_pytest(venv, WORKERS))


def side_by_side(commands: dict[str, list[str]], at_a_time: int) -> Iterator[tuple[str, int, str]]:
    """Runs all commands, some at a time; gives name, exit code and output of each, in their order."""

    def run(command: list[str]) -> tuple[int, str]:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        return done.returncode, done.stdout

    with concurrent.futures.ThreadPoolExecutor(at_a_time) as threads:
        for name, (code, out) in zip(commands, threads.map(run, commands.values()), strict=True):
            yield name, code, out


def marked() -> list[str]:
    """The files with tests for the matrix: reading all the others takes longer than these tests on a quiet machine."""
    found = []
    for folder, _, names in os.walk("tests"):
        for name in names:
            path = os.path.join(folder, name)
            if name.startswith("test_") and name.endswith(".py") and "/." not in path:
                with open(path, encoding="utf-8") as file:
                    if "pytest.mark.matrix" in file.read():
                        found.append(path)
    return sorted(found)


def _not_here(python: str, core: str) -> None:
    print(f"not tested here: Python {python} with ansible-core {core} (no Python {python} on this machine)")


def _in_short_matrix(python: str) -> list[Interpreter]:
    if python == versions.PYTHONS[-1] and not interpreters(python):
        python = versions.PYTHONS[-2]  # the one before it is new as well
    return oldest_and_newest(python)


def ends_are_tested() -> bool:
    """Whether `nox -s matrix` tests the oldest and the newest ansible-core here: there is a Python for each."""
    return {minor for python, minor in versions.SHORT_MATRIX if _in_short_matrix(python)} >= ENDS


def _short_matrix(session: nox.Session) -> Iterator[tuple[str, Interpreter, str, str]]:
    """The pairs of `make test` whose Python is here: the minor of ansible-core, the Python, what pip is asked for, and the environment."""
    cores = {core.minor: core for core in versions.CORES}
    for python, minor in versions.SHORT_MATRIX:
        found = _in_short_matrix(python)
        if found:
            release = releases(cores[minor])[-1]
            yield minor, found[-1], release, _environment(session, found[-1], release)
        else:
            _not_here(python, minor)


@nox.session(python=False)
def matrix(session: nox.Session) -> None:
    """What depends on the versions: on every ansible-core, more of it on the oldest and the newest, and on the newest Python that is here."""
    # Several pairs at a time, two tests of each: so one pair's tests run while another pair starts, or waits for its last test.
    at_a_time = max(1, WORKERS // 2)
    commands = {}
    for minor, python, release, venv in _short_matrix(session):
        tests = "matrix or matrix_ends" if minor in ENDS else "matrix"
        if minor == versions.KNOWN[-1]:
            tests += " or matrix_newest"
        command = [*python.prefix, *_pytest(venv, -(-WORKERS // at_a_time)), "-m", tests, *marked()]
        commands[f"Python {python.label}, ansible-core{release}"] = command
    failed = []
    for name, code, out in side_by_side(commands, at_a_time):
        print(f"-- {name}\n{out}", flush=True)
        if code:
            failed.append(name)
    if failed:
        session.error(f"failed: {'; '.join(failed)}")


@nox.session(python=False)
def full(session: nox.Session) -> None:
    """Everything on every pair, with the oldest and the newest patch release of each ansible-core and of each Python."""
    for core in versions.CORES:
        for python in core.pythons:
            found = oldest_and_newest(python)
            if not found:
                _not_here(python, core.minor)
            for release in releases(core):
                for one in found:
                    _everything(session, one, release)


@nox.session(python=False)
def fingerprints(session: nox.Session) -> None:
    """
    src/forkless/patching/fingerprints.json and src/forkless/modules/warm/imports anew, from every tested release: after a seam was added,
    moved or removed, or a release.
    """
    script = (
        "import sys; from forkless.engines.threads import importing; from forkless.engines.threads.patches import table; "
        "from forkless.patching import seams; importing.import_ansible(ours=False); "
        "from forkless.modules.warm import known_imports; anew = sys.argv[3] == seams.version(); "
        "seams.write_fingerprints(sys.argv[1], table.SEAMS, anew=anew); known_imports.write(sys.argv[2], anew=anew)"
    )
    path = os.path.join("src", "forkless", "patching", "fingerprints.json")
    folder = os.path.join("src", "forkless", "modules", "warm", "imports")
    for core in versions.CORES:
        python = next((one for minor in core.pythons for one in interpreters(minor)), None)
        if python is None:
            session.error(f"ansible-core {core.minor} needs Python {' or '.join(core.pythons)}; its fingerprints stay")
        venv = os.path.join(session.create_tmp(), f"fingerprints-{core.minor}")
        session.run(*python.prefix, UV, "venv", "--quiet", "--clear", "--python", python.path, venv, external=True)
        for release in dict.fromkeys((core.oldest, core.newest)):
            install = [UV, "pip", "install", "--quiet", "--python", f"{venv}/bin/python"]
            session.run(*python.prefix, *install, "-e", ".", f"ansible-core=={release}", external=True)
            environ = {"FORKLESS_ALLOW_UNKNOWN": "1"}
            command = [f"{venv}/bin/python", "-c", script, path, folder, core.oldest]
            session.run(*python.prefix, *command, env=environ, external=True)
