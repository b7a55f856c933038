# SPDX-License-Identifier: GPL-3.0-or-later
"""How a run is shown: plain text, the live view, events as JSON, a profile, a report. Both ways of running share it."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import sys
import time
from typing import TYPE_CHECKING, Any

from forkless._errors import SpecError
from forkless.cli._timeline import Timeline

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping

    from forkless._events import Event
    from forkless.cli._panel import Panel
    from forkless.cli._plan import Plan
    from forkless.cli._screen import Screen

__all__ = ["Face", "add_flags", "speaks_unicode"]


def add_flags(group: Any) -> list[argparse.Action]:
    """The flags that say how a run is shown, into somebody's parser."""
    return [
        group.add_argument(
            "--plain",
            action="store_true",
            help="no live view below the output, also at a terminal (FORKLESS_PLAIN=1 says the same); the live view needs rich: "
            "pip install 'forkless[live]'",
        ),
        group.add_argument(
            "--format",
            choices=["pretty", "jsonl", "json"],
            default="pretty",
            help="what goes to stdout: Ansible's text (pretty), each event as it happens as a line of JSON (jsonl), or the "
            "whole result at the end (json)",
        ),
        group.add_argument(
            "--report", metavar="FILE", help="write one HTML file about the run: timeline, slowest, failures"
        ),
        group.add_argument("--profile", action="store_true", help="say at the end where the time went"),
    ]


def speaks_unicode(stream: Any) -> bool:
    try:
        "■━…█".encode(stream.encoding or "ascii")
    except (UnicodeError, LookupError):
        return False
    return True


class Face:
    """Told of every event and every piece of text; at the end it prints and writes what was asked for."""

    def __init__(self, options: argparse.Namespace, plan: Plan | None = None) -> None:
        self.format: str = options.format
        self.timeline = Timeline()
        self._plan = plan
        self._profile: bool = options.profile
        self._report = Place(options.report) if options.report else None
        self._plain: bool = options.plain
        self._events: list[Event] = []
        self._last: Mapping[str, Any] = {}
        self.panel: Panel | None = None
        self.screen: Screen | None = None

    @property
    def wanted(self) -> bool:
        """Whether anyone wants events at all."""
        return self.format != "pretty" or self._profile or self._report is not None or self.screen is not None

    def open(self) -> None:
        """Begin. The live view needs a terminal that can be drawn on, rich, and nobody who asked for less."""
        plain = self._plain or self.format != "pretty" or os.environ.get("FORKLESS_PLAIN", "0") not in ("", "0")
        if plain or not sys.stdout.isatty() or os.environ.get("TERM", "dumb") == "dumb":
            return
        if importlib.util.find_spec("rich") is None:
            return
        from forkless.cli._panel import Panel
        from forkless.cli._screen import Screen

        self.panel = Panel(self.timeline, self._plan, unicode=speaks_unicode(sys.stdout))
        self.screen = Screen(self.panel)
        self.screen.__enter__()

    def event(self, event: Event, worker: int | None = None) -> None:
        self.timeline.feed(event, worker)
        if event.event == "playbook_on_stats":
            self._last = event.event_data
        if self.screen is not None:
            self.screen.begin()
        if self.format == "jsonl":
            _say(json.dumps(event.as_dict(), ensure_ascii=not speaks_unicode(sys.stdout)) + "\n")
        elif self.format == "json":
            self._events.append(event)

    @contextlib.contextmanager
    def typing(self) -> Iterator[None]:
        """Someone is asked something: the panel steps aside."""
        with self.screen.away() if self.screen is not None else contextlib.nullcontext():
            yield

    def stopping(self, sentence: str) -> bool:
        """Say in the live view that the run is about to end; False if there is none."""
        if self.panel is None:
            return False
        self.panel.stopping = sentence
        return True

    def close(self, *, status: str, rc: int, facts: Mapping[str, str], text: str = "", ident: str = "") -> None:
        """The run is over. Whatever was asked for is written now."""
        if self.screen is not None:
            self.screen.close()
        self.timeline.close()
        if self.format == "json":
            _say(json.dumps(self._result(status, rc, text, ident), ensure_ascii=not speaks_unicode(sys.stdout)) + "\n")
        if self._profile:
            from forkless.cli._profile import profile

            width = shutil.get_terminal_size().columns
            out = sys.stdout if self.format == "pretty" else sys.stderr
            _say(profile(self.timeline, width, unicode=speaks_unicode(out)), out)
        if self._report is not None:
            from forkless.cli._report import page

            self._report.write(page(self.timeline, status=status, rc=rc, facts=facts, recap=self._last))

    def _result(self, status: str, rc: int, text: str, ident: str) -> dict[str, Any]:
        from forkless._result import Result

        result: Any = Result(status=status, rc=rc, events=self._events)  # type: ignore[arg-type]
        return {
            "status": status,
            "rc": rc,
            "ident": ident,
            "seconds": round(self.timeline.elapsed(), 3),
            "stats": result.stats,
            "hosts": result.hosts,
            "stdout": text,
            "events": [event.as_dict() for event in self._events],
        }

    def drop(self) -> None:
        """It never came to a run: take down what stands, write nothing."""
        if self.screen is not None:
            self.screen.close()
        if self._report is not None:
            self._report.drop()


class Place:
    """Where the report goes. Looked at before the run, so that nobody waits an hour to hear that it cannot be written."""

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(os.path.expanduser(path))
        self._half = os.path.join(
            os.path.dirname(self.path), f".{os.path.basename(self.path)}.{os.getpid()}.{time.time_ns()}"
        )
        if os.path.isdir(self.path):
            raise SpecError(f"the report cannot be written to {self.path}: it is a folder; name a file in it")
        try:
            os.close(os.open(self._half, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        except OSError as err:
            raise SpecError(f"the report cannot be written to {self.path}: {err.strerror}; nothing was run") from None

    def write(self, text: str) -> None:
        """Whole or not at all; a report from before stays until the new one is there."""
        try:
            with open(self._half, "w", encoding="utf-8") as file:
                file.write(text)
            os.replace(self._half, self.path)
        except OSError as err:
            self.drop()
            sys.stderr.write(f"forkless: the report could not be written to {self.path}: {err.strerror}\n")
            return
        sys.stderr.write(f"forkless: the report is in {self.path}\n")

    def drop(self) -> None:
        with contextlib.suppress(OSError):
            os.unlink(self._half)


def _say(text: str, out: Any = None) -> None:
    stream = out or sys.stdout
    # Whoever read along may have seen enough; the run goes on, as it does for ansible-playbook.
    with contextlib.suppress(BrokenPipeError):
        stream.write(text)
        stream.flush()
