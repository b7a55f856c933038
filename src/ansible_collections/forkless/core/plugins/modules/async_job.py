#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: async_job
short_description: Remember async jobs, and tell the truth about them
version_added: 0.1.0
description:
  - What the roles C(async_job_save), C(async_job_load), C(async_job_status), C(async_job_list), C(async_job_cleanup),
    C(async_job_kill) and C(async_job_output) call. The roles are the documented way; this is for those who want the
    result in a registered variable, or in a loop.
  - It is an action and runs on the controller. Where the host must be asked, M(forkless.core.async_job_probe) is run on it.
requirements:
  - the Python package forkless, on the controller
author:
  - The forkless maintainers (@forkless)
options:
  op:
    description: What to do.
    type: str
    required: true
    choices: [load, save, status, list, cleanup, kill, output]
  job_name:
    description: The job's name.
    type: str
    default: ''
  ansible_job_id:
    description: The job's id.
    type: str
    default: ''
  host:
    description: The host that runs the job; by default the host of the task, and for O(op=list) all hosts.
    type: str
    default: ''
  playbook_name:
    description: The name under which a playbook keeps its jobs.
    type: str
    default: ''
  backend:
    description: The store, as a URL.
    type: str
    default: 'file:'
  state_dir:
    description: The folder for V(file:).
    type: str
    default: .ansible_async_state
  metadata:
    description: What to remember with the job.
    type: dict
    default: {}
  async_dir:
    description: The folder that O(op=load) gave out.
    type: str
    default: ''
  claim:
    description: Whether to claim the name if no job is found.
    type: bool
    default: false
  claim_lease:
    description: After how many seconds the claim may be taken over.
    type: float
    default: 120.0
  claim_wait:
    description: How many seconds to wait for the controller that has claimed the name.
    type: float
  adopt:
    description: Which jobs to adopt that are in no record.
    type: str
    choices: [any, running, none]
    default: any
  forget:
    description: States in which a job counts as not found, after it has been cleaned up.
    type: list
    elements: str
    choices: [done, failed, killed, timed_out, dead, lost]
    default: []
  retries:
    description:
      - How many times a job that failed, was killed, passed its time limit, died or got lost counts as not found, so that
        it is started again. Needs O(claim). How each attempt ended is kept in the record.
    type: int
    default: 0
  limits:
    description:
      - Properties of a systemd scope, by name, in which a job that is to be started gets its limits. The result's
        C(command_prefix) is what to put before the job's command.
    type: dict
    default: {}
  states:
    description: States of the jobs to clean up.
    type: list
    elements: str
    choices: [done, failed, killed, timed_out, dead, lost]
    default: [done, failed, killed, timed_out, dead, lost]
  older_than:
    description: The least age of the jobs to clean up, in seconds.
    type: float
    default: 0.0
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
    default: 10.0
  path:
    description: The file that the job prints to.
    type: str
    default: ''
  offset:
    description: From which byte of the output on.
    type: int
    default: 0
  tail:
    description: Only the last so many lines of the output, in place of O(offset).
    type: int
  limit:
    description: How many bytes of output at most.
    type: int
    default: 1000000
  follow:
    description:
      - For O(op=output), for how many seconds at most to wait for more output of a job that runs. In a run that shows the
        output of tasks while they run, it is shown as it comes.
    type: float
    default: 0.0
"""

EXAMPLES = r"""
- name: Which of these jobs are running?
  forkless.core.async_job:
    op: status
    job_name: "{{ item }}"
  loop: [reindex, dump]
  register: jobs

- name: Show them
  ansible.builtin.debug:
    msg: "{{ item.item }}: {{ item.job.state }}"
  loop: "{{ jobs.results }}"
"""

RETURN = r"""
found:
  description: Whether there is a record of the job.
  returned: when O(op) is load or status
  type: bool
state:
  description: The job's state; V(claimed) or V(unknown) if there is no job.
  returned: when O(op=load)
  type: str
  sample: running
attempts:
  description: How earlier attempts ended that the job is a retry of, the oldest first.
  returned: when O(op=load)
  type: list
  elements: dict
command_prefix:
  description: The words before the command of a job that is to be started, which give it its O(limits); else empty.
  returned: when O(op=load)
  type: str
  sample: /usr/bin/systemd-run --scope --quiet --collect --no-ask-password -p MemoryMax=1G --
job:
  description: What has become of the job.
  returned: when O(op) is status, kill or output
  type: dict
jobs:
  description: The records.
  returned: when O(op=list)
  type: list
  elements: dict
"""
