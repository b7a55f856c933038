# SPDX-License-Identifier: GPL-3.0-or-later
"""
AWS Lambda runs a playbook: no /dev/shm, a read-only file system but for /tmp, no HOME, a user that is in no list.

Stock Ansible does not start there ("Unable to use multiprocessing"). The event names what to run:

    {"playbook": "site.yml", "inventory": {"web1": {"ansible_host": "10.0.0.7"}}, "extra_vars": {"colour": "blue"}}
"""

from __future__ import annotations

import json
import os
import pathlib
import tempfile

import forkless

HERE = pathlib.Path(__file__).parent

# Everything that Ansible writes goes to the one folder that can be written.
ENVIRONMENT = {
    "HOME": tempfile.gettempdir(),
    "ANSIBLE_HOME": os.path.join(tempfile.gettempdir(), ".ansible"),
    "ANSIBLE_LOCAL_TEMP": os.path.join(tempfile.gettempdir(), ".ansible", "tmp"),
    "ANSIBLE_LOCALHOST_WARNING": "false",
}


def handler(event, context):
    """Run the playbook that the event names, stop in time, and answer with what happened on each host."""
    with tempfile.TemporaryDirectory() as folder:
        inventory = pathlib.Path(folder) / "hosts.json"
        hosts = event.get("inventory") or {"localhost": {"ansible_connection": "local"}}
        inventory.write_text(json.dumps({"all": {"hosts": hosts}}))
        result = forkless.run(
            HERE / event.get("playbook", "site.yml"),
            inventory=inventory,
            extra_vars=event.get("extra_vars", {}),
            env=ENVIRONMENT,
            cwd=HERE,
            # Ten seconds before Lambda would end us without a word.
            timeout=max(1.0, context.get_remaining_time_in_millis() / 1000 - 10),
        )
    return {"status": result.status.value, "rc": result.rc, "stats": result.stats, "stdout": result.stdout[-4000:]}
