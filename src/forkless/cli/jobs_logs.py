# SPDX-License-Identifier: GPL-3.0-or-later
"""forkless jobs logs (and `output`): what a job has printed, once or for as long as it runs."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from forkless.cli.jobs_lookup import NOT_KNOWN, ask, code_of, find_one, job_part
from forkless.cli.jobs_view import print_json, tell
from forkless.cli.terminal_text import lines
from forkless.core.errors import StoreError

if TYPE_CHECKING:
    import argparse

    from forkless.cli.jobs_client import HostAnswer
    from forkless.jobs import JobRegistry, Record

__all__ = ["logs"]

# After this many errors in a row the command ends with an error; a host that cannot be reached does not count.
_FAILURES = 5
# A host that is connected and silent counts as unreachable after this many seconds.
_ANSWER_WITHIN = 120.0


def logs(book: JobRegistry, asked: argparse.Namespace) -> int:
    """
    Print what the job has printed. With --follow until the job is over: the record and the host are asked again and
    again, so any controller can follow, and one that lost the host, or the store, goes on where it was.
    """
    position: dict[str, Any] = {"path": asked.path, "offset": 0}
    if asked.tail is not None:
        position["tail"] = asked.tail
    first: Record | None = None
    told, failures = "", 0
    while True:
        answer, trouble = None, ""
        try:
            record = find_one(book, asked, asked.job)
            if first is not None and record.ansible_job_id != first.ansible_job_id and first.ansible_job_id:
                return tell([f"job '{asked.job}' was started anew meanwhile; the one that was followed is over."])
            first = record
            answer = ask("output", [record], asked, timeout=_ANSWER_WITHIN, **position)[0]
            trouble = answer.trouble
        except StoreError as error:
            if not asked.follow:
                raise
            trouble = str(error)
        if answer is None or trouble:
            if trouble != told:
                tell([trouble])
            told = trouble
            failures = failures + 1 if answer is not None and not answer.result.get("unreachable") else 0
            if not asked.follow:
                return code_of(answer) if answer is not None else NOT_KNOWN
            if failures >= _FAILURES:
                return NOT_KNOWN
            time.sleep(asked.interval)
            continue
        if told:
            tell([f"{answer.host} answers again."])
        told, failures = "", 0
        result = answer.result
        _print(answer, asked)
        if result["source"] and result["source"] != result["job"]["results_file"]:
            # Found by the processes of the job; it must still be found when they have ended.
            position["path"] = result["source"]
        position["offset"] = result["offset"]
        if result["source"]:
            position.pop("tail", None)  # the last lines are shown; from here on everything is
        if result["offset"] < result["size"] and result["output"]:
            continue
        running = result["job"]["state"] == "running"
        if not running or not asked.follow:
            if running and not result["source"]:
                sys.stderr.write(
                    "Ansible holds this job's output until it ends; let it write to a file to read along.\n"
                )
            return 0
        time.sleep(asked.interval)


def _print(answer: HostAnswer, asked: argparse.Namespace) -> None:
    result = answer.result
    if asked.format == "json":
        parts = {name: result[name] for name in ("output", "source", "offset")}
        print_json({"host": answer.host, **parts, **job_part(result)})
    else:
        text = result["output"].encode(errors="replace").decode()
        # A file gets what the job printed; a terminal would obey escape sequences in it.
        sys.stdout.write(lines(text) if sys.stdout.isatty() else text)
        sys.stdout.flush()
