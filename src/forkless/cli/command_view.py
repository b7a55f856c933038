# SPDX-License-Identifier: GPL-3.0-or-later
"""How `forkless playbook` and `forkless adhoc` are shown: Ansible's own output at a terminal, and what the flags add to it."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from typing import TYPE_CHECKING, TextIO

from forkless.cli import command_flags, terminal_text
from forkless.cli.view import plan as plans
from forkless.cli.view import run_view
from forkless.core.answers import Answers
from forkless.core.errors import SpecError
from forkless.core.terminal import TerminalChoices

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from forkless.core.errors import StuckWorkerError
    from forkless.core.events import Event
    from forkless.core.result import Result
    from forkless.core.terminal import BusyTask, RunControl, TextStream

__all__ = ["CommandView"]


class CommandView:
    """
    The Terminal of one command, and the listener of its run. The view is opened when the arguments are parsed.

    With `drop_in` a program that reads the output finds what stock's command prints: no flag and no notice of forkless's.
    """

    def __init__(self, command: str, *, drop_in: bool = False) -> None:
        self._command = command
        self._drop_in = drop_in
        self._silent = drop_in and (sys.stderr is None or not sys.stderr.isatty())
        self.begun = False
        """Whether Ansible's command runs; until then the run is only set up."""
        self._control: RunControl | None = None
        self._view: run_view.RunView | None = None
        self._listens = False
        self._facts: dict[str, str] = {}
        self._own: list[str] = []
        self._output: TextIO | None = None
        """Takes events about output of running tasks, as lines of JSON; for the runner engine, whose child this is."""

    # -- the terminal, as the engine sees it -----------------------------------------------------------------------

    def attach(self, control: RunControl) -> None:
        self._control = control

    def add_flags(self, parser: argparse.ArgumentParser) -> None:
        self.begun = True
        if self._command != "ansible-console":
            self._own = command_flags.add_flags(parser)
        if self._drop_in and not sys.stdout.isatty():
            command_flags.hide_flags(parser)
        else:
            command_flags.explain(parser, self._command)

    def begin(self, options: argparse.Namespace) -> TerminalChoices:
        if (
            self._command == "ansible-console"
        ):  # one run for all that is typed; it has no view, and ends when the user says so
            return TerminalChoices()
        answers = _answers(options.answers_file) if options.answers_file else Answers({})
        plan = plans.Plan()
        self._view = view = run_view.RunView(options, plan)
        dry = ("syntax", "listtasks", "listtags", "listhosts")
        if not any(getattr(options, name, False) for name in dry):
            self._facts = _facts(self._command, options)
            view.open()
            if options.output_descriptor is not None:
                os.set_inheritable(options.output_descriptor, False)
                self._output = os.fdopen(options.output_descriptor, "w", encoding="utf-8")
            self._listens = view.wanted or self._output is not None
        own = {name: options.__dict__.pop(name) for name in self._own}  # Ansible prints all of its options at -vvvv
        return TerminalChoices(
            modules=own["modules"],
            answers=answers,
            stuck_after=own["stuck_after"] if own["stuck_after"] > 0 and not self._silent else None,
            screen=view.screen,
            as_text=self._listens and view.format != "pretty",
            events=self._listens,
            live_output=self._listens and (view.live_output or self._output is not None),
            without_shown=view.without_shown,
            callbacks=[] if view.screen is None else [lambda: plans.make_counter(plan)],
        )

    @contextlib.contextmanager
    def typing(self) -> Iterator[TextStream | None]:
        """While the user is prompted, the panel is removed; if stdout is read by a program, prompts go to stderr."""
        if self._view is None:
            yield None
        elif self._view.format == "pretty":
            with self._view.typing():
                yield None
        else:
            with contextlib.redirect_stdout(sys.stderr):
                yield sys.stderr

    def notice(self, error: StuckWorkerError) -> None:
        stream = self._view.screen if self._view is not None and self._view.screen is not None else sys.stderr
        stream.write(f"\nforkless: {terminal_text.escaped(str(error))}\n")
        stream.flush()

    def ended(self) -> None:
        if self._view is not None and self._view.screen is not None:
            self._view.screen.close()

    # -- the listener of the run -----------------------------------------------------------------------------------

    def event(self, event: Event) -> None:
        if self._view is not None:
            self._view.event(event)
        if self._output is not None and event.event == "runner_on_output":
            with contextlib.suppress(OSError):  # the program that reads has ended, and ends this one
                self._output.write(json.dumps(event.as_dict()) + "\n")
                self._output.flush()

    def text(self, text: str) -> None:
        """Does nothing: the run keeps the text until the end."""

    # -- what the command itself says ------------------------------------------------------------------------------

    def stopping(self) -> None:
        """Tell that the run is stopping, and what it waits for. Called by a signal handler."""
        if self._silent:
            return
        sentence = terminal_text.printable(_stopping([] if self._control is None else self._control.busy()))
        if self._view is None or not self._view.stopping(sentence):
            # Not through sys.stderr: a signal handler may interrupt the main thread while it writes to sys.stderr.
            os.write(2, f"\nforkless: {sentence}\n".encode(errors="replace"))

    def wait_for_children(self) -> None:
        if self._control is not None:
            self._control.wait_for_children()

    def drop(self) -> None:
        """No run was carried out: nothing is printed or written."""
        if self._view is not None:
            self._view.drop()

    def close(self, result: Result) -> None:
        """The run has ended: print and write what was requested."""
        view = self._view
        if view is None:
            return
        if not self._listens:  # no play was run
            view.drop()
            return
        text = result.stdout if view.format == "json" else ""
        view.close(status=str(result.status), rc=result.rc, facts=self._facts, text=text, ident=result.ident)


def _stopping(busy: list[BusyTask]) -> str:
    """The message after Ctrl-C."""
    said = [f"'{one.task}' on {one.host} ({one.seconds:.0f} s)" for one in busy[:3]]
    if len(busy) > 3:
        said.append(f"{len(busy) - 3} more")
    who = f"; waiting for {', '.join(said)} to end" if said else ""
    return f"stopping: no new task is started{who}. Ctrl-C again leaves at once."


def _facts(command: str, options: argparse.Namespace) -> dict[str, str]:
    """What the report says about the run. Not the whole command line: extra variables and arguments may be secret."""
    if command == "ansible-playbook":
        facts = {"command": "forkless playbook", "playbook": ", ".join(map(str, options.args))}
    else:
        facts = {"command": "forkless adhoc", "module": str(options.module_name), "hosts": str(options.args)}
    for name, label in (
        ("inventory", "inventory"), ("subset", "limit"), ("tags", "tags"), ("skip_tags", "skipped tags"),
        ("forks", "forks"), ("remote_user", "remote user"),
    ):  # fmt: skip
        value = getattr(options, name, None)
        if value and value not in (["all"], ("all",)):
            facts[label] = ", ".join(map(str, value)) if isinstance(value, list | tuple | set) else str(value)
    modes = [
        label
        for name, label in (("check", "check mode"), ("diff", "diff"), ("become", "become"))
        if getattr(options, name, False)
    ]
    return facts | ({"mode": ", ".join(modes)} if modes else {})


def _answers(path: str) -> Answers:
    """Read the answers. If the path is an inherited descriptor, it is closed, so that no child process inherits it."""
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError) as err:
        raise SpecError(
            f"the answers in {path} cannot be read: {getattr(err, 'strerror', None) or type(err).__name__}"
        ) from None
    folder, number = os.path.split(path)
    if folder == "/dev/fd" and int(number) > 2:
        os.close(int(number))
    return Answers(found)
