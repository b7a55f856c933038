# SPDX-License-Identifier: GPL-3.0-or-later
"""How a run is shown: plain text, the live view, events as JSON, a profile, a report. All commands that run use it."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import shutil
import sys
import time
from typing import TYPE_CHECKING, Any

from forkless.cli.terminal_text import as_json
from forkless.cli.view.live_output import OutputPrinter, ShownOutput
from forkless.core.errors import SpecError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping

    from forkless.cli.view.panel import Panel
    from forkless.cli.view.plan import Plan
    from forkless.cli.view.screen import Screen
    from forkless.cli.view.timeline import Timeline
    from forkless.core.events import Event

__all__ = ["RunView", "add_flags", "speaks_unicode"]


# A task on a host is over.
_ENDS = frozenset({"runner_on_ok", "runner_on_failed", "runner_on_unreachable", "runner_on_skipped"})


def add_flags(group: Any) -> None:
    """Add the flags that select how a run is shown to a parser."""
    group.add_argument(
        "--plain",
        action="store_true",
        help="no live view below the output, also at a terminal (FORKLESS_PLAIN=1 says the same); the live view needs rich: "
        "pip install 'forkless[live]'",
    )
    group.add_argument(
        "--format",
        choices=["pretty", "jsonl", "json"],
        default="pretty",
        help="what goes to stdout: Ansible's text (pretty), each event as it happens as a line of JSON (jsonl), or the "
        "whole result at the end (json)",
    )
    group.add_argument(
        "--report", metavar="FILE", help="write one HTML file about the run: timeline, slowest, failures"
    )
    group.add_argument(
        "--live-output",
        action="store_true",
        help="print what tasks print while they run, line by line, with host and task before each line",
    )
    group.add_argument("--profile", action="store_true", help="say at the end where the time went")


def speaks_unicode(stream: Any) -> bool:
    try:
        "■━…█".encode(stream.encoding or "ascii")
    except (UnicodeError, LookupError):
        return False
    return True


class RunView:
    """Receives every event and all text; at the end it prints the profile and writes the report, if requested."""

    def __init__(self, options: argparse.Namespace, plan: Plan | None = None) -> None:
        self.format: str = options.format
        self._plan = plan
        self._profile: bool = options.profile
        self._report = ReportFile(options.report) if options.report else None
        self._plain: bool = options.plain
        self._lines = OutputPrinter(sys.stdout) if options.live_output and self.format == "pretty" else None
        self._shown = ShownOutput()
        self._events: list[Event] = []
        self._last: Mapping[str, Any] = {}
        self.panel: Panel | None = None
        self.screen: Screen | None = None

    @functools.cached_property
    def timeline(self) -> Timeline:
        from forkless.cli.view.timeline import Timeline  # imported here: a plain run is not shown

        return Timeline()

    @property
    def wanted(self) -> bool:
        """Whether any part of the view needs events."""
        return self.format != "pretty" or self._profile or self._report is not None or self.live_output

    @property
    def live_output(self) -> bool:
        """Whether any part of the view shows what tasks print while they run."""
        return self.format != "pretty" or self._lines is not None or self.screen is not None or self._report is not None

    def open(self) -> None:
        """Begin. The live view needs rich and a terminal that supports it and has a person before it, and must not be switched off."""
        if self.wanted:
            _ = self.timeline  # its clock starts now, not at the first event
        switches = (os.environ.get(name, "0") for name in ("FORKLESS_PLAIN", "ANSIBLE_FORKLESS_PLAIN"))
        plain = self._plain or self.format != "pretty" or any(value not in ("", "0") for value in switches)
        # ansible-runner reads the terminal that it makes, and finds events in it by marks that its callback prints. It sets this variable for
        # that callback. A panel would be text of events; and stdout and stderr must be written each for itself, as stock writes them.
        if "AWX_ISOLATED_DATA_DIR" in os.environ:
            plain = True
        if plain or not sys.stdout.isatty() or os.environ.get("TERM", "dumb") == "dumb":
            return
        if importlib.util.find_spec("rich") is None:
            return
        from forkless.cli.view.panel import Panel
        from forkless.cli.view.screen import Screen

        self.panel = Panel(self.timeline, self._plan, unicode=speaks_unicode(sys.stdout))
        self.screen = Screen(self.panel)
        self.screen.__enter__()

    def event(self, event: Event) -> None:
        self.timeline.feed(event, event.worker)
        if event.event == "playbook_on_stats":
            self._last = event.event_data
        if self.screen is not None:
            self.screen.begin()
        if event.event == "runner_on_output" and self._lines is not None:
            lines, shown = self._lines.lines(event), True
            if self.screen is None:
                _say(lines)
            else:
                shown = self.screen.write_if_room(lines)
            self._shown.add(event, shown=shown)
        elif event.event in _ENDS:
            self._shown.forget(event)
        if self.format == "jsonl":
            _say(as_json(event.as_dict(), ascii_only=not speaks_unicode(sys.stdout)) + "\n")
        elif self.format == "json":
            self._events.append(event)

    def without_shown(self, host: str, task: str, result: dict[str, object]) -> None:
        """Remove from a result that Ansible is about to print what `--live-output` has printed already, if it has printed all of it."""
        if self._lines is not None:
            self._shown.remove_from(host, task, result)

    @contextlib.contextmanager
    def typing(self) -> Iterator[None]:
        """While the user is prompted, the panel is removed."""
        with self.screen.away() if self.screen is not None else contextlib.nullcontext():
            yield

    def stopping(self, sentence: str) -> bool:
        """Show in the live view that the run is stopping; False if there is no live view."""
        if self.panel is None:
            return False
        self.panel.stopping = sentence
        return True

    def text(self, text: str) -> None:
        """Print output of the run, unless stdout has events or the result."""
        if self.screen is not None:
            self.screen.write(text)
        elif self.format == "pretty":
            _say(text)

    def close(
        self,
        *,
        status: str,
        rc: int,
        facts: Mapping[str, str],
        text: str = "",
        ident: str = "",
        ended: float | None = None,
    ) -> None:
        """The run has ended, now or at `ended`: print and write what was requested."""
        if self.screen is not None:
            self.screen.close()
        self.timeline.close(ended)
        if self.format == "json":
            _say(as_json(self._result(status, rc, text, ident), ascii_only=not speaks_unicode(sys.stdout)) + "\n")
        if self._profile:
            from forkless.cli.view.profile import profile

            width = shutil.get_terminal_size().columns
            out = sys.stdout if self.format == "pretty" else sys.stderr
            _say(profile(self.timeline, width, unicode=speaks_unicode(out)), out)
        if self._report is not None:
            from forkless.cli.view.report import page

            self._report.write(page(self.timeline, status=status, rc=rc, facts=facts, recap=self._last))

    def _result(self, status: str, rc: int, text: str, ident: str) -> dict[str, object]:
        from forkless.core.result import Result

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
        """No run was started: remove the panel and write nothing."""
        if self.screen is not None:
            self.screen.close()
        if self._report is not None:
            self._report.drop()


class ReportFile:
    """The path of the report. It is checked before the run, so that a path that cannot be written fails at once."""

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
        """Write the report atomically: an older report is kept until the new one is complete."""
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
    # If the reader of a pipe has closed it, the run continues, as with ansible-playbook.
    with contextlib.suppress(BrokenPipeError):
        stream.write(text)
        stream.flush()
