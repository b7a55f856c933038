# SPDX-License-Identifier: GPL-3.0-or-later
"""Real servers, real hosts, real playbooks: what the tests of the jobs stand on."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import pytest

import prepare_jobs
from forkless import jobs
from jobs_controller import Controller

KEY = {"AWS_ACCESS_KEY_ID": "fkak", "AWS_SECRET_ACCESS_KEY": "fksecret123"}


def free_port(also=0):
    """A free port; with `also`, one whose port + also is free, too."""
    for _ in range(100):
        with socket.socket() as one, socket.socket() as two:
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
            if also and port + also > 65535:
                continue
            with contextlib.suppress(OSError):
                two.bind(("127.0.0.1", port + also if also else 0))
                return port
    raise RuntimeError("no free port")


class Server:
    """A program that answers on a port; started, killed and started again by its pid."""

    def __init__(self, command, url, folder, environ=None):
        self.command, self.url, self.folder = command, url, folder
        self.environ = os.environ | (environ or {})
        self.log = folder / "server.log"
        self.process = None

    def start(self):
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=self.environ,
                cwd=self.folder,
                start_new_session=True,
            )
        deadline = time.monotonic() + 240
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.log.read_text()[-2000:]
            try:
                urllib.request.urlopen(self.url, timeout=5).close()
                return self
            except urllib.error.HTTPError as error:
                error.close()
                if error.code < 500:
                    return self
            except OSError:
                pass
            time.sleep(0.1)
        raise RuntimeError(f"{self.command[0]} did not answer: {self.log.read_text()[-2000:]}")

    def stop(self, how=signal.SIGTERM):
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, how)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()
            self.process = None


@pytest.fixture(scope="session")
def credentials():
    """In the environment for as long as the session, before any guard looks at it."""
    before = {name: os.environ.get(name) for name in KEY}
    os.environ.update(KEY)
    yield
    for name, value in before.items():
        os.environ.pop(name) if value is None else os.environ.update({name: value})


def _weed(folder):
    (folder / "data").mkdir()
    (folder / "s3.json").write_text(
        '{"identities":[{"name":"fk","credentials":[{"accessKey":"fkak","secretKey":"fksecret123"}],'
        '"actions":["Admin","Read","Write","List","Tagging"]}]}'
    )
    master, volume, filer, s3 = (free_port(10000) for _ in range(4))
    command = [
        prepare_jobs.program("weed"), "server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-dir={folder}/data",
        f"-master.port={master}", f"-volume.port={volume}", "-filer", f"-filer.port={filer}", "-s3", f"-s3.port={s3}",
        "-s3.port.iceberg=0", "-s3.port.lance=0", f"-s3.config={folder}/s3.json", "-master.volumeSizeLimitMB=16", "-volume.max=50",
    ]  # fmt: skip
    return Server(command, f"http://127.0.0.1:{s3}", folder)


@pytest.fixture(scope="session")
def weed(tmp_path_factory, credentials):
    server = _weed(tmp_path_factory.mktemp("weed")).start()
    client = s3_client(server.url)
    deadline = time.monotonic() + 240
    while True:
        try:
            client.create_bucket(Bucket="jobs")
            break
        except Exception:  # it answers before it can write
            assert time.monotonic() < deadline, server.log.read_text()[-2000:]
            time.sleep(0.2)
    client.close()
    yield server
    server.stop(signal.SIGKILL)


@pytest.fixture(scope="session")
def rclone(tmp_path_factory, credentials):
    folder = tmp_path_factory.mktemp("rclone")
    (folder / "files" / "jobs").mkdir(parents=True)
    port = free_port()
    command = [
        prepare_jobs.program("rclone"), "serve", "s3", "--addr", f"127.0.0.1:{port}", "--auth-key", "fkak,fksecret123",
        "--config", "/dev/null", str(folder / "files"),
    ]  # fmt: skip
    server = Server(command, f"http://127.0.0.1:{port}", folder).start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def moto(tmp_path_factory, credentials):
    folder = tmp_path_factory.mktemp("moto")
    port = free_port()
    command = [prepare_jobs.program("moto_server"), "-H", "127.0.0.1", "-p", str(port)]
    server = Server(command, f"http://127.0.0.1:{port}", folder).start()
    client = s3_client(server.url)
    client.create_bucket(Bucket="jobs")
    client.close()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def ara(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ara")
    shutil.copy(prepare_jobs.DATABASE, folder / "ara.sqlite")
    port = free_port()
    # Threads in one process: SQLite, ARA's default, takes one writer at a time.
    command = [
        prepare_jobs.program("gunicorn"),
        "--workers=1",
        "--threads=4",
        f"--bind=127.0.0.1:{port}",
        "ara.server.wsgi",
    ]
    environ = {
        "ARA_BASE_DIR": str(folder),
        "ARA_DATABASE_NAME": str(folder / "ara.sqlite"),
        "ARA_ALLOWED_HOSTS": '["127.0.0.1","localhost"]',
    }
    server = Server(command, f"http://127.0.0.1:{port}/api/v1/", folder, environ).start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def queue():
    from forkless.queue import job_store
    from queue_support import postgresql

    with postgresql() as server:
        job_store.use_database(server.url)
        yield server
    job_store._ADDRESS.clear()


def s3_client(url):
    import boto3

    return boto3.session.Session().client("s3", endpoint_url=url, region_name="us-east-1")


@pytest.fixture(name="make_url")
def give_make_url():
    return make_url


def make_url(kind, server, folder):
    """The URL of an empty store of that kind."""
    if kind == "file":
        return f"file:{folder}/state"
    if kind == "s3":
        return f"s3://jobs/{os.getpid()}-{time.monotonic_ns()}?endpoint={server.url}&region=us-east-1"
    if kind == "queue":
        return f"queue:{os.getpid()}-{time.monotonic_ns()}"
    address = server.url.removesuffix("/api/v1/")
    claims = f"&claims=file:{folder}/claims" if kind == "ara+file" else ""
    return f"ara+{address}?playbook={new_playbook(address)}{claims}"


def new_playbook(server):
    import json

    body = {
        "name": "x",
        "path": "forkless://jobs",
        "ansible_version": "-",
        "status": "running",
        "started": jobs.stamp(0),
    }
    wanted = urllib.request.Request(
        f"{server}/api/v1/playbooks", json.dumps(body).encode(), {"Content-Type": "application/json"}, method="POST"
    )
    with urllib.request.urlopen(wanted, timeout=60) as answer:
        return json.loads(answer.read())["id"]


# The tests that share a server run in one worker.
SERVERS = pytest.mark.xdist_group("jobs-servers")
KINDS = [
    "file",
    pytest.param("s3", marks=SERVERS),
    pytest.param("ara", marks=SERVERS),
    pytest.param("ara+file", marks=SERVERS),
    pytest.param("queue", marks=SERVERS),
]


@pytest.fixture(scope="module", params=KINDS)
def kind(request):
    """A kind of store, and its server: of a wider scope than the guards, which are to see the server as given."""
    server = {"file": None, "s3": "weed", "queue": "queue"}.get(request.param, "ara")
    return request.param, request.getfixturevalue(server) if server else None


@pytest.fixture
def store_url(kind, tmp_path):
    return make_url(*kind, tmp_path)


@pytest.fixture
def store(store_url):
    opened = jobs.open_store(store_url)
    yield opened
    opened.close()


@pytest.fixture
def controller(tmp_path):
    """A folder to run playbooks in, on this machine, with everything of theirs in it."""
    with Controller(tmp_path / "stage") as made:
        yield made


@pytest.fixture(scope="module")
def shared_controller(tmp_path_factory):
    with Controller(tmp_path_factory.mktemp("stage")) as made:
        yield made


class Far:
    """A host over ssh: its inventory, and the pid of its sshd."""

    def __init__(self, inventory, pid):
        self.inventory, self.pid = inventory, pid


@pytest.fixture(scope="session")
def sshd(tmp_path_factory):
    """A real host over ssh: an sshd of our own on the loopback, with a key of its own."""
    if not os.path.exists("/usr/sbin/sshd"):
        raise RuntimeError("these tests need an sshd: apt-get install openssh-server")
    folder = tmp_path_factory.mktemp("sshd")
    port = free_port()
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    shutil.copy(folder / "user.pub", folder / "authorized")
    (folder / "conf").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder}/host\nPidFile none\nAuthorizedKeysFile {folder}/authorized\n"
        "PasswordAuthentication no\nKbdInteractiveAuthentication no\nUsePAM no\nStrictModes no\nUseDNS no\n"
        "PermitRootLogin prohibit-password\nMaxSessions 100\nSubsystem sftp internal-sftp\nLogLevel ERROR\n"
    )
    if os.geteuid() == 0:
        os.makedirs("/run/sshd", exist_ok=True)
    # In a mount namespace of its own, where that is allowed: what a test mounts there, nobody else sees.
    apart = ["unshare", "--mount", "--propagation", "private"] if os.geteuid() == 0 else []
    with (folder / "log").open("wb") as log:
        daemon = subprocess.Popen(
            [*apart, "/usr/sbin/sshd", "-D", "-e", "-f", str(folder / "conf")], stdout=log, stderr=log
        )
    deadline = time.monotonic() + 240
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 5) as hello:
            if hello.recv(3) == b"SSH":
                break
        assert time.monotonic() < deadline, (folder / "log").read_text()
        time.sleep(0.1)
    inventory = folder / "hosts.ini"
    inventory.write_text(
        f"far ansible_host=127.0.0.1 ansible_port={port} ansible_ssh_private_key_file={folder}/user "
        f"ansible_python_interpreter={sys.executable} ansible_connection=ssh "
        "ansible_ssh_common_args='-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR -o ControlPath=none'\n"
    )
    yield Far(inventory, daemon.pid)
    daemon.kill()
    daemon.wait()
