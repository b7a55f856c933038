# SPDX-License-Identifier: GPL-3.0-or-later
"""
The page: the first page with 10,000 runs, an 800 x 300 run opened, the time from an event to the pixel with few and many readers, and
what readers cost a run.

    python -m bench.web [--hosts 800 --tasks 300 --runs 10000 --readers 200 --rounds 5] [--page docs/performance.md]

A database and a server of its own; events are made up and stored as a worker stores them. Needs chromium and playwright.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import json
import os
import pathlib
import re
import selectors
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
import uuid
from typing import TYPE_CHECKING

import psycopg
from playwright.sync_api import sync_playwright

from forkless.queue import database, event_batches

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench._figures import Figures

INSERT = (
    "INSERT INTO forkless.run (status, spec, project, created_by, versions, rc, started, ended, origin, attempt, attempt_counter, counter, lost_after) "
    """SELECT %s, '{"playbook": ["site.yml"]}', '{"kind": "git", "name": "x"}', 'me@here', '{}', 0, now(), %s, gen_random_uuid(), 1, 0, 0, 600 """
    "FROM generate_series(1, %s) RETURNING id"
)


def event(kind: str, host: str, task: int, counter: int) -> bytes:
    data = {"host": host, "task": f"task {task}", "task_uuid": f"t{task}", "task_path": f"site.yml:{task}", "duration": 0.1,
            "res": {"changed": task % 7 == 0, "msg": "x" * 300}}  # fmt: skip
    line = {
        "event": kind,
        "uuid": str(uuid.uuid4()),
        "counter": counter,
        "stdout": f"ok: [{host}]",
        "created": dt.datetime.now(dt.UTC).isoformat(),
        "event_data": data,
    }
    return json.dumps(line).encode() + b"\n"


def append(connection: psycopg.Connection, run: int, first: int, lines: list[bytes]) -> None:
    packed, size = event_batches.pack(lines)
    asked = (run, 1, first, first + len(lines) - 1, packed, size, None, None)
    connection.execute("SELECT forkless.append_events(%s, %s, %s, %s, %s, %s, %s, %s)", asked)


def make_large(connection: psycopg.Connection, hosts: int, tasks: int, rows_of: int = event_batches.MOST_EVENTS) -> int:
    """A run that has ended, with a start and a result for each host and task."""
    run = connection.execute(INSERT, ("running", None, 1)).fetchone()[0]
    counter, lines = 0, []
    for task in range(tasks):
        for kind in ("runner_on_start", "runner_on_ok"):
            for host in range(hosts):
                counter += 1
                lines.append(event(kind, f"host{host}", task, counter))
                if len(lines) == rows_of:
                    append(connection, run, counter - len(lines) + 1, lines)
                    lines = []
    if lines:
        append(connection, run, counter - len(lines) + 1, lines)
    connection.execute("UPDATE forkless.run SET status = 'successful', ended = now() WHERE id = %s", (run,))
    return run


def memory(pid: int) -> float:
    return int(re.search(r"VmRSS:\s+(\d+)", pathlib.Path(f"/proc/{pid}/status").read_text())[1]) / 1024


def to_pixel(connection: psycopg.Connection, page: object, run: int, first: int, many: int) -> list[float]:
    """Seconds from an event's making to its place in the page."""
    page.evaluate("""() => { window.seen = {}; new MutationObserver(() => { window.seen[document.body.dataset.position] ??= Date.now(); })
        .observe(document.body, { attributes: true }); }""")
    made = {}
    for counter in range(first, first + many):
        made[counter] = time.time()
        append(connection, run, counter, [event("runner_on_ok", "host0", counter, counter)])
        time.sleep(0.25)
    page.wait_for_function(f"Number(document.body.dataset.position) >= {first + many - 1}", timeout=60_000)
    seen = page.evaluate("window.seen")
    return sorted(seen[str(counter)] / 1000 - when for counter, when in made.items() if str(counter) in seen)


def readers(address: str, token: str, run: int, many: int) -> list[socket.socket]:
    host, port = re.match(r"http://([^:]+):(\d+)", address).groups()
    opened = []
    for _ in range(many):
        one = socket.create_connection((host, int(port)))
        one.sendall(
            f"GET /api/runs/{run}/stream HTTP/1.1\r\nHost: {host}:{port}\r\nAuthorization: Bearer {token}\r\n\r\n".encode()
        )
        one.recv(1000)
        opened.append(one)
    return opened


