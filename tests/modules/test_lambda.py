# SPDX-License-Identifier: GPL-3.0-or-later
"""The example for AWS Lambda, in a place like it: only /tmp can be written, there is no /dev/shm, no HOME, and nobody knows us."""

from __future__ import annotations

import json
import os
import pathlib
import shlex
import stat
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent.parent
EXAMPLE = ROOT / "examples" / "lambda" / "handler.py"
UID = 61234

pytestmark = [pytest.mark.spawns, pytest.mark.xdist_group("sshd"), pytest.mark.timeout(600)]

# Root of a mount namespace of its own makes the world read-only, then becomes a user that is in no list.
SCRIPT = """
set -e
mount --make-rprivate /
{opened}
mount -o remount,bind,ro /
mount -t tmpfs -o ro,mode=0555 none /dev/shm
exec setpriv --reuid={uid} --regid={uid} --clear-groups env -i PATH=/usr/bin:/bin PYTHONPATH={source} PYTHONDONTWRITEBYTECODE=1 LANG=C.UTF-8 "$@"
"""


def opened(*needed):
    """
    A /tmp with nothing of ours in it, and an open way through folders that are closed to others, such as root's home.

    What is needed of them is put back where it was. In the namespace alone: the folders themselves keep their modes.
    """
    covered = {pathlib.Path("/tmp"): []}  # the folders that are covered, and what is needed of each
    for path in map(pathlib.Path, needed):
        for above in reversed(path.parents):
            if above in covered or not above.stat().st_mode & stat.S_IXOTH:
                covered.setdefault(above, []).append(path)
                break
    lines = ["mount -t tmpfs none /mnt"]
    for number, (folder, behind) in enumerate(covered.items()):
        kept = [(f"/mnt/{number}-{place}", shlex.quote(str(path))) for place, path in enumerate(behind)]
        lines += [f"mkdir {keep} && mount --rbind {path} {keep}" for keep, path in kept]
        mode = "1777" if folder == pathlib.Path("/tmp") else "0755"
        lines += [f"mount -t tmpfs -o mode={mode} none {shlex.quote(str(folder))}"]
        lines += [f"mkdir -p {path} && mount --rbind {keep} {path}" for keep, path in kept]
    return "\n".join([*lines, "umount -l /mnt"])


def tidy():
    """What the playbook wrote on its hosts, which share the machine's /tmp, under users that another run does not have."""
    for leftover in pathlib.Path("/tmp").glob("forkless-lambda-*"):
        leftover.unlink()


@pytest.fixture
def function(sshds):
    """The example under the small runtime: call it with an event, get its answer."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to make a place like Lambda's with namespaces")
    tidy()
    script = SCRIPT.format(uid=UID, source=ROOT / "src", opened=opened(ROOT, sys.prefix, sys.base_prefix, sshds.folder))
    runtime = [sys.executable, str(ROOT / "tests/modules/lambda_runtime.py"), str(EXAMPLE)]
    process = subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", script, "sh", *runtime],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd="/",
    )  # fmt: skip

    def ask(event):
        process.stdin.write(json.dumps(event) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
        assert line, process.stderr.read()
        return json.loads(line)

    with process:  # closes its pipes and waits for it, whatever happens
        first = process.stdout.readline()
        assert first, process.stderr.read()
        yield json.loads(first), ask
        process.stdin.close()
        process.wait(240)
    tidy()


def test_the_example_runs_a_playbook_twice_on_itself_and_on_real_hosts(function, sshds):
    place, ask = function
    assert place == {"uid": UID, "home": None, "/": False, "/dev/shm": False, "~": False, "/tmp": True, "lock": False}

    answer = ask({"extra_vars": {"colour": "blue"}})
    assert answer.get("rc") == 0, answer.get("stdout", answer)
    assert "is blue" in answer["stdout"]

    key = pathlib.Path(sshds.key).read_text()
    known = "-F none -o UserKnownHostsFile=" + sshds.known_hosts
    hosts = {
        target.name: {
            "ansible_connection": "forkless.core.ssh",
            "ansible_host": target.address,
            "ansible_port": target.port,
            "ansible_user": target.user,
            "ansible_private_key": key,
            "ansible_python_interpreter": "/usr/bin/python3",
            "ansible_ssh_common_args": known,
        }
        for target in sshds.hosts
    }
    answer = ask({"inventory": hosts})
    assert answer.get("rc") == 0, answer.get("stdout", answer)
    # The second time it is warm, and nothing of the first is left: the colour was the first one's.
    for target in sshds.hosts:
        assert f"{target.name} is grey" in answer["stdout"]
    assert "PRIVATE KEY" not in json.dumps(answer)
