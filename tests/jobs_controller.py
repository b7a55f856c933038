# SPDX-License-Identifier: GPL-3.0-or-later
"""A folder in which tests run playbooks as users do, and find and end every process that these leave."""

from __future__ import annotations

import base64
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import forkless

SOURCE = pathlib.Path(__file__).resolve().parent.parent / "src"
BIN = pathlib.Path(sys.executable).parent
STOCK = [str(BIN / "ansible-playbook")]
FORKLESS = [sys.executable, "-m", "forkless", "playbook"]
ENGINES = {"stock": STOCK, "forkless": FORKLESS}
# The engine of plays that name none. Roles, actions and modules are the same code on both, and forkless needs a fifth of the CPU time:
# stock runs those that show that they work with it, and with `make faults` all of them.
MANY_ROUNDS = int(os.environ.get("FORKLESS_ROUNDS", "2")) >= 5
USUAL = "stock" if MANY_ROUNDS else "forkless"


class Done:
    def __init__(self, rc, out, err=""):
        self.rc = rc
        self.out = out
        self.err = err

    @classmethod
    def of_run(cls, result):
        return cls(result.rc, result.stdout, result.sentence)

    def __str__(self):
        return f"rc {self.rc}\n{self.out}\n{self.err}"


class Controller:
    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.folder.mkdir(exist_ok=True)
        self.home = self.folder / "home"
        self.home.mkdir()
        # An absolute path, so that nothing is written to the home of the passwd entry unless a test does so on purpose.
        self.async_dir = self.folder / "async"
        (self.folder / "local.ini").write_text(
            f"here ansible_connection=local ansible_python_interpreter={sys.executable} ansible_async_dir={self.async_dir}\n"
        )

    def __enter__(self):
        return self

    def __exit__(self, *ignored):
        for pid in self.processes():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue

    def environ(self, **more):
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("ANSIBLE_", "PYTEST"))}
        return clean | {
            "PYTHONPATH": str(SOURCE),
            "ANSIBLE_HOME": str(self.folder / ".ansible"),
            "ANSIBLE_LOCALHOST_WARNING": "False",
            "ANSIBLE_INVENTORY_UNPARSED_WARNING": "False",
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_PIPELINING": "True",  # starts a fifth of the processes; async tasks never use pipelining
            "ANSIBLE_RETRY_FILES_ENABLED": "False",
            "LC_ALL": "C.UTF-8",
        } | {name: str(value) for name, value in more.items()}  # fmt: skip

    def path(self, playbook):
        """The file of a playbook that is given as Python values, or the name of one."""
        if isinstance(playbook, str):
            return playbook
        path = self.folder / f"play-{time.monotonic_ns()}.yml"
        path.write_text(json.dumps(playbook, indent=1))
        return str(path)

    def command(self, playbook, *arguments, engine=USUAL, inventory=None, **variables):
        extra = ["-e", json.dumps(variables)] if variables else []
        where = str(inventory or self.folder / "local.ini")
        return [*ENGINES[engine], self.path(playbook), "-i", where, *extra, *arguments]

    def play(self, playbook, *arguments, engine=USUAL, inventory=None, environ=None, rc=0, **variables):
        """
        Run a playbook (a name, or plays as Python values), and assert its exit code. forkless runs it in this process, which needs a third
        of the CPU time of its command; the command runs where a test starts it by itself.
        """
        if engine == "forkless":
            more = self.environ(**(environ or {}))
            del more["ANSIBLE_HOME"]  # of every test another one, and for each ansible-core would be imported anew
            done = Done.of_run(
                forkless.run(
                    self.path(playbook), engine="threads", cwd=self.folder, inventory=inventory or self.folder / "local.ini",
                    extra_vars=variables, args=arguments, timeout=600,
                    env={name: value for name, value in more.items() if os.environ.get(name) != value},
                )
            )  # fmt: skip
            assert rc is None or done.rc == rc, f"{playbook}\n{done}"
            return done
        command = self.command(playbook, *arguments, engine=engine, inventory=inventory, **variables)
        process = subprocess.run(
            command, cwd=self.folder, env=self.environ(**(environ or {})), capture_output=True, text=True, timeout=600,
            stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
        done = Done(process.returncode, process.stdout, process.stderr)
        assert rc is None or done.rc == rc, f"{' '.join(command)}\n{done}"
        return done

    def tasks(self, *tasks, hosts="here", facts=(), **options):
        """Run tasks; returns the result of each task that has `register`, and the named facts."""
        names = [name for task in tasks for name in _registered(task)]
        play = {"hosts": hosts, "gather_facts": False, "tasks": [*tasks, told(*names, *facts)]}
        return heard(self.play([play], **options))[-1]

    def record(self, job_name, host="here", state_dir=".ansible_async_state"):
        return json.loads((self.folder / state_dir / host / f"{job_name}.json").read_text())

    def processes(self, *words):
        """Running processes of the jobs that were started from this folder, whatever their parent is."""
        mine = os.fsencode(str(self.folder))
        # Only whole words match: a number may be part of a job id or of the name of a temporary folder.
        wanted = [re.compile(rb"(?<![\w.-])" + re.escape(word.encode()) + rb"(?![\w.-])") for word in words]
        found = []
        for entry in pathlib.Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            try:
                argv = (entry / "cmdline").read_bytes()
                if not all(one.search(argv) for one in wanted):
                    continue
                environ = (entry / "environ").read_bytes()
                dead = (entry / "stat").read_bytes().rpartition(b")")[2].split()[0] in (b"Z", b"X")
            except OSError:
                continue
            if not dead and (b"ANSIBLE_ASYNC_DIR=" + mine in environ or mine in argv):
                found.append(int(entry.name))
        return sorted(found)


def told(*names):
    """A task that prints these variables in a form that no callback changes, without running a module."""
    wanted = "{" + ", ".join(f"'{name}': {name} | default(none)" for name in names) + "}"
    return {"name": "tell", "ansible.builtin.debug": {"msg": "@@@{{ " + wanted + " | to_json | b64encode }}@@@"}}


def heard(done):
    """The values that each task of `told` has printed."""
    return [json.loads(base64.b64decode(text)) for text in re.findall(r"@@@([A-Za-z0-9+/=]+)@@@", done.out)]


def _registered(task):
    found = [task["register"]] if "register" in task else []
    for inner in task.get("block", []):
        found += _registered(inner)
    return found


def until(condition, seconds=300, what="it"):
    deadline = time.monotonic() + seconds
    while True:
        answer = condition()
        if answer:
            return answer
        assert time.monotonic() < deadline, f"{what} did not come true in {seconds} s"
        time.sleep(0.05)


def role(name, **variables):
    """A task that includes one of the collection's roles; the variables are given without their prefix."""
    return {
        "ansible.builtin.include_role": {"name": f"forkless.core.{name}"},
        "vars": {f"{name}_{key}": value for key, value in variables.items()},
    }


def start(command, name="started", seconds=600):
    return {"ansible.builtin.command": command, "async": seconds, "poll": 0, "register": name}
