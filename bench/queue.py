# SPDX-License-Identifier: GPL-3.0-or-later
"""
What the queue costs, on an embedded PostgreSQL: launch to first event, runs and events per second, rows and bytes, slices.

    python -m bench.queue [--small] [--only latency,runs,events,waiting,slices,playbook] [--page docs/performance.md]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import pathlib
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from typing import TYPE_CHECKING

import psycopg

import forkless
import forkless.queue
from bench._figures import Figures
from forkless.queue import event_batches, schema
from forkless.queue.embedded import EmbeddedServer
from forkless.queue.worker import WorkerOptions

if TYPE_CHECKING:
    from collections.abc import Iterator

TASK_EVENT = {
    "event": "runner_on_ok", "stdout": "ok: [web1] => (item=nginx)", "verbosity": 0, "pid": 4711,
    "event_data": {"play": "web", "task": "install packages", "host": "web1", "duration": 0.123, "res": {"changed": False}},
}  # fmt: skip


class Place:
    """A server, a project and workers, in a folder that is removed."""

    def __init__(self, folder: str, url: str, figures: Figures) -> None:
        self.folder, self.url, self.figures = folder, url, figures
        self.project = os.path.join(folder, "project")
        os.mkdir(self.project)
        self.workers: list[subprocess.Popen[bytes]] = []

    def play(self, hosts: int, tasks: list[dict[str, object]]) -> None:
        names = "".join(f"h{number} ansible_connection=local\n" for number in range(hosts))
        pathlib.Path(self.project, "hosts.ini").write_text(names)
        pathlib.Path(self.project, "site.yml").write_text(
            json.dumps([{"hosts": "all", "gather_facts": False, "tasks": tasks}])
        )

    @property
    def spec(self) -> forkless.RunSpec:
        return forkless.RunSpec(playbook="site.yml", inventory="hosts.ini", cwd=self.project)

    def start_workers(self, many: int) -> None:
        self.stop_workers()
        for number in range(many):
            options = WorkerOptions(folder=f"{self.folder}/work{number}", key_path=f"{self.folder}/key", runs=1_000_000)
            command = [sys.executable, "-m", "forkless.queue.worker", options.as_json()]
            env = dict(os.environ) | {"FORKLESS_WORKER_DATABASE": self.url}
            self.workers.append(subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, env=env))
        self.play(1, [{"debug": None}])
        asyncio.run(self._warm(many))

    async def _warm(self, many: int) -> None:
        """Runs until each worker has carried one out: all have imported ansible-core afterwards."""
        async with forkless.queue.connect(self.url) as queue:
            names: set[str | None] = set()
            while len(names) < many:  # the database tells of runs, not of workers
                await asyncio.sleep(0.1)
                names = {worker.name for worker in await queue.workers()}
            while names:
                runs = [await queue.launch(self.spec, lock=None) for _ in range(2 * many)]
                for run in runs:
                    await run.wait()
                    names.discard((await run.record()).worker_name)

    def stop_workers(self) -> None:
        for one in self.workers:
            one.terminate()
        for one in self.workers:
            one.wait()
        self.workers = []


@contextlib.contextmanager
def place(figures: Figures) -> Iterator[Place]:
    folder = tempfile.mkdtemp(prefix="forkless-bench-")
    os.chmod(folder, 0o711)
    try:
        with EmbeddedServer(os.path.join(folder, "pg")) as server:
            schema.prepare_embedded(server.url)
            made = Place(folder, server.url, figures)
            try:
                yield made
            finally:
                made.stop_workers()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def latency(at: Place, small: bool) -> None:
    rounds = 20 if small else 100
    at.start_workers(1)

    async def measure() -> list[float]:
        found = []
        async with forkless.queue.connect(at.url) as queue:
            for _ in range(rounds):
                began = time.perf_counter()
                run = await queue.launch(at.spec, lock=None)
                async for _ in run.events():
                    found.append(time.perf_counter() - began)
                    break
                await run.wait()
        return sorted(found)

    times = asyncio.run(measure())
    p50, p99 = statistics.median(times) * 1000, times[int(len(times) * 0.99)] * 1000
    at.figures.add(f"launch to first event, 1 warm worker, {rounds} launches", f"p50 {p50:.0f} ms, p99 {p99:.0f} ms")


def runs(at: Place, small: bool) -> None:
    many = 40 if small else 200
    for workers in (1, 2) if small else (1, 2, 4):
        at.start_workers(workers)

        async def measure() -> tuple[float, float]:
            async with forkless.queue.connect(at.url) as queue:
                began = time.perf_counter()
                launched = [await queue.launch(at.spec, lock=None) for _ in range(many)]
                queued = time.perf_counter() - began
                async for _ in queue.changes():
                    counts = await queue.counts()
                    if not counts.get("waiting", 0) + counts.get("running", 0):
                        break
                assert len(launched) == many
                return many / queued, many / (time.perf_counter() - began)

        into, through = asyncio.run(measure())
        at.figures.add(f"runs of one debug task, {workers} workers", f"{through:.1f} runs/s ({into:.0f} launches/s)")


def _run_ids(at: Place, many: int) -> list[tuple[int, int]]:
    """Runs that were claimed by nobody's worker, with their attempts: to write events into."""

    async def launch() -> list[int]:
        async with forkless.queue.connect(at.url) as queue:
            return [(await queue.launch(at.spec, lock=None)).number for _ in range(many)]

    at.stop_workers()
    at.play(1, [{"debug": None}])
    found = []
    with psycopg.connect(at.url, autocommit=True) as connection:
        for number in asyncio.run(launch()):
            query = "SELECT forkless.claim(id, queue_job, 1, 'bench', '{}', 3600) FROM forkless.run WHERE id = %s"
            row = connection.execute(query, (number,)).fetchone()
            assert row is not None
            found.append((number, int(row[0]["attempt"])))
    return found


