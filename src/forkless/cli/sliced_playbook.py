# SPDX-License-Identifier: GPL-3.0-or-later
"""
forkless playbook --slices N: the hosts split over N processes of this machine, for all its cores, with one output and one recap.

Each process runs the whole playbook with the whole inventory, limited to its hosts. No database takes part.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from typing import TYPE_CHECKING

from forkless.cli import slice_affinity, slice_records, terminal_text
from forkless.cli.command_flags import add_slice_flags
from forkless.core import platform
from forkless.core.errors import SpecError
from forkless.core.thread_stack import OwnThread
from forkless.runs import slices

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["SlicedOutput", "main"]

_HEADERS = ("playbook_on_start", "playbook_on_play_start", "playbook_on_task_start", "playbook_on_handler_task_start")
# Flags that need the terminal, or make something of one process's events.
_ALONE = (
    "--format",
    "--report",
    "--profile",
    "--live-output",
    "--step",
    "--list-hosts",
    "--list-tasks",
    "--list-tags",
    "--syntax-check",
)


def _parse(argv: list[str]) -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(prog="forkless playbook", add_help=False, allow_abbrev=False)
    add_slice_flags(parser)
    parser.add_argument("--modules")
    parser.add_argument("--stuck-after")
    parser.add_argument("--plain", action="store_true")
    asked, rest = parser.parse_known_args(argv)
    for word in rest:
        if word.split("=")[0] in _ALONE:
            raise SpecError(f"{word.split('=')[0]} does not go with --slices")
    return asked, rest


class _Slice:
    """
    One process, which is told its hosts once they are known, and a thread that reads what it prints. The first one finds out which hosts
    there are (slice_process.py).
    """

    def __init__(
        self, number: int, argv: list[str], output: SlicedOutput, ended: Callable[[], None] = lambda: None
    ) -> None:
        self._output, self._number, self._ended = output, number, ended
        self._lock = threading.Lock()  # guards the next three
        self._begun = self._freed = False
        hosts, self._hosts = os.pipe()  # -1 when it is closed
        self._answer, answer = os.pipe() if number == 1 else (-1, -1)
        passed = (hosts, answer) if number == 1 else (hosts,)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "forkless.cli.slice_process", str(hosts), str(answer), *argv],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                text=True,
                encoding="utf-8",
                errors="replace",
                pass_fds=passed,
            )
        finally:
            for one in passed:
                os.close(one)
        self._thread = OwnThread(target=self._read, name=f"forkless-slice-{number}", daemon=True)
        self._thread.start()

    def answer(self) -> str:
        """What the first slice says about the hosts; "" if it has ended, and has said why."""
        with open(self._answer, encoding="utf-8") as file:
            return file.read()

    def begin(self, part: str) -> None:
        """Let the process run its part of the hosts (slice_records.part); with "" it ends, and nothing was run."""
        with self._lock:
            # A process that has ended says so by its exit code.
            with contextlib.suppress(BrokenPipeError):
                told = f"{part}\n".encode() if part else b""
                while told:  # a signal may cut a write
                    told = told[os.write(self._hosts, told) :]
            self._begun = True
            if not part or self._freed:
                self._close()

    def free(self) -> None:
        """Let the process use all cores: another one has ended, and its core would be idle. The end of what it is told says so."""
        with self._lock:
            self._freed = True
            if self._begun:
                self._close()

    def _close(self) -> None:
        if self._hosts >= 0:
            os.close(self._hosts)
        self._hosts = -1

    def _read(self) -> None:
        assert self._process.stdout is not None  # noqa: S101  # for the type checker
        for line in self._process.stdout:
            # If nobody reads our own output any more, the slice goes on: it would wait for ever on a pipe that is full.
            with contextlib.suppress(OSError, ValueError):
                self._output.line(line, self._number)
        self._ended()

    def signal(self, number: int) -> None:
        with contextlib.suppress(OSError):
            self._process.send_signal(number)

    def wait_until(self, moment: float) -> None:
        """Wait until the process has ended, or the moment has come."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(max(0.0, moment - time.monotonic()))

    def wait(self) -> int:
        code = self._process.wait()
        self._thread.join()
        assert self._process.stdout is not None  # noqa: S101  # for the type checker
        self._process.stdout.close()
        with self._lock:
            self._close()
        return 128 - code if code < 0 else code


class _Place:
    """Where a slice is: the headers of its play and of its task, each with how often the slice has printed such a one."""

    def __init__(self) -> None:
        self.headers: list[tuple[str, int]] = []
        self._times: dict[str, int] = {}

    def go_to(self, header: str) -> tuple[str, int]:
        self._times[header] = self._times.get(header, 0) + 1
        found = (header, self._times[header])
        self.headers = [found] if header.lstrip().startswith("PLAY") else [*self.headers[:1], found]
        return found


