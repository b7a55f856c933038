# SPDX-License-Identifier: GPL-3.0-or-later
"""
A Celery task that runs a playbook. Works in every pool, the default one too.

    BROKER=redis://localhost celery -A celery_app worker

With multiprocessing inside a Celery worker Ansible fails: "daemonic processes are not allowed to have children". Here
workers are threads, and nothing is forked.
"""

from __future__ import annotations

import os
from typing import Any

from celery import Celery

import forkless

app = Celery("playbooks", broker=os.environ.get("BROKER"), backend=os.environ.get("BACKEND"))
if os.environ.get("BROKER", "").startswith("filesystem://"):  # for trying it without a server
    folder = os.environ["BROKER_FOLDER"]
    app.conf.broker_transport_options = {
        "data_folder_in": folder,
        "data_folder_out": folder,
        "control_folder": folder,
        "store_processed": False,
    }


@app.task(bind=True)
def playbook(self: Any, path: str, engine: str = "runner", extra_vars: dict[str, Any] | None = None) -> dict[str, Any]:
    def tell(event: forkless.Event) -> None:
        if event.event == "playbook_on_task_start":
            self.update_state(state="PROGRESS", meta={"task": event.event_data["name"]})

    result = forkless.run(path, engine=engine, extra_vars=extra_vars or {}, timeout=3600, on_event=tell)
    return {"status": result.status, "rc": result.rc, "hosts": dict(result.hosts)}
