# SPDX-License-Identifier: GPL-3.0-or-later
"""Errors of the queue, each with a sentence that says what to do."""

from __future__ import annotations

from forkless.core.errors import ForklessError, SpecError

__all__ = [
    "DatabaseError",
    "DatabaseFullError",
    "DeliveredError",
    "QueueError",
    "QueueRequestError",
    "SchemaError",
    "UnknownRunError",
]


class QueueError(ForklessError):
    """Base class of errors about the queue of runs."""


class QueueRequestError(QueueError, SpecError):
    """What was asked of the queue is invalid. Nothing was queued."""


class DeliveredError(QueueError):
    """The message that asks for a run was received before. Nothing was queued."""


class DatabaseError(QueueError):
    """The database cannot be reached, refused the login, or failed."""


class DatabaseFullError(DatabaseError):
    """The disk of the database is full. Nothing was changed; the same succeeds when there is room."""


class SchemaError(DatabaseError):
    """The database has no schema of forkless, or one of another version."""


class UnknownRunError(QueueError, LookupError):
    """No run has that number."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number

    def __str__(self) -> str:
        return f"there is no run {self.number}; `forkless runs list` shows the runs that there are"
