# SPDX-License-Identifier: GPL-3.0-or-later
"""
Logging, as a plugin's code sees it.

A forked worker changed levels and handlers of loggers for itself. Here the loggers are the program's. A level that a plugin sets counts on
the threads of its worker only, and so does `logging.disable`. A handler that it adds gets the records of its worker only, and is removed when the
worker ends; one of the program's that it removes gets no records of that worker. What a plugin of the run itself (a callback) sets counts for all workers
of the run. What a *library* sets counts for the process, because a library is imported once.
"""

from __future__ import annotations

import functools
import logging
import types
from typing import TYPE_CHECKING

from forkless.engines.threads import context
from forkless.engines.threads.patches.stdlib_views import WorkerView

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from forkless.engines.threads.context import RunContext
    from forkless.engines.threads.workers.worker import Worker

__all__ = ["PluginLogging", "effective_level", "is_enabled_for"]

_LEVELS, _HIDDEN = "levels of loggers", "handlers that were removed"
# Loggers of libraries whose level is not a plugin's to set: netcommon's netconf plugin lowers it for its process, and ncclient would
# write every message to and from a device into the log of the program.
_LEVEL_OF_THE_PROGRAM = frozenset({"ncclient"})
# The stdlib's functions that add a handler to the root logger if it has none.
_FUNCTIONS = ("debug", "info", "warning", "warn", "error", "critical", "fatal", "exception", "log")
# Those of them that call another one.
_CALLED = {"exception": "error", "warn": "warning"}
# Workers and runs whose plugins have set a level. While there is none, the stdlib's functions are called at once.
_setters: set[int] = set()


def _homes() -> list[Worker | RunContext]:
    """The worker and the run of the calling thread: a forked worker would have inherited what its run has set."""
    return [home for home in (context.current_worker(), context.current()) if home is not None]


def _own_level(logger: logging.Logger | None, default: int) -> int:
    """The level that was set for the calling thread, or the default; of None, what `logging.disable` was given."""
    for home in _homes():
        levels: dict[logging.Logger | None, int] = home.state.get(_LEVELS, {})
        if logger in levels:
            return levels[logger]
    return default


def _set_level(logger: logging.Logger | None, level: int) -> None:
    home = _homes()[0]
    if _LEVELS not in home.state:
        home.state[_LEVELS] = {}
        _setters.add(id(home))
        home.at_end.append(functools.partial(_setters.discard, id(home)))
    home.state[_LEVELS][logger] = level


def _sets_levels() -> bool:
    return bool(_setters) and any(_LEVELS in home.state for home in _homes())


def effective_level(original: Callable[[logging.Logger], int], _site: str) -> object:
    @functools.wraps(original)
    def getEffectiveLevel(self: logging.Logger) -> int:  # noqa: N802  # the stdlib's name
        if not _sets_levels():
            return original(self)
        logger: logging.Logger | None = self
        while logger is not None:
            level = _own_level(logger, logger.level)
            if level:
                return level
            logger = logger.parent
        return logging.NOTSET

    return getEffectiveLevel


def is_enabled_for(original: Callable[[logging.Logger, int], bool], _site: str) -> object:
    """`Logger.isEnabledFor`, which keeps its answers for all threads: where levels are a worker's own, it is not asked."""

    @functools.wraps(original)
    def isEnabledFor(self: logging.Logger, level: int) -> bool:  # noqa: N802  # the stdlib's name
        if not _sets_levels():
            return original(self, level)
        if self.disabled or _own_level(None, self.manager.disable) >= level:
            return False
        return level >= self.getEffectiveLevel()

    return isEnabledFor


class _OwnHandler(logging.Handler):
    """
    A handler that a plugin has added, as it is in the logger: it gets the records of the plugin's worker only; that of a run's own plugin
    (a callback), those of all its workers. The handler itself is left as it is: a plugin may add one of the program's.
    """

    def __init__(self, real: logging.Handler, home: Worker | RunContext) -> None:
        # Not the stdlib's __init__: level, filters and formatter are those of the real handler, now and later.
        self.real, self.home = real, home

    def __getattr__(self, name: str) -> object:
        return getattr(self.__dict__["real"], name)

    def handle(self, record: logging.LogRecord) -> bool:
        return _is_home(self.home) and bool(self.real.handle(record))

    def flush(self) -> None:
        self.real.flush()


def _is_home(home: Worker | RunContext) -> bool:
    return any(one is home for one in _homes())


def _seen(handler: logging.Handler) -> logging.Handler | None:
    """What a plugin on the calling thread sees of a logger's handler: None of one that was added by another worker, or was removed by this one."""
    if isinstance(handler, _OwnHandler):
        if not _is_home(handler.home):
            return None
        handler = handler.real
    return None if any(handler in home.state.get(_HIDDEN, ()) for home in _homes()) else handler


def _handlers(logger: logging.Logger) -> list[logging.Handler]:
    return [seen for one in list(logger.handlers) if (seen := _seen(one)) is not None]


