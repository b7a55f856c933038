# SPDX-License-Identifier: GPL-3.0-or-later
"""
`os.environ` with variables that belong to the calling thread.

A run, a worker and an in-process module each have an environment. Ansible's code could be given another mapping, but libraries read
`os.environ` itself: `urllib` for proxies, `os.path.expanduser` for HOME, boto3 for credentials. So the class of `os.environ` and
`os.environb` is replaced while a provider is registered. The objects stay the same, so an earlier `from os import environ` works too. A
thread for which no provider has variables reads and changes the program's environment, as without forkless.

Changes that a thread makes to its variables are not passed to the C library, whose environment belongs to the whole process.
"""

from __future__ import annotations

import collections
import contextlib
import os
import threading
from typing import TYPE_CHECKING, Any, Protocol

from forkless.core.own_thread_locals import OwnThreadLocal

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, MutableMapping

__all__ = ["Provider", "is_any_set", "own_variables", "provided", "variables_of_this_thread"]


class Provider(Protocol):
    """Returns the environment of the calling thread. Called at every access to `os.environ`, on any thread."""

    def seen(self) -> Mapping[str, str] | None:
        """The variables of the calling thread; None if the thread uses the program's environment."""

    def changed(self) -> MutableMapping[str, str] | None:
        """The same, called before the thread changes a variable; None if it changes the program's environment."""


# By its name: a program may have put a mapping of its own in the place of `os.environ` before this is imported.
_Real: Any = os._Environ
_real_value = _Real.__getitem__
# Guards the change of the class. Readers take the current tuple without the lock.
_swap = threading.Lock()
_providers: tuple[Provider, ...] = ()
_given: collections.Counter[Provider] = collections.Counter()
_swapped: list[Any] = []


def own_variables() -> Mapping[str, str] | None:
    """The calling thread's environment, or None if the thread uses the program's."""
    for provider in _providers:
        found = provider.seen()
        if found is not None:
            return found
    return None


def is_any_set(names: Iterable[str]) -> bool:
    """Whether one of these variables is in the calling thread's environment."""
    own = own_variables()  # once, not for each name
    if own is None and isinstance(os.environ, _Real):
        return any(os.environ.encodekey(name) in os.environ._data for name in names)
    return any(name in (os.environ if own is None else own) for name in names)


def _to_change() -> MutableMapping[str, str] | None:
    for provider in _providers:
        found = provider.changed()
        if found is not None:
            return found
    return None


class ThreadEnviron(_Real):  # type: ignore[misc]
    """The class of `os.environ` and `os.environb` while a provider is registered."""

    def __getitem__(self, key: object) -> object:
        own = own_variables()
        if own is None:
            return _real_value(self, key)
        name = os.fsdecode(self.encodekey(key))  # raises TypeError for a key of the wrong type, as os.environ does
        try:
            value = own[name]
        except KeyError:
            raise KeyError(key) from None
        return self.decodevalue(os.fsencode(value))

    def __setitem__(self, key: object, value: object) -> None:
        own = _to_change()
        if own is None:
            super().__setitem__(key, value)
        else:
            own[os.fsdecode(self.encodekey(key))] = os.fsdecode(self.encodevalue(value))

    def __delitem__(self, key: object) -> None:
        own = _to_change()
        if own is None:
            super().__delitem__(key)
            return
        try:
            del own[os.fsdecode(self.encodekey(key))]
        except KeyError:
            raise KeyError(key) from None

    def __iter__(self) -> object:
        own = own_variables()
        if own is None:
            yield from super().__iter__()
        else:
            for name in list(own):
                yield self.decodekey(os.fsencode(name))

    def __len__(self) -> int:
        own = own_variables()
        return super().__len__() if own is None else len(own)

    def __repr__(self) -> str:
        return super().__repr__() if own_variables() is None else f"environ({dict(self)!r})"


@contextlib.contextmanager
def provided(provider: Provider) -> Iterator[None]:
    """
    Register a provider for all threads for the length of the block. The provider that was registered last is asked first.

    After the last block `os.environ` has its original class again. Blocks may overlap, on any threads.
    """
    global _providers  # noqa: PLW0603  # there is one os.environ
    with _swap:
        if not _providers:
            # If the program has replaced os.environ by another mapping, that mapping is left alone.
            _swapped[:] = [one for one in (os.environ, getattr(os, "environb", None)) if type(one) is _Real]
            _give_class(ThreadEnviron)
        _given[provider] += 1
        if _given[provider] == 1:
            _providers = (provider, *_providers)
    try:
        yield
    finally:
        with _swap:
            _given[provider] -= 1
            if not _given[provider]:
                del _given[provider]
                _providers = tuple(one for one in _providers if one is not provider)
            if not _providers:
                _give_class(_Real)


def _give_class(kind: object) -> None:
    for environ in _swapped:
        environ.__class__ = kind


class _OfThisThread(OwnThreadLocal):
    variables: dict[str, str] | None = None

    def seen(self) -> dict[str, str] | None:
        return self.variables

    changed = seen


_of_this_thread = _OfThisThread()


@contextlib.contextmanager
def variables_of_this_thread(variables: Mapping[str, str]) -> Iterator[None]:
    """For the length of the block `os.environ` is a copy of these variables on the calling thread; changes are discarded afterwards."""
    with provided(_of_this_thread):
        outer, _of_this_thread.variables = _of_this_thread.variables, dict(variables)
        try:
            yield
        finally:
            _of_this_thread.variables = outer
