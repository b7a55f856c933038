# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The controller's side of the roles: asks forkless.jobs what is remembered, and the host what is true."""

from __future__ import annotations

import json
import re

import yaml
from ansible.errors import AnsibleConnectionFailure, AnsibleError
from ansible.plugins.action import ActionBase
from ansible_collections.forkless.core.plugins.modules.async_job import DOCUMENTATION

MISSING = ""
try:
    from forkless import ForklessError
    from forkless import jobs as forkless_jobs
except ImportError as error:
    ForklessError = None
    MISSING = str(error)

# A job's own async folder, below the configured one; as forkless.jobs.slot_of makes it.
SLOT = re.compile(r"/forkless/[0-9a-f]{24}/(open|c-[0-9a-f]+)/?$")
# What the module's documentation says it takes is what it takes.
SPEC = {
    name: {word: value for word, value in option.items() if word != "description"}
    for name, option in yaml.safe_load(DOCUMENTATION)["options"].items()
}


class ActionModule(ActionBase):
    TRANSFERS_FILES = False

    def run(self, tmp=None, task_vars=None):
        super().run(tmp, task_vars)
        self._vars = task_vars or {}
        if ForklessError is None:
            return {
                "failed": True,
                "msg": "the collection forkless.core needs the Python package forkless in the Python that runs Ansible "
                "(pip install forkless): %s." % MISSING,
            }
        _dummy, asked = self.validate_argument_spec(argument_spec=SPEC)
        store = None
        try:
            store = forkless_jobs.open_store(asked["backend"], asked["state_dir"])
            self._book = forkless_jobs.JobBook(store)
            result = getattr(self, "_" + asked["op"])(asked)
        except ForklessError as error:
            result = {"failed": True, "msg": str(error)}
        finally:
            if store is not None:
                store.close()
        return result

    # -- what the roles do

    def _load(self, asked):
        key = self._key(asked)
        while True:
            record = self._book.find(key)
            if record is None:
                break
            if not asked["forget"] or self._status_of(record, asked)["state"] not in asked["forget"]:
                return self._found(record)
            if self._task.check_mode:
                break
            self._remove(record, asked)
        if not asked["claim"] or self._task.check_mode:
            if self._host() != key.host and self._task.delegate_to != key.host:
                # Someone asks from afar; this connection leads to another host than the job's.
                return self._not_found(key, "", False)
            return self._adopted_or_not(key, self._book.newest(key), asked)
        record = self._book.claim(key, lease=asked["claim_lease"], wait=asked["claim_wait"])
        if record.state == forkless_jobs.SAVED:
            return self._found(record)
        return self._adopted_or_not(key, record, asked, claim=record)

    def _adopted_or_not(self, key, newest, asked, claim=None):
        if self._is_windows():
            return self._not_found(key, "", claim is not None)
        seen = self._probe(
            op="look",
            slots=key.slots,
            token=claim.claim["token"] if claim else "",
            fences=claim.claim["fences"] if claim else [],
        )
        known = newest.known_ids() if newest else []
        for job in seen["jobs"]:
            wanted = asked["adopt"] == "any" or (asked["adopt"] == "running" and job["state"] == "running")
            if wanted and job["ansible_job_id"] not in known:
                found = (newest, key, job["ansible_job_id"], job["async_dir"], job["process"])
                if self._task.check_mode:
                    return dict(
                        self._not_found(key, job["async_dir"], False),
                        found=True,
                        adopted=True,
                        ansible_job_id=job["ansible_job_id"],
                        host=key.host,
                    )
                return dict(self._found(self._book.adopt(*found)), changed=True)
        slot = seen["slot"]
        if self._task.check_mode:
            # In check mode Ansible starts async tasks all the same, and their modules do nothing. What they leave must
            # not lie where the next run would take it for the job.
            slot = seen["base"].rstrip("/") + "/forkless/check-mode"
        return dict(self._not_found(key, slot, claim is not None), changed=claim is not None)

    def _save(self, asked):
        key = self._key(asked)
        # Only Ansible's own check may end a play for want of an id; a record without one is worth nothing.
        slot = asked["async_dir"] if key.slots in asked["async_dir"] else ""
        if self._task.check_mode:
            return {"changed": True, "state_file": self._book.store.place(key.stem)}
        warnings = []
        where = {"async_dir": "", "process": {}, "found": False}
        try:
            if not self._is_windows():
                where = self._probe(op="identify", jid=asked["ansible_job_id"], folders=[slot, asked["async_dir"]])
        except (AnsibleConnectionFailure, AnsibleError) as error:
            # The id is worth more than what we would have liked to know beside it.
            warnings.append("%s was saved, but the host could not be asked about its processes: %s" % (key, error))
        record = self._book.save(
            key,
            asked["ansible_job_id"],
            metadata=json.loads(json.dumps(asked["metadata"], default=str)),
            async_dir=where["async_dir"] if where["found"] or not slot else slot,
            slot=slot,
            process=where["process"],
        )
        return {
            "changed": True,
            "state_file": self._book.store.place(key.stem),
            "record": record.shown(),
            "warnings": warnings,
        }

    def _status(self, asked):
        if asked["ansible_job_id"]:
            job = self._probe(
                op="status", jid=asked["ansible_job_id"], folders=[asked["async_dir"]], lines=asked["lines"]
            )["job"]
            return {"changed": False, "found": True, "job": job, "host": self._host()}
        key = self._key(asked)
        record = self._book.find(key)
        if record is None:
            return {"changed": False, "found": False, "job": self._no_job(self._book.newest(key)), "host": key.host}
        job = self._status_of(record, asked)
        return {"changed": False, "found": True, "job": job, "host": record.key.host, "record": record.shown()}

    def _list(self, asked):
        problems = []
        records = self._book.jobs(
            asked["host"], job_name=asked["job_name"], playbook_name=asked["playbook_name"], problems=problems
        )
        return {"changed": False, "jobs": [record.shown() for record in records], "warnings": problems}

    def _kill(self, asked):
        record = self._book.known(self._key(asked))
        seen = self._probe(
            op="kill",
            jid=record.ansible_job_id,
            folders=[record.async_dir],
            process=record.process,
            signal=asked["signal"],
            grace=asked["grace"],
            lines=asked["lines"],
        )
        return {"changed": seen["changed"], "job": seen["job"], "seen": seen["seen"], "host": record.key.host}

    def _output(self, asked):
        record = self._book.known(self._key(asked))
        seen = self._probe(
            op="output",
            jid=record.ansible_job_id,
            folders=[record.async_dir],
            process=record.process,
            path=asked["path"],
            offset=asked["offset"],
            limit=asked["limit"],
        )
        names = ("job", "source", "output", "offset", "size")
        return dict(changed=False, host=record.key.host, **{name: seen[name] for name in names})

    def _cleanup(self, asked):
        host = asked["host"] or self._host()
        problems, removed, kept = [], [], []
        records = self._book.jobs(
            host, job_name=asked["job_name"], playbook_name=asked["playbook_name"], problems=problems
        )
        for record in records:
            what = {
                "job_name": record.key.job_name,
                "playbook_name": record.key.playbook_name,
                "host": host,
                "ansible_job_id": record.ansible_job_id,
            }
            if record.state == forkless_jobs.CLAIMED:
                what["state"] = "claimed"
                reason = self._sweep_claim(record, asked)
            else:
                job = self._status_of(record, asked)
                what["state"] = job["state"]
                reason = self._why_kept(record, job, asked)
                if not reason and not self._task.check_mode:
                    self._remove(record, asked, job)
            if reason:
                kept.append(dict(what, why=reason))
            else:
                removed.append(what)
        return {"changed": bool(removed), "removed": removed, "kept": kept, "warnings": problems}

    # -- steps of these

    def _why_kept(self, record, job, asked):
        if job["state"] == "running":
            return "it is running"
        if job["state"] not in asked["states"]:
            return "it is %s" % job["state"]
        ended = forkless_jobs.moment(job["end"] or record.save_time)
        age = forkless_jobs.now() - ended if ended is not None else None
        if asked["older_than"] and (age is None or age < asked["older_than"]):
            return "it is not old enough" if age is not None else "nobody knows how old it is"
        return ""

    def _sweep_claim(self, record, asked):
        if not self._book.is_over(record):
            return "a controller is about to start it"
        seen = self._probe(op="look", slots=record.key.slots)
        for job in seen["jobs"]:
            if job["ansible_job_id"] not in record.known_ids():
                if not self._task.check_mode:
                    self._book.adopt(record, record.key, job["ansible_job_id"], job["async_dir"], job["process"])
                return "a job that nobody had saved was found, and adopted"
        if not self._task.check_mode:
            # Fences first: whoever made the claim may only be slow.
            self._probe(
                op="look",
                slots=record.key.slots,
                token="none",
                fences=[*record.claim.get("fences", []), record.claim.get("token", "")],
            )
            self._book.forget(record)
        return ""

    def _remove(self, record, asked, job=None):
        """The file on the host by Ansible's own means, then what is left in the job's own folder, then the record."""
        job = job or self._status_of(record, asked)
        if job["state"] == "running":
            raise AnsibleError("%s is running; its files are not touched." % record.key)
        if job["state"] != "lost":
            args = {"jid": record.ansible_job_id, "mode": "cleanup", "_async_dir": job["async_dir"]}
            self._checked(self._execute_module("ansible.legacy.async_status", module_args=args, task_vars=self._vars))
        if job["async_dir"]:
            self._probe(op="sweep", jid=record.ansible_job_id, folders=[job["async_dir"]])
        self._book.forget(record)

    def _status_of(self, record, asked):
        return self._probe(
            op="status",
            jid=record.ansible_job_id,
            folders=[record.async_dir],
            process=record.process,
            lines=asked["lines"],
        )["job"]

    def _no_job(self, newest):
        state = "claimed" if newest is not None and newest.state == forkless_jobs.CLAIMED else "unknown"
        return {
            "state": state,
            "ansible_job_id": "",
            "rc": None,
            "signal": None,
            "start": "",
            "end": "",
            "stdout": "",
            "stderr": "",
            "msg": "",
            "why": "",
            "pids": [],
            "async_dir": "",
            "results_file": "",
        }

    def _found(self, record):
        async_dir = record.async_dir
        if not async_dir and not self._is_windows():
            # From a hand-written role: it has not written down where.
            async_dir = self._probe(op="identify", jid=record.ansible_job_id)["async_dir"]
        return {
            "changed": False,
            "found": True,
            "ansible_job_id": record.ansible_job_id,
            "host": record.key.host,
            "metadata": record.metadata,
            "async_dir": async_dir,
            "claimed": False,
            "adopted": record.adopted,
            "save_time": record.save_time,
        }

    def _not_found(self, key, slot, claimed):
        return {
            "changed": False,
            "found": False,
            "ansible_job_id": "",
            "host": "",
            "metadata": {},
            "async_dir": slot,
            "claimed": claimed,
            "adopted": False,
            "save_time": "",
        }

    # -- the way to the host

    def _probe(self, **args):
        if self._is_windows():
            raise AnsibleError("jobs on Windows hosts can be saved and loaded, but not looked at.")
        # A folder that load gave out may be set for the whole block, and load be called again in it.
        configured = self.get_shell_option("async_dir", default="~/.ansible_async") or "~/.ansible_async"
        args["async_dir"] = SLOT.sub("", configured)
        args["folders"] = [folder for folder in args.get("folders", []) if folder]
        if configured != args["async_dir"]:
            args["folders"].append(configured)
        return self._checked(
            self._execute_module("forkless.core.async_job_probe", module_args=args, task_vars=self._vars)
        )

    def _checked(self, result):
        if result.get("failed") or result.get("unreachable"):
            raise AnsibleError("the host could not be asked about the job: %s" % result.get("msg", result))
        return result

    def _is_windows(self):
        return getattr(self._connection._shell, "SHELL_FAMILY", "sh") == "powershell"

    def _host(self):
        return self._vars.get("inventory_hostname", "localhost")

    def _key(self, asked):
        return forkless_jobs.Key(asked["host"] or self._host(), asked["job_name"], asked["playbook_name"])
