# SPDX-License-Identifier: GPL-3.0-or-later
"""Imports asyncssh without starting a program."""

from __future__ import annotations

import ctypes.util
import functools
import getpass
import os
import pathlib
import threading
import types
from typing import Any

from forkless.core.errors import UnsupportedError

__all__ = ["asyncssh", "local_user"]

# Importing asyncssh calls find_library for two optional C libraries, which runs ldconfig, gcc and ld. That fails on a
# system without processes; elsewhere it starts eleven programs for two ciphers that are hardly ever negotiated.
_importing = threading.Lock()


@functools.cache
def asyncssh() -> Any:
    """The asyncssh package, imported at first use. Any thread may call this; UnsupportedError if it cannot be imported."""
    with _importing:
        mine = threading.get_ident()
        real = ctypes.util.find_library

        def look_for_nothing(name: str) -> str | None:
            # Other threads that call find_library meanwhile get the real answer.
            return None if threading.get_ident() == mine else real(name)

        ctypes.util.find_library = look_for_nothing
        try:
            import asyncssh as library
        except ImportError as err:
            raise UnsupportedError(
                f"forkless.core.ssh speaks SSH through the Python package asyncssh, which cannot be loaded here ({err}); "
                "install it with: pip install 'forkless[ssh]'"
            ) from err
        finally:
            ctypes.util.find_library = real
        if not _known_to_the_system():
            # asyncssh always asks for the local user's name, and getpass.getuser raises on this system.
            library.connection.getpass = types.SimpleNamespace(getuser=local_user)
        if os.path.expanduser("~") == "~":
            # Path.expanduser raises for a user without a home. asyncssh expands only paths of files that are optional
            # here.
            for module in (library.config, library.connection, library.misc, library.public_key):
                module.Path = _PathWithoutHome
        return library


class _PathWithoutHome(type(pathlib.Path())):  # type: ignore[misc]
    """A path whose expanduser leaves ~ unchanged if the user has no home."""

    def expanduser(self) -> object:
        try:
            return super().expanduser()
        except RuntimeError:
            return self


def _known_to_the_system() -> bool:
    try:
        return bool(getpass.getuser())
    except (KeyError, OSError, ImportError):
        return False


def local_user() -> str:
    """The user that runs this program; 'nobody' if the system has no passwd entry for it (a mobile app, a container)."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return "nobody"
