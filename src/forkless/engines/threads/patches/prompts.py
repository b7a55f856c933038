# SPDX-License-Identifier: GPL-3.0-or-later
"""
Answers a run's prompts: from the run's `answers` first, then from the person at the terminal, if the terminal belongs to the run.

A run inside a program has no terminal. A prompt without an answer is handled as Ansible does without a terminal: the default, or an error.
"""

from __future__ import annotations

import contextlib
import functools
import io
from typing import TYPE_CHECKING, Any

from forkless.engines.threads import context
from forkless.engines.threads.patches import stdlib_views

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from forkless.engines.threads.context import RunContext

__all__: list[str] = []

HIDDEN = "what was typed is hidden, as 'echo: false' was specified"


class _Terminal(io.StringIO):
    """A stdin that claims to be a terminal, because Ansible prompts only at a terminal."""

    def isatty(self) -> bool:
        return True


def _answer(run_context: RunContext | None, question: str) -> tuple[str | None, str]:
    """The answer, or None, and the question as it may be displayed."""
    if run_context is None:
        return None, question
    given, default = run_context.state.get("answering", (None, ""))
    if given is None:
        return run_context.answers.to(question), question
    return given, question.replace(default, "")


@contextlib.contextmanager
def _answering(run_context: RunContext, answer: str, default: str) -> Iterator[None]:
    """
    Every prompt in the block gets this answer, including the second prompt of a confirmation.

    Called only on the run's thread, before a play begins, so no worker sees the changed stdin.
    """
    before, run_context.stdin = run_context.stdin, _Terminal()
    run_context.state["answering"] = answer, default
    try:
        yield
    finally:
        run_context.stdin = before
        del run_context.state["answering"]


def var_prompt(original: Callable[..., object], _site: str) -> object:
    """vars_prompt: the default, confirmation and encryption are still handled by Ansible."""

    @functools.wraps(original)
    def ask(
        display: object, varname: str, private: bool = True, prompt: object = None, *more: object, **named: object
    ) -> object:
        run_context = context.current()
        default = named.get("default", more[4] if len(more) > 4 else None)
        shown = f" [{default}]" if prompt and default is not None else ""
        answer = None if run_context is None else run_context.answers.to(f"{prompt or f'input for {varname}'}{shown}: ")
        if run_context is None or answer is None:
            return original(display, varname, private, prompt, *more, **named)
        with _answering(run_context, answer, shown):
            return original(display, varname, private, prompt, *more, **named)

    return ask


def prompt(original: Any, _site: str) -> object:
    """A one-line prompt: of vars_prompt, --ask-vault-password, --step, and (`_get_secret`) -k and -K."""
    real = getattr(original, "__func__", original)

    @functools.wraps(real)
    def ask(*args: object, **kwargs: object) -> object:
        run_context = context.current()
        # The parameter is called msg in Display.prompt, and prompt in CLI._get_secret.
        question = str(args[0] if args else kwargs.get("msg", kwargs.get("prompt", "")))
        answer, seen = _answer(run_context, question)
        if answer is not None:
            # The question is displayed as on a terminal; the answer and the default are not, because either may be a secret.
            stdlib_views.sys_view.stdout.write(seen + "\n")
            return answer
        if run_context is not None and run_context.stdin is not None:
            raise EOFError(f"nobody answers {question.strip()!r}")
        # A live view on the terminal pauses during the prompt.
        with context.typing():
            return real(*args, **kwargs)

    return staticmethod(ask)


def prompt_until(original: Callable[..., object], _site: str) -> object:
    """
    The prompt of a task, usually `pause`.

    A worker's answer is delivered to that worker; upstream uses a module global, which is the worker that was started last.
    """

    @functools.wraps(original)
    def prompt(display: Any, msg: str, private: bool = False, seconds: object = None, **inputs: object) -> object:
        worker: Any = context.current_worker()
        if worker is not None:
            fields = {"interrupt_input": None, "complete_input": None, **inputs}
            worker._final_q.send_prompt(
                worker_id=worker.worker_id, prompt=msg, private=private, seconds=seconds, **fields
            )
            return worker.worker_queue.get()
        # A pause with a time limit waits until the limit, even if something is typed.
        answer = _answer(context.current(), str(msg))[0] if seconds is None else None
        if answer is not None:
            display.display(msg)
            return answer.encode()
        with context.typing():
            return original(display, msg, private=private, seconds=seconds, **inputs)

    return prompt


def without_hidden_input(original: Callable[..., Any], _site: str) -> object:
    """
    Hide the input of a pause with `echo: false` from callbacks. The play still finds it in the task's result.

    Only if the run has `answers`: at a terminal Ansible's output is not changed.
    """

    @functools.wraps(original)
    def copy(result: object, **how: object) -> object:
        made = original(result, **how)
        run_context = context.current()
        # 2.21 returns the mapping itself, for callbacks and others; earlier minors return a result object for callbacks.
        whole = isinstance(made, dict)
        if run_context is not None and run_context.answers and (not whole or how.get("for_callback")):
            told = made if whole else getattr(made, "_return_data", None) or made._result
            told.update(_hidden(told))
            if isinstance(told.get("results"), list):
                told["results"] = [_hidden(one) if isinstance(one, dict) else one for one in told["results"]]
        return made

    return copy


def _hidden(told: dict[str, object]) -> dict[str, object]:
    typed = told.get("echo") is False and told.get("user_input")
    return {**told, "user_input": HIDDEN} if typed else told
