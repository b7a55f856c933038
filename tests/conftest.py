# SPDX-License-Identifier: GPL-3.0-or-later
"""Two guards around every test: the test process is not forked, and the test leaves nothing behind."""

from __future__ import annotations

import gc
import signal

import pytest

import guards
from forkless.core import platform

# A shell starts a background job with SIGINT and SIGQUIT ignored, nohup ignores SIGHUP, and programs that tests start inherit it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
for number in (signal.SIGHUP, signal.SIGQUIT):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL)

pytest_plugins = ["pytester"]

_forks = guards.ForkWatch()
guards.mark_what_is_started()


def pytest_collection_modifyitems(items):
    for item in items:
        if item.get_closest_marker("interrupts"):
            item.add_marker(pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"))
    # The tests with the longest time limits take longest. A worker that began one of them last would work alone at the end. The tests of
    # a file stay together, because of the fixtures that they share.
    limits = {}
    for item in items:
        limit = item.get_closest_marker("timeout")
        limits[item.path] = max(limits.get(item.path, 0), limit.args[0] if limit else 0)
    items.sort(key=lambda item: -limits[item.path])


def pytest_collection_finish():
    """
    Thousands of tests and the modules that they need stay until the end. Looking through them for garbage again and again took a sixth of
    the processor time of tests that run playbooks in this process. The first threshold is below that of forkless's own command, which a test compares.
    """
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)


@pytest.fixture(scope="session", autouse=True)
def programs_can_be_started():
    """Asking tries to start one, and the answer is kept. A test without the mark `spawns` would fail if it was the first in its process to ask."""
    platform.can_exec()


@pytest.fixture(scope="session", autouse=True)
def nothing_outlives_the_tests():
    """Fails the last test, and ends the program, if a program that any test has started still runs, whatever its parent is."""
    guards.end_what_is_started_with_us()
    yield
    left = guards.end_what_is_left()
    if left:
        pytest.fail("leak guard: processes that outlived the tests: " + "; ".join(left), pytrace=False)


@pytest.fixture(autouse=True)
def fork_guard(request):
    """Fails a test that calls os.fork or os.forkpty in this process, or starts a program without the mark `spawns`."""
    _forks.clear()
    yield
    forbidden = _forks.seen(guards.FORKS)
    if not request.node.get_closest_marker("spawns"):
        forbidden += _forks.seen(guards.SPAWNS)
    if forbidden:
        pytest.fail("fork guard: " + "; ".join(forbidden), pytrace=False)


@pytest.fixture(autouse=True)
def leak_guard(request, fork_guard):
    """Fails a test that leaves a thread, a descriptor, a child, a patched name or a changed process behind."""
    excused = {what for mark in request.node.iter_markers("leaves") for what in mark.args}
    before = guards.Belongings.now()
    yield
    left = before.what_is_left(excused)
    if left:
        pytest.fail("leak guard: " + "; ".join(left), pytrace=False)
