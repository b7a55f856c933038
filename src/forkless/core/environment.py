# SPDX-License-Identifier: GPL-3.0-or-later
"""Every environment variable that forkless itself reads, with its purpose. The reference documentation is generated from this table."""

from __future__ import annotations

__all__ = ["VARIABLES"]

VARIABLES = {
    "FORKLESS_ALLOW_UNKNOWN": (
        "`1` runs an ansible-core whose minor is not known, that lacks parts that forkless replaces, or that does not support this Python. Without it "
        "such an ansible-core is refused, with the list of what moved."
    ),
    "FORKLESS_DATABASE": (
        "Where the queue of runs is: `postgresql://user:password@host/name`. Without it a PostgreSQL of the user's own is started, in the "
        "state folder."
    ),
    "FORKLESS_DISABLE": (
        "Names, separated by commas, of parts that make runs faster. Each named part is switched off, to find out whether it causes a "
        "problem. A run with an unknown name is refused, and the error lists the known names."
    ),
    "FORKLESS_NOTIFY_SECRET": "Signs the messages of `forkless jobs wait --notify`, unless `--notify-secret-file` names another secret.",
    "FORKLESS_PLAIN": "`1`: no live view below the output, as with `--plain`. `ANSIBLE_FORKLESS_PLAIN` does the same.",
    "FORKLESS": "`0`: the commands of the shim (`forkless shim`, `forkless exec`) run stock Ansible.",
    "FORKLESS_SERVER": (
        "The address of a page, such as `https://ansible.example.com`: `forkless runs` and `forkless launch` use its queue, for people who may "
        "not reach the database."
    ),
    "FORKLESS_TOKEN": "The token with which these commands log in there. The page makes tokens under the user's name.",
    "FORKLESS_SHIM_QUIET": "`1`: the shim does not print the notice that it runs stock Ansible, and why. Without it the notice is printed once in a session.",
    "FORKLESS_SHIM_ASK": "Set by `forkless shim status`: the shim says why it would run stock Ansible, and runs nothing.",
    "FORKLESS_SHIM_STOCK": "Between the two parts of a shim's file: the command that it replaces. No other program sees it.",
    "FORKLESS_SHIM_WRAPPER": (
        "Set by the shim for a command that it replaces and that is not a Python script: if the started command looks on PATH for the same name and "
        "finds the shim again, it is passed over."
    ),
    "FORKLESS_QUEUE_JOBS": "Set for a queued run whose project travels: where in the queue records of its jobs are. Not for users.",
    "FORKLESS_SLICED": "Set for a slice of a run: `refuse` ends it at a task that means something else in a slice. Not for users.",
    "FORKLESS_WORKER_DATABASE": "How `forkless worker` tells its processes where the queue is; not for users.",
    "FORKLESS_WORKER_KEY": (
        "The file with the workers' private key, for which launchers seal what may be secret; `worker.key` in the state folder without it."
    ),
    "ANSIBLE_*": (
        "Ansible's own settings, read as ansible-playbook reads them. `RunSpec.env` gives them to one run. Runs with the same settings "
        "may be under way together in one program; others wait for each other."
    ),
    "NO_COLOR": "Any value switches colours off. `ANSIBLE_NOCOLOR` does the same.",
    "ARA_API_USERNAME": "The name for the job store `ara+http(s)://`, where the URL has none.",
    "ARA_API_PASSWORD": "The password for it.",
    "SSH_AUTH_SOCK": "The agent that `forkless.core.ssh` asks for keys, unless `~/.ssh/config` names another.",
    "XDG_STATE_HOME": "The state folder is `forkless` in it; without it `~/.local/state/forkless`, and `/var/lib/forkless` for root.",
    "HOME": "The folder that `~` stands for in `~/.ssh/config` and in Ansible's own folder; without it the home of the passwd entry.",
}
