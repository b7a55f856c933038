# SPDX-License-Identifier: GPL-3.0-or-later
"""ansible-playbook and ansible, on threads: their own parser, output and exit codes, and a few flags more."""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import signal
import sys
import time
import uuid
from typing import TYPE_CHECKING, Any

from forkless import _disable
from forkless._answers import Answers
from forkless._errors import ForklessError, SpecError
from forkless._stop import Stop
from forkless.cli import _face, _plan

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forkless._errors import StuckWorkerError
    from forkless._events import Event
    from forkless.engines._callback import Transcript
    from forkless.engines._scene import Scene

__all__ = ["EXAMPLES", "add_flags", "run_command"]

INTERRUPTED = 99
UNEXPECTED = 250

EXAMPLES = {
    "ansible-playbook": """\
examples:
  forkless playbook site.yml -i hosts.ini --limit web --check
  forkless playbook site.yml --report run.html       one HTML file: timeline, slowest tasks, failures
  forkless playbook site.yml --profile               where the time went, at the end
  forkless playbook site.yml --format jsonl | jq .event
""",
    "ansible": """\
examples:
  forkless adhoc all -i hosts.ini -m ping
  forkless adhoc web -i hosts.ini -m command -a uptime --format jsonl
""",
}


def run_command(command: str, argv: list[str]) -> int:
    """What `ansible-playbook ARGV` would do, in this process. The process is ours: signals and streams too."""
    from forkless.engines import _gate, _scene, threads

    stop = Stop()
    scene = _scene.Scene(ident=uuid.uuid4().hex, stop=stop)
    shown = _Shown(scene)
    config = _gate.configuration(os.environ, _cwd(), [])
    with contextlib.ExitStack() as around:
        try:
            around.enter_context(_rarely_collecting())
            with _signals(stop, scene, shown):
                around.enter_context(threads.staged(scene, config=config, ours=True))
                code = threads.call_cli(scene, command, argv, lambda: _class(command, shown, around))
        except KeyboardInterrupt:
            code = INTERRUPTED
        except ForklessError as error:
            shown.drop()
            sys.stderr.write(f"forkless: {error}\n")
            return 2 if isinstance(error, ValueError) else UNEXPECTED
        finally:
            shown.quiet()
    left = threads.stuck(scene)
    shown.close(code)
    if left is not None:
        sys.stderr.write(f"forkless: {left}\n")
    return code


@contextlib.contextmanager
def _rarely_collecting() -> Iterator[None]:
    """
    The collector looks for cycles after every 700 new objects; a task makes tens of thousands, and hardly a cycle among them.

    The process is ours here. In a program of someone else's the thresholds stay as they are.
    """
    if _disable.disabled("rare-collection"):
        yield
        return
    before = gc.get_threshold()
    gc.set_threshold(20_000, 20, 20)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _cwd() -> str:
    try:
        return os.getcwd()
    except OSError:
        return "/"  # the folder is gone; Ansible goes on as well


class _Shown:
    """The face of this run: made when the arguments are known, and told of what happens from then on."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._transcript: Transcript | None = None
        self._listener: Any = None
        self._text: list[str] = []
        self._facts: dict[str, str] = {}
        self.face: _face.Face | None = None

    def begin(self, command: str, options: Any) -> None:
        from forkless.engines import _callback

        plan = _plan.Plan()
        self.face = face = _face.Face(options, plan)
        dry = ("syntax", "listtasks", "listtags", "listhosts")
        if any(getattr(options, name, False) for name in dry):
            return
        self._facts = _facts(command, options)
        face.open()
        if not face.wanted:
            return
        if face.screen is not None:
            self._scene.stdout = face.screen  # type: ignore[assignment]
            self._scene.stderr = face.screen  # type: ignore[assignment]
            self._scene.callbacks.append(lambda: _plan.make_counter(plan))
        elif face.format != "pretty":
            self._transcript = _callback.Transcript(self._text.append)
            self._scene.stdout = self._transcript  # type: ignore[assignment]
        self._scene.typing = self._typing
        listener = self._listener = _callback.Listener(self._scene.ident, self._event, self._transcript)
        made: list[Any] = []

        def once() -> Any:
            if not made:
                made.append(_callback.make_callback(listener))
            return made[0]

        self._scene.callbacks.append(once)

    def _event(self, event: Event) -> None:
        newest = self._scene.newest if event.event == "runner_on_start" else None
        if self.face is not None:
            self.face.event(event, newest.worker_id if newest is not None else None)

    @contextlib.contextmanager
    def _typing(self) -> Iterator[None]:
        """A question goes to the terminal itself; where stdout is for a program, to stderr."""
        face, scene = self.face, self._scene
        if face is None or face.format == "pretty":
            with face.typing() if face is not None else contextlib.nullcontext():
                kept = scene.stdout, scene.stderr
                scene.stdout = scene.stderr = None
                try:
                    yield
                finally:
                    scene.stdout, scene.stderr = kept
            return
        kept_stdout, scene.stdout = scene.stdout, sys.stderr
        try:
            with contextlib.redirect_stdout(sys.stderr):
                yield
        finally:
            scene.stdout = kept_stdout

    def stopping(self, sentence: str) -> None:
        if self.face is None or not self.face.stopping(sentence):
            # Not through sys.stderr: this is called between any two bytecodes of whoever may be writing to it.
            os.write(2, f"\nforkless: {sentence}\n".encode(errors="replace"))

    def notice(self, error: StuckWorkerError) -> None:
        stream = self.face.screen if self.face is not None and self.face.screen is not None else sys.stderr
        stream.write(f"\nforkless: {error}\n")
        stream.flush()

    def quiet(self) -> None:
        """The terminal is the program's again."""
        if self.face is not None and self.face.screen is not None:
            self.face.screen.close()

    def drop(self) -> None:
        if self.face is not None:
            self.face.drop()

    def close(self, code: int) -> None:
        face = self.face
        if face is None:
            return
        if self._listener is None:  # nothing was run
            face.drop()
            return
        self._listener.last_words()
        status = "canceled" if self._scene.stop.requested else "successful" if code == 0 else "failed"
        face.close(status=status, rc=code, facts=self._facts, text="".join(self._text), ident=self._scene.ident)


