# SPDX-License-Identifier: GPL-3.0-or-later
"""
Which opener of urllib a thread uses.

`open_url` of ansible-core makes an opener for each request, with its credentials, cookies, certificates and proxy, installs it in
`urllib.request` for the whole process, and calls `urlopen`. Between the two another thread may install its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forkless.core.own_thread_locals import OwnThreadLocal
from forkless.patching.module_view import ModuleView

if TYPE_CHECKING:
    import types
    import urllib.request

__all__ = ["urllib_of_each_thread"]


class _Next(OwnThreadLocal):
    opener: urllib.request.OpenerDirector | None = None


_next = _Next()


def install_opener(opener: urllib.request.OpenerDirector) -> None:
    """Use this opener for the next `urlopen` of the calling thread."""
    _next.opener = opener


def urlopen(url: str | urllib.request.Request, data: bytes | None = None, *timeout: float) -> object:
    opener, _next.opener = _next.opener, None
    if opener is None:
        import urllib.request  # imported here: few runs need it, and it is slow to import

        return urllib.request.urlopen(url, data, *timeout)  # noqa: S310  # what module_utils.urls would have called
    return opener.open(url, data, *timeout)


def urllib_of_each_thread(original: types.ModuleType, _site: str) -> object:
    """`urllib` for module_utils.urls, in which an installed opener is the calling thread's. The program's `urllib.request` is unchanged."""
    return ModuleView(original, request=ModuleView(original.request, install_opener=install_opener, urlopen=urlopen))
