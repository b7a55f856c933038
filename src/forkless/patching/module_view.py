# SPDX-License-Identifier: GPL-3.0-or-later
"""ModuleView: a module as some callers see it, with names replaced; the module itself is unchanged. `put_views` hands views to a module."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["ModuleView", "put_views"]


class ModuleView(types.ModuleType):
    """
    A module that takes every attribute that neither its subclass nor `names` define from the real module.

    What is assigned to the view stays in the view.
    """

    def __init__(self, real: types.ModuleType, **names: object) -> None:
        super().__init__(real.__name__, real.__doc__)
        self.__dict__["_real"] = real
        self.__dict__.update(names)

    def __getattr__(self, name: str) -> object:
        return getattr(self.__dict__["_real"], name)

    def __dir__(self) -> list[str]:
        return dir(self.__dict__["_real"])


def put_views(space: dict[str, object], views: Mapping[int, object], **builtins: object) -> Callable[[], None]:
    """
    Replace what a module's globals (`space`) hold by its view, found by the id of the original; returns a function that restores all.

    `builtins` are added under their names, unless the module defines these itself.
    """
    changed = {name: value for name, value in space.items() if id(value) in views and not name.startswith("__")}
    for name, value in changed.items():
        space[name] = views[id(value)]
    added = {name: value for name, value in builtins.items() if name not in space}
    space.update(added)

    def restore() -> None:
        space.update(changed)
        for name in added:
            space.pop(name, None)

    return restore
