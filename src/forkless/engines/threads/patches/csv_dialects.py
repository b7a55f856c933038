# SPDX-License-Identifier: GPL-3.0-or-later
"""
CSV dialects that a plugin registers by name are its worker's.

The stdlib has one table of names for a process. Plugins register a dialect made from their arguments under a fixed name and then read by that
name (community.general's `from_csv` does): with workers as threads one host's text would be read by the delimiter of another.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from forkless.engines.threads import context

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["get_dialect", "list_dialects", "read_or_write", "register_dialect", "unregister_dialect"]

_DIALECTS = "csv dialects"
_REMOVED = object()


def _tables() -> Iterator[dict[str, object]]:
    """The worker's table, then that of its run outside of workers, which a forked worker would have inherited."""
    for home in (context.current_worker(), context.current()):
        if home is not None and _DIALECTS in home.state:
            yield home.state[_DIALECTS]


def _own_table() -> dict[str, object] | None:
    home = context.current_worker() or context.current()
    if home is None:
        return None
    table: dict[str, object] = home.state.setdefault(_DIALECTS, {})
    return table


def _found(dialect: object) -> object:
    """The dialect of that name if the worker or its run has one; everything else, names of the process included, is returned as it is."""
    if isinstance(dialect, str):
        for table in _tables():
            if dialect in table:
                if table[dialect] is _REMOVED:
                    import csv

                    raise csv.Error("unknown dialect")
                return table[dialect]
    return dialect


def _with_found(dialect: tuple[object, ...], options: dict[str, object]) -> list[object]:
    """The arguments with the dialect that a name means. Without one, the stdlib looks up no name, not even "excel"."""
    if "dialect" in options:
        options["dialect"] = _found(options["dialect"])
    return [_found(one) for one in dialect]


def register_dialect(original: Callable[..., None], _site: str) -> object:
    @functools.wraps(original)
    def register(name: str, /, *dialect: object, **options: object) -> None:
        table = _own_table()
        given = _with_found(dialect, options)
        if table is None or not isinstance(name, str):
            original(name, *given, **options)  # which also raises the stdlib's error for a name that is no text
            return
        import _csv  # imported here, as csv below: few runs need it

        make: Callable[..., object] = _csv.Dialect
        table[name] = make(*given, **options)

    return register


def unregister_dialect(original: Callable[[str], None], _site: str) -> object:
    @functools.wraps(original)
    def unregister(name: str) -> None:
        table = _own_table()
        if table is None:
            original(name)
            return
        import csv

        csv.get_dialect(name)  # raises csv.Error for an unknown one
        table[name] = _REMOVED

    return unregister


def get_dialect(original: Callable[[str], object], _site: str) -> object:
    @functools.wraps(original)
    def get(name: str) -> object:
        found = _found(name)
        return original(name) if found is name else found

    return get


def list_dialects(original: Callable[[], list[str]], _site: str) -> object:
    @functools.wraps(original)
    def names() -> list[str]:
        known: dict[str, object] = dict.fromkeys(original())
        for table in reversed(list(_tables())):
            known.update(table)
        return [name for name, dialect in known.items() if dialect is not _REMOVED]

    return names


def read_or_write(original: Callable[..., object], _site: str) -> object:
    """`csv.reader` and `csv.writer`, which DictReader and DictWriter call as well."""

    @functools.wraps(original)
    def call(lines: object, /, *dialect: object, **options: object) -> object:
        given = _with_found(dialect, options)
        return original(lines, *given, **options)

    return call
