# SPDX-License-Identifier: GPL-3.0-or-later
"""
Defaults of the stdlib that a plugin sets for its process: the timeout of sockets, urllib's opener, how TLS verifies certificates.

A forked worker set them for itself. Here each worker, and each run outside of its workers, has its own; a thread of the program sets
and sees the process's. A plugin that switches the verification of certificates off does so for its own requests only.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Protocol

from forkless.engines.threads import context
from forkless.patching.module_view import ModuleView

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

__all__ = [
    "SslView",
    "get_default_timeout",
    "install_opener",
    "new_socket",
    "open_url",
    "set_default_timeout",
    "tls_context",
]

_TIMEOUT, _OPENER, _TLS = (("process default", name) for name in ("timeout", "opener", "tls"))
_UNSET = object()
_MAKES_CONTEXTS = "_create_default_https_context"


class _Opener(Protocol):
    open: Callable[..., object]


def _state() -> dict[Hashable, object] | None:
    home = context.current_worker() or context.current()
    return None if home is None else home.state


def _own(key: Hashable, default: object) -> object:
    """What the worker has set, or else its run outside of workers, whose settings a forked worker would have inherited."""
    for home in (context.current_worker(), context.current()):
        if home is not None and key in home.state:
            found: object = home.state[key]
            return found
    return default


def set_default_timeout(original: Callable[[float | None], None], _site: str) -> object:
    @functools.wraps(original)
    def setdefaulttimeout(timeout: float | None) -> None:
        state = _state()
        if state is None:
            original(timeout)
        elif timeout is not None and timeout < 0:
            raise ValueError("Timeout value out of range")
        else:
            state[_TIMEOUT] = None if timeout is None else float(timeout)

    return setdefaulttimeout


def get_default_timeout(original: Callable[[], float | None], _site: str) -> object:
    @functools.wraps(original)
    def getdefaulttimeout() -> object:
        found = _own(_TIMEOUT, _UNSET)
        return original() if found is _UNSET else found

    return getdefaulttimeout


def new_socket(original: Callable[..., None], _site: str) -> object:
    """`socket.socket.__init__`: a new socket has the worker's default timeout; one that accept() returns has none of its own."""

    @functools.wraps(original)
    def __init__(self: object, family: int = -1, type: int = -1, proto: int = -1, fileno: int | None = None) -> None:  # noqa: A002, N807  # the stdlib's names
        original(self, family, type, proto, fileno)
        timeout = _own(_TIMEOUT, _UNSET) if fileno is None else _UNSET
        if timeout is not _UNSET:
            self.settimeout(timeout)  # type: ignore[attr-defined]  # of _socket.socket

    return __init__


def install_opener(original: Callable[[_Opener | None], None], _site: str) -> object:
    @functools.wraps(original)
    def install(opener: _Opener | None) -> None:
        state = _state()
        if state is None:
            original(opener)
        else:
            state[_OPENER] = opener

    return install


def open_url(original: Callable[..., object], _site: str) -> object:
    """
    `urllib.request.urlopen`, which uses the installed opener unless it is given certificates or a context. If none is installed it makes
    one for the process, with the proxies of the environment: here for the worker, because the environment is the run's.
    """

    @functools.wraps(original)
    def urlopen(url: object, data: object = None, *args: object, **kwargs: object) -> object:
        state = _state()
        if state is None or len(args) > 1 or any(value for name, value in kwargs.items() if name != "timeout"):
            return original(url, data, *args, **kwargs)
        import urllib.request  # imported here: few runs need it, and it is slow to import

        opener: _Opener = _own(_OPENER, None) or state.setdefault(_OPENER, urllib.request.build_opener())  # type: ignore[assignment]  # nothing else is set
        timeout = {"timeout": kwargs["timeout"]} if "timeout" in kwargs else {}
        return opener.open(url, data, *args, **timeout)

    return urlopen


def tls_context(original: Callable[..., object], _site: str) -> object:
    """`ssl._create_default_https_context`, which plugins replace by `ssl._create_unverified_context`; http.client calls it."""

    @functools.wraps(original)
    def create(*args: object, **kwargs: object) -> object:
        own: Callable[..., object] = _own(_TLS, original)  # type: ignore[assignment]  # set below
        return own(*args, **kwargs)

    return create


class SslView(ModuleView):
    """The `ssl` of a plugin's code. What else a plugin assigns is assigned to the module: its own classes look there."""

    def __getattr__(self, name: str) -> object:
        found = super().__getattr__(name)
        if name != _MAKES_CONTEXTS:
            return found
        # The stdlib's own function, not the one above: a plugin may set it again later, and the one above would call itself.
        return _own(_TLS, getattr(found, "__wrapped__", found))

    def __setattr__(self, name: str, value: object) -> None:
        state = _state()
        if name == _MAKES_CONTEXTS and state is not None:
            state[_TLS] = value
        else:
            setattr(self.__dict__["_real"], name, value)
