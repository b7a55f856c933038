# SPDX-License-Identifier: GPL-3.0-or-later
"""
Jobs that outlive the play: what is remembered of an Ansible `async` job on the controller, and where.

    from forkless.jobs import JobBook, Key, open_store

    book = JobBook(open_store("file:/var/lib/deploy/jobs"))
    for record in book.jobs():
        print(record.key, record.ansible_job_id)

The target's side, and the roles that use this, are in the Ansible collection forkless.core.
"""

from __future__ import annotations

from forkless.jobs._book import LEASE, JobBook, slot_of
from forkless.jobs._record import CLAIMED, FORGOTTEN, SAVED, Key, Record, moment, now, stamp
from forkless.jobs._store import STATE_DIR, Head, JobStore, open_store

__all__ = [
    "CLAIMED",
    "FORGOTTEN",
    "LEASE",
    "SAVED",
    "STATE_DIR",
    "Head",
    "JobBook",
    "JobStore",
    "Key",
    "Record",
    "moment",
    "now",
    "open_store",
    "slot_of",
    "stamp",
]
