# SPDX-License-Identifier: GPL-3.0-or-later
"""
A run in a child process, with ansible-runner's events.

The child is ansible-playbook, or the threads engine with the same command line. ansible-runner's callback plugin in the child
writes events into the output, and its filter extracts them here. The child has no terminal, so a play does not wait for input;
the threads engine in the child reads the answers of a RunSpec from a file descriptor that only it inherits.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING, Any

from forkless.core.errors import SpawnError, SpecError, UnsupportedError
from forkless.core.events import Status
from forkless.core.process_tree import ProcessTree
from forkless.core.result import Outcome, complaint
from forkless.engines.runner.output import EventSink, LivePipe, OutputText
from forkless.engines.runner.parent_death import END_WITH, ParentDeathWatch, can_end_with
from forkless.engines.runner.secrets import Secrets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from forkless.core.events import Event
    from forkless.core.spec import RunSpec
    from forkless.core.stop import Stop

__all__ = ["ENGINE", "RunnerEngine"]

# Seconds that Ansible gets after a stop request to remove its temporary folders, locally and on the hosts.
_GRACE = 5.0
_STOPPED = 254
# Bytes per read. Larger reads are slower: the filter copies the rest of a piece for each event that it extracts from it.
_CHUNK = 1 << 14
# The capacity of a pipe. Anything read beyond this after the child has ended is the output of another process.
_TAIL_AT_MOST = 1 << 20

_HOME = os.path.abspath(__file__).removesuffix(os.path.join("", "forkless", "engines", "runner", "engine.py"))
# `python -m forkless` of exactly this forkless, not of another one that the child would find first on its path. Its folder is first on
# the path only for that import: other packages in the folder must not shadow the standard library.
_OURS = END_WITH + (
    "home = sys.argv.pop(1); sys.path.insert(0, home); import forkless; sys.path.remove(home); "
    "sys.path.append(home); sys.argv[0] = 'forkless'; from forkless.cli import main; sys.exit(main())"
)
_STOCK = END_WITH + "os.execv(sys.argv[1], sys.argv[1:])"


def _parts() -> tuple[Callable[..., Any], str]:
    """ansible-runner's OutputEventFilter, and the folder of its callback plugin."""
    try:
        from ansible_runner.utils import OutputEventFilter, get_callback_dir
    except ImportError as err:
        raise UnsupportedError(
            f"the runner engine needs {err.name}, which is not installed; pip install 'forkless[runner]', "
            "or use engine='threads'"
        ) from err
    return OutputEventFilter, get_callback_dir()


def _scratch() -> str:
    """Make a private folder for one run, in memory (/dev/shm) where possible: the callback plugin writes each event to a file there."""
    for place in ("/dev/shm", None):  # noqa: S108  # mkdtemp makes it private, wherever it is
        with contextlib.suppress(OSError):
            return tempfile.mkdtemp(prefix="forkless-", dir=place)
    raise SpecError(f"no folder for temporary files can be written to (tried /dev/shm and {tempfile.gettempdir()})")


class RunnerEngine:
    """`child="ansible"` runs the stock command, `child="threads"` the threads engine; the default is threads where it is installed."""

    name = "runner"

    def __init__(self, child: str | None = None) -> None:
        if child not in (None, "ansible", "threads"):
            raise SpecError(f"the runner engine's child is 'ansible' or 'threads', not {child!r}")
        self.child = child

    def carry_out(
        self,
        spec: RunSpec,
        *,
        ident: str,
        deliver: Callable[[Event], None],
        write: Callable[[str], None],
        stop: Stop,
        wait: bool = True,  # noqa: ARG002  # child processes share nothing, so no run has to wait for another
    ) -> Outcome:
        event_filter, plugins = _parts()
        with contextlib.ExitStack() as stack:
            folder = _scratch()
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            by_kernel = can_end_with()
            watch = stack.enter_context(
                ParentDeathWatch(
                    folder=folder, mark=f"AWX_ISOLATED_DATA_DIR={folder}", number=None if by_kernel else _gentle()
                )
            )
            secrets = Secrets(folder)
            stack.callback(secrets.close)
            text, sink = OutputText(write), EventSink(folder, ident, deliver, secrets.forget)
            output = event_filter(text, sink, True)
            child_kind, command = self._command(spec, _gentle() if by_kernel else None)
            live = None
            if spec.live_output and child_kind == "threads":
                live = LivePipe(sink.output)
                stack.callback(live.close)
                secrets.descriptors.append(live.theirs)
                command += ["--output-descriptor", str(live.theirs)]
            child = _RunnerChild(
                [*command, *secrets.flags(spec), *spec.argv(secret_free=True)],
                spec,
                _environment(spec, folder, plugins),
                secrets.descriptors,
            )
            stack.callback(child.close)
            watch.watch(child.pid)
            secrets.close()  # the child has inherited its copies of the descriptors
            child.pump(output.write, stop, live)
            output.close()
            return _outcome(child, spec, stop, text.last, recap=sink.recap)

    def _command(self, spec: RunSpec, number: signal.Signals | None) -> tuple[str, list[str]]:
        """Which child, and its command. The kernel sends the child the signal `number`, if it is not None, when this program dies."""
        ends_with = [str(os.getpid()), str(int(number or 0))]
        child = self.child or ("threads" if _threads_work() else "ansible")
        if child == "ansible" and spec.answers:
            raise UnsupportedError(
                "answers= needs the threads engine, here or in the child: the stock command asks at a terminal, and has none here; "
                "leave out child='ansible', or give the values as extra_vars"
            )
        if child == "threads":
            # -P: a yaml.py beside the playbook must not shadow the package that Ansible imports.
            name = "adhoc" if spec.command == "ansible" else "playbook"
            return child, [sys.executable, "-P", "-c", _OURS, *ends_with, _HOME, name]
        path = spec.env.get("PATH", os.environ.get("PATH", os.defpath))
        beside = os.path.dirname(sys.executable)
        command = shutil.which(spec.command, path=beside + os.pathsep + path)
        if command is None:
            raise SpawnError(spec.command, f"it is neither beside {sys.executable} nor on PATH ({path})")
        if number is None:
            return child, [command]
        return child, [sys.executable, "-I", "-S", "-c", _STOCK, *ends_with, command]


