# SPDX-License-Identifier: GPL-3.0-or-later
"""
Processes on threads against the stdlib's: start and join, queue round trips, a pool, memory.

Every figure is taken in an interpreter of its own, so that none pays for another's imports or leftovers. Contestants
take turns, and medians count, within a round and of the rounds. Beside each figure stands the CPU time that all of its
processes and threads took for it: on a busy machine that says more than the clock.
"""

from __future__ import annotations

import json
import pathlib
import resource
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDS = 5
METHODS = ("fork", "spawn", "forkserver")
CONTESTANTS = (
    *(f"stdlib {method}" for method in METHODS),
    "dummy",
    *(f"forkless {method}" for method in ("thread", *METHODS)),
)
SOURCE = pathlib.Path(__file__).resolve().parent.parent / "src"


def nothing(*_):
    """The work, where only the way there is measured."""


def small(number):
    return number + 1


def echo(inbox, outbox):
    for thing in iter(inbox.get, None):
        outbox.put(thing)


def wait(event):
    event.wait()


def toolbox(contestant):
    """Whatever has Process, Queue, Pool and Event."""
    if contestant == "dummy":
        import multiprocessing.dummy

        return multiprocessing.dummy
    import multiprocessing

    side, method = contestant.split()
    if side == "forkless":
        import forkless.multiprocessing

        forkless.multiprocessing.install()
    return multiprocessing.get_context(method)


def cpu():
    """Seconds that this process and its children that have ended used up so far."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def start_join(box, contestant):
    """Milliseconds for one child that does nothing."""
    count = 20 if contestant == "stdlib spawn" else 300
    child = box.Process(target=nothing)
    child.start()
    child.join()
    times, used = [], cpu()
    for _ in range(count):
        began = time.perf_counter()
        child = box.Process(target=nothing)
        child.start()
        child.join()
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1000, (cpu() - used) / count * 1000


def round_trips(box, size, count):
    """Round trips per second through two queues, and the CPU milliseconds of one."""
    inbox, outbox = box.Queue(), box.Queue()
    child = box.Process(target=echo, args=(inbox, outbox))
    child.start()
    thing = b"x" * size
    inbox.put(thing)
    outbox.get()
    times, used = [], cpu()
    for _ in range(count):
        began = time.perf_counter()
        inbox.put(thing)
        outbox.get()
        times.append(time.perf_counter() - began)
    inbox.put(None)
    child.join()
    return 1 / statistics.median(times), (cpu() - used) / count * 1000


def queue_100_bytes(box, _):
    return round_trips(box, 100, 2000)


def queue_1_megabyte(box, _):
    return round_trips(box, 1_000_000, 100)


def pool_map(box, _):
    """Seconds for Pool.map of 10,000 small calls one by one, the pool already there, and its CPU milliseconds."""
    used = cpu()
    with box.Pool(4) as pool:
        pool.map(small, range(100))
        began = time.perf_counter()
        assert pool.map(small, range(10_000), chunksize=1)[-1] == 10_000
        seconds = time.perf_counter() - began
        pool.close()
        pool.join()
    return seconds, (cpu() - used) * 1000


def _resident(pid):
    """
    Kilobytes that would come free if this process ended: its private memory and its share of the rest.
    """
    for line in pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1])
    return 0


def memory(box, contestant):
    """Kilobytes for one of 200 waiting children (of 20, for spawn)."""
    count = 20 if contestant == "stdlib spawn" else 200
    event = box.Event()
    before = _resident("self")
    children = [box.Process(target=wait, args=(event,)) for _ in range(count)]
    for child in children:
        child.start()
    time.sleep(3 if contestant == "stdlib spawn" else 1)
    own = contestant.startswith("stdlib")
    after = _resident("self") + sum(_resident(child.pid) for child in children if own)
    event.set()
    for child in children:
        child.join()
    return (after - before) / count, 0.0


@dataclass(frozen=True)
class Measure:
    """A figure, and the CPU time that went into it; how much better than the stdlib's each start method should be."""

    take: Callable
    less_is_better: bool
    expected: dict[str, float]

    def ratio(self, ours, theirs):
        return theirs / ours if self.less_is_better else ours / theirs


NO_SLOWER = dict.fromkeys(METHODS, 1.0)
MEASURES = {
    "start + join (ms)": Measure(start_join, True, {**NO_SLOWER, "fork": 10.0}),
    "queue, 100 B (round trips/s)": Measure(queue_100_bytes, False, NO_SLOWER),
    "queue, 1 MB (round trips/s)": Measure(queue_1_megabyte, False, NO_SLOWER),
    "Pool.map, 10,000 calls (s)": Measure(pool_map, True, NO_SLOWER),
    "memory per waiting child (kB)": Measure(memory, True, NO_SLOWER),
}


WITH_CPU = set(MEASURES) - {"memory per waiting child (kB)"}


def measure(what, contestant):
    """One figure, in an interpreter of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.multiprocessing", what, contestant],
        cwd=SOURCE.parent,
        env={"PYTHONPATH": str(SOURCE), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def compared(measure, medians):
    """Like with like: the same start method, ours against theirs. The best of several of ours would only be luck."""
    verdicts = []
    for method in METHODS:
        ratio = measure.ratio(medians[f"forkless {method}"], medians[f"stdlib {method}"])
        wanted = measure.expected[method]
        verdicts.append(f"{method} {ratio:.1f} x ({'' if ratio >= wanted else 'NOT '}{wanted:g} x expected)")
    return ", ".join(verdicts)


def row(what, rounds):
    """One line of figures, one of CPU time below it."""
    walls = {name: statistics.median(wall for wall, _ in figures) for name, figures in rounds.items()}
    text = f"{what:32}" + "".join(f"{walls[name]:20,.2f}" for name in CONTESTANTS)
    lines = [f"{text}    {compared(MEASURES[what], walls)}"]
    if what in WITH_CPU:
        used = {name: statistics.median(used for _, used in figures) for name, figures in rounds.items()}
        shown = {name: f"{used[name]:20,.3f}" for name in CONTESTANTS}
        # Its children are those of a server that lives on: the system does not tell us what they used.
        shown["stdlib forkserver"] = f"{'?':>20}"
        ratios = ", ".join(
            f"{one} {used[f'stdlib {one}'] / used[f'forkless {one}']:.1f} x" for one in ("fork", "spawn")
        )
        lines.append(f"{'  CPU (ms)':32}{''.join(shown.values())}    {ratios}")
    return "\n".join(lines)


def main() -> None:
    print(f"{'':32}" + "".join(f"{name:>20}" for name in CONTESTANTS) + "    ours to the stdlib's (more is better)")
    for what in MEASURES:
        rounds = {name: [] for name in CONTESTANTS}
        for _ in range(ROUNDS):
            for name in CONTESTANTS:
                rounds[name].append(measure(what, name))
        print(row(what, rounds), flush=True)


if __name__ == "__main__":
    print(json.dumps(MEASURES[sys.argv[1]].take(toolbox(sys.argv[2]), sys.argv[2])), flush=True)
