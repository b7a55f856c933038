# SPDX-License-Identifier: GPL-3.0-or-later
"""Events of a run that another process carries out: read from its artifact folder, or from lines of JSON."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import time
from typing import TYPE_CHECKING, Protocol

from forkless.core.errors import SpecError
from forkless.core.events import Event, Status

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

__all__ = ["EventLines", "RunFolder", "WatchedRun", "find_run_folder"]

# Seconds between two looks at a folder or at the end of a file.
_EVERY = 0.2
# A folder whose time stamp is younger than this may have changed again within the same tick of the file system's clock.
_TICK = 0.1
# Looks after which an event file that is not complete is passed over: its writer was killed, or the disk was full.
_PATIENCE = 25

# `12-UUID.json`. ansible-runner's `UUID-partial.json` is an event that it has not numbered yet.
_EVENT_FILE = re.compile(r"(\d+)-(?!.*-partial\.json$).+\.json")
_ENDS = frozenset(status.value for status in Status if status.ended)
_UNKNOWN = 250  # ansible-playbook's exit code for an error that it does not know


class WatchedRun(Protocol):
    """One run of another process. Only one thread may read it."""

    status: Status
    rc: int
    sentence: str
    """Why the run's end is not known; empty if it is known."""

    def events(self) -> Iterator[Event | str]:
        """Every event once, in order, as they come, and lines that are not events as text; ends when the run has ended."""
        ...


def find_run_folder(path: str) -> str:
    """The artifact folder of one run: `path` itself, or the run below it (or below its `artifacts`) with the newest event."""
    if os.path.isdir(os.path.join(path, "job_events")):
        return path
    found = []
    for parent in (os.path.join(path, "artifacts"), path):
        with contextlib.suppress(OSError):
            for name in os.listdir(parent):
                with contextlib.suppress(OSError):
                    folder = os.path.join(parent, name)
                    found.append((os.stat(os.path.join(folder, "job_events")).st_mtime_ns, folder))
    if not found:
        raise SpecError(
            f"there is no run in {path}: neither it, nor a folder in it or in its artifacts/, has a folder job_events; "
            "`forkless run` and forkless.run(artifacts=...) write one"
        )
    return max(found)[1]


class RunFolder:
    """
    A run by its artifact folder, written by forkless or by ansible-runner.

    forkless holds a lock on the folder while it writes. If the lock is free and the status says "running", the program that
    carried out the run has been killed. ansible-runner has no lock: a run of its own that was killed is followed without an end.
    """

    def __init__(self, path: str, *, follow: bool = True) -> None:
        self.path = path
        self.status = Status.RUNNING
        self.rc = _UNKNOWN
        self.sentence = ""
        self._follow = follow
        self._events = os.path.join(path, "job_events")
        self._last = 0
        self._seen = (0, False)
        self._looks = 0

    def events(self) -> Iterator[Event | str]:
        while True:
            over = self._over()  # before the files are listed: the last events are written before the status
            yield from self._new()
            if over and not self._looks:
                return
            if not self._follow and not self._looks:
                self.sentence = f"the run in {self.path} has not ended"
                return
            time.sleep(_EVERY)

    def _new(self) -> Iterator[Event]:
        try:
            changed = os.stat(self._events).st_mtime_ns
            settled = time.time() - changed / 1e9 > _TICK
            if self._seen == (changed, True) and not self._looks:
                return
            names = os.listdir(self._events)
        except OSError as err:
            raise SpecError(f"the events of the run in {self.path} cannot be read: {err.strerror}") from None
        numbered = ((int(match[1]), name) for name in names if (match := _EVENT_FILE.fullmatch(name)))
        for number, name in sorted(one for one in numbered if one[0] > self._last):
            event = _event_of(os.path.join(self._events, name))
            # ansible-runner writes in place: the rest of the file follows.
            if event is None and self._looks < _PATIENCE:
                self._looks += 1
                return
            self._looks = 0
            self._last = number
            if event is not None:
                yield event
        self._looks = 0
        self._seen = (changed, settled)

    def _over(self) -> bool:
        said = self._word("status")
        if said == Status.RUNNING and self._abandoned():
            said = self._word("status")
            if said == Status.RUNNING:
                self.status = Status.ERROR
                self.sentence = (
                    f"the program that carried out the run in {self.path} has ended without writing its result"
                )
                return True
        if said in _ENDS:
            self.status = Status(said)
            rc = self._word("rc")
            self.rc = int(rc) if rc.lstrip("-").isdigit() else _UNKNOWN
            return True
        return False

    def _abandoned(self) -> bool:
        """Whether nobody holds the folder's lock. Asked only once the status is there: it is written while the lock is held."""
        try:
            folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        except OSError:
            return False  # removed meanwhile; the next look at its events says so
        try:
            fcntl.flock(folder, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return False
        finally:
            os.close(folder)
        return True

    def _word(self, name: str) -> str:
        try:
            with open(os.path.join(self.path, name), encoding="utf-8", errors="replace") as file:
                return file.read(100).strip()
        except OSError:
            return ""


class EventLines:
    """
    A run by its events as lines of JSON, as `--format jsonl` and `ansible-runner run --json` print them.

    A pipe is read to its end. A file is read on until the run's statistics have come: they are the end of a play's events. The file of
    a run that was killed has none, and is followed until the reader ends it.
    """

    def __init__(self, lines: BinaryIO, name: str, *, follow: bool) -> None:
        self.status = Status.RUNNING
        self.rc = _UNKNOWN
        self.sentence = f"the events in {name} end before the run has ended"
        self._lines, self._name, self._follow = lines, name, follow
        self._any = False

    def events(self) -> Iterator[Event | str]:
        part = b""  # bytes: a writer's buffer may end within a character
        while True:
            line = self._lines.readline()
            if line.endswith(b"\n"):
                yield self._event((part + line).decode("utf-8", "replace"))
                part = b""
                continue
            part += line
            if not line and (not self._follow or self.status.ended):
                break
            if not line:
                time.sleep(_EVERY)
        if part.strip():
            yield self._event(part.decode("utf-8", "replace"))

    def _event(self, line: str) -> Event | str:
        try:
            event = Event.from_dict(json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError):
            if not self._any:
                raise SpecError(
                    f"{self._name} has no events: its first line is not a JSON object of `--format jsonl`"
                ) from None
            return line  # a warning that a program printed beside its events
        self._any = True
        if event.event == "playbook_on_stats":
            self._end(event)
        return event

    def _end(self, event: Event) -> None:
        """Ansible's exit code, by what the statistics say."""
        self.rc = 4 if event.event_data.get("dark") else 2 if event.event_data.get("failures") else 0
        self.status = Status.FAILED if self.rc else Status.SUCCESSFUL
        self.sentence = ""


def _event_of(path: str) -> Event | None:
    try:
        with open(path, encoding="utf-8") as file:
            return Event.from_dict(json.load(file))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