def _facts(command: str, options: Any) -> dict[str, str]:
    """What to know about a run later. Not the whole command line: extra variables and arguments may be secrets."""
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


def add_flags(parser: Any) -> None:
    """Our flags into Ansible's parser. An abbreviation of Ansible's own flags means what it means without ours."""
    group = parser.add_argument_group("forkless")
    ours = [
        group.add_argument(
            "--stuck-after",
            type=float,
            default=600.0,
            metavar="SECONDS",
            help="name a worker that has been at one task for so long, with its stack; 0 for never (default: 600)",
        ),
        group.add_argument(
            "--modules",
            choices=["auto", "warm", "cold", "in-process"],
            default="auto",
            help="how modules run: in an interpreter that is kept warm on the host; cold, each in one of its own; in this process "
            "where it can be (local connection); or (auto) warm, and in this process where no program can be started",
        ),
        # How the runner engine hands its answers to us. Nobody types it.
        group.add_argument("--answers-file", default=None, help=argparse.SUPPRESS),
        *_face.add_flags(group),
    ]
    found = parser._get_option_tuples

    def without_ours(option_string: str) -> Any:
        tuples = found(option_string)
        theirs = [one for one in tuples if one[0] not in ours]
        return theirs or tuples

    parser._get_option_tuples = without_ours


def _explain(parser: Any, command: str) -> None:
    """--help under the name that was typed, with examples. Errors and --version stay Ansible's to the letter."""
    upstream = parser.format_help

    def format_help() -> str:
        name, parser.prog = parser.prog, "forkless playbook" if command == "ansible-playbook" else "forkless adhoc"
        try:
            return f"{upstream().rstrip()}\n\n{EXAMPLES[command]}"
        finally:
            parser.prog = name

    parser.format_help = format_help


def _class(command: str, shown: _Shown, around: contextlib.ExitStack) -> Any:
    """Ansible's own class for the command, with our flags in its parser."""
    from ansible.cli.adhoc import AdHocCLI
    from ansible.cli.playbook import PlaybookCLI

    from forkless.engines import threads

    upstream = PlaybookCLI if command == "ansible-playbook" else AdHocCLI
    scene = shown._scene

    class Command(upstream):  # type: ignore[misc, valid-type]
        def init_parser(self) -> None:
            super().init_parser()
            add_flags(self.parser)
            _explain(self.parser, command)

        def post_process_args(self, options: Any) -> Any:
            options = super().post_process_args(options)
            scene.modules = options.modules
            try:
                if options.answers_file:
                    scene.answers = _answers(options.answers_file)
                shown.begin(command, options)
            except ForklessError as error:  # by the parser's own way out: Ansible calls anything else unexpected
                self.parser.exit(2, f"forkless: {error}\n")
            if options.stuck_after > 0:
                around.enter_context(threads.Watchdog(scene, options.stuck_after, shown.notice))
            return options

    return Command


def _answers(path: str) -> Answers:
    """Read once. A descriptor that we inherited for it is closed: no child of ours shall find it open."""
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


def _waiting_for(scene: Scene) -> str:
    """Who is still at work, for someone who has just pressed Ctrl-C."""
    now = time.monotonic()
    workers = list(scene.workers)  # at once: workers come and go
    workers.sort(key=lambda worker: worker.since)
    said = []
    for worker in workers[:3]:
        host, task = worker.describe()
        said.append(f"'{task}' on {host} ({now - worker.since:.0f} s)")
    if len(workers) > 3:
        said.append(f"{len(workers) - 3} more")
    who = f"; waiting for {', '.join(said)} to end" if said else ""
    return f"stopping: no new task is started{who}. Ctrl-C again leaves at once."


@contextlib.contextmanager
def _signals(stop: Stop, scene: Scene, shown: _Shown) -> Iterator[None]:
    """
    Ctrl-C once ends the run: no new task, running ones are stopped. Twice: out at once. SIGTERM ends us as it ends anyone.

    A SIGINT that was ignored when we were started (nohup, a background job of a shell) stays ignored.
    """

    def on_interrupt(_number: int, _frame: Any) -> None:
        if not stop.requested:
            shown.stopping(_waiting_for(scene))
        stop.request()
        raise KeyboardInterrupt

    def on_terminate(number: int, _frame: Any) -> None:
        from forkless.engines import _reach

        shown.quiet()
        stop.request()
        _reach.wait_for_ended_groups()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    before: dict[int, Any] = {}
    for number, action in ((signal.SIGINT, on_interrupt), (signal.SIGTERM, on_terminate)):
        if signal.getsignal(number) is not signal.SIG_IGN:
            before[number] = signal.signal(number, action)
    try:
        yield
    finally:
        for caught, was in before.items():
            signal.signal(caught, was)
