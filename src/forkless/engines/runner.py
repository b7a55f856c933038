# SPDX-License-Identifier: GPL-3.0-or-later
"""
A run in a child process, with ansible-runner's events.

The child is ansible-playbook, or the threads engine behind the same command line. ansible-runner's callback plugin in
it tells what happens; its filter takes the events out of the output here. No terminal: a play that finds none does not
wait for one, and the answers that a RunSpec has are read by our child from a file that only it can see.
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

from forkless._errors import SpawnError, SpecError, UnsupportedError
from forkless._events import Status
from forkless._result import Outcome, complaint
from forkless.engines._feed import Sink, Text
from forkless.engines._secrets import Secrets
from forkless.engines._tree import Tree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from forkless._events import Event
    from forkless._spec import RunSpec
    from forkless._stop import Stop

__all__ = ["ENGINE", "RunnerEngine"]

# What Ansible gets to clean up after itself when it is asked to stop: it removes its temporary folders, here and there.
_GRACE = 5.0
_STOPPED = 254
# Not more at a time: the filter copies what is left of a piece for each event that it takes out of it.
_CHUNK = 1 << 14
# As much as a pipe can hold. Who reads on past this, after the child has ended, reads somebody else's output.
_TAIL_AT_MOST = 1 << 20

_HOME = os.path.abspath(__file__).removesuffix(os.path.join("", "forkless", "engines", "runner.py"))
# `python -m forkless`, and no other forkless than this one: not another that the child would find first. Only it is looked
# for there before all else; what lies beside it must not come before the standard library.
_OURS = (
    "import sys; home = sys.argv.pop(1); sys.path.insert(0, home); import forkless; sys.path.remove(home); "
    "sys.path.append(home); sys.argv[0] = 'forkless'; from forkless.cli import main; sys.exit(main())"
)


def _parts() -> tuple[Callable[..., Any], str]:
    """ansible-runner's filter, and the folder of its callback plugin."""
    try:
        from ansible_runner.utils import OutputEventFilter, get_callback_dir
    except ImportError as err:
        raise UnsupportedError(
            f"the runner engine needs {err.name}, which is not installed; pip install 'forkless[runner]', "
            "or use engine='threads'"
        ) from err
    return OutputEventFilter, get_callback_dir()


def _scratch() -> str:
    """A private folder for one run, in memory where that can be had: the halves of events pass through it."""
    for place in ("/dev/shm", None):  # noqa: S108  # mkdtemp makes it private, wherever it is
        with contextlib.suppress(OSError):
            return tempfile.mkdtemp(prefix="forkless-", dir=place)
    raise SpecError(f"no folder for temporary files can be written to (tried /dev/shm and {tempfile.gettempdir()})")


class RunnerEngine:
    """`child="ansible"` runs the stock command, `child="threads"` ours; by default ours, where it knows this Ansible."""

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
        wait: bool = True,  # noqa: ARG002  # children share nothing, so there is never anything to wait for
    ) -> Outcome:
        event_filter, plugins = _parts()
        with contextlib.ExitStack() as stack:
            folder = _scratch()
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            secrets = Secrets(folder)
            stack.callback(secrets.close)
            text, sink = Text(write), Sink(folder, ident, deliver, secrets.forget)
            output = event_filter(text, sink, True)
            child = _Child(
                [*self._command(spec), *secrets.flags(spec), *spec.argv(secret_free=True)],
                spec,
                _environment(spec, folder, plugins),
                secrets.descriptors,
            )
            stack.callback(child.close)
            secrets.close()  # the child has its own by now
            child.pump(output.write, stop)
            output.close()
            return _outcome(child, spec, stop, text.last, recap=sink.recap)

    def _command(self, spec: RunSpec) -> list[str]:
        child = self.child or ("threads" if _threads_work() else "ansible")
        if child == "ansible" and spec.answers:
            raise UnsupportedError(
                "answers= needs the threads engine, here or in the child: the stock command asks at a terminal, and has none here; "
                "leave out child='ansible', or give the values as extra_vars"
            )
        if child == "threads":
            # -P: a yaml.py beside the playbook must not pass for the one that Ansible imports.
            return [sys.executable, "-P", "-c", _OURS, _HOME, "adhoc" if spec.module else "playbook"]
        path = spec.env.get("PATH", os.environ.get("PATH", os.defpath))
        beside = os.path.dirname(sys.executable)
        command = shutil.which(spec.command, path=beside + os.pathsep + path)
        if command is None:
            raise SpawnError(spec.command, f"it is neither beside {sys.executable} nor on PATH ({path})")
        return [command]


def _threads_work() -> bool:
    """Whether the threads engine is there for the child to use."""
    import importlib.util

    return bool(sys.executable) and all(
        importlib.util.find_spec(name) is not None for name in ("forkless.engines.threads", "forkless.cli.playbook")
    )


