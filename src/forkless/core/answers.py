# SPDX-License-Identifier: GPL-3.0-or-later
"""Answers to a run's prompts: regular expressions, as in ansible-runner's `passwords`, each with the line to type."""

from __future__ import annotations

import re
from collections.abc import Mapping

from forkless.core.errors import SpecError

__all__ = ["Answers"]


class Answers:
    """Patterns and answers, validated when constructed. An answer never appears in an error message or a repr."""

    def __init__(self, given: object) -> None:
        if not isinstance(given, Mapping):
            raise SpecError(f"answers must map patterns to answers, not {type(given).__name__}")
        self._pairs: list[tuple[re.Pattern[str], str]] = []
        for pattern, answer in given.items():
            if not isinstance(pattern, str) or not isinstance(answer, str):
                raise SpecError(f"answers: the pattern {pattern!r} and its answer must be strings")
            if "\n" in answer or "\r" in answer:
                raise SpecError(
                    f"answers: the answer for {pattern!r} must be one line, because it is typed at a prompt"
                )
            try:
                # MULTILINE, as in ansible-runner: '^Name:\\s*?$' matches a line in the middle of a text.
                self._pairs.append((re.compile(pattern, re.MULTILINE), answer))
            except re.error as err:
                raise SpecError(f"answers: {pattern!r} is no regular expression: {err}") from None

    def __bool__(self) -> bool:
        return bool(self._pairs)

    def to(self, question: str) -> str | None:
        """The answer of the first pattern that is found in the question; None if no pattern is found."""
        return next((answer for pattern, answer in self._pairs if pattern.search(question)), None)
