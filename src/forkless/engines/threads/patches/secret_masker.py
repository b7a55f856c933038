# SPDX-License-Identifier: GPL-3.0-or-later
"""
ansible-core's secret masker (since 2.22), one for each run.

Upstream has one for the process. A password of one run would be masked in every later run, and a worker that is stopped while it holds
the masker's lock would leave it locked: every message of the run would block forever.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import weakref
from typing import TYPE_CHECKING

from forkless.engines.threads import context
from forkless.engines.threads.patches import run_state

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["PARTS", "MaskerLock", "masked"]


def masked(text: str) -> str:
    """The text without the secrets of the calling thread's run. Before 2.22 ansible-core has no masker, and the text is returned."""
    module = sys.modules.get("ansible.module_utils._internal._secrets")
    # Without the lock: a signal handler calls this for the message after Ctrl-C, and its thread may hold the lock.
    return text if module is None else str(module._secret_masker.mask_string(text, acquire_lock=False))


class MaskerLock:
    """
    The lock of a run's masker. A worker that holds it or waits for it is interrupted only after it has released the lock.

    Upstream's lock registers fork hooks, which cannot be removed, and makes a fork of the program wait for the lock.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._shield: contextlib.AbstractContextManager[None] = contextlib.nullcontext()

    def __enter__(self) -> None:
        worker = context.current_worker()
        shield = contextlib.nullcontext() if worker is None else worker.interrupt.shielded()
        shield.__enter__()
        self._lock.acquire()
        self._shield = shield  # written only while the lock is held

    def __exit__(self, *_: object) -> None:
        shield = self._shield
        self._lock.release()
        shield.__exit__(None, None, None)


def _new_matcher(masker: object) -> object:
    return type(vars(masker)["_matcher"])()


def _no_trackers(_masker: object) -> object:
    """A weak set: each task adds a tracker and never removes it, because its process ended. Here a tracker is freed with its task."""
    return weakref.WeakSet()


# The attributes of SecretMasker, each with the function that makes a run's initial value.
PARTS: tuple[tuple[str, Callable[[object], object]], ...] = (
    ("_lock", lambda _masker: MaskerLock()),
    ("_new_secret_trackers", _no_trackers),
    ("_matcher", _new_matcher),
    *((name, run_state.fresh_like_outside(name)) for name in ("_secrets", "_forms", "_json_forms")),
)
