# SPDX-License-Identifier: GPL-3.0-or-later
"""The playbooks of the app, and one run of one of them. Knows nothing of screens."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

import forkless

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Callable

# A phone has no folder of ours in its home: what Ansible writes goes to the app's own.
SETTINGS = ("ANSIBLE_HOME", "ANSIBLE_LOCAL_TEMP", "ANSIBLE_REMOTE_TEMP")


@dataclass(frozen=True)
class Playbook:
    title: str
    path: pathlib.Path


class PlaybookLibrary:
    """Playbooks that came with the app, and those that were put into its folder."""

    def __init__(self, *folders: pathlib.Path) -> None:
        self._folders = folders

    def playbooks(self) -> list[Playbook]:
        found = {
            path.stem: path for folder in self._folders if folder.is_dir() for path in sorted(folder.glob("*.yml"))
        }
        return [
            Playbook(stem.replace("_", " ").replace("-", " ").capitalize(), path)
            for stem, path in sorted(found.items())
        ]


class Session:
    """At most one run at a time. `say` gets its output as it comes, `changed` is called when it starts and ends."""

    def __init__(self, home: pathlib.Path, say: Callable[[str], None], changed: Callable[[], None]) -> None:
        self._home, self._say, self._changed = home, say, changed
        self._under_way: asyncio.Task[None] | None = None
        self.verdict = "ready"

    @property
    def busy(self) -> bool:
        return self._under_way is not None and not self._under_way.done()

    def start(self, playbook: Playbook) -> asyncio.Task[None]:
        if self.busy:
            raise RuntimeError("one run is under way already; stop it first")
        self._under_way = asyncio.ensure_future(self._follow(playbook))
        return self._under_way

    def stop(self) -> None:
        """Ask; the run ends when its tasks have."""
        if self.busy:
            self.verdict = "stopping"
            self._changed()
            self._under_way.cancel()

    async def _follow(self, playbook: Playbook) -> None:
        folder = self._home / "ansible"
        folder.mkdir(parents=True, exist_ok=True)
        hosts = playbook.path.with_suffix(".ini")
        env = {"HOME": str(self._home), "ANSIBLE_LOCALHOST_WARNING": "false", "ANSIBLE_NOCOLOR": "true"}
        env |= dict.fromkeys(SETTINGS, str(folder))
        self.verdict = "running"
        self._changed()
        try:
            async with forkless.open_run(
                playbook.path,
                inventory=hosts if hosts.exists() else "localhost,",
                cwd=playbook.path.parent,
                env=env,
                modules="in-process",  # as on the phone, also where the app is tried out on a desk
            ) as run:
                async for event in run.events():
                    if event.stdout:
                        self._say(event.stdout + "\n")
                result = await run.wait()
            self.verdict = "done" if result.rc == 0 else f"failed ({result.rc})"
        except asyncio.CancelledError:
            self.verdict = "stopped"
        except forkless.ForklessError as err:
            self.verdict = "failed"
            self._say(f"{err}\n")
        finally:
            self._changed()