def _threads_work() -> bool:
    """Whether the child can use the threads engine."""
    import importlib.util

    return bool(sys.executable) and all(
        importlib.util.find_spec(name) is not None
        for name in ("forkless.engines.threads", "forkless.cli.commands.playbook")
    )


def _environment(spec: RunSpec, folder: str, plugins: str) -> dict[str, str]:
    env = {**os.environ, **spec.env}
    if env.get("ANSIBLE_STDOUT_CALLBACK"):
        env["ORIGINAL_STDOUT_CALLBACK"] = env["ANSIBLE_STDOUT_CALLBACK"]
    env |= {
        "ANSIBLE_CALLBACK_PLUGINS": ":".join(filter(None, (env.get("ANSIBLE_CALLBACK_PLUGINS"), plugins))),
        "ANSIBLE_STDOUT_CALLBACK": "awx_display",
        "ANSIBLE_RETRY_FILES_ENABLED": "False",
        # The plugin writes its half of each event into this folder. The variable is also the mark of this run's processes,
        # since no other run has this folder.
        "AWX_ISOLATED_DATA_DIR": folder,
    }
    if spec.command == "ansible":
        env |= {"ANSIBLE_LOAD_CALLBACK_PLUGINS": "1", "AD_HOC_COMMAND_ID": env.get("AD_HOC_COMMAND_ID", "1")}
    return env


