# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The controller's side of the roles: reads the records of forkless.jobs, and asks the host for the job's state."""

from __future__ import annotations

import json
import re

import yaml
from ansible.errors import AnsibleConnectionFailure, AnsibleError
from ansible.plugins.action import ActionBase
from ansible_collections.forkless.core.plugins.modules.async_job import DOCUMENTATION
from ansible_collections.forkless.core.plugins.plugin_utils.vaulted import without_vaulted

MISSING = ""
try:
    from forkless import ForklessError, JobChangedError
    from forkless import jobs as forkless_jobs
except ImportError as error:
    ForklessError = JobChangedError = None
    MISSING = str(error)

# A job's own async folder, below the configured one; as forkless.jobs.slot_of makes it.
SLOT = re.compile(r"/forkless/[0-9a-f]{24}/(open|c-[0-9a-f]+)/?$")
# States in which a job is worth another attempt.
RETRIED = ("failed", "killed", "timed_out", "dead", "lost")
MOST_RETRIES = 100
# The argument spec, read from the module's documentation.
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
            self._registry = forkless_jobs.JobRegistry(store)
            result = getattr(self, "_" + asked["op"])(asked)
        except ForklessError as error:
            result = {"failed": True, "msg": str(error)}
        finally:
            if store is not None:
                store.close()
        return result

    # -- what the roles do

    def _load(self, asked):
        if asked["retries"] and not asked["claim"]:
            raise AnsibleError("retries need a claim: without one, two controllers could start the same attempt.")
        if not 0 <= asked["retries"] <= MOST_RETRIES:
            raise AnsibleError("retries must be 0 to %d, not %d." % (MOST_RETRIES, asked["retries"]))
        key = self._key(asked)
        record = first = self._registry.find(key)
        while True:
            try:
                # If another controller has started a job meanwhile, that job is not restarted.
                if record is None or (_same_job(record, first) and self._is_unwanted(record, asked)):
                    return self._loaded_anew(key, record, asked)
            except JobChangedError:
                record = self._registry.find(key)
                continue
            # Another controller that restarts the job removes its files, so the host's answer may be out of date.
            seen, record = record, self._registry.find(key) if asked["forget"] or asked["retries"] else record
            if record is not None and _same_job(record, seen):
                return self._found(record, asked)

    def _is_unwanted(self, record, asked):
        if not asked["forget"] and not asked["retries"]:
            return False
        state = self._status_of(record, asked)["state"]
        return state in asked["forget"] or self._is_retried(record, state, asked)

    def _is_retried(self, record, state, asked):
        """Whether another attempt is due. A state in `forget` is no attempt: the job is begun afresh."""
        return state in RETRIED and state not in asked["forget"] and len(record.attempts) < asked["retries"]

    def _attempts(self, over, asked):
        """How the attempts so far have ended, if what is started next is a retry of them."""
        if over is None or not asked["retries"]:
            return []
        job = self._status_of(over, dict(asked, lines=0))
        names = ("ansible_job_id", "state", "rc", "signal", "start", "end", "why")
        this = {name: job[name] for name in names}
        return [*over.attempts, this] if self._is_retried(over, job["state"], asked) else []

    def _loaded_anew(self, key, over, asked):
        """No job is wanted that there is; `over` is one that is to be forgotten, if there is one."""
        # Before the claim: a name that is claimed for a job which cannot be started would be blocked for the lease.
        prefix = self._command_prefix(key, asked)
        result = self._claimed_or_not(key, over, asked)
        return result if result["found"] else dict(result, command_prefix=prefix)

    def _claimed_or_not(self, key, over, asked):
        if not asked["claim"] or self._task.check_mode:
            if over is not None and not self._task.check_mode:
                self._remove(over, asked)
            if not self._is_here(key):
                # The task asks about a job of another host than the one that this connection leads to.
                return self._not_found("", self._registry.newest(key))
            return self._adopted_or_not(key, self._registry.newest(key), asked)
        play = self._play(key)
        claim = self._registry.claim(
            key,
            lease=asked["claim_lease"],
            wait=asked["claim_wait"],
            claimant="%s/%s" % (self._host(), play.id),
            instead_of=over,
            attempts=self._attempts(over, asked),
            play=play,
        )
        if claim.state == forkless_jobs.SAVED:
            return self._found(claim, asked)
        if over is not None:
            # Only after the claim: of all controllers that saw the job's end, one may remove its files, and none starts another job meanwhile.
            job = self._status_of(over, asked)
            if job["state"] == "running":
                return self._found(self._given_back(key, over, claim), asked)
            self._remove_files(over, asked, job)
        return self._adopted_or_not(key, claim, asked, claim=claim)

    def _play(self, key):
        """The play of this task. What an earlier play of this run has claimed, and not started, is free for this one."""
        hosts = frozenset([key.host, *self._vars.get("ansible_play_hosts_all", [])])
        return forkless_jobs.Play(
            str(getattr(self._task.get_play(), "_uuid", "")), hosts, run=forkless_jobs.current_run()
        )

    def _given_back(self, key, record, claim):
        """The record of a job that was not over after all, in the place of the claim that has replaced it."""
        return self._registry.save(
            key,
            record.ansible_job_id,
            metadata=record.metadata,
            async_dir=record.async_dir,
            slot=forkless_jobs.slot_of("/", key, claim.claim["token"]),
            process=record.process,
        )

    def _adopted_or_not(self, key, newest, asked, claim=None):
        if self._is_windows():
            return self._not_found("", newest, claim is not None)
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
                found = (newest, key, job["ansible_job_id"], job["async_dir"], self._placed(key, job["process"]))
                if self._task.check_mode:
                    return dict(
                        self._not_found(job["async_dir"], newest),
                        found=True,
                        adopted=True,
                        ansible_job_id=job["ansible_job_id"],
                        host=key.host,
                        state=job["state"],
                    )
                return dict(self._found(self._registry.adopt(*found), asked, job["state"]), changed=True)
        slot = seen["slot"]
        if self._task.check_mode:
            # In check mode Ansible starts async tasks all the same, and their modules do nothing. What they leave must
            # not lie where the next run would take it for the job.
            slot = seen["base"].rstrip("/") + "/forkless/check-mode"
        return dict(self._not_found(slot, newest, claim is not None), changed=claim is not None)

    def _command_prefix(self, key, asked):
        # Of a job of another host than the one that this connection leads to, nothing is started here.
        if not asked["limits"] or not self._is_here(key):
            return ""
        seen = self._probe(op="limits", limits=asked["limits"])
        if seen["why"]:
            raise AnsibleError("%s cannot be given limits: %s" % (key, seen["why"]))
        return seen["prefix"]

    def _save(self, asked):
        key = self._key(asked)
        # Ansible's own check reports a missing id; a record without an id is useless.
        slot = asked["async_dir"] if key.slots in asked["async_dir"] else ""
        if self._task.check_mode:
            return {"changed": True, "state_file": self._registry.store.place(key.stem)}
        warnings = []
        where = {"async_dir": "", "process": {}, "found": False}
        try:
            if not self._is_windows() and self._is_here(key):
                where = self._probe(op="identify", jid=asked["ansible_job_id"], folders=[slot, asked["async_dir"]])
        except (AnsibleConnectionFailure, AnsibleError) as error:
            # The id is saved even if the host cannot be asked about the job's processes.
            warnings.append("%s was saved, but the host could not be asked about its processes: %s" % (key, error))
        metadata, masked = without_vaulted(asked["metadata"], self._vars)
        if masked:
            warnings.append("a record is plain text, so values from the vault in the metadata of %s were masked." % key)
        record = self._registry.save(
            key,
            asked["ansible_job_id"],
            metadata=json.loads(json.dumps(metadata, default=str)),
            async_dir=where["async_dir"] if where["found"] or not slot else slot,
            slot=slot,
            process=self._placed(key, where["process"]),
        )
        return {
            "changed": True,
            "state_file": self._registry.store.place(key.stem),
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
        record = self._started(key)
        if record is None:
            return {"changed": False, "found": False, "job": self._no_job(self._registry.newest(key)), "host": key.host}
        job = self._status_of(record, asked)
        if record.state == forkless_jobs.CLAIMED:
            job["why"] = job["why"] or "it was started, and its controller has not saved it"
        return {"changed": False, "found": True, "job": job, "host": record.key.host, "record": record.shown()}

    def _list(self, asked):
        problems = []
        records = self._registry.jobs(
            asked["host"], job_name=asked["job_name"], playbook_name=asked["playbook_name"], problems=problems
        )
        warnings = [str(problem) for problem in problems]
        return {"changed": False, "jobs": [record.shown() for record in records], "warnings": warnings}

    def _kill(self, asked):
        record = self._known(self._key(asked))
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
        record = self._known(self._key(asked))
        seen = self._probe(
            op="output",
            jid=record.ansible_job_id,
            folders=[record.async_dir],
            process=record.process,
            path=asked["path"],
            offset=asked["offset"],
            tail=asked["tail"],
            limit=asked["limit"],
            follow=asked["follow"],
        )
        names = ("job", "source", "output", "offset", "size")
        return dict(changed=False, host=record.key.host, **{name: seen[name] for name in names})

    def _cleanup(self, asked):
        host = asked["host"] or self._host()
        problems, removed, kept = [], [], []
        records = self._registry.jobs(
            host, job_name=asked["job_name"], playbook_name=asked["playbook_name"], problems=problems
        )
        for record in records:
            what = {
                "job_name": record.key.job_name,
                "playbook_name": record.key.playbook_name,
                "host": host,
                "ansible_job_id": record.ansible_job_id,
                "state": "claimed" if record.state == forkless_jobs.CLAIMED else "unknown",
            }
            try:
                reason = self._cleaned_or_why_not(record, what, asked)
            except AnsibleConnectionFailure:
                raise
            except (AnsibleError, ForklessError) as error:
                # A job that cannot be examined does not prevent the clean-up of the others.
                reason = str(error)
                what["state"] = "unknown"
            if reason:
                kept.append(dict(what, why=reason))
            else:
                removed.append(what)
        if not self._task.check_mode:
            self._registry.purge(host)
        warnings = [str(problem) for problem in problems]
        return {"changed": bool(removed), "removed": removed, "kept": kept, "warnings": warnings}

    # -- steps of these

    def _started(self, key):
        """
        The record of a started job. A name that is only claimed may have one, too: its controller died before it could
        save it, or is about to. It is found in the name's folders on the host; nothing is fenced, and nothing is written.
        """
        record = self._registry.find(key)
        newest = self._registry.newest(key) if record is None else None
        if newest is None or newest.state != forkless_jobs.CLAIMED or self._is_windows() or not self._is_here(key):
            return record
        for job in self._probe(op="look", slots=key.slots)["jobs"]:
            if job["ansible_job_id"] not in newest.known_ids():
                found = {name: job[name] for name in ("ansible_job_id", "async_dir", "process")}
                return newest.followed_by(**found)
        return None

    def _known(self, key):
        record = self._started(key)
        if record is None and self._no_job(self._registry.newest(key))["state"] == "claimed":
            raise AnsibleError("%s is claimed, and no job has been started for it on the host yet." % key)
        record = record or self._registry.known(key)
        self._must_reach(record)
        return record

    def _cleaned_or_why_not(self, record, what, asked):
        self._must_reach(record)
        if record.state == forkless_jobs.CLAIMED:
            return self._sweep_claim(record, asked)
        job = self._status_of(record, asked)
        what["state"] = job["state"]
        reason = self._why_kept(record, job, asked)
        if not reason and not self._task.check_mode:
            self._remove(record, asked, job)
        return reason

    def _why_kept(self, record, job, asked):
        if job["state"] == "running":
            return "it is running"
        if job["state"] not in asked["states"]:
            return "it is %s" % job["state"]
        ended = forkless_jobs.moment(job["end"] or record.save_time)
        age = forkless_jobs.now() - ended if ended is not None else None
        if asked["older_than"] and (age is None or age < asked["older_than"]):
            return "it is not old enough" if age is not None else "its age is not known"
        return ""

    def _sweep_claim(self, record, asked):
        if not self._registry.is_over(record, self._play(record.key)):
            return "a controller is about to start it"
        # Fences first: the controller that made the claim may only be slow. Once the fences exist, no further job can appear.
        fences = (
            {}
            if self._task.check_mode
            else {
                "token": "none",
                "fences": [*record.claim.get("fences", []), record.claim.get("token", "")],
            }
        )
        for job in self._probe(op="look", slots=record.key.slots, **fences)["jobs"]:
            if job["ansible_job_id"] not in record.known_ids():
                if not self._task.check_mode:
                    process = self._placed(record.key, job["process"])
                    self._registry.adopt(record, record.key, job["ansible_job_id"], job["async_dir"], process)
                return "a job without a saved record was found, and adopted"
        if not self._task.check_mode:
            self._registry.forget(record)
        return ""

    def _remove(self, record, asked, job=None):
        """The files on the host, then the record."""
        job = job or self._status_of(record, asked)
        if job["state"] == "running":
            raise AnsibleError("%s is running; its files are not touched." % record.key)
        self._remove_files(record, asked, job)
        self._registry.forget(record)

    def _remove_files(self, record, asked, job):
        """The file on the host by Ansible's own means, then what is left in the job's own folder."""
        if job["state"] != "lost":
            args = {"jid": record.ansible_job_id, "mode": "cleanup", "_async_dir": job["async_dir"]}
            result = self._execute_module("ansible.legacy.async_status", module_args=args, task_vars=self._vars)
            # Another controller that saw the same end may have been first.
            if "could not find job" not in str(result.get("msg", "")):
                self._checked(result)
        if job["async_dir"]:
            self._probe(op="sweep", jid=record.ansible_job_id, folders=[job["async_dir"]])

    def _status_of(self, record, asked):
        self._must_reach(record)
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

    def _found(self, record, asked, state=""):
        async_dir, warnings = record.async_dir, []
        if not async_dir and not self._is_windows() and self._reaches(record):
            # A hand-written role does not record the folder.
            async_dir = self._probe(op="identify", jid=record.ansible_job_id)["async_dir"]
        if not state:
            state, warnings = self._state_if_known(record, asked)
        return {
            "changed": False,
            "found": True,
            "state": state,
            "ansible_job_id": record.ansible_job_id,
            "host": record.key.host,
            "metadata": record.metadata,
            "async_dir": async_dir,
            "claimed": False,
            "adopted": record.adopted,
            "attempts": record.attempts,
            "command_prefix": "",
            "save_time": record.save_time,
            "warnings": warnings,
        }

    def _state_if_known(self, record, asked):
        """What has become of the job, or `unknown` with the reason: a record is found though its host cannot be asked."""
        if self._is_windows() or not self._reaches(record):
            return "unknown", []
        try:
            return self._status_of(record, asked)["state"], []
        except (AnsibleConnectionFailure, AnsibleError) as error:
            return "unknown", ["%s was found, but the host could not be asked about it: %s" % (record.key, error)]

    def _not_found(self, slot, newest, claimed=False):
        return {
            "changed": False,
            "found": False,
            "state": self._no_job(newest)["state"],
            "ansible_job_id": "",
            "host": "",
            "metadata": {},
            "async_dir": slot,
            "claimed": claimed,
            "adopted": False,
            "attempts": newest.attempts if claimed else [],
            "command_prefix": "",
            "save_time": "",
        }

    # -- the way to the host

    def _probe(self, **args):
        if self._is_windows():
            raise AnsibleError("jobs on Windows hosts can be saved and loaded, but not looked at.")
        # The folder that load returned may be set for a whole block, in which load is called again.
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

    def _is_here(self, key):
        """Whether this connection leads to the job's host."""
        return key.host in (self._host(), self._task.delegate_to)

    def _placed(self, key, process):
        """What a record holds about a job's processes: also the host that they are on, if the job was delegated there."""
        there = self._task.delegate_to
        return dict(process, delegated_to=there) if there and there != key.host else process

    def _reaches(self, record):
        """Whether this connection leads to where the job runs."""
        there = record.process.get("delegated_to")
        return there in (self._host(), self._task.delegate_to) if there else self._is_here(record.key)

    def _must_reach(self, record):
        if not self._reaches(record):
            there = record.process.get("delegated_to") or record.key.host
            raise AnsibleError(
                "%s runs on %s, and this task talks to %s, which knows nothing of it. Use a play on %s, or delegate_to."
                % (record.key, there, self._task.delegate_to or self._host(), there)
            )

    def _host(self):
        return self._vars.get("inventory_hostname", "localhost")

    def _key(self, asked):
        return forkless_jobs.Key(asked["host"] or self._host(), asked["job_name"], asked["playbook_name"])


def _same_job(record, first):
    return first is not None and record.ansible_job_id == first.ansible_job_id