def _add_handler(logger: logging.Logger, handler: logging.Handler) -> None:
    home = next(iter(_homes()), None)
    if home is None:
        logger.addHandler(handler)
        return
    if show := home.state.get(_HIDDEN, {}).pop(handler, None):  # it was removed before
        show()
    if handler not in _handlers(logger):
        own = _OwnHandler(handler, home)
        home.at_end.append(functools.partial(logger.removeHandler, own))
        logger.addHandler(own)


def _remove_handler(logger: logging.Logger, handler: logging.Handler) -> None:
    home = next(iter(_homes()), None)
    if home is None:
        logger.removeHandler(handler)
        return
    for one in list(logger.handlers):
        if isinstance(one, _OwnHandler) and one.real is handler and one.home is home:
            logger.removeHandler(one)
    if handler in _handlers(logger):  # the program's, or in a worker its run's

        def is_not_hidden(_record: logging.LogRecord) -> bool:
            return not _is_home(home)

        show = functools.partial(handler.removeFilter, is_not_hidden)
        handler.addFilter(is_not_hidden)
        home.state.setdefault(_HIDDEN, {})[handler] = show
        home.at_end.append(show)


class _Logger:
    """A logger of the program, as a plugin has it."""

    def __init__(self, real: logging.Logger) -> None:
        self.__dict__["_real"] = real

    def __getattr__(self, name: str) -> object:
        return getattr(self.__dict__["_real"], name)

    def __reduce__(self) -> tuple[type, tuple[logging.Logger]]:
        """A copy, also of an object that holds the logger, has the same logger."""
        return _Logger, (self.__dict__["_real"],)

    def __setattr__(self, name: str, value: object) -> None:
        if name == "level":
            self.setLevel(value)  # type: ignore[arg-type]  # checked by the stdlib
        elif name == "handlers":
            self._set_handlers(value)  # type: ignore[arg-type]  # a list
        else:
            setattr(self.__dict__["_real"], name, value)

    @property  # type: ignore[misc]  # libraries check isinstance(logger, logging.Logger)
    def __class__(self) -> type:
        return type(self.__dict__["_real"])

    @property
    def level(self) -> int:
        real: logging.Logger = self.__dict__["_real"]
        return _own_level(real, real.level)

    @property
    def handlers(self) -> list[logging.Handler]:
        return _handlers(self.__dict__["_real"])

    @property
    def parent(self) -> object:
        above: logging.Logger | None = self.__dict__["_real"].parent
        return None if above is None else _Logger(above)

    def addHandler(self, handler: logging.Handler) -> None:  # noqa: N802  # the stdlib's name
        _add_handler(self.__dict__["_real"], handler)

    def removeHandler(self, handler: logging.Handler) -> None:  # noqa: N802  # the stdlib's name
        _remove_handler(self.__dict__["_real"], handler)

    def _set_handlers(self, handlers: Iterable[logging.Handler]) -> None:
        wanted = list(handlers)
        for one in self.handlers:
            if one not in wanted:
                self.removeHandler(one)
        for one in wanted:
            self.addHandler(one)

    def setLevel(self, level: int | str) -> None:  # noqa: N802  # the stdlib's name
        real: logging.Logger = self.__dict__["_real"]
        if real.name in _LEVEL_OF_THE_PROGRAM:
            return
        if not _homes():
            real.setLevel(level)
            return
        _set_level(real, _number(level))

    def getChild(self, suffix: str) -> object:  # noqa: N802  # the stdlib's name
        return _Logger(self.__dict__["_real"].getChild(suffix))


def _number(level: int | str) -> int:
    """The number of a level, by the stdlib's own check of it."""
    return logging.Logger("", level).level  # noqa: LOG001  # not to be found by its name


class PluginLogging(WorkerView):
    """The module `logging` of a plugin's code."""

    def __getattr__(self, name: str) -> object:
        if name == "root":
            return _Logger(logging.root)
        if name in _FUNCTIONS and hasattr(logging, name):
            return self._through(name)
        return super().__getattr__(name)

    def _through(self, name: str) -> Callable[..., object]:
        """The stdlib's function with the plugin's root logger. Its file stays the stdlib's, which `findCaller` passes over."""
        real: types.FunctionType = getattr(logging, name)
        names: dict[str, object] = {"root": self.root, "basicConfig": self.basicConfig}
        if name in _CALLED:
            names[_CALLED[name]] = self._through(_CALLED[name])
        made = types.FunctionType(real.__code__, {**vars(logging), **names}, name, real.__defaults__)
        made.__kwdefaults__ = real.__kwdefaults__
        return made

    @staticmethod
    def getLogger(name: str | None = None) -> object:  # noqa: N802  # the stdlib's name
        return _Logger(logging.getLogger(name))

    @staticmethod
    def disable(level: int = logging.CRITICAL) -> None:
        if _homes():
            _set_level(None, _number(level))
        else:
            logging.disable(level)

    def basicConfig(self, *, force: bool = False, **options: object) -> None:  # noqa: N802  # the stdlib's name
        """The stdlib's function; with `force` it would close the program's handlers, which are only removed here."""
        if not _homes():
            logging.basicConfig(force=force, **options)  # type: ignore[call-overload]  # checked there
            return
        if force:
            _Logger(logging.root)._set_handlers(())
        self._through("basicConfig")(**options)
