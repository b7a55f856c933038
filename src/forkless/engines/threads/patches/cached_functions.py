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


def _cached(function: Callable[..., object], maxsize: int | None, typed: bool) -> PluginValue:
    results: list[tuple[tuple[object, ...], dict[str, object], object]] = []
    given: list[object] = []

    def compute(*args: object, **kwargs: object) -> object:
        if given:
            return given.pop()
        value = function(*args, **kwargs)
        if context.current_worker() is None and context.current() is not None:
            results.append((args, kwargs, value))
            if maxsize is not None and len(results) > max(maxsize, 0):
                del results[0]
        return value

    made: PluginValue = functools.lru_cache(maxsize, typed)(functools.update_wrapper(compute, function))
    made.__wrapped__ = function
    empty = made.cache_clear

    def cache_clear() -> None:
        results.clear()
        empty()

    def keep() -> None:
        """Fill the cache with the results in the list."""
        for args, kwargs, value in results:
            given.append(value)
            made(*args, **kwargs)
            given.clear()  # if the cache had it already

    made.cache_clear, made.forkless_results, made.forkless_keep = cache_clear, results, keep
    return made


class FunctoolsView(WorkerView):
    """The module `functools` of a plugin's code."""

    lru_cache = staticmethod(_lru_cache)
    cache = staticmethod(_cache)
