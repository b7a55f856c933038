# SPDX-License-Identifier: GPL-3.0-or-later
"""
forkless playbook --slices N: the hosts split over N processes of this machine, for all its cores, with one output and one recap.

Each process runs the whole playbook with the whole inventory, limited to its hosts. No database takes part.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from typing import TYPE_CHECKING

from forkless.core.errors import SpecError
from forkless.runs import slices

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["SlicedOutput", "main"]

_COLUMNS = ("ok", "changed", "unreachable", "failed", "skipped", "rescued", "ignored")
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
_ASKING = ("-k", "-K", "-J", "--ask-pass", "--ask-become-pass", "--ask-vault-pass", "--ask-vault-password")


def _parse(argv: list[str]) -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(prog="forkless playbook", add_help=False, allow_abbrev=False)
    parser.add_argument("--slices", type=_number)
    parser.add_argument("--slices-anyway", action="store_true")
    parser.add_argument("--modules")
    parser.add_argument("--stuck-after")
    parser.add_argument("--plain", action="store_true")
    asked, rest = parser.parse_known_args(argv)
    for word in rest:
        if word.split("=")[0] in _ALONE:
            raise SpecError(f"{word.split('=')[0]} does not go with --slices")
        if word in _ASKING:
            raise SpecError(
                f"{word} would ask in every slice; name a file (--become-password-file, --connection-password-file, --vault-password-file)"
            )
    return asked, rest


def _number(text: str) -> int:
    if text == "auto":
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is neither a whole number above zero nor auto")
    return int(text)


class _Slice:
    """One process, and a thread that reads its events."""

    def __init__(self, number: int, command: list[str], output: SlicedOutput) -> None:
        self.number = number
        self._output = output
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=dict(os.environ) | {"FORKLESS_PLAIN": "1"}
        )
        self._thread = threading.Thread(target=self._read, name=f"forkless-slice-{number}", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None  # noqa: S101  # for the type checker
        for line in self._process.stdout:
            with contextlib.suppress(ValueError):
                event = json.loads(line)
                if isinstance(event, dict):
                    self._output.event(event)

    def signal(self, number: int) -> None:
        with contextlib.suppress(OSError):
            self._process.send_signal(number)

    def wait(self) -> int:
        code = self._process.wait()
        self._thread.join()
        assert self._process.stdout is not None  # noqa: S101  # for the type checker
        self._process.stdout.close()
        return 128 - code if code < 0 else code


class SlicedOutput:
    """Prints the events of all slices as they come: each header once, the recap at the end."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last_header = ""
        self._recap: dict[str, dict[str, int]] = {}

    def event(self, event: dict[str, object]) -> None:
        with self._lock:
            if event.get("event") == "playbook_on_stats":
                self._add(event)
                return
            text = str(event.get("stdout") or "")
            if event.get("event") in _HEADERS:
                if text.strip() == self._last_header:
                    return
                self._last_header = text.strip() or self._last_header
            if text:
                sys.stdout.write(text + "\n")
                sys.stdout.flush()

    def _add(self, event: dict[str, object]) -> None:
        found = event.get("event_data")
        if isinstance(found, dict):
            for host in found.get("processed", {}):
                names = {"unreachable": "dark", "failed": "failures"}
                self._recap[host] = {name: int(found.get(names.get(name, name), {}).get(host, 0)) for name in _COLUMNS}

    def recap(self) -> None:
        """As Ansible prints it, over all slices."""
        title = "PLAY RECAP "
        sys.stdout.write(f"\n{title}{'*' * (79 - len(title))}\n")
        for host in sorted(self._recap):
            counts = self._recap[host]
            sys.stdout.write(f"{host:<26} : " + " ".join(f"{name}={counts[name]:<4}" for name in _COLUMNS) + "\n")
        sys.stdout.write("\n")


@contextlib.contextmanager
def _passing_on(running: list[_Slice]) -> Iterator[None]:
    """SIGTERM and SIGHUP go to every slice; Ctrl-C reaches them by the terminal, or by us if there is none."""

    def pass_on(number: int, _frame: object) -> None:
        if number != signal.SIGINT or not sys.stdin.isatty():
            for one in running:
                one.signal(number)

    before = {number: signal.signal(number, pass_on) for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)}
    try:
        yield
    finally:
        for number, was in before.items():
            signal.signal(number, was)


def main(argv: list[str]) -> int:
    asked, rest = _parse(argv)
    hosts = slices.hosts_of(rest, os.getcwd(), os.environ, anyway=asked.slices_anyway)
    parts = slices.divide(hosts, asked.slices)
    given = [
        word
        for flag, value in (("--modules", asked.modules), ("--stuck-after", asked.stuck_after))
        if value
        for word in (flag, value)
    ]
    if not asked.slices_anyway:
        os.environ["FORKLESS_SLICED"] = "refuse"
    output = SlicedOutput()
    running: list[_Slice] = []
    with tempfile.TemporaryDirectory(prefix="forkless-slices-") as folder, _passing_on(running):
        for number, part in enumerate(parts, 1):
            path = os.path.join(folder, f"slice-{number}")
            with open(path, "w", encoding="utf-8") as file:
                file.write("".join(f"{host}\n" for host in part))
            command = [
                sys.executable,
                "-m",
                "forkless",
                "playbook",
                *rest,
                *given,
                "--limit",
                f"@{path}",
                "--format",
                "jsonl",
            ]
            running.append(_Slice(number, command, output))
        codes = [one.wait() for one in running]
    output.recap()
    return max(codes)
