# SPDX-License-Identifier: GPL-3.0-or-later
"""
Logging, as a plugin's code sees it.

A forked worker changed levels and handlers of loggers for itself. Here the loggers are the program's. A level that a plugin sets counts on
the threads of its worker only, and so do `logging.disable` and a logger's `propagate`, `disabled` and filters. A handler that it adds gets the records of
its worker only, and is removed when the worker ends; one of the program's that it removes gets no records of that worker. `logging.config` does all that
it does to loggers in the same way. What a plugin of the run itself (a callback) sets counts for all workers of the run. What a *library* sets counts for
the process, because a library is imported once.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
import sys
import types
import weakref
from typing import TYPE_CHECKING

from forkless.engines.threads import context
from forkless.engines.threads.patches import inherited_state
from forkless.engines.threads.patches.worker_view import WorkerView

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

    from forkless.engines.threads.context import RunContext
    from forkless.engines.threads.workers.worker import Worker

__all__ = ["PluginLogging", "PluginLoggingConfig", "call_handlers", "effective_level", "handle", "is_enabled_for"]

_LEVELS, _HIDDEN = "levels of loggers", "handlers that were removed"
_ATTRIBUTES = "attributes of loggers"
# Loggers of libraries whose level is not a plugin's to set: netcommon's netconf plugin lowers it for its process, and ncclient would
# write every message to and from a device into the log of the program.
_LEVEL_OF_THE_PROGRAM = frozenset({"ncclient"})
# The stdlib's functions that add a handler to the root logger if it has none.
_FUNCTIONS = ("debug", "info", "warning", "warn", "error", "critical", "fatal", "exception", "log")
# Those of them that call another one.
_CALLED = {"exception": "error", "warn": "warning"}
# Attributes of a logger that are set by assignment, filters besides by a method.
_SET_BY_NAME = frozenset({"propagate", "disabled", "filters"})
# Workers and runs whose plugins have set anything. While there is none, the stdlib's functions are called at once.
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
    _own(_LEVELS)[logger] = level


def _own(what: str) -> dict[Hashable, object]:
    """What the calling thread's worker, or its run, has set of this kind."""
    home = _homes()[0]
    found: dict[Hashable, object] = home.state.setdefault(what, {})
    if id(home) not in _setters:
        _setters.add(id(home))
        home.at_end.append(functools.partial(_setters.discard, id(home)))
    return found


def _sets(what: str) -> bool:
    return bool(_setters) and any(what in home.state for home in _homes())


def _attribute(logger: logging.Logger, name: str) -> object:
    """`propagate`, `disabled` or `filters` of a logger, as the calling thread's worker or run has set it, or the program."""
    for home in _homes():
        own: dict[Hashable, object] = home.state.get(_ATTRIBUTES, {})
        if (logger, name) in own:
            return own[logger, name]
    found: object = getattr(logger, name)
    return found


class _Seen:
    """A logger with the attributes that the calling thread's worker or run has set: what the stdlib's functions are called with."""

    def __init__(self, real: logging.Logger) -> None:
        self._real = real

    def __getattr__(self, name: str) -> object:
        if name in _SET_BY_NAME:
            return _attribute(self._real, name)
        return getattr(self._real, name)

    @property
    def parent(self) -> object:
        above = self._real.parent
        return None if above is None else _Seen(above)

    def filter(self, record: logging.LogRecord) -> object:
        return logging.Filterer.filter(self, record)  # type: ignore[arg-type]  # reads `filters`


def handle(original: Callable[[object, logging.LogRecord], None], _site: str) -> object:
    @functools.wraps(original)
    def stand_in(self: logging.Logger, record: logging.LogRecord) -> None:
        original(_Seen(self) if _sets(_ATTRIBUTES) else self, record)

    return stand_in


# Not another function: each seam has its own original.
call_handlers = handle


def effective_level(original: Callable[[logging.Logger], int], _site: str) -> object:
    @functools.wraps(original)
    def getEffectiveLevel(self: logging.Logger) -> int:  # noqa: N802  # the stdlib's name
        if not _sets(_LEVELS):
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
        if not _sets(_LEVELS) and not _sets(_ATTRIBUTES):
            return original(self, level)
        if _attribute(self, "disabled") or _own_level(None, self.manager.disable) >= level:
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
        self._file = _file_that_is_imported()

    def __getattr__(self, name: str) -> object:
        return getattr(self.__dict__["real"], name)

    def handle(self, record: logging.LogRecord) -> bool:
        return self.is_seen() and bool(self.real.handle(record))

    def is_seen(self) -> bool:
        """Whether it is a handler of the calling thread's worker or run. A worker that has executed the same file has one of its own instead of the run's."""
        worker = context.current_worker()
        again = worker is not None and self.home is not worker and inherited_state.has_executed(worker, self._file)
        return _is_home(self.home) and not again

    def flush(self) -> None:
        self.real.flush()


