# SPDX-License-Identifier: GPL-3.0-or-later
"""
What a run asks, and who answers: the run's own answers first, then the person at the terminal, if the terminal is the run's.

A run inside a program has no terminal. What nobody answers there is as without one: the default, or a refusal.
"""

from __future__ import annotations

import contextlib
import functools
import io
from typing import TYPE_CHECKING, Any

from forkless.engines import _scene, _views

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forkless.engines._scene import Scene

__all__: list[str] = []

HIDDEN = "what was typed is hidden, as 'echo: false' was specified"


class _Terminal(io.StringIO):
    """What Ansible looks at before it asks."""

    def isatty(self) -> bool:
        return True


def _answer(scene: Scene | None, question: str) -> tuple[str | None, str]:
    """The answer, if there is one, and the question as it may be shown."""
    if scene is None:
        return None, question
    given, default = scene.state.get("answering", (None, ""))
    if given is None:
        return scene.answers.to(question), question
    return given, question.replace(default, "")


@contextlib.contextmanager
def _answering(scene: Scene, answer: str, default: str) -> Iterator[None]:
    """
    Whatever is asked in the block gets this answer; a question that is asked twice, to confirm it, too.

    Only the thread of the play asks this way, before a play begins, so that no worker sees the terminal come and go.
    """
    before, scene.stdin = scene.stdin, _Terminal()
    scene.state["answering"] = answer, default
    try:
        yield
    finally:
        scene.stdin = before
        del scene.state["answering"]


def var_prompt(original: Any, _site: str) -> Any:
    """vars_prompt: its default, confirmation and encryption stay Ansible's."""

    @functools.wraps(original)
    def ask(display: Any, varname: str, private: bool = True, prompt: Any = None, *more: Any, **named: Any) -> Any:
        scene = _scene.current()
        default = named.get("default", more[4] if len(more) > 4 else None)
        shown = f" [{default}]" if prompt and default is not None else ""
        answer = None if scene is None else scene.answers.to(f"{prompt or f'input for {varname}'}{shown}: ")
        if scene is None or answer is None:
            return original(display, varname, private, prompt, *more, **named)
        with _answering(scene, answer, shown):
            return original(display, varname, private, prompt, *more, **named)

    return ask


def prompt(original: Any, _site: str) -> Any:
    """A question of one line: of vars_prompt, of --ask-vault-password, of --step, and (`_get_secret`) of -k and -K."""
    real = getattr(original, "__func__", original)

    @functools.wraps(real)
    def ask(*args: Any, **kwargs: Any) -> Any:
        scene = _scene.current()
        # Display.prompt names it msg, CLI._get_secret prompt.
        question = str(args[0] if args else kwargs.get("msg", kwargs.get("prompt", "")))
        answer, seen = _answer(scene, question)
        if answer is not None:
            # What was asked is seen, as on a terminal; what was typed is not, nor the default, which may be a secret as well.
            _views.sys_view.stdout.write(seen + "\n")
            return answer
        if scene is not None and scene.stdin is not None:
            raise EOFError(f"nobody answers {question.strip()!r}")
        # Whoever shows the run on a terminal steps aside while a person is asked.
        with _scene.typing():
            return real(*args, **kwargs)

    return staticmethod(ask)


def prompt_until(original: Any, _site: str) -> Any:
    """
    The question of a task: `pause`, most often.

    A worker's is answered to that worker; upstream asks the module's global, which is the last one started.
    """

    @functools.wraps(original)
    def prompt(display: Any, msg: str, private: bool = False, seconds: Any = None, **inputs: Any) -> Any:
        worker: Any = _scene.current_worker()
        if worker is not None:
            fields = {"interrupt_input": None, "complete_input": None, **inputs}
            worker._final_q.send_prompt(
                worker_id=worker.worker_id, prompt=msg, private=private, seconds=seconds, **fields
            )
            return worker.worker_queue.get()
        # One with a time limit waits for it, whatever is typed.
        answer = _answer(_scene.current(), str(msg))[0] if seconds is None else None
        if answer is not None:
            display.display(msg)
            return answer.encode()
        with _scene.typing():
            return original(display, msg, private=private, seconds=seconds, **inputs)

    return prompt


def without_hidden_input(original: Any, _site: str) -> Any:
    """
    What a pause with `echo: false` was answered is in its result, for the play to use; who reports on the run need not see it.

    Only where the answers are ours to keep: at a terminal Ansible's output stays Ansible's.
    """

    @functools.wraps(original)
    def copy(result: Any, **how: Any) -> Any:
        made = original(result, **how)
        scene = _scene.current()
        # 2.21 makes the mapping itself, for callbacks and for others; those before it a result for callbacks.
        whole = isinstance(made, dict)
        if scene is not None and scene.answers and (not whole or how.get("for_callback")):
            told = made if whole else getattr(made, "_return_data", None) or made._result
            told.update(_hidden(told))
            if isinstance(told.get("results"), list):
                told["results"] = [_hidden(one) if isinstance(one, dict) else one for one in told["results"]]
        return made

    return copy


def _hidden(told: dict[str, Any]) -> dict[str, Any]:
    typed = told.get("echo") is False and told.get("user_input")
    return {**told, "user_input": HIDDEN} if typed else told
