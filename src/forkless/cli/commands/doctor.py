# SPDX-License-Identifier: GPL-3.0-or-later
"""forkless doctor: what this machine can do, which engine will be used and why, and what stock Ansible would do here."""

from __future__ import annotations

import argparse
import collections
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

from forkless import engines
from forkless.core import platform as platform_support
from forkless.core import versions
from forkless.core.errors import ForklessError, SeamError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Finding", "examine", "main", "parser"]

EXAMPLES = """\
examples:
  forkless doctor                   what this machine can do
  forkless doctor --format json     the same, for programs
"""


# Without one of these forkless cannot run; for everything else there is an alternative.
_NEEDED = ("ansible-core", "seams", "threads", "Python")


@dataclass(frozen=True)
class Finding:
    """One result of the examination: what was examined, whether it is available, and the consequence."""

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
    found = [_core(core)]
    if core is not None:
        found.append(_known(core))
    for package, without in (
        ("asyncssh", "the connection forkless.core.ssh cannot be used; pip install 'forkless[ssh]'"),
        ("ansible-runner", "the runner engine cannot be used; pip install 'forkless[runner]'"),
        ("rich", "no live view at a terminal, only Ansible's own output; pip install 'forkless[live]'"),
    ):
        there = _version(package)
        found.append(Finding(package, there is not None, there or "not installed", "" if there else without))
    if "ansible.constants" in sys.modules:  # `_known` has imported it: the configuration says where collections are
        found.append(_netcommon())
    return found


def _netcommon() -> Finding:
    """Which ansible.netcommon is installed, and whether connections to devices can live in the run."""
    from forkless.engines.threads.network import netcommon

    name = "ansible.netcommon"
    where = netcommon.installed()
    if where is None:
        return Finding(name, True, "not installed", "needed for network devices only")
    version = netcommon.read_version(where)
    changed = [one for plugin in netcommon.IN_THE_RUN for one in netcommon.changed(where, plugin)]
    if changed:
        return Finding(
            name, False, f"{version}, which is not known ({', '.join(netcommon.known_versions())} are)",
            f"its devices get Ansible's helper processes: {', '.join(dict.fromkeys(changed))}",
        )  # fmt: skip
    return Finding(name, True, f"{version}, known", "connections to network devices live in the run")


def _core(core: str | None) -> Finding:
    if core is None:
        return Finding("ansible-core", False, "not installed", "nothing can be run; pip install ansible-core")
    wrong = versions.unsupported(sys.version_info[:2], core)
    return Finding("ansible-core", wrong is None, core, wrong or "")


def _known(core: str) -> Finding:
    """Whether forkless supports this ansible-core, and whether the seams have their expected fingerprints."""
    from forkless.engines.threads import importing as importing_module
    from forkless.engines.threads.patches import table as seam_table
    from forkless.patching import seams as seams_module

    name = "seams"
    try:
        importing_module.import_ansible(ours=False)
        found = seams_module.states(seam_table.SEAMS, core)
        if seams_module.minor(core) in seams_module.KNOWN or versions.unsupported(sys.version_info[:2], core):
            seams_module.check(seam_table.SEAMS)
    except SeamError as err:
        return Finding(
            name,
            False,
            f"{len(err.moved)} places in this installation of ansible-core are missing or changed",
            str(err),
        )
    except UnsupportedError as err:
        return Finding(name, False, "no run can be started with this ansible-core", str(err))
    except (Exception, SystemExit) as err:  # noqa: BLE001  # a broken installation is a finding, not a crash
        return Finding(name, False, "ansible-core cannot be imported", str(err))
    moved = [one for one in found if one.detail]
    if seams_module.minor(core) not in seams_module.KNOWN:
        known = ", ".join(seams_module.KNOWN)
        return Finding(
            name, False, f"ansible-core {core} is not known ({known} are), {len(moved)} places moved",
            "runs are refused; install a known one, or set FORKLESS_ALLOW_UNKNOWN=1 to try",
        )  # fmt: skip
    left_out = [one.seam.site for one in found if one.state is seams_module.State.LEFT_OUT]
    if left_out:
        return Finding(
            name, True, f"{len(found)} places in ansible-core, {len(left_out)} left out, {len(moved)} not as tested",
            f"runs are right, but slower: ansible-core has changed at {', '.join(left_out)}; see forkless doctor --seams",
        )  # fmt: skip
    if moved:
        return Finding(
            name,
            True,
            f"{len(found)} places in ansible-core, {len(moved)} not as tested",
            "see forkless doctor --seams",
        )
    return Finding(name, True, f"{len(found)} places in ansible-core, all as expected")