class _RunnerChild:
    """The child process of one run: its output and its end. Used by the run's thread only."""

    def __init__(self, command: list[str], spec: RunSpec, env: dict[str, str], descriptors: list[int]) -> None:
        self._mark = f"AWX_ISOLATED_DATA_DIR={env['AWX_ISOLATED_DATA_DIR']}"
        try:
            self._popen = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                cwd=os.fspath(spec.cwd or "."),
                env=env,
                start_new_session=True,
                pass_fds=descriptors,
            )
        except OSError as err:
            where = f" ({err.filename})" if err.filename else ""
            raise SpawnError(command[0], f"{err.strerror}{where}") from err
        except ValueError as err:  # a NUL in an argument
            raise SpawnError(command[0], str(err)) from err
        assert self._popen.stdout is not None  # noqa: S101  # for the type checker: asked for above
        self._fd = self._popen.stdout.fileno()
        self.pid = self._popen.pid
        self.rc: int | None = None
        self.ended = False

    def pump(self, take: Callable[[str], None], stop: Stop, live: LivePipe | None = None) -> None:
        """
        Pass all output of the child to `take`, to the last byte; return when the child has ended. A stop request ends it.

        The child writes what a task printed into `live` before it prints the task's result, so it is also delivered before it.
        """
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        ending: ProcessTree | None = None
        deadline, after_end, open_ = 0.0, 0, True
        with _bell(stop) as bell, _end_of(self._popen.pid) as end:
            poll = select.poll()
            for fd in (self._fd, bell, end, -1 if live is None else live.ours):
                if fd >= 0:
                    poll.register(fd, select.POLLIN)
            while True:
                ready = dict(poll.poll(self._patience(ending, deadline, end)))
                if bell in ready or ending is not None:
                    with contextlib.suppress(BlockingIOError):
                        os.read(bell, 64)
                    if ending is None:
                        ending, deadline = ProcessTree(self._popen.pid, self._mark), time.monotonic() + _GRACE
                        ending.ask(_gentle())
                    if stop.urgent or time.monotonic() >= deadline:
                        ending.kill()
                if open_ and self._fd in ready:
                    chunk = os.read(self._fd, _CHUNK)
                    if live is not None:
                        live.deliver()
                    take(decoder.decode(chunk, final=not chunk))
                    after_end += len(chunk) if self.ended else 0
                    if not chunk:
                        open_ = False
                        poll.unregister(self._fd)
                if live is not None and live.ours in ready and not live.deliver():
                    poll.unregister(live.ours)
                self.ended = self.ended or self._has_ended()
                if self.ended and (not open_ or after_end > _TAIL_AT_MOST or not self._more()):
                    break
        if live is not None:
            live.deliver()
        if open_:
            take(decoder.decode(b"", final=True))
        self._finish(ending)

    def _patience(self, ending: ProcessTree | None, deadline: float, end: int) -> float | None:
        """Milliseconds to wait in poll(). Without a pidfd the child's end has to be polled for."""
        if self.ended:
            return 0
        patience = 50.0 if end < 0 else None
        if ending is None:
            return patience
        left = max(0.0, deadline - time.monotonic()) * 1000 + 1
        return left if patience is None else min(patience, left)

    def _has_ended(self) -> bool:
        """Whether the child has ended. It is not reaped: a zombie keeps its process id, so its descendants can still be found."""
        if not hasattr(os, "waitid"):
            self._reap()
            return self._popen.returncode is not None
        try:
            return os.waitid(os.P_PID, self._popen.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None
        except ChildProcessError:
            return True

    def _more(self) -> bool:
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        return bool(poll.poll(0))

    def _finish(self, ending: ProcessTree | None) -> None:
        killed = False
        if hasattr(os, "waitid"):
            with contextlib.suppress(ChildProcessError):
                seen = os.waitid(os.P_PID, self._popen.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
                killed = seen is not None and seen.si_code != os.CLD_EXITED
        if ending is not None:
            ending.kill()
        elif killed:
            # The child was killed and could not end its own children.
            ProcessTree(self._popen.pid, self._mark).kill()
        self._reap()

    def _reap(self) -> None:
        """Take the exit status. Popen.wait() is not used: if other code has taken the status, it reports 0, success."""
        if self._popen.returncode is not None:
            return
        try:
            pid, status = os.waitpid(self._popen.pid, os.WNOHANG)
        except ChildProcessError:
            self._popen.returncode = -1
            return
        if pid:
            self.rc = self._popen.returncode = os.waitstatus_to_exitcode(status)

    def close(self) -> None:
        """Guarantees that no process and no descriptor is left, also after an exception."""
        if self._popen.returncode is None:
            ProcessTree(self._popen.pid, self._mark).kill()
            self._reap()
        if self._popen.stdout is not None:
            self._popen.stdout.close()


def _gentle() -> signal.Signals:
    """SIGINT, which Ansible handles gracefully; SIGTERM if this program ignores SIGINT, because its children inherit that."""
    return signal.SIGTERM if signal.getsignal(signal.SIGINT) == signal.SIG_IGN else signal.SIGINT


@contextlib.contextmanager
def _bell(stop: Stop) -> Iterator[int]:
    """A descriptor that becomes readable when a stop is requested. The requesting thread writes one byte and never blocks."""
    ours, theirs = os.pipe()
    os.set_blocking(ours, False)
    os.set_blocking(theirs, False)

    def ring() -> None:
        with contextlib.suppress(OSError):  # the pipe is full, so it is readable already
            os.write(theirs, b"!")

    forget = stop.listen(ring)
    try:
        yield ours
    finally:
        forget()
        os.close(theirs)
        os.close(ours)


@contextlib.contextmanager
def _end_of(pid: int) -> Iterator[int]:
    """A descriptor that becomes readable when `pid` has ended, or -1 if the system has no pidfd_open."""
    try:
        fd = os.pidfd_open(pid)
    except (AttributeError, OSError):
        yield -1
        return
    try:
        yield fd
    finally:
        os.close(fd)


def _outcome(child: _RunnerChild, spec: RunSpec, stop: Stop, last: str, *, recap: bool) -> Outcome:
    if stop.requested and child.rc != 0:
        return Outcome(stop.why, _STOPPED)
    if child.rc == 0:
        return Outcome(Status.SUCCESSFUL, 0)
    if child.rc is None:
        return Outcome(
            Status.FAILED,
            250,
            f"the exit status of {spec.command} was taken by other code in this program, so it is not known how the command ended",
        )
    if child.rc < 0:
        name = signal.Signals(-child.rc).name if -child.rc in set(signal.Signals) else str(-child.rc)
        return Outcome(Status.FAILED, 128 - child.rc, f"{spec.command} was killed by {name}")
    return Outcome(Status.FAILED, child.rc, "" if recap else complaint(last))


ENGINE = RunnerEngine()
