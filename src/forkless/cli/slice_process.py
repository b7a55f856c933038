# SPDX-License-Identifier: GPL-3.0-or-later
"""
One slice of `forkless playbook --slices`: a process that carries the playbook out on its part of the hosts.

It is started as `python -m forkless.cli.slice_process DESCRIPTOR ANSWER ARGUMENTS` before the parts are known: it imports ansible-core and reads
the inventory meanwhile, and then its limit, and the core that it has for itself, from the descriptor. The first slice has a descriptor ANSWER: it looks which hosts there are and what
stands against slices, and writes that there before it waits; a process of its own for this would import ansible-core once more. It writes a line
of JSON for each piece of Ansible's output, and no events: making, sending and reading them took more of the processor than debug and set_fact
tasks take themselves.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from typing import TYPE_CHECKING, BinaryIO

from forkless.cli import guarded, slice_affinity, slice_records
from forkless.cli.ansible_command import run_command
from forkless.cli.command_view import CommandView
from forkless.cli.slice_records import COLUMNS, HEADER, TEXT, SliceRecords
from forkless.core.errors import SpecError
from forkless.core.terminal import TerminalChoices
from forkless.core.thread_stack import OwnThread

if TYPE_CHECKING:
    import argparse

    from ansible.executor.stats import AggregateStats
    from ansible.inventory.manager import InventoryManager
    from ansible.parsing.dataloader import DataLoader
    from ansible.vars.manager import VariableManager

__all__ = ["main"]


class _MethodsWithoutResults(frozenset[str]):
    """
    The methods that a callback plugin has, as ansible-core asks for them (since 2.19) before it calls one. Those with other text than a header
    are denied, and what was printed is put into a record: ansible-core copies a result for each method that it calls, and ours reads none.
    """

    records: SliceRecords
    texts: frozenset[str]

    def __contains__(self, name: object) -> bool:
        if name in self.texts:
            self.records.put(TEXT)
            return False
        return super().__contains__(name)


def _make_callback(records: SliceRecords) -> object:
    """A callback plugin that ends a record. Ansible calls it after the plugin that prints."""
    from ansible.plugins.callback import CallbackBase

    def text(*_: object, **__: object) -> None:
        records.put(TEXT)

    def header(*_: object, **__: object) -> None:
        records.put(HEADER)

    def stats(_: object, stats: AggregateStats) -> None:
        records.put_recap(
            {
                host: {column: getattr(stats, count).get(host, 0) for column, count in COLUMNS.items()}
                for host in stats.processed
            }
        )

    headers = {f"v2_playbook_on_{what}start" for what in ("", "play_", "task_", "cleanup_task_", "handler_task_")}
    # Not v2_on_any, which ansible-core 2.23 removes.
    methods: dict[str, object] = {
        name: text for name in dir(CallbackBase) if name.startswith(("v2_runner_", "v2_playbook_on_"))
    }
    methods |= dict.fromkeys(headers, header) | {"v2_playbook_on_stats": stats}
    del methods["v2_runner_on_start"]  # prints nothing by default, and is called for each task and host
    about = {"CALLBACK_VERSION": 2.0, "CALLBACK_TYPE": "notification", "CALLBACK_NAME": "forkless.slice"}
    made = type("SliceCallback", (CallbackBase,), {**methods, **about})()
    if hasattr(made, "_init_callback_methods"):
        made._init_callback_methods()
        made._implemented_callback_methods = known = _MethodsWithoutResults(made._implemented_callback_methods)
        known.records = records
        known.texts = frozenset(name for name, method in methods.items() if method is text)
    return made


class _SliceView(CommandView):
    """The Terminal of a slice. It prints nothing itself."""

    def __init__(self, descriptor: int, answer: int) -> None:
        super().__init__("ansible-playbook")
        self._descriptor, self._answer = descriptor, answer
        self._records = SliceRecords(sys.stdout)
        # What is wrong with the arguments or the inventory is said once, by the first slice.
        self._stderr = -1
        self._kept: BinaryIO | None = None
        if answer < 0:
            self._stderr, self._kept = _kept_back_stderr()

    def _limit(self, loader: DataLoader, inventory: InventoryManager, variables: VariableManager) -> str:
        """Arguments and inventory are read. Wait until the hosts of this slice are known."""
        if self._answer >= 0:
            from forkless.engines.threads import slicing

            with open(self._answer, "w", encoding="utf-8") as file:
                json.dump(slicing.answer_about(loader, inventory, variables), file)
        told = self._told()
        kept, self._kept = self._kept, None
        if not told:  # the parent has ended, or has no hosts for this slice
            raise SystemExit(0)
        limit, core = slice_records.part_in(told)
        if core is not None and (kept_to := slice_affinity.keep_to(core)) is not None:
            watch = OwnThread(target=self._free_when_told, args=(kept_to,), name="forkless-slice-core")
            with contextlib.suppress(RuntimeError):  # no thread can be started: the slice stays on its core
                watch.start()
        if kept is not None:
            sys.stderr.flush()
            os.dup2(self._stderr, 2)
        return limit

    def _told(self) -> str:
        """What the parent says when it knows the hosts: a line, or nothing. The end comes when a slice has ended."""
        told = b""
        while not told.endswith(b"\n") and (more := os.read(self._descriptor, 1 << 16)):
            told += more
        return told.decode()

    def _free_when_told(self, kept: slice_affinity.Kept) -> None:
        os.read(self._descriptor, 1)  # ends with the parent, or with a slice
        kept.free()

    def tell_failure(self) -> None:
        """The slice has failed. If that was before it knew its hosts, and it has some, write what was kept back: no other slice says it."""
        if self._kept is not None and self._told():
            sys.stderr.flush()
            os.dup2(self._stderr, 2)
            self._kept.seek(0)
            sys.stderr.write(self._kept.read().decode("utf-8", "replace"))

    def begin(self, options: argparse.Namespace) -> TerminalChoices:
        if _asks(options):
            raise SpecError(
                "a password would be asked for in every slice; name a file "
                "(--become-password-file, --connection-password-file, --vault-password-file)"
            )
        return TerminalChoices(
            limit=self._limit,
            modules=options.modules,
            stuck_after=options.stuck_after if options.stuck_after > 0 else None,
            stdout=self._records,
            callbacks=[lambda: _make_callback(self._records)],
        )

    def ended(self) -> None:
        self._records.put(TEXT)


def _asks(options: argparse.Namespace) -> bool:
    """Whether Ansible would ask for a password. Its parser knows short flags in one word, the environment and ansible.cfg."""
    from ansible import constants

    identities = [*constants.DEFAULT_VAULT_IDENTITY_LIST, *options.vault_ids]
    sources = [one.partition("@")[2] if "@" in one else one for one in identities]
    return bool(
        options.ask_pass
        or options.become_ask_pass
        or options.ask_vault_pass
        or {"prompt", "prompt_ask_vault_pass"}.intersection(sources)
    )


def _kept_back_stderr() -> tuple[int, BinaryIO]:
    """Keep back what is written to stderr: a descriptor for what stderr was, and the file that takes it."""
    before, kept = os.dup(2), tempfile.TemporaryFile()  # noqa: SIM115  # open until the slice knows its hosts
    os.dup2(kept.fileno(), 2)
    return before, kept


def main(argv: list[str]) -> int:
    descriptor, answer = int(argv[0]), int(argv[1])
    for one in (descriptor, answer):
        if one >= 0:
            os.set_inheritable(one, False)
    view = _SliceView(descriptor, answer)
    code = 1
    try:
        code = run_command("ansible-playbook", argv[2:], view=view)
    finally:
        if code:
            view.tell_failure()
    return code


if __name__ == "__main__":
    sys.exit(guarded(lambda: main(sys.argv[1:])))