def measure(
    asked: argparse.Namespace,
    connection: psycopg.Connection,
    process: subprocess.Popen[bytes],
    address: str,
    token: str,
    figures: Figures,
) -> None:
    connection.execute(INSERT, ("successful", dt.datetime.now(dt.UTC), asked.runs))
    large = make_large(connection, asked.hosts, asked.tasks)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--headless", "--no-sandbox", "--disable-gpu"]
        )
        # The policy of the pages would not let Playwright wait for an expression.
        page = browser.new_page(viewport={"width": 1200, "height": 900}, bypass_csp=True)
        page.goto(f"{address}/?token={token}")
        times = []
        for _ in range(5):
            begin = time.perf_counter()
            page.goto(address + "/")
            page.locator("#rows tr").first.wait_for()
            times.append(time.perf_counter() - begin)
        figures.add(f"first page with {asked.runs} runs", f"{statistics.median(times) * 1000:.0f} ms (median of 5)")
        begin = time.perf_counter()
        page.goto(f"{address}/runs/{large}")
        page.locator("#grid-size", has_text=str(asked.hosts)).wait_for(timeout=600_000)
        began = time.perf_counter() - begin
        page.wait_for_function(
            f"Number(document.body.dataset.position) >= {2 * asked.hosts * asked.tasks}", timeout=600_000
        )
        whole = time.perf_counter() - begin
        figures.add(
            f"a run of {asked.hosts} x {asked.tasks} opened",
            f"grid begins after {began:.2f} s, is whole after {whole:.2f} s",
        )
        frames = page.evaluate("""async () => { const grid = document.getElementById("grid"); let frames = 0; const end = performance.now() + 2000;
            while (performance.now() < end) { grid.scrollTop = (frames * 37) % 10000; grid.scrollLeft = (frames * 23) % 4000;
            await new Promise(requestAnimationFrame); frames++; } return frames / 2; }""")
        figures.add("scrolling its grid", f"{frames:.0f} frames/s")
        for many in (1, asked.readers):
            live = connection.execute(INSERT, ("running", None, 1)).fetchone()[0]
            append(connection, live, 1, [event("runner_on_start", "host0", 1, 1)])
            before = memory(process.pid)
            others = readers(address, token, live, many - 1)
            with Drain(others):
                page.goto(f"{address}/runs/{live}")
                page.wait_for_function("Number(document.body.dataset.position) >= 1")
                found = to_pixel(connection, page, live, 2, 40)
                grown = (memory(process.pid) - before) * 1024
            each = f", {grown / (many - 1):.0f} KB for each reader" if many > 1 else ""
            p50, p99 = found[len(found) // 2] * 1000, found[-1] * 1000
            figures.add(f"event to pixel, readers: {many}", f"p50 {p50:.0f} ms, p99 {p99:.0f} ms{each}")
        browser.close()


class Drain:
    """Reads what streams send, as open pages do. What it costs is this process's."""

    def __init__(self, streams: list[socket.socket]) -> None:
        self._streams, self._ended = streams, threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        for one in self._streams:
            one.close()

    def _read(self) -> None:
        with selectors.DefaultSelector() as selector:
            for one in self._streams:
                selector.register(one, selectors.EVENT_READ)
            while not self._ended.is_set():
                for key, _ in selector.select(0.1):
                    if not key.fileobj.recv(1 << 16):
                        selector.unregister(key.fileobj)


def call(address: str, token: str, path: str, body: dict[str, object] | None = None) -> dict[str, object]:
    asked = urllib.request.Request(
        address + path, None if body is None else json.dumps(body).encode(),
        {"authorization": f"Bearer {token}", "content-type": "application/json"},
    )  # fmt: skip
    with urllib.request.urlopen(asked, timeout=120) as answer:
        return json.loads(answer.read())


def processor(pid: int) -> float:
    """Seconds of a process and of its children that have ended."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def on_cores(cores: set[int]) -> Iterator[None]:
    """This thread, and the threads and processes that it starts within the block."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def move(pid: int, cores: set[int]) -> None:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
        for thread in os.listdir(f"/proc/{pid}/task"):
            os.sched_setaffinity(int(thread), cores)


class DatabasePlaces:
    """
    Where PostgreSQL does its work: what it does for connections of the page on the cores of the page, the rest on those of the run. A new connection
    is served where the postmaster is, so those of the page are moved when they are there.
    """

    NAME = "forkless-bench-page"

    def __init__(self, connection: psycopg.Connection, run: set[int], page: set[int]) -> None:
        self._connection, self._page = connection, page
        own = connection.execute("SELECT pg_backend_pid()").fetchone()[0]
        postmaster = int(pathlib.Path(f"/proc/{own}/stat").read_text().rpartition(")")[2].split()[1])
        children = pathlib.Path(f"/proc/{postmaster}/task/{postmaster}/children").read_text().split()
        for pid in (postmaster, *map(int, children)):
            move(pid, run)
        self.look()

    def look(self) -> None:
        asked = "SELECT pid FROM pg_stat_activity WHERE application_name = %s"
        for (pid,) in self._connection.execute(asked, (self.NAME,)).fetchall():
            move(pid, self._page)


def one_run(
    address: str, token: str, many: int, pids: tuple[int, int], places: DatabasePlaces
) -> tuple[float, float, float]:
    """Wall seconds of a run, processor seconds of its worker and of the page, with so many readers of its stream."""
    before = [processor(pid) for pid in pids]
    run = call(address, token, "/api/runs", {"playbook": "site.yml", "inventory": "hosts.ini"})["id"]
    with Drain(readers(address, token, run, many)):
        while (found := call(address, token, f"/api/runs/{run}"))["status"] in ("waiting", "running"):
            places.look()
            time.sleep(0.2)
    if found["status"] != "successful":
        raise SystemExit(f"the run is {found['status']}: {found['sentence']}")
    while not any(one["state"] == "idle" for one in call(address, token, "/api/workers")["workers"]):
        time.sleep(0.1)
    used = [processor(pid) - was for pid, was in zip(pids, before, strict=True)]
    return found["seconds"], used[0], used[1]


def cost(
    asked: argparse.Namespace, url: str, connection: psycopg.Connection, folder: pathlib.Path, figures: Figures
) -> None:
    """
    A run of 40 hosts and 60 tasks, with and without readers, in turn; twice. First with the run on one core and the page and its readers on the others,
    as if the page were on another machine: what is left is what readers do to a run through the database. Then all of them on all cores: on two
    cores the readers, which have machines of their own otherwise, take what the run could use.
    """
    project = folder / "infra"
    project.mkdir()
    (project / "hosts.ini").write_text("".join(f"host{number} ansible_connection=local\n" for number in range(40)))
    tasks = "".join(f"    - {{name: task {number}, debug: {{msg: '{number}'}}}}\n" for number in range(60))
    (project / "site.yml").write_text(f"- hosts: all\n  gather_facts: false\n  tasks:\n{tasks}")
    every = os.sched_getaffinity(0)
    first = {min(every)}
    placed = [("page and readers on other cores", first, every - first)] if len(every) > 1 else []
    for name, run_cores, page_cores in [*placed, (f"all on {len(every)} cores", every, every)]:
        with contextlib.ExitStack() as around:
            with on_cores(run_cores):
                around.enter_context(working(folder / "worker.log", url))
            around.enter_context(on_cores(page_cores))
            page_url = psycopg.conninfo.make_conninfo(url, application_name=DatabasePlaces.NAME)
            served = serving(folder / "cost.log", "--project", str(project), FORKLESS_DATABASE=page_url)
            server, address, token = around.enter_context(served)
            while not (
                idle := [one for one in call(address, token, "/api/workers")["workers"] if one["state"] == "idle"]
            ):
                time.sleep(0.2)
            places = DatabasePlaces(connection, run_cores, page_cores)
            pids = idle[-1]["pid"], server.pid
            one_run(
                address, token, asked.readers, pids, places
            )  # what is imported once, and the connections of the page
            found: dict[int, list[tuple[float, ...]]] = {0: [], asked.readers: []}
            for number in range(asked.rounds):
                for many in list(found)[:: 1 if number % 2 == 0 else -1]:
                    found[many].append(one_run(address, token, many, pids, places))
        without, with_readers = ([min(column) for column in zip(*times, strict=True)] for times in found.values())
        for what, was, now in zip(("wall", "processor of the worker"), without, with_readers, strict=False):
            figures.add(
                f"a run of 40 x 60, {name}, {what}",
                f"{was:.2f} s without readers, {now:.2f} s with {asked.readers} ({(now / was - 1) * 100:+.1f} %), best of {asked.rounds}",
            )
        figures.add(
            "the same, processor of the page",
            f"{without[2]:.2f} s without readers, {with_readers[2]:.2f} s with {asked.readers}",
        )


@contextlib.contextmanager
def working(log: pathlib.Path, url: str) -> Iterator[None]:
    with log.open("ab") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "forkless", "worker"],
            stdout=out,
            stderr=out,
            env=dict(os.environ) | {"FORKLESS_DATABASE": url},
        )
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