def _environment(spec: RunSpec, folder: str, plugins: str) -> dict[str, str]:
    env = {**os.environ, **spec.env}
    if env.get("ANSIBLE_STDOUT_CALLBACK"):
        env["ORIGINAL_STDOUT_CALLBACK"] = env["ANSIBLE_STDOUT_CALLBACK"]
    env |= {
        "ANSIBLE_CALLBACK_PLUGINS": ":".join(filter(None, (env.get("ANSIBLE_CALLBACK_PLUGINS"), plugins))),
        "ANSIBLE_STDOUT_CALLBACK": "awx_display",
        "ANSIBLE_RETRY_FILES_ENABLED": "False",
        # The plugin leaves its half of each event here. It is also the mark that tells this run's processes from all
        # others, since no other run has this folder.
        "AWX_ISOLATED_DATA_DIR": folder,
    }
    if spec.module:
        env |= {"ANSIBLE_LOAD_CALLBACK_PLUGINS": "1", "AD_HOC_COMMAND_ID": env.get("AD_HOC_COMMAND_ID", "1")}
    return env


class _Child:
    """The process of one run, its output, and its end."""

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
        self.rc: int | None = None
        self.ended = False

    def pump(self, take: Callable[[str], None], stop: Stop) -> None:
        """Hand over all that the child prints, to the last byte, and return when it has ended; sooner if asked to."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        ending: Tree | None = None
        deadline, after_end, open_ = 0.0, 0, True
        with _bell(stop) as bell, _end_of(self._popen.pid) as end:
            poll = select.poll()
            for fd in (self._fd, bell, end):
                if fd >= 0:
                    poll.register(fd, select.POLLIN)
            while True:
                ready = dict(poll.poll(self._patience(ending, deadline, end)))
                if bell in ready or ending is not None:
                    with contextlib.suppress(BlockingIOError):
                        os.read(bell, 64)
                    if ending is None:
                        ending, deadline = Tree(self._popen.pid, self._mark), time.monotonic() + _GRACE
                        ending.ask(_gentle())
                    if stop.urgent or time.monotonic() >= deadline:
                        ending.kill()
                if open_ and self._fd in ready:
                    chunk = os.read(self._fd, _CHUNK)
                    take(decoder.decode(chunk, final=not chunk))
                    after_end += len(chunk) if self.ended else 0
                    if not chunk:
                        open_ = False
                        poll.unregister(self._fd)
                self.ended = self.ended or self._has_ended()
                if self.ended and (not open_ or after_end > _TAIL_AT_MOST or not self._more()):
                    break
        if open_:
            take(decoder.decode(b"", final=True))
        self._finish(ending)

    def _patience(self, ending: Tree | None, deadline: float, end: int) -> float | None:
        """How long to wait for news, in milliseconds. Without a descriptor for the end we have to look for it."""
        if self.ended:
            return 0
        patience = 50.0 if end < 0 else None
        if ending is None:
            return patience
        left = max(0.0, deadline - time.monotonic()) * 1000 + 1
        return left if patience is None else min(patience, left)

    def _has_ended(self) -> bool:
        """Looked at without reaping: a child that is still there, if only as a zombie, keeps its number and its kin."""
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

    def _finish(self, ending: Tree | None) -> None:
        killed = False
        if hasattr(os, "waitid"):
            with contextlib.suppress(ChildProcessError):
                seen = os.waitid(os.P_PID, self._popen.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
                killed = seen is not None and seen.si_code != os.CLD_EXITED
        if ending is not None:
            ending.kill()
        elif killed:
            # It had no time to end its own.
            Tree(self._popen.pid, self._mark).kill()
        self._reap()

    def _reap(self) -> None:
        """Take the exit status. Not Popen.wait(): when someone else took it, that calls it 0, a success."""
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
        """Whatever happened: no process and no descriptor is left."""
        if self._popen.returncode is None:
            Tree(self._popen.pid, self._mark).kill()
            self._reap()
        if self._popen.stdout is not None:
            self._popen.stdout.close()


def _gentle() -> signal.Signals:
    """Ctrl-C, which Ansible knows how to end by; but a program started in the background may have it ignored for all."""
    return signal.SIGTERM if signal.getsignal(signal.SIGINT) == signal.SIG_IGN else signal.SIGINT


@contextlib.contextmanager
def _bell(stop: Stop) -> Iterator[int]:
    """A descriptor that can be read when the run is asked to stop. Whoever asks only writes a byte, and never waits."""
    ours, theirs = os.pipe()
    os.set_blocking(ours, False)
    os.set_blocking(theirs, False)

    def ring() -> None:
        with contextlib.suppress(OSError):  # full: it rings already
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
    """A descriptor that can be read when `pid` has ended, or -1 where the system has none."""
    try:
        fd = os.pidfd_open(pid)
    except (AttributeError, OSError):
        yield -1
        return
    try:
        yield fd
    finally:
        os.close(fd)


def _outcome(child: _Child, spec: RunSpec, stop: Stop, last: str, *, recap: bool) -> Outcome:
    if stop.requested and child.rc != 0:
        return Outcome(stop.why, _STOPPED)
    if child.rc == 0:
        return Outcome(Status.SUCCESSFUL, 0)
    if child.rc is None:
        return Outcome(
            Status.FAILED,
            250,
            f"the exit status of {spec.command} was taken by someone else in this program, so nobody knows how it ended",
        )
    if child.rc < 0:
        name = signal.Signals(-child.rc).name if -child.rc in set(signal.Signals) else str(-child.rc)
        return Outcome(Status.FAILED, 128 - child.rc, f"{spec.command} was killed by {name}")
    return Outcome(Status.FAILED, child.rc, "" if recap else complaint(last))


ENGINE = RunnerEngine()
