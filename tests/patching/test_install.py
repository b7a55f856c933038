# SPDX-License-Identifier: GPL-3.0-or-later
"""One installer for every kind of name: attributes of modules, classes, functions and instances, and keys of mappings; all are restored."""

from __future__ import annotations

import sys
import types

import pytest

from forkless.core.errors import UnsupportedError
from forkless.patching import seams
from forkless.patching.module_view import ModuleView
from forkless.patching.seams import Seam, always, made_by, static


class Above:
    inherited = "above"


@pytest.fixture
def module(monkeypatch):
    made = types.ModuleType("forkless_test_places")

    class Thing(Above):
        own = "own"

        @staticmethod
        def fixed(x):
            return x

    def function():
        return "before"

    made.Thing, made.function, made.table, made.instance = Thing, function, {"key": "before"}, Thing()
    monkeypatch.setitem(sys.modules, made.__name__, made)
    return made


def seam(path, stand_in, **more):
    return Seam(f"forkless_test_places:{path}", "a reason", stand_in, **more)


def other():
    return "after"


class Other(Above):
    pass


def test_every_kind_of_name_is_replaced_and_restored(module):
    before = dict(vars(module.Thing)), dict(module.table), dict(vars(module)), module.function.__code__
    undo = seams.install(
        [
            seam("Thing.own", made_by(lambda was: was + "!")),
            seam("Thing.inherited", always("here")),
            seam("Thing.fixed", static(lambda was: lambda x: was(x) + 1)),
            seam("Thing.added", always(1), optional=True),
            seam("function.__code__", always(other.__code__)),
            seam("instance.__class__", always(Other)),
            seam("table[key]", always("after")),
            seam("table[other]", always("new"), optional=True),
        ]
    )
    thing = module.Thing
    assert (thing.own, thing.inherited, thing.fixed(1), thing.added, Above.inherited) == ("own!", "here", 2, 1, "above")
    assert (module.function(), type(module.instance), module.table) == (
        "after", Other, {"key": "after", "other": "new"}
    )  # fmt: skip
    undo()
    assert (dict(vars(thing)), module.table, dict(vars(module)), module.function.__code__) == before
    assert type(module.instance) is thing


@pytest.mark.parametrize("path", ["nowhere", "Thing.nowhere", "Nowhere.name", "table[nowhere]"])
def test_if_one_is_missing_none_is_installed(module, path):
    with pytest.raises(UnsupportedError, match=r"forkless_test_places:.* is missing \(a reason\)"):
        seams.install([seam("Thing.own", always("new")), seam(path, always(1))])
    assert module.Thing.own == "own"


def test_a_stand_in_that_fails_undoes_those_before_it(module):
    def fails(_original, _site):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        seams.install([seam("Thing.own", always("new")), seam("function", fails)])
    assert module.Thing.own == "own"


def test_a_view_replaces_names_for_those_who_have_it_and_leaves_the_module_alone(module):
    view = ModuleView(module, table="mine")
    view.function = "assigned"
    assert (view.table, view.function, view.Thing) == ("mine", "assigned", module.Thing)
    assert module.table == {"key": "before"}
    assert callable(module.function)
    assert set(dir(view)) == set(dir(module))