@contextlib.contextmanager
def serving(
    log: pathlib.Path, *arguments: str, **environment: str
) -> Iterator[tuple[subprocess.Popen[bytes], str, str]]:
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "forkless", "serve", "--port", "0", *arguments],
            stdout=out,
            stderr=out,
            env=dict(os.environ) | environment,
        )
    try:
        while not (found := re.search(r"(http://\S+?)/\?token=(\S+)", log.read_text())):
            if process.poll() is not None:
                raise SystemExit(log.read_text())
            time.sleep(0.1)
        yield process, found[1], found[2]
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.web")
    for name, default in (("hosts", 800), ("tasks", 300), ("runs", 10_000), ("readers", 200), ("rounds", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--page", type=pathlib.Path, help="put the table into this page of the docs")
    asked = parser.parse_args(argv if argv is not None else [])
    from bench._figures import Figures  # here: the tests of the page load this file where there is no package `bench`

    figures = Figures("web", "The page")
    folder = tempfile.mkdtemp(prefix="forkless-bench-web-")
    os.chmod(folder, 0o711)  # as root the database runs as another user
    os.environ |= {"XDG_STATE_HOME": folder, "FORKLESS_DATABASE": ""}
    try:
        with database.located() as url, psycopg.connect(url, autocommit=True) as connection:
            with serving(pathlib.Path(folder) / "serve.log", "--processes", "0") as (process, address, token):
                measure(asked, connection, process, address, token, figures)
            cost(asked, url, connection, pathlib.Path(folder), figures)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if asked.page:
        figures.publish(asked.page)


if __name__ == "__main__":
    main(sys.argv[1:])
