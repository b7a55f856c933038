# SPDX-License-Identifier: GPL-3.0-or-later
"""
Processes on threads against the stdlib's: start and join, queue round trips, a pool, memory.

Every figure is taken in an interpreter of its own, so that none pays for another's imports or leftovers. Contestants
take turns, and the median of the rounds counts: on a busy machine the ratios hold where the figures do not.
"""

from __future__ import annotations

import json
import pathlib
import statistics
import subprocess
import sys
import time

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


def start_join(box, contestant):
    """Seconds for one child that does nothing."""
    count = 20 if contestant == "stdlib spawn" else 300
    box.Process(target=nothing).start()
    began = time.perf_counter()
    for _ in range(count):
        child = box.Process(target=nothing)
        child.start()
        child.join()
    return (time.perf_counter() - began) / count


def round_trips(box, size, count):
    """Round trips per second through two queues."""
    inbox, outbox = box.Queue(), box.Queue()
    child = box.Process(target=echo, args=(inbox, outbox))
    child.start()
    thing = b"x" * size
    inbox.put(thing)
    outbox.get()
    began = time.perf_counter()
    for _ in range(count):
        inbox.put(thing)
        outbox.get()
    seconds = time.perf_counter() - began
    inbox.put(None)
    child.join()
    return count / seconds


def queue_100_bytes(box, _):
    return round_trips(box, 100, 2000)


def queue_1_megabyte(box, _):
    return round_trips(box, 1_000_000, 100)


def pool_map(box, _):
    """Seconds for Pool.map of 10,000 small calls, the pool already there."""
    with box.Pool(4) as pool:
        pool.map(small, range(100))
        began = time.perf_counter()
        assert pool.map(small, range(10_000), chunksize=1)[-1] == 10_000
        return time.perf_counter() - began


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
    return (after - before) / count


MEASURES = {
    "start + join (ms)": (start_join, 1000, "less"),
    "queue, 100 B (round trips/s)": (queue_100_bytes, 1, "more"),
    "queue, 1 MB (round trips/s)": (queue_1_megabyte, 1, "more"),
    "Pool.map, 10,000 calls (s)": (pool_map, 1, "less"),
    "memory per waiting child (kB)": (memory, 1, "less"),
}


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


def main() -> None:
    print(f"{'':32}" + "".join(f"{name:>20}" for name in CONTESTANTS) + "   ours to the stdlib's (more is better)")
    for what, (_, scale, better) in MEASURES.items():
        figures = {name: [] for name in CONTESTANTS}
        for _ in range(ROUNDS):
            for name in CONTESTANTS:
                figures[name].append(measure(what, name))
        medians = {name: statistics.median(rounds) * scale for name, rounds in figures.items()}
        # Like with like: the same start method, ours against theirs. The best of several of ours would only be luck.
        ratios = []
        for method in METHODS:
            ours, theirs = medians[f"forkless {method}"], medians[f"stdlib {method}"]
            ratios.append(f"{method} {theirs / ours if better == 'less' else ours / theirs:.1f} x")
        row = "".join(f"{medians[name]:20,.2f}" for name in CONTESTANTS)
        print(f"{what:32}{row}    {', '.join(ratios)}", flush=True)


if __name__ == "__main__":
    function, _, _ = MEASURES[sys.argv[1]]
    print(json.dumps(function(toolbox(sys.argv[2]), sys.argv[2])), flush=True)
