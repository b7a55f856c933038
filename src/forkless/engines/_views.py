# SPDX-License-Identifier: GPL-3.0-or-later
"""
The stdlib as a worker sees it.

Ansible and its plugins were written for processes of their own: they set `sys.stdout`, sleep with `time.sleep`, raise
alarms, start children and change `os.environ`. These stand-ins take the place of the *names* `sys`, `os`, `time`,
`signal`, `subprocess` and `threading` inside Ansible's modules and plugins. The real modules are never changed, so the rest of the
program sees nothing. What is not named here passes through to the real thing.
"""

from __future__ import annotations

import builtins
import io
import os
import signal
import subprocess
import sys
import threading
import time
import types
from collections.abc import Iterator, MutableMapping
from typing import TYPE_CHECKING, Any, TextIO

from forkless.engines import _scene

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "dress",
    "os_view",
    "seen_by_workers",
    "signal_view",
    "subprocess_view",
    "sys_view",
    "threading_view",
    "time_view",
]


class View(types.ModuleType):
    """A module that passes on to the real one whatever its subclass does not name."""

    def __init__(self, real: types.ModuleType) -> None:
        super().__init__(real.__name__, real.__doc__)
        self.__dict__["_real"] = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_real"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(getattr(type(self), name, None), property):
            super().__setattr__(name, value)
        else:
            setattr(self.__dict__["_real"], name, value)

    def __dir__(self) -> list[str]:
        return dir(self.__dict__["_real"])


class Silent(io.StringIO):
    """A terminal that nobody sits at: reads nothing, keeps nothing."""

    def write(self, text: str) -> int:
        return len(text)


class _Sys(View):
    @property
    def stdout(self) -> TextIO | Any:
        return self._stream("stdout")

    @stdout.setter
    def stdout(self, stream: TextIO) -> None:
        self._set("stdout", stream)

    @property
    def stderr(self) -> TextIO | Any:
        return self._stream("stderr")

    @stderr.setter
    def stderr(self, stream: TextIO) -> None:
        self._set("stderr", stream)

    @property
    def stdin(self) -> TextIO | Any:
        return self._stream("stdin")

    @stdin.setter
    def stdin(self, stream: TextIO) -> None:
        self._set("stdin", stream)

    @property
    def __stdin__(self) -> TextIO | Any:
        scene = _scene.current()
        return sys.__stdin__ if scene is None or scene.stdin is None else scene.stdin

    @staticmethod
    def _stream(name: str) -> Any:
        worker = _scene.current_worker()
        if worker is not None:
            return worker.streams[name]
        scene = _scene.current()
        stream = getattr(scene, name, None)
        return getattr(sys, name) if stream is None else stream

    @staticmethod
    def _set(name: str, stream: TextIO) -> None:
        worker = _scene.current_worker()
        if worker is not None:
            # Up to 2.18 a worker ends by opening /dev/null over its streams. It has its own here, so this one can go.
            if getattr(stream, "name", None) == os.devnull:
                stream.close()
            else:
                worker.streams[name] = stream
            return
        scene = _scene.current()
        if scene is None:
            setattr(sys, name, stream)
        else:
            setattr(scene, name, stream)


class Environ(MutableMapping[str, str]):
    """os.environ of a run, or of one worker from the moment it changes something in it."""

    @staticmethod
    def _seen() -> Any:
        worker = _scene.current_worker()
        if worker is not None and worker.environ is not None:
            return worker.environ
        scene = _scene.current()
        return os.environ if scene is None else scene.getenv()

    def _own(self) -> Any:
        worker, scene = _scene.current_worker(), _scene.current()
        if worker is not None:
            if worker.environ is None:
                worker.environ = dict(self._seen())
            return worker.environ
        if scene is not None:
            if scene.environ is None:
                scene.environ = dict(os.environ)
            return scene.environ
        return os.environ

    def __getitem__(self, key: str) -> str:
        return self._seen()[key]  # type: ignore[no-any-return]

    def __setitem__(self, key: str, value: str) -> None:
        self._own()[key] = value

    def __delitem__(self, key: str) -> None:
        del self._own()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._seen()))

    def __len__(self) -> int:
        return len(self._seen())

    def __repr__(self) -> str:
        return f"environ({dict(self._seen())!r})"

    def copy(self) -> dict[str, str]:
        return dict(self._seen())


_environ = Environ()


class _Os(View):
    environ = _environ

    @staticmethod
    def getenv(key: str, default: Any = None) -> Any:
        return _environ.get(key, default)

    @staticmethod
    def putenv(key: str, value: str) -> None:
        _environ[key] = value

    @staticmethod
    def unsetenv(key: str) -> None:
        _environ.pop(key, None)

    @staticmethod
    def getppid() -> int:
        # In a worker this was the play's pid; it names sockets and locks of the play.
        return os.getpid() if _scene.current_worker() else os.getppid()

    @staticmethod
    def set_inheritable(fd: int, inheritable: bool) -> None:
        # The program's own 0, 1 and 2 are not ours to change: its children would start without them.
        if fd > 2:
            os.set_inheritable(fd, inheritable)

    @staticmethod
    def _exit(code: int) -> None:
        if _scene.current() is None:
            os._exit(code)
        raise SystemExit(code)


