# SPDX-License-Identifier: GPL-3.0-or-later
"""ansible-playbook and ansible, on threads: their own parser, output and exit codes, and a few flags more."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import uuid
from typing import TYPE_CHECKING, Any

from forkless._errors import ForklessError
from forkless._stop import Stop

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forkless._errors import StuckWorkerError
    from forkless.engines._scene import Scene

__all__ = ["run_command"]

INTERRUPTED = 99
UNEXPECTED = 250


def run_command(command: str, argv: list[str]) -> int:
    """What `ansible-playbook ARGV` would do, in this process. The process is ours: signals and streams too."""
    from forkless.engines import _gate, _scene, threads

    stop = Stop()
    scene = _scene.Scene(ident=uuid.uuid4().hex, stop=stop)
    config = _gate.configuration(os.environ, _cwd(), [])
    with contextlib.ExitStack() as around:
        try:
            with _signals(stop):
                around.enter_context(threads.staged(scene, config=config, ours=True))
                code = threads.call_cli(scene, command, argv, lambda: _class(command, scene, around))
        except KeyboardInterrupt:
            code = INTERRUPTED
        except ForklessError as error:
            sys.stderr.write(f"forkless: {error}\n")
            return UNEXPECTED
    left = threads.stuck(scene)
    if left is not None:
        sys.stderr.write(f"forkless: {left}\n")
    return code


def _cwd() -> str:
    try:
        return os.getcwd()
    except OSError:
        return "/"  # the folder is gone; Ansible goes on as well


def _class(command: str, scene: Scene, around: contextlib.ExitStack) -> Any:
    """Ansible's own class for the command, with our flags in its parser."""
    from ansible.cli.adhoc import AdHocCLI
    from ansible.cli.playbook import PlaybookCLI

    from forkless.engines import threads

    upstream = PlaybookCLI if command == "ansible-playbook" else AdHocCLI

    class Command(upstream):  # type: ignore[misc, valid-type]
        def init_parser(self) -> None:
            super().init_parser()
            ours = self.parser.add_argument_group("forkless")
            ours.add_argument(
                "--stuck-after",
                type=float,
                default=600.0,
                metavar="SECONDS",
                help="name a worker that has been at one task for so long, with its stack; 0 for never (default: 600)",
            )
            ours.add_argument(
                "--modules",
                choices=["auto", "warm", "cold", "in-process"],
                default="auto",
                help="how modules run: in an interpreter that is kept warm on the host; cold, each in one of its own; in this process "
                "where it can be (local connection); or (auto) warm, and in this process where no program can be started",
            )

        def post_process_args(self, options: Any) -> Any:
            options = super().post_process_args(options)
            scene.modules = options.modules
            if options.stuck_after > 0:
                around.enter_context(threads.Watchdog(scene, options.stuck_after, _notice))
            return options

    return Command


def _notice(error: StuckWorkerError) -> None:
    sys.stderr.write(f"\nforkless: {error}\n")
    sys.stderr.flush()


@contextlib.contextmanager
def _signals(stop: Stop) -> Iterator[None]:
    """
    Ctrl-C once ends the run: no new task, running ones are stopped. Twice: out at once. SIGTERM ends us as it ends anyone.

    A SIGINT that was ignored when we were started (nohup, a background job of a shell) stays ignored.
    """

    def on_interrupt(_number: int, _frame: Any) -> None:
        stop.request()
        raise KeyboardInterrupt

    def on_terminate(number: int, _frame: Any) -> None:
        from forkless.engines import _reach

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
