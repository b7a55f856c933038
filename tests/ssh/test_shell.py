# SPDX-License-Identifier: GPL-3.0-or-later
"""The shell of a network device, between the event loop and a thread that is sent exceptions."""

from __future__ import annotations

import sys
import threading

import pytest

from forkless.ssh.shell import InteractiveShell

PATIENCE = 240.0


class Alarm(Exception):
    """As it is sent to the thread that reads."""


def interrupted(call, at):
    """Whether `call` was ended by an Alarm that is raised before the instruction with this number."""
    left = at

    def trace(frame, _event, _about):
        nonlocal left
        frame.f_trace_opcodes = True
        left -= 1
        if left == 0:
            raise Alarm
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except (TimeoutError, Alarm) as err:
        return isinstance(err, Alarm)
    finally:
        sys.settrace(before)
    return False


@pytest.mark.parametrize("sent", [b"", b"prompt#"])
def test_a_reader_that_is_interrupted_anywhere_does_not_hold_up_the_event_loop(sent):
    at, more = 0, True
    while more:
        at += 1
        shell = InteractiveShell(None)
        shell.settimeout(0.0)
        if sent:
            shell.data_received(sent, None)
        more = interrupted(lambda: shell.recv(3), at)
        loop = threading.Thread(target=shell.data_received, args=(b"more", None), daemon=True)
        loop.start()
        loop.join(PATIENCE)
        assert not loop.is_alive(), f"the event loop waits for ever after an exception at instruction {at}"
    assert at > 20


def test_what_was_sent_is_read_in_parts_and_then_the_end():
    shell = InteractiveShell(None)
    shell.settimeout(0.0)
    with pytest.raises(TimeoutError):
        shell.recv(3)
    for chunk in (b"router", b"1#"):
        shell.data_received(chunk, None)
    shell.eof_received()
    shell.connection_lost(None)
    assert shell.recv(4) == b"rout"
    assert b"".join(iter(lambda: shell.recv(4), b"")) == b"er1#"
    assert shell.recv(4) == b""
