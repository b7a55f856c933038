# SPDX-License-Identifier: GPL-3.0-or-later
"""
Compares a new ansible-core with the newest known one at every seam, and lists what must be changed for it.

    python -m forkless.porting 2.23.0rc1           a release, from the package index
    python -m forkless.porting ~/src/ansible       a source tree
    python -m forkless.porting 2.23.0rc1 --targets ansible-core's own quick targets as well (minutes)

Run it from a checkout of forkless, with a Python that the new ansible-core supports (--python names another). It installs ansible-core
into a virtual environment, compares every seam with the newest release of the previous minor, writes the fingerprints, runs the tests
that tell whether modules run warm and optimizations are used, and prints the remaining work. Exit status 0: nothing is left to do.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import inspect
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from forkless.core import versions
from forkless.core.errors import ForklessError, SpecError
from forkless.patching.fingerprints import MISSING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Survey", "compare", "main", "risky_lines", "survey"]

ROOT = pathlib.Path(__file__).resolve().parents[2]
FINGERPRINTS = ROOT / "src/forkless/patching/fingerprints.json"
IMPORTS = ROOT / "src/forkless/modules/warm/imports"
CHECKS = (
    "tests/engines/threads/test_seams.py",
    "tests/engines/threads/speed/test_speed_paths.py",
    "tests/engines/threads/speed/test_caches.py",
)
# Calls that a thread cannot make, or that affect the whole process. A fingerprint shows only changes at known sites, not a new call.
RISKY = re.compile(
    r"\b(signal\.(signal|alarm|setitimer|pthread_sigmask)|os\.(fork|forkpty|_exit|chdir|umask|setsid|dup2|killpg|register_at_fork|environ\[|putenv)"
    r"|multiprocessing|subprocess\.(Popen|run|call|check_\w+)|atexit\.|locale\.setlocale|sys\.(stdout|stderr|stdin)\s*=|functools\.(lru_)?cache"
    r"|threading\.(Lock|RLock)\(|_?register_at_fork)|^global "
)


@dataclass
class Survey:
    """One ansible-core at the sites of all seams. Created in the interpreter that has it installed and passed as JSON, so all fields are plain."""

    version: str
    folder: str
    looks: dict[str, str] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    worker_arguments: list[str] = field(default_factory=list)
    our_arguments: list[str] = field(default_factory=list)


def survey(minor: str | None = None) -> Survey:
    """Inspect the ansible-core of this interpreter at the sites that are patched in its minor, or in `minor`."""
    from forkless.engines.threads import importing
    from forkless.engines.threads.patches import table
    from forkless.engines.threads.workers import worker_process
    from forkless.patching import place
    from forkless.patching import seams as patching

    importing.import_ansible(ours=False)
    import ansible
    from ansible.executor.process.worker import WorkerProcess

    seen = Survey(patching.version(), os.path.dirname(ansible.__file__))
    for seam in patching.for_minor(table.SEAMS, minor or versions.nearest(seen.version)):
        if not seam.in_ansible:
            continue
        seen.looks[seam.site] = patching.look(seam)
        seen.reasons[seam.site] = seam.why
        with contextlib.suppress(ImportError, AttributeError, OSError, TypeError):
            thing: Any = place.find(seam.site).read()[0]
            seen.sources[seam.site] = textwrap.dedent(inspect.getsource(getattr(thing, "__func__", thing)))
    seen.worker_arguments = list(inspect.signature(WorkerProcess.__init__).parameters)
    seen.our_arguments = list(inspect.signature(worker_process.make_worker(WorkerProcess).__init__).parameters)  # type: ignore[misc]
    return seen


def compare(known: Survey, new: Survey) -> tuple[list[str], list[str]]:
    """One line for each seam that moved, and unified diffs of those whose source is available."""
    lines: list[str] = []
    diffs: list[str] = []
    for site, look in new.looks.items():
        # A seam that only the new minor has is missing in the one before as well: that is no reason to keep silent.
        if look == known.looks.get(site) and look != MISSING:
            continue
        moved = "is missing" if look == MISSING else "has changed"
        lines.append(f"{site}: {moved} ({new.reasons[site]})")
        before, after = known.sources.get(site, ""), new.sources.get(site, "")
        diffs += difflib.unified_diff(
            before.splitlines(),
            after.splitlines(),
            f"{known.version} {site}",
            f"{new.version} {site}",
            lineterm="",
            n=3,
        )
    lines += [
        f"WorkerProcess takes '{name}', and ThreadWorker.__init__ does not: every task would fail"
        for name in new.worker_arguments
        if name not in new.our_arguments
    ]
    return lines, diffs


def risky_lines(known: str, new: str) -> list[str]:
    """New lines in ansible-core that a thread cannot execute safely, or that change state of the whole process."""
    found = []
    for path in sorted(pathlib.Path(new).rglob("*.py")):
        name = path.relative_to(new)
        if name.parts[0] in ("modules", "galaxy") or path.parts[-2:] == ("cli", "galaxy.py"):
            continue  # these run as separate programs
        before = pathlib.Path(known) / name
        old = set(_lines(before)) if before.exists() else set()
        found += [f"{name}: {line}" for line in _lines(path) if line not in old and RISKY.search(line)]
    return found


def _lines(path: pathlib.Path) -> list[str]:
    lines = [line.strip() for line in path.read_text(encoding="utf-8", errors="replace").splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


# -- the virtual environment ---------------------------------------------------------------------------------------


def _run(command: list[str], **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env={**os.environ, **environ}, capture_output=True, text=True, check=False, cwd=ROOT)


def _checked(command: list[str], what: str, **environ: str) -> str:
    done = _run(command, **environ)
    if done.returncode:
        raise ForklessError(f"{what} failed:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return done.stdout


class Environment:
    """A virtual environment with the new ansible-core, and in a separate folder the newest known ansible-core to compare with."""

    def __init__(self, folder: pathlib.Path, python: str, wanted: str) -> None:
        self.folder, self._base, self._wanted = folder, python, wanted
        self.python = str(folder / "venv/bin/python")
        self._known = str(folder / "known")

    def make(self) -> None:
        if not os.path.exists(self.python):
            _checked([self._base, "-m", "venv", str(self.folder / "venv")], "making a virtual environment")
        self._install(["-e", f"{ROOT}[dev]"], self._wanted)

    def lay_beside(self, release: str) -> None:
        self._install(["--no-deps", "--upgrade", "--target", self._known], f"ansible-core=={release}")

    def _install(self, options: list[str], what: str) -> None:
        uv = shutil.which("uv")
        pip = (
            [uv, "pip", "install", "--quiet", "--python", self.python]
            if uv
            else [self.python, "-m", "pip", "install", "-q"]
        )
        _checked([*pip, *options, what], f"installing {what}")

    def survey(self, *, beside: bool = False, minor: str = "") -> Survey:
        """Inspect ansible-core in a new interpreter, so that this one does not import it."""
        path = os.pathsep.join([str(ROOT / "src"), *([self._known] if beside else [])])
        said = _checked(
            [self.python, "-m", "forkless.porting", "--survey", minor],
            "looking at ansible-core", PYTHONPATH=path, FORKLESS_ALLOW_UNKNOWN="1",
        )  # fmt: skip
        return Survey(**json.loads(said.splitlines()[-1]))

    def write_fingerprints(self, *, anew: bool) -> None:
        line = (
            "from forkless.engines.threads import importing; from forkless.engines.threads.patches import table; from forkless.patching import seams; importing.import_ansible(ours=False); "
            f"seams.write_fingerprints({str(FINGERPRINTS)!r}, table.SEAMS, anew={anew}); "
            f"from forkless.modules.warm import known_imports; known_imports.write({str(IMPORTS)!r}, anew={anew})"
        )
        _checked([self.python, "-c", line], "writing the fingerprints", PYTHONPATH=str(ROOT / "src"))

    def tests(self, *names: str) -> tuple[bool, list[str]]:
        done = _run(
            [self.python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *names],
            PYTHONPATH=str(ROOT / "src"), FORKLESS_ALLOW_UNKNOWN="1",
        )  # fmt: skip
        told = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
        return done.returncode == 0, told or done.stdout.splitlines()[-1:]

    def targets(self) -> tuple[bool, list[str]]:
        done = _run(
            [self.python, "tests/upstream/core_targets.py", "fast"],
            PYTHONPATH=str(ROOT / "src"),
            FORKLESS_ALLOW_UNKNOWN="1",
        )
        return done.returncode == 0, (done.stdout or done.stderr).splitlines()[-20:]


@contextlib.contextmanager
def _folder(kept: str | None) -> Iterator[pathlib.Path]:
    if kept is not None:
        path = pathlib.Path(kept).resolve()
        path.mkdir(parents=True, exist_ok=True)
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="forkless-porting-") as made:
        yield pathlib.Path(made)


# -- the command --------------------------------------------------------------------------------------------------


def _before(minor: str) -> str:
    """The newest release of the newest known minor before this one."""
    others = [core for core in versions.CORES if core.minor != minor]
    earlier = others if minor not in versions.KNOWN else others[: versions.KNOWN.index(minor)]
    return (earlier or others)[-1].newest


def _seen_before(new: Survey) -> set[str]:
    """The sites whose fingerprint is already recorded for this minor."""
    from forkless.patching import fingerprints

    minor = versions.minor_of(new.version)
    return {site for site, look in new.looks.items() if look in fingerprints.looks(minor, site)}


def _say(title: str, lines: list[str]) -> None:
    print(f"\n{title}" + ("" if lines else ": none"))
    for line in lines:
        print(f"  {line}")
    sys.stdout.flush()


def _write(environment: Environment, full: str) -> str:
    """Write fingerprints for tested releases only: those of another release of a known minor would hide what moved in it."""
    minor = versions.minor_of(full)
    tested = {one for core in versions.CORES if core.minor == minor for one in (core.oldest, core.newest)}
    if tested and full not in tested:
        return f"no fingerprints were written: of {minor} {' and '.join(sorted(tested))} are tested; change src/forkless/core/versions.py first"
    environment.write_fingerprints(anew=len(tested) < 2)
    return f"wrote the fingerprints of {full} to {FINGERPRINTS.relative_to(ROOT)}"


def port(options: argparse.Namespace) -> int:
    began = time.monotonic()
    path = os.path.abspath(os.path.expanduser(options.what))
    wanted = path if os.path.isdir(path) else f"ansible-core=={options.what}"
    left: list[str] = []
    with _folder(options.folder) as folder:
        environment = Environment(folder, options.python, wanted)
        environment.make()
        new = environment.survey()
        minor = versions.minor_of(new.version)
        environment.lay_beside(options.against or _before(minor))
        known = environment.survey(beside=True, minor=versions.nearest(new.version))
        print(f"ansible-core {new.version}, compared with {known.version}: {len(new.looks)} places are touched")
        moved, diffs = compare(known, new)
        _say("seams that moved", moved)
        _say("how", diffs)
        _say("new lines that may need a seam", risky_lines(known.folder, new.folder))
        if minor not in versions.KNOWN:
            left.append(
                f"add {minor}, its releases and its Pythons to CORES in src/forkless/core/versions.py, and the Pythons to the classifiers"
            )
        unseen = [line for line in moved if line.partition(": ")[0] not in _seen_before(new)]
        left += [f"read the diff, and change the stand-in if it must: {line}" for line in unseen]
        if options.write:
            print(f"\n{_write(environment, new.version)}")
        if options.tests:
            passed, lines = environment.tests(*CHECKS)
            _say("seams, warm modules, fast paths", lines)
            left += [] if passed else [f"make it pass: {line}" for line in lines]
        if options.targets:
            passed, lines = environment.targets()
            _say("ansible-core's own targets", lines)
            left += [] if passed else [f"make it pass, or give the reason: {line}" for line in lines]
        else:
            left.append("run ansible-core's own targets: --targets")
    left.append(
        f"run everything on the new pairs: make matrix; then python docs/_make/tables.py and a line in changelog.d ({minor})"
    )
    _say(
        f"what is left ({time.monotonic() - began:.0f} s)", [f"{number}. {line}" for number, line in enumerate(left, 1)]
    )
    return 1 if unseen or any(line.startswith(("make it", "add ")) for line in left) else 0


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m forkless.porting", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("what", nargs="?", metavar="VERSION|PATH", help="a release of ansible-core, or a source tree")
    made.add_argument("--python", default=sys.executable, help="the Python for it (default: this one)")
    made.add_argument("--folder", help="keep the environment here, and use it again")
    made.add_argument("--no-write", dest="write", action="store_false", help="leave fingerprints.json as it is")
    made.add_argument("--no-tests", dest="tests", action="store_false", help="only compare")
    made.add_argument("--targets", action="store_true", help="run ansible-core's own quick targets too")
    made.add_argument(
        "--against", metavar="RELEASE", help="compare with this release (default: the newest of the minor before)"
    )
    made.add_argument("--survey", nargs="?", const="", metavar="MINOR", help=argparse.SUPPRESS)
    return made


def main(argv: list[str]) -> int:
    options = parser().parse_args(argv)
    try:
        if options.survey is not None:
            found: Any = vars(survey(options.survey or None))
            print(json.dumps(found))
            return 0
        if not options.what:
            raise SpecError("name a release of ansible-core, or the folder of a source tree")
        if not FINGERPRINTS.exists() or not (ROOT / "tests").is_dir():
            raise SpecError(f"this is not a checkout of forkless: {ROOT} has no tests")
        return port(options)
    except ForklessError as error:
        print(f"forkless.porting: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
