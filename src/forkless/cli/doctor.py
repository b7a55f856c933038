# SPDX-License-Identifier: GPL-3.0-or-later
"""forkless doctor: what this machine can do, which engine will be used and why, and what stock Ansible would do here."""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import locale
import os
import platform
import shutil
import sys
import threading
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from forkless import _platform, engines
from forkless._errors import ForklessError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Finding", "examine", "main", "parser"]

EXAMPLES = """\
examples:
  forkless doctor                   what this machine can do
  forkless doctor --format json     the same, for programs
"""


# Without these forkless cannot run here; everything else has a way around it.
_NEEDED = ("ansible-core", "seams", "threads", "Python")


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at: what it is, whether it is there, and what follows from it."""

    name: str
    ok: bool
    found: str
    means: str = ""


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _can(name: str, ask: Callable[[], bool], without: str) -> Finding:
    ok = ask()
    return Finding(name, ok, "yes" if ok else "no", "" if ok else without)


def _packages() -> list[Finding]:
    core = _version("ansible-core")
    found = [
        Finding(
            "ansible-core",
            core is not None,
            core or "not installed",
            "" if core else "nothing can be run; pip install ansible-core",
        )
    ]
    if core is not None:
        found.append(_known(core))
    for package, without in (
        ("asyncssh", "the connection forkless.core.ssh cannot be used; pip install 'forkless[ssh]'"),
        ("ansible-runner", "the runner engine cannot be used; pip install 'forkless[runner]'"),
        ("rich", "no live view at a terminal, only Ansible's own output; pip install 'forkless[live]'"),
    ):
        there = _version(package)
        found.append(Finding(package, there is not None, there or "not installed", "" if there else without))
    return found


def _known(core: str) -> Finding:
    """Whether forkless knows this ansible-core, and whether what it touches in it looks as it should."""
    from forkless.engines import _quiet, _seams, _stitch

    name = "seams"
    try:
        _quiet.import_ansible(ours=False)
        moved = _stitch.moved(_seams.SEAMS, core)
    except (Exception, SystemExit) as err:  # noqa: BLE001  # a broken installation is a finding, not a crash
        return Finding(name, False, "ansible-core cannot be imported", str(err))
    count = len(_stitch.for_minor(_seams.SEAMS, _stitch.minor(core)))
    if _stitch.minor(core) not in _stitch.KNOWN:
        known = ", ".join(_stitch.KNOWN)
        return Finding(
            name, False, f"ansible-core {core} is not known ({known} are), {len(moved)} places moved",
            "runs are refused; install a known one, or set FORKLESS_ALLOW_UNKNOWN=1 to try",
        )  # fmt: skip
    if moved:
        return Finding(
            name, True, f"{count} places, {len(moved)} differ from the releases seen", "see forkless doctor --seams"
        )
    return Finding(name, True, f"{count} places in ansible-core, all as expected")


def _home() -> Finding:
    """Ansible's async jobs look for files below ~ in two ways, and lose each other where these differ."""
    home = os.path.expanduser("~")
    if importlib.util.find_spec("pwd") is None:
        return Finding("HOME and passwd", True, home)
    import pwd

    try:
        listed = pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return Finding("HOME and passwd", True, home)
    same = os.path.realpath(home) == os.path.realpath(listed)
    means = "" if same else (
        "stock Ansible's async wrapper and async_status look in different folders; set async_dir, or use the roles of forkless.core"
    )  # fmt: skip
    return Finding("HOME and passwd", same, home if same else f"{home}, but the list of users says {listed}", means)


