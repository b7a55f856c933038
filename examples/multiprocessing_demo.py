# SPDX-License-Identifier: GPL-3.0-or-later
"""
The stdlib's multiprocessing, with no process but this one.

Counts the words of some texts: a pool does the counting, a child collects, a manager keeps the score. Nothing in it
knows about threads but the first two lines.
"""

from __future__ import annotations

import forkless.multiprocessing

forkless.multiprocessing.install()

import collections  # noqa: E402
import multiprocessing  # noqa: E402
import os  # noqa: E402
import sys  # noqa: E402

TEXTS = (
    "Whenever I find myself growing grim about the mouth",
    "whenever it is a damp drizzly November in my soul",
    "whenever I find myself involuntarily pausing before coffin warehouses",
)


def count(text: str) -> tuple[str, dict[str, int]]:
    return multiprocessing.current_process().name, dict(collections.Counter(text.lower().split()))


def collect(inbox: multiprocessing.SimpleQueue[dict[str, int] | None], score: dict[str, int]) -> None:
    for counted in iter(inbox.get, None):
        for word, times in counted.items():
            score[word] = score.get(word, 0) + times


def main() -> None:
    print(f"process {os.getpid()}, Python {sys.version.split()[0]}: 4 children and a manager, and no other process")
    context = multiprocessing.get_context("spawn")
    inbox = context.SimpleQueue()
    with context.Manager() as manager, context.Pool(3) as pool:
        score = manager.dict()
        collector = context.Process(target=collect, args=(inbox, score), name="collector")
        collector.start()
        for worker, counted in pool.imap(count, TEXTS):
            print(f"  {worker} counted {sum(counted.values())} words")
            inbox.put(counted)
        inbox.put(None)
        collector.join()
        common = sorted(score.items(), key=lambda item: (-item[1], item[0]))[:3]
        print("  most common: " + ", ".join(f"{word} ({times})" for word, times in common))
        print(f"  {collector.name} ended with exit code {collector.exitcode}")


if __name__ == "__main__":
    main()
