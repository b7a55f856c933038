# SPDX-License-Identifier: GPL-3.0-or-later
"""
Several playbooks at once from one asyncio program, each event as it happens, and a time limit for all.

    python examples/embed/plain_asyncio.py site.yml other.yml
"""

from __future__ import annotations

import asyncio
import sys

import forkless


async def follow(playbook: str) -> forkless.Result:
    async with forkless.open_run(playbook, engine="runner") as run:
        async for event in run.events():
            if event.event.startswith("runner_on_"):
                print(f"{playbook}: {event.event.removeprefix('runner_on_')} {event.host}: {event.task}", flush=True)
        return await run.wait()


async def main(playbooks: list[str]) -> int:
    forkless.limit(4)  # the rest wait their turn
    try:
        async with asyncio.timeout(600), asyncio.TaskGroup() as group:
            tasks = [group.create_task(follow(playbook)) for playbook in playbooks]
    except TimeoutError:
        # Every run was stopped, with all its processes, before this line was reached.
        print("took too long")
        return 1
    results = [task.result() for task in tasks]
    for playbook, result in zip(playbooks, results, strict=True):
        print(f"{playbook}: {result.status}")
    return 0 if all(result.ok for result in results) else 2


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1:])))
