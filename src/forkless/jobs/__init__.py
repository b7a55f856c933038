# SPDX-License-Identifier: GPL-3.0-or-later
"""
Jobs that outlive the play: records of Ansible `async` jobs on the controller, and the stores that keep them.

    from forkless.jobs import JobRegistry, Key, open_store

    registry = JobRegistry(open_store("file:/var/lib/deploy/jobs"))
    for record in registry.jobs():
        print(record.key, record.ansible_job_id)

The code that runs on targets, and the roles that use this package, are in the Ansible collection forkless.core.
"""

from __future__ import annotations

from forkless.jobs.claims import LEASE
from forkless.jobs.locations import Unreadable, slot_of
from forkless.jobs.owner import current_run
from forkless.jobs.play_claims import Play
from forkless.jobs.record import CLAIMED, FORGOTTEN, SAVED, Key, Record, moment, now, stamp
from forkless.jobs.registry import JobRegistry
from forkless.jobs.stores.store import STATE_DIR, Head, JobStore, open_store

__all__ = [
    "CLAIMED",
    "FORGOTTEN",
    "LEASE",
    "SAVED",
    "STATE_DIR",
    "Head",
    "JobRegistry",
    "JobStore",
    "Key",
    "Play",
    "Record",
    "Unreadable",
    "current_run",
    "moment",
    "now",
    "open_store",
    "slot_of",
    "stamp",
]

# The name up to 0.1, kept for programs that import it.
JobBook = JobRegistry
