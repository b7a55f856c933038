# SPDX-License-Identifier: GPL-3.0-or-later
"""`forkless serve` as a process, with a database of its own and one worker, for all tests of the page."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid

import httpx
import pytest

from queue_support import PATIENCE, Database, wait_until

# The fixtures of the queue: one PostgreSQL for all tests of a process.
_path = pathlib.Path(__file__).parents[1] / "queue" / "conftest.py"
_spec = importlib.util.spec_from_file_location("forkless_tests_queue_conftest", _path)
_queue = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_queue)
server, url = _queue.server, _queue.url

EVIL = "<script>window.hacked=1</script>"


OPEN = []


@pytest.fixture(autouse=True)
def _clients():
    """Close the clients that a test made."""
    yield
    while OPEN:
        OPEN.pop().close()


class Served:
    """A running `forkless serve`, and clients for it."""

    def __init__(self, *arguments, **environment):
        self.out = tempfile.NamedTemporaryFile(mode="r+", prefix="fk-serve-", delete=False)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "forkless", "serve", "--port", "0", *arguments],
            stdout=self.out.fileno(), stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=dict(os.environ) | environment,
        )  # fmt: skip
        wait_until(lambda: "token=" in self.log() or self.process.poll() is not None, "the address")
        found = re.search(r"(http://127\.0\.0\.1:(\d+))/\?token=(\S+)", self.log())
        assert found, self.log()
        self.address, self.port, self.token = found[1], int(found[2]), found[3]

    @property
    def first(self):
        return f"{self.address}/?token={self.token}"

    def log(self):
        return pathlib.Path(self.out.name).read_text()

    def _client(self, **options):
        OPEN.append(httpx.Client(**options))
        return OPEN[-1]

    def program(self):
        """A client that sends the token, as programs do."""
        return self._client(
            base_url=self.address, headers={"authorization": f"Bearer {self.token}"}, timeout=PATIENCE, trust_env=False
        )

    def browser(self):
        """A client with a session, as a browser has it."""
        client = self._client(base_url=self.address, timeout=PATIENCE, trust_env=False)
        assert client.get("/", params={"token": self.token}).status_code == 303
        return client

    def close(self):
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(timeout=PATIENCE)
        log = self.log()
        self.out.close()
        os.unlink(self.out.name)
        assert code == 0, log
        assert "Traceback" not in log, log


def write_project(folder):
    python = f"ansible_connection: local, ansible_python_interpreter: {sys.executable}"
    (folder / "hosts.ini").write_text(
        "".join(f"web{n} ansible_connection=local ansible_python_interpreter={sys.executable}\n" for n in range(1, 4))
    )
    (folder / "inventory-evil.yml").write_text(f'all: {{hosts: {{"{EVIL}": {{{python}}}}}}}\n')
    (folder / "site.yml").write_text(
        "- hosts: all\n  gather_facts: false\n  tasks:\n"
        "    - name: say hello\n      debug: msg=hello\n"
        "    - name: look\n      raw: echo looked\n      loop: [1, 2, 3, 4, 5, 6]\n"
        "    - name: not on web2\n      fail: msg=broken-here\n      when: inventory_hostname == 'web2'\n"
        "    - name: last\n      debug: msg=bye\n"
    )
    (folder / "long.yml").write_text(
        "- hosts: all\n  gather_facts: false\n  tasks:\n"
        "    - name: begin\n      debug: msg=has-begun\n    - name: wait long\n      raw: sleep 300\n"
    )
    (folder / "evil.yml").write_text(
        f"- hosts: all\n  gather_facts: false\n  tasks:\n    - name: '{EVIL}'\n      raw: echo '{EVIL}'; exit 3\n"
    )
    (folder / "broken.yml").write_text("- hosts: all\n  tasks: [}\n")
    os.symlink("/etc", folder / "outside")
    (folder / ".forklessignore").write_text("outside\n")
    return folder


@pytest.fixture(scope="session")
def project(tmp_path_factory):
    return write_project(tmp_path_factory.mktemp("infra"))


@pytest.fixture(scope="session")
def page_database(server):
    name = f"w{uuid.uuid4().hex}"
    _queue.admin(server, f"CREATE DATABASE {name} TEMPLATE forkless")
    yield Database(server.url.replace("@/forkless?", f"@/{name}?"))
    _queue.admin(server, f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(scope="session")
def page(page_database, project, tmp_path_factory):
    state = tmp_path_factory.mktemp("state")
    served = Served(
        "--project", str(project), "--processes", "2", FORKLESS_DATABASE=page_database.url, XDG_STATE_HOME=str(state)
    )
    served.state = str(state)
    yield served
    served.close()


@pytest.fixture(scope="session")
def chromium():
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        pytest.skip("missing: chromium (apt-get install chromium)")
    return found
