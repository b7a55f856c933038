# SPDX-License-Identifier: GPL-3.0-or-later
"""What the command does with signals, without a command: each handler is called in this process, and its steps are seen in order."""

from __future__ import annotations

import signal

import pytest

from forkless.cli import command_signals


class Run:
    def __init__(self, taken):
        self.taken, self.stopping = taken, False

    def cancel(self):
        self.stopping = True
        self.taken.append("cancel")


class View:
    def __init__(self, taken):
        self.taken = taken

    def stopping(self):
        self.taken.append("say that it stops")

    def ended(self):
        self.taken.append("end the view")

    def wait_for_children(self):
        self.taken.append("wait for children")


@pytest.fixture
def taken(monkeypatch):
    steps = []
    monkeypatch.setattr(
        command_signals.os, "kill", lambda _pid, number: steps.append(f"end by {signal.Signals(number).name}")
    )
    return steps


def test_the_first_interrupt_stops_the_run_and_says_so_and_the_second_one_is_not_told_again(taken):
    before = signal.getsignal(signal.SIGINT)
    with command_signals.signals_for(Run(taken), View(taken)):
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert taken == ["say that it stops", "cancel"]
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert taken == ["say that it stops", "cancel", "cancel"]
    assert signal.getsignal(signal.SIGINT) is before


def test_in_the_console_an_interrupt_ends_what_is_under_way_and_not_the_command(taken):
    with command_signals.signals_for(Run(taken), View(taken), stay=True), pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    assert taken == []


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM, signal.SIGQUIT], ids=lambda one: one.name)
def test_a_signal_that_ends_the_command_ends_the_view_and_its_children_first(taken, number):
    before = signal.signal(number, lambda *_: taken.append("nobody heeds it"))
    try:
        with command_signals.signals_for(Run(taken), View(taken)):
            signal.raise_signal(number)
            assert taken == ["end the view", "cancel", "wait for children", f"end by {number.name}"]
            assert signal.getsignal(number) is signal.SIG_DFL  # so that the parent sees which signal it was
    finally:
        signal.signal(number, before)


def test_a_hang_up_that_was_ignored_at_the_start_stays_ignored(taken):
    """As nohup wants it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with command_signals.signals_for(Run(taken), View(taken)):
            signal.raise_signal(signal.SIGHUP)
        assert taken == []
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_the_signal_that_ansible_core_takes_for_its_dump_is_given_back(taken):
    """Since 2.22 it sets a handler of SIGUSR1 in a run, and does not restore the one before."""

    def mine(*_):
        taken.append("dump")

    before = signal.signal(signal.SIGUSR1, mine)
    try:
        with command_signals.signals_for(Run(taken), View(taken)):
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        assert signal.getsignal(signal.SIGUSR1) is mine
    finally:
        signal.signal(signal.SIGUSR1, before)