class Popen(subprocess.Popen):  # type: ignore[type-arg]
    """
    A child of one run: in a process group of its own, with the run's environment, and known to who may have to end it.

    Of a worker that was a process, children inherited /dev/null; so they do here, where nothing else was said.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        worker, scene = _scene.current_worker(), _scene.current()
        if scene is not None:
            seen = _environ._seen()
            if seen is not os.environ and kwargs.get("env") is None and len(args) < 11:
                kwargs["env"] = dict(seen)
            if worker is not None and not kwargs.get("start_new_session") and kwargs.get("process_group") is None:
                # Either way it leads a group of its own, which is how it is ended with all it started.
                kwargs |= {"start_new_session": True} if worker.reach.own_session else {"process_group": 0}
            if worker is not None or scene.stdin is not None:
                for name, place in (("stdin", 3), ("stdout", 4), ("stderr", 5)):
                    if len(args) <= place and kwargs.get(name) is None:
                        kwargs[name] = subprocess.DEVNULL
        if worker is None:
            super().__init__(*args, **kwargs)
            return
        with worker.reach.shielded():
            super().__init__(*args, **kwargs)
            worker.reach.adopt(self)


class _Subprocess(View):
    Popen = Popen

    def _through(self, name: str, args: Any, kwargs: Any) -> Any:
        # The stdlib's own functions look Popen up in their module; these are the same functions, looking here.
        real = getattr(subprocess, name)
        seen = types.FunctionType(real.__code__, {**vars(subprocess), "Popen": Popen}, name, real.__defaults__)
        seen.__kwdefaults__ = real.__kwdefaults__
        return seen(*args, **kwargs)

    def call(self, *args: Any, **kwargs: Any) -> Any:
        return self._through("call", args, kwargs)

    def run(self, *args: Any, **kwargs: Any) -> Any:
        return self._through("run", args, kwargs)

    def check_call(self, *args: Any, **kwargs: Any) -> Any:
        code = self.call(*args, **kwargs)
        if code:
            raise subprocess.CalledProcessError(code, args[0] if args else kwargs["args"])
        return 0

    def check_output(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(*args, stdout=subprocess.PIPE, check=True, **kwargs).stdout


class _Time(View):
    @staticmethod
    def sleep(seconds: float) -> None:
        worker = _scene.current_worker()
        if worker is None:
            time.sleep(seconds)
        else:
            worker.reach.sleep(seconds)


class _StrategyTime(View):
    """The strategy polls; here it is woken."""

    @staticmethod
    def sleep(seconds: float) -> None:
        scene = _scene.current()
        if scene is None:
            time.sleep(seconds)
        else:
            scene.sleep(seconds)


class _Signal(View):
    """Signals belong to the program. Only a worker's alarm means something here, and it is the worker's own."""

    @staticmethod
    def signal(number: int, action: Any) -> Any:
        worker = _scene.current_worker()
        if worker is not None and number == signal.SIGALRM:
            before, worker.on_alarm = worker.on_alarm, action
            return before
        return signal.SIG_DFL

    @staticmethod
    def alarm(seconds: int) -> int:
        worker = _scene.current_worker()
        if worker is not None:
            worker.alarm(seconds)
        return 0

    @staticmethod
    def getsignal(number: int) -> Any:
        worker = _scene.current_worker()
        if worker is not None and number == signal.SIGALRM:
            return worker.on_alarm
        return signal.getsignal(number)


class _Thread(threading.Thread):
    """A thread that works for the run, and the worker, that started it."""

    def start(self) -> None:
        self._forkless_scene = _scene.current()
        self._forkless_worker = _scene.current_worker()
        super().start()

    def run(self) -> None:
        if self._forkless_scene is None:
            super().run()
            return
        with _scene.enter_worker(self._forkless_scene, self._forkless_worker):
            super().run()


class _Threading(View):
    Thread = _Thread


def _print(*values: object, file: Any = None, **kwargs: Any) -> None:
    builtins.print(*values, file=sys_view.stdout if file is None else file, **kwargs)


sys_view: Any = _Sys(sys)
os_view = _Os(os)
subprocess_view = _Subprocess(subprocess)
time_view = _Time(time)
strategy_time_view = _StrategyTime(time)
signal_view = _Signal(signal)
threading_view = _Threading(threading)

# What a plugin finds in its own module under whatever name it imported it by.
_WARDROBE: list[tuple[Any, Any]] = [
    (sys, sys_view),
    (os, os_view),
    (subprocess, subprocess_view),
    (time, time_view),
    (signal, signal_view),
    (threading, threading_view),
    (os.environ, _environ),
    (os.getenv, os_view.getenv),
    (subprocess.Popen, Popen),
    (subprocess.run, subprocess_view.run),
    (subprocess.check_output, subprocess_view.check_output),
    (subprocess.check_call, subprocess_view.check_call),
    (subprocess.call, subprocess_view.call),
    (time.sleep, time_view.sleep),
    (threading.Thread, _Thread),
]
_BY_ID: dict[int, Any] = {id(real): view for real, view in _WARDROBE}


def seen_by_workers(thing: Any) -> Any:
    """The view of it, if it has one."""
    return _BY_ID.get(id(thing), thing)


def dress(module: types.ModuleType) -> Callable[[], None]:
    """Give a plugin's module the views for what it imported at its top. Returns what gives the real ones back."""
    space = module.__dict__
    changed = {name: value for name, value in space.items() if id(value) in _BY_ID and not name.startswith("__")}
    for name, value in changed.items():
        space[name] = _BY_ID[id(value)]
    had_print = "print" in space
    if not had_print:
        space["print"] = _print

    def undress() -> None:
        space.update(changed)
        if not had_print:
            space.pop("print", None)

    return undress
