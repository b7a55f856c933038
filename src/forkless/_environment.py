# SPDX-License-Identifier: GPL-3.0-or-later
"""Every environment variable that forkless itself reads, and what for. The reference is made from this table."""

from __future__ import annotations

__all__ = ["VARIABLES"]

VARIABLES = {
    "FORKLESS_ALLOW_UNKNOWN": (
        "`1` runs an ansible-core whose minor is not known. Without it such a version is refused with the list of seams that moved."
    ),
    "ANSIBLE_*": (
        "Ansible's own settings, read as ansible-playbook reads them. `RunSpec.env` gives them to one run. Runs with the same settings "
        "may be under way together in one program; others wait for each other."
    ),
    "NO_COLOR": "Any value switches colours off. `ANSIBLE_NOCOLOR` does the same.",
    "ARA_API_USERNAME": "The name for the job store `ara+http(s)://`, where the URL has none.",
    "ARA_API_PASSWORD": "The password for it.",
    "SSH_AUTH_SOCK": "The agent that `forkless.core.ssh` asks for keys, unless `~/.ssh/config` names another.",
    "HOME": "Where `~` leads, before the home of the passwd entry: in `~/.ssh/config`, and for Ansible's own folder.",
}
