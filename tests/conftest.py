# SPDX-License-Identifier: GPL-3.0-or-later
"""Two guards around every test: nothing forks in our process, and nothing is left behind."""

from __future__ import annotations

import signal

import pytest

import guards

# The background job of a shell starts with SIGINT ignored, and so would every program that a test starts and interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# And one under nohup with SIGHUP ignored.
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

pytest_plugins = ["pytester"]

_forks = guards.ForkWatch()


@pytest.fixture(autouse=True)
def fork_guard(request):
    """Fails a test in which os.fork or os.forkpty fires here; starting programs needs the mark `spawns`."""
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
