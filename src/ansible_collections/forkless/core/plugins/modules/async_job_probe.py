#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: async_job_probe
short_description: Look at async jobs on the host that runs them
version_added: 0.1.0
description:
  - The target's side of M(forkless.core.async_job), which calls it. It reads Ansible's own async files and the host's
    process table.
  - There is rarely a reason to call it directly. It knows nothing of names, only of job ids and folders.
author:
  - The forkless maintainers (@forkless)
options:
  op:
    description: What to do.
    type: str
    required: true
    choices: [look, identify, status, kill, output, sweep, limits]
  async_dir:
    description: Ansible's C(async_dir) for this host, as configured.
    type: str
    default: ~/.ansible_async
  folders:
    description: Folders in which the job may lie, the likeliest first.
    type: list
    elements: str
    default: []
  jid:
    description: The job's id.
    type: str
    default: ''
  process:
    description: What was recorded of the job's processes when it was saved.
    type: dict
    default: {}
  slots:
    description: The folder of a job name, below O(async_dir).
    type: str
    default: ''
  token:
    description: The token of the claim that asks.
    type: str
    default: ''
  fences:
    description: Tokens of older claims, in whose folders nothing may be started any more.
    type: list
    elements: str
    default: []
  lines:
    description: How many lines of the job's output to show.
    type: int
    default: 20
  signal:
    description: The first signal to send.
    type: int
    default: 15
  grace:
    description: Seconds between that signal and SIGKILL.
    type: float
    default: 10
  path:
    description: The file that the job prints to, if it is known.
    type: str
    default: ''
  offset:
    description: From which byte on to show the output; a negative number counts from the end.
    type: int
    default: 0
  tail:
    description: Show only the last so many lines of the output; O(offset) does not count then.
    type: int
  limit:
    description: How many bytes of output to show at most.
    type: int
    default: 1000000
  follow:
    description: For how many seconds at most to wait for more output of a job that runs, for O(op=output).
    type: float
    default: 0
  limits:
    description: Properties of a systemd scope, by name, for O(op=limits).
    type: dict
    default: {}
attributes:
  check_mode:
    support: full
    description: In check mode nothing is signalled, removed or fenced.
"""

EXAMPLES = r"""
- name: See what has become of a job
  forkless.core.async_job_probe:
    op: status
    jid: j812354675219.4711
"""

RETURN = r"""
job:
  description:
    - What has become of the job. Its C(state) is one of running, done, failed, killed, timed_out, dead, lost.
    - Nested, because a C(rc) of the job is not an C(rc) of this module.
  returned: when O(op) is status, kill or output
  type: dict
  sample:
    state: running
"""

import os
import sys

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.forkless.core.plugins.module_utils import ending, jobs, limits, processes, slots


def main():
    module = AnsibleModule(
        argument_spec={
            "op": {
                "type": "str",
                "required": True,
                "choices": ["look", "identify", "status", "kill", "output", "sweep", "limits"],
            },
            "async_dir": {"type": "str", "default": "~/.ansible_async"},
            "folders": {"type": "list", "elements": "str", "default": []},
            "jid": {"type": "str", "default": ""},
            "process": {"type": "dict", "default": {}},
            "slots": {"type": "str", "default": ""},
            "token": {"type": "str", "default": "", "no_log": False},
            "fences": {"type": "list", "elements": "str", "default": []},
            "lines": {"type": "int", "default": 20},
            "signal": {"type": "int", "default": 15},
            "grace": {"type": "float", "default": 10},
            "path": {"type": "str", "default": ""},
            "offset": {"type": "int", "default": 0},
            "tail": {"type": "int"},
            "limit": {"type": "int", "default": 1000000},
            "follow": {"type": "float", "default": 0},
            "limits": {"type": "dict", "default": {}},
        },
        supports_check_mode=True,
    )
    try:
        if module.params["op"] == "limits":
            words, why = limits.prefix(module.params["limits"], module.run_command)
            module.exit_json(changed=False, prefix=words, why=why)
        answer = _answer(module.params, module.check_mode)
        if module.params["op"] == "output" and module.params["follow"] > 0 and answer["job"]["state"] == "running":
            answer = _followed(module, answer)
        module.exit_json(**answer)
    except (OSError, RuntimeError) as error:
        module.fail_json(msg=str(error))


def _followed(module, first):
    """
    The same answer after more output has come. A program prints it as it comes, so that what shows the output of programs
    while they run shows it, with its masks and its limits.
    """
    asked = module.params
    if not first["source"]:
        return first  # the job prints into a pipe of Ansible's wrapper
    words = [first["source"], str(first["start"]), str(asked["limit"]), str(asked["follow"])]
    command = [sys.executable, "-c", ending.FOLLOW, *words, *(str(pid) for pid in first["job"]["pids"])]
    rc, printed, _errors = module.run_command(command, encoding=None)
    if rc != 0:
        return first  # the file is gone
    now = _answer(dict(asked, offset=0, tail=None, limit=0), module.check_mode)
    running = now["job"]["state"] == "running"
    size = first["start"] + len(printed)
    if os.path.exists(first["source"]):
        size = max(size, os.path.getsize(first["source"]))
    return dict(now, source=first["source"], **ending.shown(printed, first["start"], size, running))


def _answer(asked, check_mode):
    jid = asked["jid"]
    if asked["op"] != "look" and (not jid or "/" in jid or "\0" in jid or jid.startswith(".")):
        raise RuntimeError("'%s' is no id of a job; the record that names it was damaged." % jid)
    known = asked["folders"] + jobs.folders(asked["async_dir"])
    if asked["op"] == "look":
        base = jobs.absolute(asked["async_dir"])
        folder = "%s/%s" % (base.rstrip("/"), asked["slots"])
        mine = "%s/c-%s" % (folder, asked["token"]) if asked["token"] else ""
        found = slots.look(folder, mine, asked["fences"], bool(mine) and not check_mode, asked["lines"])
        return dict(base=base, slot=mine or folder + "/open", changed=bool(found["fenced"]), **found)
    if asked["op"] == "identify":
        folder = jobs.where(jid, known)
        found = os.path.exists(os.path.join(folder, jid))
        return {
            "changed": False,
            "found": found,
            "async_dir": folder,
            "process": processes.identity(processes.snapshot(), jid, jobs.own_slot(folder, jid)),
        }
    if asked["op"] == "status":
        return {"changed": False, "job": jobs.status(jid, known, asked["process"], asked["lines"])}
    if asked["op"] == "kill":
        if check_mode:
            state, seen = ending.would_kill(jid, known, asked["process"])
            return {"changed": seen["before"] == "running", "seen": seen, "job": state}
        state, seen = ending.kill(jid, known, asked["process"], asked["signal"], asked["grace"])
        return {"changed": seen["before"] == "running", "seen": seen, "job": state}
    if asked["op"] == "output":
        begin = {name: asked[name] for name in ("offset", "tail", "limit")}
        state, part = ending.output(jid, known, asked["process"], asked["path"], **begin)
        return dict(changed=False, job=state, **part)
    gone = [] if check_mode else slots.sweep(asked["folders"][0] if asked["folders"] else "", jid)
    return {"changed": bool(gone), "removed": gone}


if __name__ == "__main__":
    main()
