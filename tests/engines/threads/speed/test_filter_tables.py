# SPDX-License-Identifier: GPL-3.0-or-later
"""The table of filters and tests of a run: filled by one thread while others wait for it, unless that takes too long."""

from __future__ import annotations

import types

import pytest

from forkless.core.stop import Stop
from forkless.engines.threads import context
from forkless.engines.threads.patches import plugin_loader

KEY = "tables being filled"


@pytest.fixture
def run_context():
    made = context.RunContext(ident="a run", stop=Stop())
    with context.enter(made):
        yield made


@pytest.fixture
def loader():
    return types.SimpleNamespace(_cached_non_collection_wrappers={}, _extra_dirs=[])


class OtherThread:
    """What a second thread sees of the one that fills the table."""

    def __init__(self, loader, table):
        self.loader, self.table = loader, table

    def wait(self, timeout):
        assert timeout <= 1, "a stop of the worker is noticed between two waits"
        self.loader._cached_non_collection_wrappers = self.table
        return bool(self.table)


def fills(loader, what):
    return lambda: plugin_loader._pinned.tables[id(loader)].update(what)


def test_a_thread_waits_for_the_one_that_fills_the_table(run_context, loader, monkeypatch):
    monkeypatch.setattr(plugin_loader, "_FILLED_WITHIN", 240)
    run_context.state[KEY] = {id(loader): OtherThread(loader, {"a": 1})}
    found = plugin_loader._complete_table(lambda: pytest.fail("filled a second time"), loader)
    assert found == {"a": 1}


def test_a_thread_that_fills_a_table_forever_holds_up_no_other(run_context, loader, monkeypatch):
    monkeypatch.setattr(plugin_loader, "_FILLED_WITHIN", 0)
    blocked = OtherThread(loader, {})
    run_context.state[KEY] = {id(loader): blocked}
    assert plugin_loader._complete_table(fills(loader, {"second": 1}), loader) == {"second": 1}
    assert run_context.state[KEY] == {id(loader): blocked}


def test_others_find_the_thread_that_fills_a_table_and_are_woken_when_it_has_ended(run_context, loader):
    seen = []

    def fill():
        (filled,) = run_context.state[KEY].values()
        seen.append((filled, filled.is_set()))
        fills(loader, {"a": 1})()

    assert plugin_loader._complete_table(fill, loader) == {"a": 1}
    ((filled, was_set),) = seen
    assert (was_set, filled.is_set(), run_context.state[KEY]) == (False, True, {})


def test_a_thread_that_cannot_fill_a_table_lets_the_next_one_try(run_context, loader):
    def fails():
        raise OSError("a project's file")

    with pytest.raises(OSError, match="a project's file"):
        plugin_loader._complete_table(fails, loader)
    assert plugin_loader._complete_table(fills(loader, {"a": 1}), loader) == {"a": 1}


def test_a_complete_table_is_answered_at_once(run_context, loader):
    loader._cached_non_collection_wrappers = {"a": 1}
    run_context.state[KEY] = {id(loader): None}  # not looked at
    assert plugin_loader._complete_table(lambda: pytest.fail("filled a second time"), loader) == {"a": 1}