def _file_that_is_imported() -> str:
    """The file whose import has called this function, directly or through others; "" if none has."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != "<module>":
        frame = frame.f_back
    return "" if frame is None else frame.f_code.co_filename


def _is_home(home: Worker | RunContext) -> bool:
    return any(one is home for one in _homes())


def _seen(handler: logging.Handler) -> logging.Handler | None:
    """What a plugin on the calling thread sees of a logger's handler: None of one that was added by another worker, or was removed by this one."""
    if isinstance(handler, _OwnHandler):
        if not handler.is_seen():
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

    if TYPE_CHECKING:
        filters: list[object]

    def __init__(self, real: logging.Logger) -> None:
        self.__dict__["_real"] = real

    def __getattr__(self, name: str) -> object:
        real: logging.Logger = self.__dict__["_real"]
        return _attribute(real, name) if name in _SET_BY_NAME else getattr(real, name)

    def addFilter(self, wanted: object) -> None:  # noqa: N802  # the stdlib's name
        if not _homes():
            self.__dict__["_real"].addFilter(wanted)
        elif wanted not in self.filters:
            self.filters = [*self.filters, wanted]

    def removeFilter(self, unwanted: object) -> None:  # noqa: N802  # the stdlib's name
        if not _homes():
            self.__dict__["_real"].removeFilter(unwanted)
        elif unwanted in self.filters:
            self.filters = [one for one in self.filters if one != unwanted]

    def __reduce__(self) -> tuple[type, tuple[logging.Logger]]:
        """A copy, also of an object that holds the logger, has the same logger."""
        return _Logger, (self.__dict__["_real"],)

    def __setattr__(self, name: str, value: object) -> None:
        if name == "level":
            self.setLevel(value)  # type: ignore[arg-type]  # checked by the stdlib
        elif name == "handlers":
            self._set_handlers(value)  # type: ignore[arg-type]  # a list
        elif name in _SET_BY_NAME and _homes():
            _own(_ATTRIBUTES)[self.__dict__["_real"], name] = value
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
        if name == "config" and hasattr(logging, name):
            return plugin_logging_config
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


class _Root(_Logger):
    """The root logger with a table of loggers as a plugin has them: `logging.config` disables those that it is not told of."""

    @property
    def manager(self) -> object:
        loggers = self.__dict__["_real"].manager.loggerDict.items()
        return types.SimpleNamespace(
            loggerDict={name: _Logger(one) if isinstance(one, logging.Logger) else one for name, one in list(loggers)}
        )


class _LoggingForConfig(PluginLogging):
    """
    The module `logging` of the stdlib's `logging.config`.

    The program's handlers are not in its lists, so that none is closed. It locks nothing: what is set is the worker's own, and a handler that
    a plugin makes must not hold up the program's logging.
    """

    def __init__(self) -> None:
        super().__init__(logging)
        self.__dict__.update(
            _handlers=weakref.WeakValueDictionary(),
            _handlerList=[],
            _lock=contextlib.nullcontext(),
            _acquireLock=lambda: None,
            _releaseLock=lambda: None,
        )

    def __getattr__(self, name: str) -> object:
        return _Root(logging.root) if name == "root" else super().__getattr__(name)


class PluginLoggingConfig(types.ModuleType):
    """The module `logging.config` of a plugin's code: in a run, the stdlib's code, which gets loggers as the plugin does."""

    def __getattr__(self, name: str) -> object:
        module = _config_of_plugins() if _homes() else importlib.import_module(self.__name__)
        return getattr(module, name)


@functools.cache
def _config_of_plugins() -> types.ModuleType:
    """Executed once: the module keeps no state but the server of `listen()`."""
    from forkless.engines.threads.patches import plugin_imports  # a circular import

    view = _LoggingForConfig()

    def import_(
        name: str, space: object = None, _: object = None, fromlist: Sequence[str] = (), level: int = 0
    ) -> object:
        found = plugin_imports.import_(name, space, None, fromlist, level)
        return view if name.partition(".")[0] == "logging" and not fromlist else found

    name = "logging.config"
    loader = vars(importlib.import_module(name))["__loader__"]
    module = types.ModuleType(name)
    vars(module)["__builtins__"] = {**plugin_imports.BUILTINS, "__import__": import_}
    exec(loader.get_code(name), vars(module))  # noqa: S102  # what an import does
    configurator = vars(module)["DictConfigurator"]
    configurator.configure_handler = _closed_at_the_end(configurator.configure_handler)
    vars(module)["_install_handlers"] = _closed_at_the_end(vars(module)["_install_handlers"])  # fileConfig's
    return module


def _closed_at_the_end(make: Callable[..., logging.Handler | dict[str, logging.Handler]]) -> object:
    """Handlers that the stdlib makes of a configuration are closed with the worker: with a forked one their files were."""

    @functools.wraps(make)
    def made(*args: object) -> object:
        found = make(*args)
        for handler in found.values() if isinstance(found, dict) else [found]:
            _homes()[0].at_end.append(handler.close)
        return found

    return made


plugin_logging_config = PluginLoggingConfig("logging.config")
