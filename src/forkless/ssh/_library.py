# SPDX-License-Identifier: GPL-3.0-or-later
"""asyncssh, imported without starting a program."""

from __future__ import annotations

import ctypes.util
import functools
import getpass
import os
import pathlib
import threading
import types
from typing import Any

from forkless._errors import UnsupportedError

__all__ = ["asyncssh", "local_user"]

# The import looks for two optional C libraries with find_library, which runs ldconfig, gcc and ld. On a system without
# processes that fails; everywhere else it is eleven programs for two ciphers that nobody negotiates.
_importing = threading.Lock()


@functools.cache
def asyncssh() -> Any:
    """The library, loaded at first use."""
    with _importing:
        mine = threading.get_ident()
        real = ctypes.util.find_library

        def look_for_nothing(name: str) -> str | None:
            # Only for the thread that imports asyncssh; another thread gets what it asks for.
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
            # It asks for the local user's name whether it needs it or not, and there is none to be found here.
            library.connection.getpass = types.SimpleNamespace(getuser=local_user)
        if os.path.expanduser("~") == "~":
            # Nor has everyone a home. It looks for files there that we name ourselves, or do without.
            for module in (library.config, library.connection, library.misc, library.public_key):
                module.Path = _Homeless
        return library


class _Homeless(type(pathlib.Path())):  # type: ignore[misc]
    """A path in which ~ stays what it is, where nobody can say what it stands for."""

    def expanduser(self) -> Any:
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
    """Who runs this program; 'nobody' where the system has no list of users (an app, a container without passwd)."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return "nobody"