def events(at: Place, small: bool) -> None:
    total, size = (10_000, 100) if small else (100_000, 100)
    dice = random.Random(7)  # half of each event is what no compression makes smaller
    lines = [
        json.dumps(
            TASK_EVENT | {"counter": number, "uuid": f"{number:032x}", "end": dice.randbytes(300).hex()}
        ).encode()
        + b"\n"
        for number in range(size)
    ]
    for writers in (1, 4) if small else (1, 10):
        targets = _run_ids(at, writers)

        def write(run: int, attempt: int, many: int) -> None:
            with psycopg.connect(at.url, autocommit=True) as connection:
                for first in range(1, many, size):
                    packed, raw = event_batches.pack(lines)
                    connection.execute(
                        "SELECT forkless.append_events(%s, %s, %s, %s, %s, %s, NULL, NULL)",
                        (run, attempt, first, first + size - 1, packed, raw),
                    )

        sizes = "SELECT count(*), pg_total_relation_size('forkless.event_batch') FROM forkless.event_batch"
        with psycopg.connect(at.url, autocommit=True) as connection:
            before = connection.execute(sizes).fetchone()
            threads = [threading.Thread(target=write, args=(*one, total // writers)) for one in targets]
            began = time.perf_counter()
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            took = time.perf_counter() - began
            after = connection.execute(sizes).fetchone()
        assert before is not None
        assert after is not None
        at.figures.add(
            f"{total} events in batches of {size} from {writers} writers",
            f"{total / took:.0f} events/s, {after[0] - before[0]} rows, {(after[1] - before[1]) / 1e6:.1f} MB",
        )


def waiting(at: Place, small: bool) -> None:
    many = 1_000 if small else 10_000
    at.stop_workers()
    at.play(1, [{"debug": None}])

    async def fill() -> float:
        async with forkless.queue.connect(at.url) as queue:
            began = time.perf_counter()
            for _ in range(many):
                await queue.launch(at.spec)  # of one lock: all but the first wait for it
            return time.perf_counter() - began

    took = asyncio.run(fill())
    with psycopg.connect(at.url, autocommit=True) as connection:
        began = time.perf_counter()
        connection.execute("SELECT forkless.dispatch_due()")
        tick = time.perf_counter() - began
        began = time.perf_counter()
        row = connection.execute("SELECT forkless.cancel(id, 'bench') FROM forkless.run WHERE holds_lock").fetchone()
        handed = time.perf_counter() - began
        connection.execute("UPDATE forkless.run SET status = 'canceled', ended = now(), holds_lock = false")
        connection.execute("DELETE FROM forkless.procrastinate_jobs")
    assert row is not None
    at.figures.add(
        f"{many} waiting runs of one lock",
        f"launched in {took:.1f} s, a sweep takes {tick * 1000:.0f} ms, handing the lock on {handed * 1000:.0f} ms",
    )


def _controller_bound() -> list[dict[str, object]]:
    """Tasks that set_fact, debug and assert, some with loops."""
    loop = "{{ range(5) | list }}"
    return [
        {"set_fact": {"a": "{{ inventory_hostname }}"}}, {"debug": {"msg": "{{ a }}"}}, {"assert": {"that": ["a is defined"]}},
        {"set_fact": {"b": "{{ item }}"}, "loop": loop}, {"debug": {"msg": "{{ item }}"}, "loop": loop},
        {"assert": {"that": ["item >= 0"]}, "loop": loop}, {"set_fact": {"c": 1}}, {"debug": {"var": "c"}},
    ]  # fmt: skip


def slices(at: Place, small: bool) -> None:
    hosts = 40 if small else 200
    at.start_workers(2)
    at.play(hosts, _controller_bound())
    took = {}
    for many in (None, 2):

        async def measure(many: int | None = many) -> float:
            async with forkless.queue.connect(at.url) as queue:
                run = await queue.launch(at.spec, lock=None, slices=many)
                (await run.wait()).raise_for_failures()
                record = await run.record()
                assert record.ended is not None
                assert record.started is not None
                return (record.ended - record.started).total_seconds()

        took[many] = min(asyncio.run(measure()) for _ in range(1 if small else 3))
    at.figures.add(
        f"{hosts} hosts x 8 tasks on the controller, launched",
        f"one run {took[None]:.1f} s, 2 slices {took[2]:.1f} s: {took[None] / took[2]:.2f}x",
    )


def playbook(at: Place, small: bool) -> None:
    """The same without a queue: `forkless playbook --slices 2` against one run, and against stock, in turns."""
    hosts, rounds = (40, 1) if small else (200, 3)
    at.stop_workers()
    at.play(hosts, _controller_bound())
    # As pip installs it: with byte code on disk, which the first round writes.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    env["PYTHONPYCACHEPREFIX"] = os.path.join(at.folder, "bytecode")
    ours = [sys.executable, "-m", "forkless", "playbook"]
    commands = {"one": ours, "sliced": [*ours, "--slices", "2"]}
    took: dict[str, list[float]] = {name: [] for name in commands}
    spent: dict[str, list[float]] = {name: [] for name in commands}

    def measure(command: list[str]) -> tuple[float, float]:
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run(
            [*command, "-i", "hosts.ini", "site.yml"], cwd=at.project, env=env, stdout=subprocess.DEVNULL, check=True
        )
        wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
        return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    measure([*commands["one"], "--syntax-check"])
    for _ in range(rounds):
        for name, command in commands.items():
            wall, cpu = measure(command)
            took[name].append(wall)
            spent[name].append(cpu)
    stock = measure([os.path.join(os.path.dirname(sys.executable), "ansible-playbook")])[0]
    one, sliced = min(took["one"]), min(took["sliced"])
    at.figures.add(
        f"the same with `forkless playbook`, {hosts} hosts",
        f"one run {one:.1f} s ({min(spent['one']):.1f} s CPU), `--slices 2` {sliced:.1f} s ({min(spent['sliced']):.1f} s CPU): "
        f"{one / sliced:.2f}x; stock {stock:.1f} s: {stock / sliced:.2f}x",
    )


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.queue")
    parser.add_argument("--small", action="store_true", help="a tenth of everything, for a busy machine")
    parser.add_argument("--only", default="latency,runs,events,waiting,slices,playbook")
    parser.add_argument("--page", type=pathlib.Path, help="put the table into this page of the docs")
    options = parser.parse_args(argv if argv is not None else [])
    figures = Figures("queue", "The queue")
    with place(figures) as at:
        for name in options.only.split(","):
            parts = {"latency": latency, "runs": runs, "events": events, "waiting": waiting}
            (parts | {"slices": slices, "playbook": playbook})[name](at, options.small)
    if options.page:
        figures.publish(options.page)


if __name__ == "__main__":
    main(sys.argv[1:])