def _open_files() -> Finding:
    try:
        import resource
    except ImportError:
        return Finding("open files", True, "no limit that can be asked for")
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if soft == resource.RLIM_INFINITY:
        return Finding("open files", True, "no limit")
    # Some twenty for ourselves, and up to eight for each worker with a child process or a connection.
    forks = max(1, (soft - 20) // 8)
    ok = forks >= 20
    return Finding(
        "open files", ok, str(soft), "" if ok else f"enough for about {forks} forks; ulimit -n 1024 for more"
    )


def _dev_shm() -> Finding:
    place = "/dev/shm"  # noqa: S108  # looked at, not written to
    there = os.path.isdir(place) and os.access(place, os.W_OK)
    ok = there or sys.platform == "darwin"
    found = "yes" if there else "not needed here" if ok else "no" if not os.path.isdir(place) else "not writable"
    return Finding(
        place,
        ok,
        found,
        "" if ok else "stock Ansible says 'normally caused by lack of access to /dev/shm'; forkless needs none",
    )


def _python() -> Finding:
    ok = sys.version_info >= (3, 11)
    return Finding("Python", ok, platform.python_version(), "" if ok else "forkless needs 3.11 or newer")


def _threads() -> bool:
    try:
        thread = threading.Thread(target=lambda: None)
        thread.start()
        thread.join()
    except RuntimeError:
        return False
    return True


def _passwd() -> bool:
    if importlib.util.find_spec("pwd") is None:
        return False
    import pwd

    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        return False
    return True


def _writable_home() -> bool:
    home = os.path.expanduser("~")
    return home != "~" and os.access(home, os.W_OK)


def _capabilities() -> list[Finding]:
    found = [
        _python(),
        _can("fork", _platform.can_fork, "stock Ansible cannot start a worker; forkless uses threads"),
        _can(
            "exec",
            _platform.can_exec,
            "modules for the local connection run in this process; use forkless.core.ssh for hosts",
        ),
        _can(
            "sem_open",
            _platform.has_sem_open,
            "stock Ansible says 'Unable to use multiprocessing'; forkless needs none",
        ),
        _can(
            "shared memory",
            _platform.has_shm,
            "stock Ansible's ssh passwords need shared memory; forkless.core.ssh does not",
        ),
        _dev_shm(),
        _can(
            "pty",
            _platform.has_pty,
            "stock Ansible's ssh cannot give its program a terminal; forkless.core.ssh needs none here",
        ),
        _can("threads", _threads, "nothing can be run: forkless runs its workers on threads"),
        _can("user", _passwd, "this user is in no list of users; ~ is HOME, and names of owners may be numbers"),
        _can("home", _writable_home, "set ANSIBLE_HOME and ANSIBLE_LOCAL_TEMP to a folder that can be written"),
    ]
    found += [_home(), _open_files()]
    binary = shutil.which("ssh")
    found.append(
        Finding(
            "ssh program",
            bool(binary),
            binary or "none",
            ""
            if binary
            else "the builtin ssh connection cannot be used; ansible_connection: forkless.core.ssh needs no program",
        )
    )
    encoding = sys.getfilesystemencoding()
    found.append(
        Finding(
            "locale",
            encoding.lower() == "utf-8",
            f"{locale.setlocale(locale.LC_CTYPE)} ({encoding})",
            "" if encoding.lower() == "utf-8" else "Ansible wants UTF-8; set LC_ALL=C.UTF-8 or PYTHONUTF8=1",
        )
    )
    return found


def _engine() -> dict[str, Any]:
    """The engine that a run gets when it names none, and why."""
    try:
        name = engines.choose(None)
    except ForklessError as err:
        return {"name": None, "why": str(err), "modules": None}
    if _platform.can_exec():
        why = "it needs nothing but Python, and children that modules want can be started as well"
        modules = "in a fork of an interpreter that is kept warm; --modules cold starts one for each, in-process runs them here"
    else:
        why = "this system lets us start no process, and it needs none"
        modules = "in this process"
    return {"name": name, "why": why, "modules": modules}


def _stock() -> list[str]:
    """What stock Ansible would do here, as far as it can be told."""
    said = []
    if not hasattr(os, "fork") or not _platform.can_fork():
        said.append("ansible-playbook fails at its first task: it forks a worker for each, and fork is denied here")
    if not _platform.has_sem_open():
        said.append("ansible-playbook does not start: its queues need sem_open, which is missing or has no /dev/shm")
    if not _home().ok:
        said.append(
            "async_status does not find jobs that async started, unless async_dir is set: HOME is not the user's home"
        )
    if sys.getfilesystemencoding().lower() != "utf-8":
        said.append("ansible-playbook does not start: 'Ansible requires the locale encoding to be UTF-8'")
    if not _platform.can_exec():
        said.append("no module can be run: each is a program of its own, and none can be started here")
    if sys.platform == "darwin":
        said.append(
            "workers may die after fork ('A worker was found in a dead state'): Apple's libraries do not survive it"
        )
    if threading.active_count() > 1:
        said.append(
            f"this program has {threading.active_count()} threads: a fork may copy a lock that one of them holds, and hang"
        )
    return said


def _seams() -> list[str]:
    """Every place where ansible-core is touched, why, and whether it still looks as it did when we last looked."""
    from forkless.engines import _quiet, _seams, _stitch

    full = _stitch.version()
    _quiet.import_ansible(ours=False)
    moved = {line.partition(": ")[0] for line in _stitch.moved(_seams.SEAMS, full)}
    seams = _stitch.for_minor(_seams.SEAMS, _stitch.minor(full))
    known = "known" if _stitch.minor(full) in _stitch.KNOWN else "NOT KNOWN"
    lines = [f"ansible-core {full} ({known}): {len(seams)} seams, {len(moved)} moved"]
    return lines + [f"{'moved' if seam.site in moved else 'ok':<6} {seam.site}  ({seam.why})" for seam in seams]


# Further sections, by flag: name -> (help, what makes its lines).
SECTIONS: dict[str, tuple[str, Callable[[], list[str]]]] = {
    "seams": ("every place where ansible-core is touched, and whether it has moved", _seams),
}


def examine() -> dict[str, Any]:
    """Everything that the doctor looks at, as values that JSON can hold."""
    return {
        "forkless": _version("forkless") or "not installed",
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "engine": _engine(),
        "packages": [asdict(one) for one in _packages()],
        "capabilities": [asdict(one) for one in _capabilities()],
        "stock": _stock(),
    }


def _pretty(report: dict[str, Any]) -> str:
    lines = [f"forkless {report['forkless']}, Python {report['python']}, {report['system']}", ""]
    rows = report["packages"] + report["capabilities"]
    width = max(len(row["name"]) for row in rows)
    for row in rows:
        mark = _coloured("+ ok     ", "32") if row["ok"] else _coloured("- missing", "31")
        lines.append(f"  {mark} {row['name']:<{width}}  {row['found']}")
        if row["means"]:
            lines.append(f"{'':12}{'':{width}}  {row['means']}")
    engine = report["engine"]
    lines += [
        "",
        f"engine: {engine['name']}, because {engine['why']}",
        f"modules for the local connection: {engine['modules']}",
    ]
    lines += ["", "stock Ansible here:"]
    lines += [f"  ! {line}" for line in report["stock"]] or ["  nothing that it needs is missing"]
    for name, made in report.get("sections", {}).items():
        lines += ["", f"{name}:", *(f"  {line}" for line in made)]
    return "\n".join(lines) + "\n"


def _coloured(text: str, colour: str) -> str:
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR") or os.environ.get("ANSIBLE_NOCOLOR"):
        return text
    return f"\x1b[{colour}m{text}\x1b[0m"


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="forkless doctor",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--format", choices=["pretty", "json"], default="pretty", help="for people or for programs")
    for name, (what, _) in SECTIONS.items():
        parser.add_argument(f"--{name}", action="store_true", help=what)
    return parser


def main(argv: list[str]) -> int:
    options = parser().parse_args(argv)
    report = examine()
    asked = {name: make() for name, (_, make) in SECTIONS.items() if getattr(options, name)}
    if asked:
        report["sections"] = asked
    sys.stdout.write(json.dumps(report, indent=2) + "\n" if options.format == "json" else _pretty(report))
    needed = [one for one in [*report["packages"], *report["capabilities"]] if one["name"] in _NEEDED]
    return 0 if report["engine"]["name"] and all(one["ok"] for one in needed) else 1
