# SPDX-License-Identifier: GPL-3.0-or-later
"""A template that many hosts need at once is compiled by one of them, while the others wait, unless that takes too long."""

from __future__ import annotations

import contextlib
import threading

import pytest
from jinja2 import Environment

from engines_support import messages
from forkless.core.stop import Stop
from forkless.engines.threads import context
from forkless.engines.threads.speed import templates

KEY = "texts being compiled"


@pytest.fixture
def run_context():
    made = context.RunContext(ident="a run", stop=Stop())
    with context.enter(made):
        yield made


class OtherThread:
    """The event of a thread that compiles; a second one waits for it."""

    def __init__(self, ends):
        self.ends, self.waits = ends, 0

    def wait(self, timeout):
        assert timeout <= 1, "a stop of the worker is noticed between two waits"
        self.waits += 1
        return self.ends

    def is_set(self):
        return self.ends


def test_a_thread_waits_for_the_one_that_compiles_the_same_text(run_context, monkeypatch):
    monkeypatch.setattr(templates, "_COMPILED_WITHIN", 240)
    other = OtherThread(ends=True)
    run_context.state[KEY] = {"text": (0, other)}
    with templates._once(run_context, "text"):
        assert other.waits == 1
    assert run_context.state[KEY] == {"text": (0, other)}


def test_a_thread_that_compiles_forever_holds_up_no_other(run_context, monkeypatch):
    monkeypatch.setattr(templates, "_COMPILED_WITHIN", 0)
    other = OtherThread(ends=False)
    run_context.state[KEY] = {"text": (0, other)}
    with templates._once(run_context, "text"):
        assert other.waits == 1


def test_a_text_that_is_compiled_within_its_own_compilation_waits_for_nobody(run_context):
    other = OtherThread(ends=False)
    run_context.state[KEY] = {"text": (threading.get_ident(), other)}
    with templates._once(run_context, "text"):
        assert other.waits == 0


def test_others_are_woken_when_it_was_compiled_or_failed(run_context):
    seen = []
    with pytest.raises(SyntaxError), templates._once(run_context, "text"):
        ((_, done),) = run_context.state[KEY].values()
        seen.append((done, done.is_set()))
        raise SyntaxError
    ((done, before),) = seen
    assert (before, done.is_set(), run_context.state[KEY]) == (False, True, {})


@pytest.mark.spawns
@pytest.mark.matrix
@pytest.mark.parametrize("off", ["", "template-cache"])
def test_hosts_that_need_a_text_at_once_compile_it_once(project, monkeypatch, off):
    """The text is compiled only after all three have found that it is not yet."""
    compiled, asked, all_asked = [], [], threading.Event()
    real, once = Environment._parse, templates._once

    def compiling(env, source, *more, **named):
        if "only here" in str(source):
            compiled.append(threading.get_ident())
            assert off or all_asked.wait(60)
        return real(env, source, *more, **named)

    @contextlib.contextmanager
    def asking(run_context, key):
        if "only here" in str(key):
            asked.append(key)
            if len(asked) == 3:
                all_asked.set()
        with once(run_context, key):
            yield

    monkeypatch.setattr(Environment, "_parse", compiling)
    monkeypatch.setattr(templates, "_once", asking)
    result = project.run(
        '- debug: {msg: "only here {{ inventory_hostname }}"}\n',
        limit="h1,h2,h3",
        forks=3,
        env={"FORKLESS_DISABLE": off},
    )
    assert result.rc == 0, result.stdout
    assert messages(result) == {f"h{n}": f"only here h{n}" for n in (1, 2, 3)}
    assert len(compiled) == (3 if off else 1)


def test_who_has_waited_for_a_thread_in_vain_makes_nobody_else_wait_for_it(run_context, monkeypatch):
    """A worker may be stopped at a moment at which it cannot say so."""
    monkeypatch.setattr(templates, "_COMPILED_WITHIN", 0)
    being_compiled = run_context.state.setdefault(KEY, {})
    being_compiled["text"] = -1, threading.Event()
    with templates._once(run_context, "text"):
        assert being_compiled["text"][0] == threading.get_ident()
    assert not being_compiled


def test_a_thread_that_is_stopped_as_it_begins_to_compile_leaves_no_entry(run_context):
    class Stopped(dict):
        def setdefault(self, key, mine):
            super().setdefault(key, mine)
            raise KeyboardInterrupt

    being_compiled = run_context.state[KEY] = Stopped()
    with pytest.raises(KeyboardInterrupt), templates._once(run_context, "text"):
        pass
    assert not being_compiled