def _home() -> Finding:
    """
    Whether HOME is the home of the passwd entry. Ansible's async wrapper and async_status resolve ~ in different ways, and
    async_status does not find the job's file if they differ.
    """
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
    soft = platform_support.open_files_limit()
    if soft is None:
        return Finding("open files", True, "no limit that can be asked for")
    # About twenty descriptors for the process, and up to eight for each worker with a child process or a connection.
    forks = max(1, (soft - 20) // 8)
    ok = forks >= 20
    return Finding(
        "open files", ok, str(soft), "" if ok else f"enough for about {forks} forks; ulimit -n 1024 for more"
    )


def _dev_shm() -> Finding:
    place = "/dev/shm"  # noqa: S108  # it is only examined, nothing is written
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
        _can("fork", platform_support.can_fork, "stock Ansible cannot start a worker; forkless uses threads"),
        _can(
            "exec",
            platform_support.can_exec,
            "modules for the local connection run in this process; use forkless.core.ssh for hosts",
        ),
        _can(
            "sem_open",
            platform_support.has_sem_open,
            "stock Ansible says 'Unable to use multiprocessing'; forkless needs none",
        ),
        _can(
            "shared memory",
            platform_support.has_shm,
            "stock Ansible's ssh passwords need shared memory; forkless.core.ssh does not",
        ),
        _dev_shm(),
        _can(
            "pty",
            platform_support.has_pty,
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


def _engine() -> dict[str, object]:
    """The default engine on this machine, and the reason."""
    try:
        name = engines.choose(None)
    except ForklessError as err:
        return {"name": None, "why": str(err), "modules": None}
    if platform_support.can_exec():
        why = "it needs nothing but Python, and children that modules want can be started as well"
        modules = "in a fork of an interpreter that is kept warm; --modules cold starts one for each, in-process runs them here; "
        modules += "what a task prints is shown while it runs, except by cold modules, which show it when they end"
    else:
        why = "this system lets us start no process, and it needs none"
        modules = "in this process"
    return {"name": name, "why": why, "modules": modules}


def _stock() -> list[str]:
    """The problems that stock Ansible would have on this machine, as far as they can be predicted."""
    said = []
    core = _version("ansible-core")
    if core is not None and versions.minor_of(core) in versions.KNOWN:
        wrong = versions.unsupported(sys.version_info[:2], core)
        said += [] if wrong is None else [wrong]
    if not hasattr(os, "fork") or not platform_support.can_fork():
        said.append("ansible-playbook fails at its first task: it forks a worker for each, and fork is denied here")
    if not platform_support.has_sem_open():
        said.append("ansible-playbook does not start: its queues need sem_open, which is missing or has no /dev/shm")
    if not _home().ok:
        said.append(
            "async_status does not find jobs that async started, unless async_dir is set: HOME is not the user's home"
        )
    if sys.getfilesystemencoding().lower() != "utf-8":
        said.append("ansible-playbook does not start: 'Ansible requires the locale encoding to be UTF-8'")
    if not platform_support.can_exec():
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


# What the states of seams mean; "ok" needs no explanation.
_STATES = {
    "changed": "its code is not that of a tested release, but its shape is; the seam is used",
    "left out": "ansible-core has changed here, and runs are right without the seam, but slower",
    "absent": "this release needs no seam here",
    "moved": "ansible-core has changed here, and forkless refuses to run with it",
}


def seam_table() -> list[str]:
    """Every seam: its state, its kind, its site and its reason, and what has changed there."""
    from forkless.engines.threads import importing as importing_module
    from forkless.engines.threads.patches import table as seam_table
    from forkless.patching import seams as seams_module

    full = seams_module.version()
    try:
        importing_module.import_ansible(ours=False)
    except ForklessError as error:
        return [str(error)]
    found = seams_module.states(seam_table.SEAMS, full)
    known = "known" if seams_module.minor(full) in seams_module.KNOWN else "NOT KNOWN"
    counts = collections.Counter(one.state.value for one in found)
    summary = ", ".join(f"{counts[name]} {name}" for name in _STATES if counts[name] or name == "moved")
    lines = [f"ansible-core {full} ({known}): {len(found)} seams, {summary}"]
    lines += [f"{name}: {sentence}" for name, sentence in _STATES.items() if counts[name]]
    for one in found:
        lines.append(f"{one.state.value:<9} {one.seam.kind.value:<12} {one.seam.site}  ({one.seam.why})")
        lines += [f"{'':22} {one.detail}"] if one.detail else []
    return lines


# Further sections, by flag: name -> (help, function that returns its lines).
SECTIONS: dict[str, tuple[str, Callable[[], list[str]]]] = {
    "seams": ("every place where ansible-core is touched, and whether it has moved", seam_table),
}


def examine() -> dict[str, Any]:
    """Everything that the doctor examines, as values that can be encoded as JSON."""
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
        mark = _coloured("+ ok     ", "32") if row["ok"] else _coloured("- not ok ", "31")
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
