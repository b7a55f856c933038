# SPDX-License-Identifier: GPL-3.0-or-later
"""
template-cache: templates and expressions are compiled once for the run, by their text.

Hosts reach a task at the same moment, so many workers ask for the same text before it is compiled. One of them compiles it, and the others wait: ten
threads that compile a template of 2,000 lines at once need ten times the time and the memory of one.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from typing import TYPE_CHECKING

from forkless.core.own_thread_locals import OwnThreadLocal
from forkless.core.versions import since
from forkless.engines.threads import context
from forkless.engines.threads.speed import caches
from forkless.patching.seams import KNOWN, for_speed

if TYPE_CHECKING:
    import types
    from collections.abc import Callable, Hashable, Iterator

    from forkless.engines.threads.ansible_types import JinjaEnvironment
    from forkless.engines.threads.context import RunContext

__all__ = ["SEAMS"]

NAME = "template-cache"
_STATE = "texts being compiled"
# How long a thread waits for another one that compiles the same text: to compile a call, Jinja loads the file of its filter, which may block.
_COMPILED_WITHIN = 30.0


class _Last(OwnThreadLocal):
    code: types.CodeType | None = None


_last = _Last()


def _template_key(env: JinjaEnvironment, kind: str, source: str) -> Hashable:
    """
    Everything that the compiled code depends on: the text, the syntax, and the available filters and tests.

    Jinja checks at compile time whether a filter exists and which arguments it takes. Search paths only grow within a run, so their
    lengths tell whether another file may take precedence.
    """
    from ansible.plugins.loader import filter_loader, test_loader

    return (
        kind,
        str.__str__(source),
        type(env),
        env.block_start_string, env.block_end_string, env.variable_start_string, env.variable_end_string,
        env.comment_start_string, env.comment_end_string, env.line_statement_prefix, env.line_comment_prefix,
        env.trim_blocks, env.lstrip_blocks, env.newline_sequence, env.keep_trailing_newline,
        env.optimized, env.finalize, env.autoescape, tuple(env.extensions),
        len(filter_loader._extra_dirs), len(test_loader._extra_dirs),
    )  # fmt: skip


def _has_folded_results(env: JinjaEnvironment, source: str) -> bool:
    """
    Whether the compiled code holds the result of a filter or test, such as `{{ 60 | random }}` or `'/etc/motd' is exists`.

    Up to 2.18 Jinja calls them while it compiles, if they are given constants only. Since 2.19 Ansible switches that off.
    """
    if not env.optimized or ("|" not in source and " is " not in source and "filter" not in source):
        return False
    from jinja2 import nodes

    tree = env.parse(source)
    return any(next(one.find_all((nodes.Name,)), None) is None for one in tree.find_all((nodes.Filter, nodes.Test)))


@contextlib.contextmanager
def _once(run_context: RunContext | None, key: Hashable) -> Iterator[None]:
    """
    For the thread that compiles a text: others that want to wait here until it has ended, whether it succeeded or not.

    No lock is held. A thread that has waited for too long goes on, and so does one that compiles a text within the compilation of the same text.
    """
    if run_context is None:
        yield
        return
    being_compiled: dict[Hashable, tuple[int, threading.Event]] = run_context.state.setdefault(_STATE, {})
    mine = threading.get_ident(), threading.Event()
    try:
        owner, done = being_compiled.setdefault(key, mine)
        deadline = time.monotonic() + _COMPILED_WITHIN
        while owner != mine[0] and not done.wait(0.1) and time.monotonic() < deadline:
            pass  # in short waits: a stop of the worker is noticed between two of them
        if owner != mine[0] and not done.is_set():
            being_compiled[key] = mine  # nobody else need wait for that thread
        yield
    finally:
        mine[1].set()
        if being_compiled.get(key) is mine:
            del being_compiled[key]


def template(original: Callable[..., object], _site: str) -> object:
    """Environment.from_string: text is parsed and compiled once for the run; each caller gets a new template object from the code."""

    @functools.wraps(original)
    def from_string(env: JinjaEnvironment, source: object, *args: object, **kwargs: object) -> object:
        run_context = context.current()
        cache = caches.cache_of(run_context, NAME)
        if cache is None or args or kwargs or getattr(env, "_debuggable_template_source", False):
            return original(env, source, *args, **kwargs)
        if not isinstance(source, str):  # a syntax tree, from compile_expression below, which stores the code
            code = env.compile(source)
            _last.code = code
        else:
            key = _template_key(env, "template", source)
            known: types.CodeType | None = cache.get(key)
            if known is None:
                with _once(run_context, key):
                    known = cache.get(key)
                    if known is None:
                        code = env.compile(source)
                        if not _has_folded_results(env, source):
                            cache.store(key, code)  # a syntax error is not cached
            if known is not None:
                cache.hits += 1
                code = known
        return env.template_class.from_code(env, code, env.make_globals(None), None)

    return from_string


def expression(original: Callable[..., object], _site: str) -> object:
    """Environment.compile_expression: compiled once for the run, like from_string."""

    @functools.wraps(original)
    def compile_expression(env: JinjaEnvironment, source: str, undefined_to_none: bool = True) -> object:
        run_context = context.current()
        cache = caches.cache_of(run_context, NAME)
        if cache is None or getattr(env, "_debuggable_template_source", False):
            return original(env, source, undefined_to_none)
        key = _template_key(env, "expression", source)
        known: types.CodeType | None = cache.get(key)
        if known is None:
            with _once(run_context, key):
                known = cache.get(key)
                if known is None:
                    _last.code = None
                    made = original(env, source, undefined_to_none)
                    code, _last.code = _last.code, None
                    if code is not None:
                        cache.store(key, code)
                    return made
        cache.hits += 1
        from jinja2.environment import TemplateExpression

        return TemplateExpression(
            env.template_class.from_code(env, known, env.make_globals(None), None), undefined_to_none
        )

    return compile_expression


_ENVIRONMENT = "ansible._internal._templating._jinja_bits:AnsibleEnvironment"
_COMPILED = "every host would compile the template again"
SEAMS = (
    for_speed(f"{_ENVIRONMENT}.from_string", _COMPILED, template, since("2.19")),
    for_speed(f"{_ENVIRONMENT}.compile_expression", _COMPILED, expression, since("2.19")),
    for_speed("ansible.template:AnsibleEnvironment.from_string", _COMPILED, template, KNOWN[:1]),
)
