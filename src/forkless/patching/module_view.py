# SPDX-License-Identifier: GPL-3.0-or-later
"""ModuleView: a module as some callers see it, with names replaced; the module itself is unchanged."""

from __future__ import annotations

import types

__all__ = ["ModuleView"]


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
