# SPDX-License-Identifier: GPL-3.0-or-later
"""forkless watch: a run of another process, shown as it happens."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys

from forkless.cli import terminal_text
from forkless.cli.view import run_view
from forkless.cli.view.timeline import epoch
from forkless.cli.watched_run import EventLines, RunFolder, WatchedRun, find_run_folder
from forkless.core.errors import SpecError

__all__ = ["main", "parser"]

EXAMPLES = """\
examples:
  forkless watch /srv/job                       the newest run in /srv/job/artifacts
  forkless watch /srv/job/artifacts/nightly     one run, while it runs or afterwards
  forkless watch run.jsonl                      events that `forkless playbook --format jsonl > run.jsonl` writes
  ssh ci cat run.jsonl | forkless watch - --report run.html
  forkless watch 17                             a run of the queue, as `forkless runs follow 17`

What is written: `forkless run` and forkless.run(artifacts=...), as well as ansible-runner, write an artifact folder for each run.
The exit code is the run's. Ctrl-C ends watching; the run goes on. A file of events is read until the recap has come; the one of a run
that was killed has none: end watching with Ctrl-C, or use --no-follow.
"""


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="forkless watch",
        description="Show a run that another process carries out: its output, the live view, a profile, a report.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    made.add_argument(
        "run",
        nargs="?",
        default=".",
        help="an artifact folder or one above it, a file with events as lines of JSON, - for stdin, or the number of a queued "
        "run (default: this folder)",
    )
    made.add_argument("--no-follow", action="store_true", help="show what is there, and do not wait for the run to end")
    run_view.add_flags(made.add_argument_group("how it is shown"))
    return made


def main(argv: list[str]) -> int:
    asked = parser().parse_args(argv)
    if asked.run.isdigit() and not os.path.exists(asked.run):
        return _queued(asked)
    with contextlib.ExitStack() as around:
        return _watch(_opened(asked, around), asked)


def _queued(asked: argparse.Namespace) -> int:
    from forkless.cli.commands import runs

    for name in ("report", "profile", "live_output", "no_follow"):
        if getattr(asked, name):
            raise SpecError(f"--{name.replace('_', '-')} does not go with the number of a queued run")
    if asked.format == "json":
        raise SpecError("a queued run is shown as text or as jsonl; `forkless runs show` has its result as JSON")
    return runs.main(["follow", asked.run, "--format", asked.format])


def _opened(asked: argparse.Namespace, around: contextlib.ExitStack) -> WatchedRun:
    if asked.run == "-":
        return EventLines(sys.stdin.buffer, "stdin", follow=False)
    if os.path.isdir(asked.run):
        return RunFolder(find_run_folder(asked.run), follow=not asked.no_follow)
    try:
        file = open(asked.run, "rb")  # noqa: SIM115  # `around` closes it
    except OSError as err:
        raise SpecError(f"{asked.run} cannot be read: {err.strerror}") from None
    around.enter_context(file)
    return EventLines(file, asked.run, follow=not asked.no_follow and os.path.isfile(asked.run))


def _watch(run: WatchedRun, asked: argparse.Namespace) -> int:
    view = run_view.RunView(asked)
    view.open()
    last, text = None, []
    shown = terminal_text.coloured if sys.stdout.isatty() else str
    try:
        for event in run.events():
            if isinstance(event, str):
                view.text(shown(event))
                continue
            if last is None:
                view.timeline.began = epoch(event.created)
            last = event
            view.event(event)
            if event.stdout and event.event != "runner_on_output":
                view.text(shown(event.stdout) + "\n")
                if asked.format == "json":
                    text.append(event.stdout + "\n")
    except KeyboardInterrupt:
        view.drop()
        sys.stderr.write("\nforkless watch: the run goes on\n")
        return 0
    except SpecError:
        view.drop()
        raise
    ended = None if last is None else epoch(last.created)
    ident = "" if last is None else last.runner_ident
    facts = {"command": "forkless watch", "run": asked.run}
    view.close(status=str(run.status), rc=run.rc, facts=facts, text="".join(text), ident=ident, ended=ended)
    if run.sentence:
        sys.stderr.write(f"forkless watch: {terminal_text.escaped(run.sentence)}\n")
    return run.rc
