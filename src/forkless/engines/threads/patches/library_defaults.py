# SPDX-License-Identifier: GPL-3.0-or-later
"""
Makes defaults of the stdlib that are cached for the process, or taken from the C library, follow the run's environment on its threads.

`tempfile` caches the temporary folder at its first use, and OpenSSL reads SSL_CERT_FILE from the C library's environment, which is the
program's. Both functions are replaced while runs are active, and behave as before on any other thread.
"""

from __future__ import annotations

import contextlib
import tempfile
import threading
from typing import TYPE_CHECKING, Any

from forkless.patching import thread_environ

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

__all__ = ["by_run"]

_TEMPORARY = ("TMPDIR", "TEMP", "TMP")
_CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR")

_lock = threading.Lock()
_users: dict[str, int] = {}
_undo: dict[str, Callable[[], None]] = {}


def _temporary_folder(original: Callable[..., object]) -> object:
    found: dict[tuple[str | None, ...], object] = {}

    def gettempdir() -> object:
        variables = thread_environ.own_variables()
        asked = () if variables is None else tuple(variables.get(name) for name in _TEMPORARY)
        if not any(asked):
            return original()
        if asked not in found:
            found[asked] = tempfile._get_default_tempdir()  # type: ignore[attr-defined]  # looks into os.environ
        return found[asked]

    return gettempdir


def _certificates(original: Callable[..., object]) -> object:
    import ssl

    def set_default_verify_paths(context: Any) -> None:
        variables = thread_environ.own_variables()
        if variables is None or not any(variables.get(name) for name in _CERTIFICATES):
            original(context)
            return
        paths = ssl.get_default_verify_paths()  # reads os.environ; None for a path that does not exist
        if paths.cafile or paths.capath:
            context.load_verify_locations(paths.cafile, paths.capath)

    return set_default_verify_paths


def _put(owner: object, name: str, make: Callable[[object], object]) -> Callable[[], None]:
    inherited = name not in vars(owner)
    original = getattr(owner, name)
    ours = make(original)
    setattr(owner, name, ours)

    def take_out() -> None:
        if getattr(owner, name) is not ours:
            return  # another package has wrapped it; outside of runs it calls the original
        if inherited:
            delattr(owner, name)
        else:
            setattr(owner, name, original)

    return take_out


@contextlib.contextmanager
def by_run(environ: Mapping[str, str] | None) -> Iterator[None]:
    """For the length of the block these defaults follow the run's environment. None means that the run uses the program's."""
    with contextlib.ExitStack() as around:
        if environ is not None and any(name in environ for name in _TEMPORARY):
            around.enter_context(_used("tempfile", tempfile, "_gettempdir", _temporary_folder))
        if environ is not None and any(name in environ for name in _CERTIFICATES):
            with contextlib.suppress(ImportError):  # a Python without OpenSSL
                import ssl

                around.enter_context(_used("ssl", ssl.SSLContext, "set_default_verify_paths", _certificates))
        yield


@contextlib.contextmanager
def _used(which: str, owner: object, name: str, make: Callable[[Any], object]) -> Iterator[None]:
    with _lock:
        _users[which] = _users.get(which, 0) + 1
        if _users[which] == 1 and hasattr(owner, name):
            _undo[which] = _put(owner, name, make)
    try:
        yield
    finally:
        with _lock:
            _users[which] -= 1
            if _users[which] == 0 and which in _undo:
                _undo.pop(which)()
