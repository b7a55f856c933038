# SPDX-License-Identifier: GPL-3.0-or-later
"""A thread's stack as text, whatever the program does with warnings."""

from __future__ import annotations

import contextlib
import linecache
import threading

import pytest

from forkless.core.thread_stack import stack_as_text


@pytest.fixture
def waiting():
    """A thread that waits two calls deep in this file."""
    inside, go = threading.Event(), threading.Event()

    def outer():
        inner()

    def inner():
        inside.set()
        go.wait(240)

    thread = threading.Thread(target=outer)
    thread.start()
    assert inside.wait(240)
    yield thread
    go.set()
    thread.join()


def test_it_has_each_call_with_its_line_as_traceback_prints_them(waiting):
    text = stack_as_text(waiting.ident)
    assert text.index(", in outer\n    inner()\n") < text.index(", in inner\n    go.wait(240)\n")
    assert f'  File "{__file__}", line ' in text


def test_the_innermost_calls_are_the_last_ones(waiting):
    whole = stack_as_text(waiting.ident)
    assert whole.endswith(stack_as_text(waiting.ident, last=3))
    assert stack_as_text(waiting.ident, last=3).count("  File ") == 3


def test_a_thread_that_never_began_has_none():
    assert stack_as_text(threading.Thread(target=print).ident) == ""


def test_a_module_with_two_loaders_does_not_keep_it_from_being_told(waiting, monkeypatch):
    """Python 3.15 warns of such a module when its loader is asked, and the program may have made warnings errors."""

    def warn(_filename, _module_globals):
        raise DeprecationWarning("Module globals; __loader__ != __spec__.loader")

    text = ""
    # Only as long as it is looked at: pytest formats a failure with the same functions.
    with monkeypatch.context() as patched, contextlib.suppress(DeprecationWarning):
        patched.setattr(linecache, "lazycache", warn)
        text = stack_as_text(waiting.ident)
    assert "go.wait(240)" in text