class SlicedOutput:
    """
    Prints what all slices say, as it comes, and the recap at the end. Any thread may call it.

    A header is printed when the first slice comes to it, and again only above what a slice says that is behind or ahead. Processes of this
    machine send records (slice_process.py), slices of a queue send events.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._places: dict[object, _Place] = {}
        self._printed: set[tuple[str, int]] = set()
        self._above: list[tuple[str, int]] = []
        """The headers above the next line."""
        self._recap: dict[str, dict[str, int]] = {}

    def line(self, line: str, number: int = 1) -> None:
        """A line that the process of a slice has written: a record, or what a plugin printed past Ansible."""
        kind, value = _record(line)
        if kind == slice_records.RECAP and isinstance(value, dict):
            self._recap.update(value)
        else:
            self._print(number, str(value), header=kind == slice_records.HEADER)

    def event(self, event: dict[str, object]) -> None:
        if event.get("event") == "playbook_on_stats":
            found = event.get("event_data")
            if isinstance(found, dict):
                for host in found.get("processed", {}):
                    self._recap[host] = {
                        column: int(found.get(count, {}).get(host, 0))
                        for column, count in slice_records.COLUMNS.items()
                    }
        elif text := str(event.get("stdout") or ""):
            self._print(event.get("runner_ident"), text + "\n", header=event.get("event") in _HEADERS)

    def _print(self, who: object, text: str, *, header: bool) -> None:
        with self._lock:
            place = self._places.setdefault(who, _Place())
            if header:
                found = place.go_to(text)
                if found in self._printed:
                    return
                self._printed.add(found)
            same = 0
            while same < len(place.headers) and place.headers[: same + 1] == self._above[: same + 1]:
                same += 1
            for missing, _ in place.headers[same:]:
                sys.stdout.write(missing)
            if place.headers:
                self._above = list(place.headers)
            if not header:
                sys.stdout.write(text)
            sys.stdout.flush()

    def recap(self) -> None:
        """As Ansible prints it, over all slices."""
        title, at_terminal = "PLAY RECAP ", sys.stdout.isatty()
        sys.stdout.write(f"\n{title}{'*' * (79 - len(title))}\n")
        for host in sorted(self._recap):
            counts = self._recap[host]
            if at_terminal:
                host = terminal_text.printable(host)  # noqa: PLW2901  # in a queue others have named it
            sys.stdout.write(
                f"{host:<26} : " + " ".join(f"{name}={counts[name]:<4}" for name in slice_records.COLUMNS) + "\n"
            )
        sys.stdout.write("\n")


def _record(line: str) -> tuple[str, object]:
    try:
        found = json.loads(line)
    except ValueError:
        found = None
    if isinstance(found, list) and len(found) == 2 and found[0] in slice_records.KINDS:
        return found[0], found[1]
    return slice_records.TEXT, line


@contextlib.contextmanager
def _passing_on(running: list[_Slice]) -> Iterator[list[int]]:
    """SIGTERM and SIGHUP go to every slice; Ctrl-C reaches them by the terminal, or by us if there is none. Gives the signals that came."""
    came: list[int] = []

    def pass_on(number: int, _frame: object) -> None:
        came.append(number)
        if number != signal.SIGINT or not sys.stdin.isatty():
            for one in running:
                one.signal(number)

    before = {number: signal.signal(number, pass_on) for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)}
    try:
        yield came
    finally:
        for number, was in before.items():
            signal.signal(number, was)


def _end(waiting: list[_Slice]) -> None:
    """
    End slices that have not begun. One that waits for its hosts ends by itself. One that still reads the inventory gets SIGTERM: it ends
    the inventory scripts and removes its folders, which it could not do after SIGKILL.
    """
    for one in waiting:
        one.begin("")
    moment = time.monotonic() + 1.0
    for one in waiting:
        one.wait_until(moment)
    for one in waiting:
        one.signal(signal.SIGTERM)
    for one in waiting:
        one.wait()


def main(argv: list[str]) -> int:
    asked, rest = _parse(argv)
    given = [
        word
        for flag, value in (("--modules", asked.modules), ("--stuck-after", asked.stuck_after))
        if value
        for word in (flag, value)
    ]
    if not asked.slices_anyway:
        os.environ["FORKLESS_SLICED"] = "refuse"
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # as Ansible does: what hosts print need not be text
    output = SlicedOutput()
    running: list[_Slice] = []

    def free() -> None:
        for one in running:
            one.free()

    def start(many: int) -> None:
        for number in range(len(running) + 1, many + 1):
            running.append(_Slice(number, [*rest, *given], output, free))  # noqa: PERF401  # a signal goes to those that are in the list

    with tempfile.TemporaryDirectory(prefix="forkless-slices-") as folder, _passing_on(running) as came:
        # As many as can be at work at once import ansible-core and read the inventory; the first looks up the hosts, and all wait.
        start(min(asked.slices, platform.cores()))
        told = running[0].answer()
        if not told and not came:
            ended = running.pop(0)
            ended.begin("")
            _end(running)
            return ended.wait()
        if came:
            _end(running)
            return 128 + came[0]
        try:
            hosts = slices.hosts_in(told, os.getcwd(), anyway=asked.slices_anyway)
        except BaseException:
            _end(running)
            raise
        parts = slices.divide(hosts, asked.slices)
        start(len(parts))
        if came:  # those that were started after it do not know
            _end(running)
            return 128 + came[0]
        own = slice_affinity.choose(platform.core_numbers(), len(parts))
        for number, one in enumerate(running):
            path = os.path.join(folder, f"slice-{number + 1}")
            if number < len(parts):
                with open(path, "w", encoding="utf-8") as file:
                    file.write("".join(f"{host}\n" for host in parts[number]))
            one.begin(slice_records.part(f"@{path}", own[number]) if number < len(parts) else "")
        codes = [one.wait() for one in running]
    output.recap()
    return max(codes)
