# SPDX-License-Identifier: GPL-3.0-or-later
"""
`functools.lru_cache` of a plugin's code: the stdlib's, with a list of what a run's own thread has put into it.

A forked worker began with the results that the main process had cached, such as a token. The stdlib's cache cannot be read, so its results are written down
beside it, and a worker's cache is filled from the list (see `inherited_state`).
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from forkless.engines.threads import context
from forkless.engines.threads.patches.worker_view import WorkerView

if TYPE_CHECKING:
    from collections.abc import Callable

    from forkless.engines.threads.patches.module_places import PluginValue

__all__ = ["FunctoolsView"]


def _lru_cache(maxsize: PluginValue = 128, typed: bool = False) -> PluginValue:  # the stdlib's names
    if callable(maxsize):
        return _cached(maxsize, 128, typed)
    real = functools.lru_cache(maxsize, typed)  # which raises the stdlib's errors
    del real
    return functools.partial(_cached, maxsize=maxsize, typed=typed)


def _cache(function: Callable[..., object]) -> PluginValue:
    return _cached(function, None, False)


def _returns(value: object) -> Callable[..., object]:
    return lambda *_args, **_kwargs: value


def _cached(function: Callable[..., object], maxsize: int | None, typed: bool) -> PluginValue:
    results: list[tuple[tuple[object, ...], dict[str, object], object]] = []

    def compute(*args: object, **kwargs: object) -> object:
        value = function(*args, **kwargs)
        results.append((args, kwargs, value))
        if maxsize is not None and len(results) > max(maxsize, 0):
            del results[0]
        return value

    in_run = context.current_worker() is None and context.current() is not None
    # Of C: in a worker a function that calls itself must not need a second frame of Python for each call.
    called: PluginValue = functools.partial(compute if in_run else function)
    made: PluginValue = functools.update_wrapper(functools.lru_cache(maxsize, typed)(called), function)
    empty = made.cache_clear

    def cache_clear() -> None:
        results.clear()
        empty()

    def keep() -> None:
        """Fill the cache with the results in the list."""
        for args, kwargs, value in results:
            called.__setstate__((_returns(value), (), {}, None))
            made(*args, **kwargs)
        called.__setstate__((compute if in_run else function, (), {}, None))

    made.cache_clear, made.forkless_results, made.forkless_keep = cache_clear, results, keep
    return made


class FunctoolsView(WorkerView):
    """The module `functools` of a plugin's code."""

    lru_cache = staticmethod(_lru_cache)
    cache = staticmethod(_cache)
