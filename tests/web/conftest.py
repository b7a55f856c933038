# SPDX-License-Identifier: GPL-3.0-or-later
"""`forkless serve` as a process, with a database of its own and one worker, for all tests of the page."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import uuid

import httpx
import psycopg
import pytest

import prepare
from forkless.web.accounts import Accounts
from queue_support import PATIENCE, Database, wait_until

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
# The fixtures of the queue: one PostgreSQL for all tests of a process.


def _module(*path):
    spec = importlib.util.spec_from_file_location(
        "forkless_tests_" + "_".join(path), pathlib.Path(__file__).parents[2].joinpath(*path).with_suffix(".py")
    )
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


_queue = _module("tests", "queue", "conftest")
_bench = _module("bench", "web")
server, url = _queue.server, _queue.url

EVIL = "<script>window.hacked=1</script>"


PASSWORD = "correct horse battery"
PROXY_SECRET = "a-secret-of-the-reverse-proxy"
HOOK_SECRET = "a-secret-of-the-hooks-of-git"
OPEN = []


@pytest.fixture(autouse=True)
def _clients():
    """Close the clients that a test made."""
    yield
    while OPEN:
        OPEN.pop().close()


class Served:
    """A running `forkless serve`, and clients for it."""

    def __init__(self, *arguments, before=(), folder=None, **environment):
        self._people, self._kept = {}, []
        self.out = tempfile.NamedTemporaryFile(mode="r+", prefix="fk-serve-", delete=False)
        self.process = subprocess.Popen(
            [*before, sys.executable, "-m", "forkless", "serve", "--port", "0", *arguments],
            stdout=self.out.fileno(), stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=dict(os.environ) | environment, cwd=folder,
        )  # fmt: skip
        wait_until(lambda: "Ctrl-C ends" in self.log() or self.process.poll() is not None, "the address")
        found = re.search(r"(http://127\.0\.0\.1:(\d+))/(?:\?token=(\S+))?", self.log())
        assert found, self.log()
        self.address, self.port, self.token = found[1], int(found[2]), found[3] or ""

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

    @contextlib.contextmanager
    def keeping(self):
        """The same for a fixture, which lives longer than a test."""
        client = self.program()
        OPEN.remove(client)
        with client:
            yield client

    def browser(self):
        """A client with a session, as a browser has it."""
        client = self._client(base_url=self.address, timeout=PATIENCE, trust_env=False)
        assert client.get("/", params={"token": self.token}).status_code == 303
        return client

    def person(self, name, password=PASSWORD):
        """A client of somebody who has logged in, with what a page sends along with changes. Checking a password takes long: once for each."""
        if (name, password) not in self._people:
            self._people[name, password] = self.log_in(name, password)
        return self._people[name, password]

    def log_in(self, name, password=PASSWORD):
        # It outlives the test, its connections must not.
        client = self._client(
            base_url=self.address, timeout=PATIENCE, trust_env=False, headers={"origin": self.address},
            limits=httpx.Limits(max_keepalive_connections=0),
        )  # fmt: skip
        answer = client.post("/api/login", json={"name": name, "password": password})
        assert answer.status_code == 200, answer.text
        OPEN.remove(client)
        self._kept.append(client)
        client.headers["x-forkless-csrf"] = re.search(r'name="forkless-csrf" content="(\w*)"', client.get("/").text)[1]
        return client

    def stranger(self, **headers):
        return self._client(base_url=self.address, timeout=PATIENCE, trust_env=False, headers=headers)

    def close(self):
        for client in self._kept:
            client.close()
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
        "    - name: begin\n      debug: msg=has-begun\n    - name: wait long\n      shell: while true; do echo still-at-it; sleep 1; done\n"
    )
    (folder / "evil.yml").write_text(
        f"- hosts: all\n  gather_facts: false\n  tasks:\n    - name: '{EVIL}'\n      raw: echo '{EVIL}'; exit 3\n      ignore_errors: true\n"
        f'    - name: change\n      diff: true\n      copy: {{dest: {folder.parent}/evil, content: "{EVIL} {{{{ 999999 | random }}}}"}}\n'
        f"    - name: '{EVIL}'\n      raw: echo '{EVIL}'; exit 3\n"
    )
    (folder / "evil-asks.yml").write_text(
        "- hosts: web1\n  gather_facts: false\n"
        f"  vars_prompt: [{{name: release, prompt: 'Which {EVIL}', default: 'as {EVIL}', private: false}}]\n"
        "  tasks: [{name: tell, debug: {msg: 'release {{ release }}'}}]\n"
    )
    (folder / "two-steps.yml").write_text(
        "- hosts: all\n  gather_facts: false\n  tasks:\n    - {name: one, debug: {msg: first-step}}\n"
        f"    - {{name: wait, raw: 'until test -e {folder.parent}/gate; do sleep 0.2; done'}}\n    - {{name: two, debug: {{msg: second-step}}}}\n"
    )
    (folder / "fails-later.yml").write_text(
        "- hosts: web1\n  gather_facts: false\n  tasks:\n    - {name: one, debug: {msg: first-step}}\n"
        f"    - {{name: wait, raw: 'until test -e {folder.parent}/gate; do sleep 0.2; done'}}\n"
        "    - {name: two, fail: {msg: no-more}, ignore_errors: true}\n    - {name: three, fail: {msg: never-again}}\n"
    )
    (folder / "hello.yml").write_text(
        "- hosts: web1\n  gather_facts: false\n  tasks: [{name: greet, debug: {msg: hello}}]\n"
    )
    (folder / "roles" / "app" / "meta").mkdir(parents=True)
    (folder / "roles" / "app" / "meta" / "argument_specs.yml").write_text(
        "argument_specs: {main: {options: {app_mode: {type: str, choices: [blue, green], required: true, description: Which half}, "
        "app_port: {type: int, default: 80}, app_token: {type: str, no_log: true, default: from-the-role}}}}\n"
    )
    (folder / "asks.yml").write_text(
        "- hosts: web1\n  gather_facts: false\n  roles: [app]\n"
        "  vars_prompt: [{name: release, prompt: Which release, private: false}, {name: key, default: hidden-default}]\n"
        "  tasks:\n    - {name: tell, debug: {msg: 'release {{ release }} {{ app_mode }} {{ app_port + 1 }}'}}\n"
    )
    (folder / "changes.yml").write_text(
        "- hosts: web1:web2\n  gather_facts: false\n  tasks:\n"
        f"    - {{name: open, copy: {{dest: '{folder.parent}/{{{{ inventory_hostname }}}}.conf', content: 'line <b>one</b>\\nrun {{{{ 999999 | random }}}}'}}}}\n"
        f"    - {{name: shut, no_log: true, copy: {{dest: '{folder.parent}/{{{{ inventory_hostname }}}}.key', content: 'unseen-{{{{ 999999 | random }}}}'}}}}\n"
    )
    (folder / "durable.yml").write_text(
        f"- hosts: web3\n  gather_facts: false\n  vars: {{ansible_async_dir: {folder.parent}/async}}\n  tasks:\n"
        f"    - command: sh -c 'exec > {folder.parent}/durable.out; echo \"{EVIL}begun\"; until test -e {folder.parent}/durable.gate; do sleep 0.2; done; echo and-more; exec sleep 6000'\n      args: {{}}\n      async: 7000\n      poll: 0\n      register: started\n"
        "    - include_role: {name: forkless.core.async_job_save}\n"
        "      vars: {async_job_save_job_name: rebuild, async_job_save_ansible_job_id: '{{ started.ansible_job_id }}'}\n"
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


def long_run(database, hosts, tasks, rows_of=1000):
    """A run with made-up events, stored as a worker stores them: a start and a result for each host and task. Its number."""
    with psycopg.connect(database.url, autocommit=True) as connection:
        return _bench.make_large(connection, hosts, tasks, rows_of)


def end_runs(served):
    """A server that is told to end waits for its runs, and schemathesis may have launched one that has no end."""

    def none_is_left(client):
        active = client.get("/api/runs", params={"status": ["waiting", "running"]}).json()["runs"]
        for one in active:
            client.post(f"/api/runs/{one['id']}/cancel")
        return not active

    with served.keeping() as client:
        wait_until(lambda: none_is_left(client), "the end of all runs")


@pytest.fixture(scope="session")
def page(page_database, project, tmp_path_factory):
    state = tmp_path_factory.mktemp("state")
    served = Served(
        "--project", str(project), "--processes", "2", FORKLESS_DATABASE=page_database.url, XDG_STATE_HOME=str(state)
    )
    served.state = str(state)
    served.gate = project.parent / "gate"
    yield served
    end_runs(served)
    served.close()


@pytest.fixture(scope="session")
def team(page_database, page, project, tmp_path_factory):
    """A server with a login on the same queue as `page`, whose worker carries out its runs."""
    folder = tmp_path_factory.mktemp("team")
    config = folder / "page.toml"
    config.write_text(
        '[login]\nusers = true\nproxy_header = "X-Remote-User"\nproxy_secret = "env:PROXY_SECRET"\n'
        f'[projects.infra]\nfolder = "{project}"\n'
        + "".join(
            f'[hooks.{kind}]\nkind = "{kind}"\nsecret = "env:HOOK_SECRET"\nplaybook = "hello.yml"\ninventory = "hosts.ini"\n'
            'ref = "refs/heads/main"\n'
            for kind in ("github", "gitlab", "hmac")
        )
    )

    async def add_users():
        accounts = Accounts(page_database.url)
        for name, role in (("ada", "admin"), ("olga", "operator"), ("vera", "viewer")):
            await accounts.add_user(name, role, PASSWORD)
        await accounts.add_user("petra", "operator", None)
        await accounts.close()

    # In a thread of its own: Playwright keeps an event loop in this one while a browser is open.
    adding = threading.Thread(target=asyncio.run, args=(add_users(),))
    adding.start()
    adding.join()
    served = Served(
        "--config", str(config), FORKLESS_DATABASE=page_database.url, XDG_STATE_HOME=str(folder), PROXY_SECRET=PROXY_SECRET,
        HOOK_SECRET=HOOK_SECRET,
    )  # fmt: skip
    yield served
    served.close()


@pytest.fixture(scope="module")
def browser(chromium):
    """One browser for all tests of a module, in which no test can call asyncio.run(); each test has a context of its own."""
    with sync_api.sync_playwright() as driver:
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
                 "--disable-sync", "--no-first-run", "--disable-dev-shm-usage"]  # fmt: skip
        opened = driver.chromium.launch(executable_path=chromium, args=flags)
        yield opened
        opened.close()


@pytest.fixture(scope="session")
def chromium():
    return prepare.browser() or pytest.skip(prepare.NO_BROWSER)
