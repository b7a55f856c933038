# SPDX-License-Identifier: GPL-3.0-or-later
"""The threads engine: ansible-core in this process, its workers as threads."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import sys
from typing import TYPE_CHECKING, Any

from forkless import modules
from forkless.core import switches
from forkless.core.answers import Answers
from forkless.core.events import Status
from forkless.core.result import Outcome, complaint
from forkless.core.run_context import while_active
from forkless.engines import refuse_green_threads
from forkless.engines.threads import config_gate, context, importing, run_thread, terminal_command
from forkless.engines.threads.patches import (
    callbacks,
    child_processes,
    collection_modules,
    event_loops,
    exit_functions,
    library_defaults,
    path_guard,
    plugin_loader,
    process_streams,
    stdlib_views,
    table,
    worker_os,
    working_directory,
)
from forkless.engines.threads.watchdog import Watchdog, stuck
from forkless.engines.threads.workers import copy_variables, interrupt, threads
from forkless.engines.threads.workers import worker as thread_worker
from forkless.patching import seams, thread_environ
from forkless.ssh import kept_runs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from forkless.core.errors import StuckWorkerError
    from forkless.core.events import Event
    from forkless.core.spec import RunSpec
    from forkless.core.stop import Stop
    from forkless.core.terminal import Terminal, TerminalChoices, TextStream
    from forkless.engines.threads.context import RunContext

__all__ = ["ENGINE", "ThreadsEngine", "call_cli", "exit_code"]

# ansible-playbook's exit code after Ctrl-C.
INTERRUPTED = 99
# Seconds that the threads of a run that has ended get to end.
GRACE = 5.0

_LEFT_BEHIND = "the run was stopped, but its own thread did not end and was left behind."

_checked = False


@contextlib.contextmanager
def _seams_installed(in_use: Callable[[], bool]) -> Iterator[None]:
    """Install all seams. If an abandoned thread still uses this ansible-core at the end, the seams in it stay; no other run uses it then."""
    global _checked  # noqa: PLW0603  # checked once: the installed ansible-core does not change while the process lives
    if not _checked:
        seams.check(table.SEAMS)
        _checked = True
    with (
        seams.installed(table.SEAMS, in_use),
        working_directory.views_installed({id(os): stdlib_views.os_view}),
    ):
        modules.VIEWS.update(_VIEWS)
        if working_directory.active():
            modules.VIEWS.update({"os": stdlib_views.os_view, "open": working_directory.open_file})
            modules.FOLDERS.append(working_directory.entered)
        try:
            yield
        finally:
            modules.VIEWS.clear()
            modules.FOLDERS.clear()
            if in_use():
                plugin_loader.forget_dressed()
            else:
                plugin_loader.remove_all_views()
            event_loops.undo()
            collection_modules.forget_shared()
            copy_variables.forget_types()


# Views of stdlib modules for a module that runs in this process: its sleeps and children can be interrupted.
_VIEWS = {
    "signal": stdlib_views.signal_view,
    "subprocess": stdlib_views.subprocess_view,
    "time": stdlib_views.time_view,
}
_config_gate = config_gate.ConfigGate(_seams_installed)


def call_cli(run_context: RunContext, command: str, argv: list[str], cli: Any = None) -> int:
    """
    Run `ansible-playbook` or `ansible` with these arguments on the calling thread, which must be in `run_context`. Returns the exit code.

    `cli` is used instead of Ansible's class for the command.
    """
    chosen = terminal_command.ansible_class(command) if cli is None else cli
    try:
        run_context.interrupt.begin()
        try:
            chosen.cli_executor([command, *argv])
        finally:
            exit_functions.call_all(run_context)
    except SystemExit as leaving:
        return exit_code(leaving, run_context.stderr or sys.stderr)
    finally:
        run_context.interrupt.end()
    return 0


def exit_code(leaving: SystemExit, stream: TextStream | None) -> int:
    """The exit code that the interpreter would use; a message in `leaving` is written to `stream`."""
    if isinstance(leaving.code, str):
        if stream is not None:  # sys.stderr is None in a program without a console
            stream.write(f"{leaving.code}\n")
        return 1
    return int(leaving.code or 0)


@contextlib.contextmanager
def active_run(
    run_context: RunContext,
    *,
    config: Callable[[], dict[str, str]],
    wait: bool = True,
    ours: bool = False,
) -> Iterator[None]:
    """
    Everything around a run: the config gate, the seams, the run's environment, listening for a stop, and cleaning up.

    `config` returns what ansible-core will read as its configuration: see `config_gate`.
    """
    refuse_green_threads()
    run_context.off = switches.asked(run_context.getenv())
    with (
        while_active(run_context.number),
        thread_environ.provided(worker_os.run_variables),
        child_processes.started_for_runs(),
        library_defaults.by_run(run_context.environ),
        context.enter_worker(run_context, None),  # the gate may import ansible-core, in this run's environment
        _config_gate.passed(config, stop=run_context.stop, wait=wait, ours=ours),
        kept_runs.kept(run_context.ident),
        _folders_told_of(run_context),
        modules.interpreter_pool() as run_context.interpreters,
    ):
        forget = run_context.stop.listen(thread_worker.on_stop(run_context))
        importing.tell_again()
        try:
            yield
        finally:
            forget()
            interrupt.wait_for_ended_groups()
            threads.worker_threads(run_context).close(0.0 if run_context.stop.urgent else GRACE)
            while run_context.at_end:
                run_context.at_end.pop()()
            if (
                not run_context.left_behind
            ):  # an abandoned run thread still needs its CLI arguments in `state` on its way out
                run_context.state.clear()


@contextlib.contextmanager
def _folders_told_of(run_context: RunContext) -> Iterator[None]:
    """
    Warn of temporary folders on hosts that could not be removed after a host's last task, when the block ends: a later task would have
    told of them. An abandoned run thread may hold the display's lock, so nothing is told then.
    """
    try:
        yield
    finally:
        pool = run_context.interpreters
        left = pool.take_not_removed() if pool is not None and not run_context.left_behind else ()
        for path, why in left:
            sys.modules["ansible.utils.display"].Display().warning(modules.not_removed(path, why))


class ThreadsEngine:
    """Executes a RunSpec with ansible-core's own command, executor and strategies, on threads of this process."""

    name = "threads"

    def carry_out(
        self,
        spec: RunSpec,
        *,
        ident: str,
        deliver: Callable[[Event], None],
        write: Callable[[str], None],
        stop: Stop,
        wait: bool = True,
    ) -> Outcome:
        transcript = callbacks.Transcript(write)
        listener = callbacks.Listener(ident, deliver, transcript)
        run_context = context.RunContext(
            ident=ident,
            stop=stop,
            stdout=transcript,
            stderr=transcript,
            stdin=io.StringIO(),
            environ={**os.environ, **spec.env} if spec.env else None,
            passwords=spec.passwords,
            vault_password=spec.vault_password,
            answers=Answers(spec.answers),
            modules=spec.modules,
            folder=None if modules.has_own_folder() else os.path.realpath(spec.cwd),  # the form that getcwd() returns
        )
        run_context.extra_vars = json.dumps(dict(spec.extra_vars)) if spec.extra_vars else ""
        _send_events(run_context, listener)
        if spec.live_output:
            run_context.live_output = listener.live_output
        config = functools.partial(config_gate.configuration, run_context.getenv(), spec.cwd, spec.playbooks)
        argv = spec.argv(secret_free=True)
        own = run_thread.RunThread(run_context, lambda: call_cli(run_context, spec.command, argv))
        after = spec.stuck_after
        watchdog = None if after is None else Watchdog(run_context, after, functools.partial(_tell_stuck, listener))
        with threads.own_folder(spec.cwd), contextlib.ExitStack() as around:
            if run_context.folder is not None:
                path_guard.watch()
                around.enter_context(working_directory.used())

            def work() -> int:
                with contextlib.nullcontext() if watchdog is None else watchdog:
                    return own.run()

            code = _carried_out(around, run_context, work, config=config, wait=wait, ours=False)
            if own.stuck:
                run_context.left_behind = True
                _config_gate.left_behind(own)
        if own.stuck:
            listener.emit("run_stuck", {"stack": own.stuck})
            listener.last_words()
            return Outcome(stop.why, code, f"{_LEFT_BEHIND} The thread's stack:\n{own.stuck.rstrip()}")
        listener.last_words()
        left_behind = stuck(run_context)
        if left_behind is not None:
            raise left_behind
        explained = code == 0 or stop.requested or listener.recap
        return _outcome(run_context, code, "" if explained else complaint(transcript.last))

    def carry_out_at_terminal(
        self,
        spec: RunSpec,
        *,
        ident: str,
        deliver: Callable[[Event], None],
        write: Callable[[str], None],
        stop: Stop,
        terminal: Terminal,
    ) -> Outcome:
        run_context = context.RunContext(ident=ident, stop=stop, terminal=terminal)
        listener = callbacks.Listener(ident, deliver)
        terminal.attach(terminal_command.ThreadsControl(run_context))
        with contextlib.ExitStack() as around:

            def begin(choices: TerminalChoices) -> None:
                if choices.as_text:
                    run_context.stdout = listener.transcript = callbacks.Transcript(write)
                if choices.stuck_after is not None:
                    around.enter_context(Watchdog(run_context, choices.stuck_after, terminal.notice))
                if choices.events:
                    _send_events(run_context, listener)
                    if choices.live_output:
                        run_context.live_output = listener.live_output
                        run_context.before_result = functools.partial(_before_result, listener, choices.without_shown)

            def work() -> int:
                with process_streams.divided_by_worker():
                    cli = terminal_command.extended_class(spec.command, run_context, terminal, begin)
                    return call_cli(run_context, spec.command, spec.argv(), cli)

            try:
                # The only run of this process: its configuration cannot be confused with another one's.
                code = _carried_out(around, run_context, work, config=dict, wait=True, ours=True)
            except SystemExit as leaving:  # importing ansible-core failed: its message and exit code are used
                code = exit_code(leaving, sys.stderr)
            finally:
                terminal.ended()
        listener.last_words()
        left_behind = stuck(run_context)
        return _outcome(run_context, code, "" if left_behind is None else str(left_behind))


