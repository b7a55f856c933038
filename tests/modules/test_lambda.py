# SPDX-License-Identifier: GPL-3.0-or-later
"""The example for AWS Lambda, in a place like it: only /tmp can be written, there is no /dev/shm, no HOME, and nobody knows us."""

from __future__ import annotations

import json
import os
import pathlib
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
mount --bind /tmp /tmp
mount -o remount,bind,ro /
mount -t tmpfs -o ro,mode=0555 none /dev/shm
exec setpriv --reuid={uid} --regid={uid} --clear-groups env -i PATH=/usr/bin:/bin PYTHONPATH={source} PYTHONDONTWRITEBYTECODE=1 LANG=C.UTF-8 "$@"
"""


@pytest.fixture
def function(request):
    """The example under the small runtime: call it with an event, get its answer."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to make a place like Lambda's with namespaces")
    script = SCRIPT.format(uid=UID, source=ROOT / "src")
    process = subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", script, "sh", sys.executable, str(ROOT / "tests/modules/lambda_runtime.py"), str(EXAMPLE)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd="/",
    )  # fmt: skip

    def ask(event):
        process.stdin.write(json.dumps(event) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
        assert line, process.stderr.read()
        return json.loads(line)

    first = process.stdout.readline()
    assert first, process.stderr.read()
    yield json.loads(first), ask
    process.stdin.close()
    process.wait(60)
    process.stdout.close()
    process.stderr.close()
    for leftover in pathlib.Path("/tmp").glob("forkless-lambda-*"):
        leftover.unlink()


def reachable():
    """Another user must be able to run this Python and read this project."""
    done = subprocess.run(
        ["setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups", sys.executable, "-c", f"open({str(EXAMPLE)!r})"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.returncode == 0


def test_the_example_runs_a_playbook_twice_on_itself_and_on_real_hosts(function, sshds):
    if not reachable():
        pytest.skip(f"another user may not read {EXAMPLE} or run {sys.executable}")
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
