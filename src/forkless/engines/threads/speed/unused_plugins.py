# SPDX-License-Identifier: GPL-3.0-or-later
"""
unused-plugins: connection, shell and become plugins of ansible-core that no task uses are not loaded.

Before the first play ansible-core imports all of them and reads their documentation, so that forked workers need not. Workers that are threads share what the first
of them loads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forkless.engines.threads import context
from forkless.engines.threads.patches.core_files import own_files
from forkless.patching.seam import for_speed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from forkless.engines.threads.ansible_types import PluginFinder

__all__ = ["NAME", "SEAMS"]

NAME = "unused-plugins"


class _Preloading:
    """A loader, in the module that asks it for all plugins before the first play. If others are among them, all are loaded: one may be broken, and say so."""

    def __init__(self, loader: PluginFinder) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> object:
        return getattr(self._loader, name)

    def all(self, *args: object, **kwargs: object) -> Iterable[object]:
        run_context = context.current()
        if run_context is None or NAME in run_context.off or any(not own_files(path) for path in self._paths()):
            return self._loader.all(*args, **kwargs)
        return ()

    def _paths(self) -> Iterator[str]:
        return map(str, self._loader.all(path_only=True))


SEAMS = tuple(
    for_speed(
        f"ansible.executor.playbook_executor:{kind}_loader",
        "every run would load them all",
        lambda original, _site: _Preloading(original),
    )
    for kind in ("connection", "shell", "become")
)