def _carried_out(
    around: contextlib.ExitStack,
    run_context: RunContext,
    work: Callable[[], int],
    *,
    config: Callable[[], dict[str, str]],
    wait: bool,
    ours: bool,
) -> int:
    """The exit code of `work`, which calls Ansible's command, inside an active run that ends with `around`."""
    try:
        around.enter_context(active_run(run_context, config=config, wait=wait, ours=ours))
        return work()
    except KeyboardInterrupt:
        if not run_context.stop.requested:
            raise
        return INTERRUPTED


def _outcome(run_context: RunContext, code: int, sentence: str) -> Outcome:
    stop = run_context.stop
    if stop.requested:
        return Outcome(stop.why, code or INTERRUPTED, sentence)
    return Outcome(Status.SUCCESSFUL if code == 0 else Status.FAILED, code, sentence)


def _send_events(run_context: RunContext, listener: callbacks.Listener) -> None:
    """Make Ansible call `listener` with its callbacks, and with the worker that each task is started on."""
    made: list[object] = []

    def once() -> object:
        if not made:
            made.append(callbacks.make_callback(listener))
        return made[0]

    def newest() -> int | None:
        return None if run_context.newest is None else run_context.newest.worker_id

    listener.newest = newest
    run_context.callbacks.append(once)
    run_context.at_end.append(listener.end_output)


def _before_result(
    listener: callbacks.Listener,
    without_shown: Callable[[str, str, dict[str, object]], None] | None,
    host: str,
    task: str,
    result: dict[str, object],
) -> None:
    listener.deliver_waiting_output()
    if without_shown is not None:
        without_shown(host, task, result)


def _tell_stuck(listener: callbacks.Listener, error: StuckWorkerError) -> None:
    fields = {"host": error.host, "task": error.task, "seconds": error.seconds, "stack": error.stack}
    listener.emit("worker_stuck", fields)


ENGINE = ThreadsEngine()
