# SPDX-License-Identifier: GPL-3.0-or-later
"""forkless jobs: the records that the roles keep, and the jobs behind them, from a shell."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from typing import TYPE_CHECKING, Any

from forkless._errors import ForklessError
from forkless.cli import _jobs_door
from forkless.jobs import CLAIMED, STATE_DIR, JobBook, Record, open_store

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]

ENDED = ("done", "failed", "killed", "timed_out", "dead", "lost")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_COLOURS = {"running": "36", "done": "32", "claimed": "36", "unreachable": "35"}

EXAMPLES = """\
examples:
  forkless jobs list
  forkless jobs show rebuild --host web1
  forkless jobs status -i hosts.ini
  forkless jobs wait rebuild --host web1 -i hosts.ini --timeout 3600
  forkless jobs output rebuild -i hosts.ini --follow
  forkless jobs kill rebuild --host web1 -i hosts.ini
  forkless jobs cleanup -i hosts.ini --older-than 7d
  forkless jobs list --store 's3://bucket/jobs' --format json

Records are read from .ansible_async_state in the current folder unless --store says otherwise. list and show ask no
host; the others do, with Ansible's own connections. Exit codes: 0 as wished, 1 not (the job failed, a host could not be
asked, a record is damaged), 2 for arguments that make no sense.
"""


def main(argv: Sequence[str] | None = None) -> int:
    asked = _parser().parse_args(argv)
    try:
        store = open_store(asked.store)
        try:
            code: int = asked.run(JobBook(store), asked)
            return code
        finally:
            store.close()
    except ForklessError as error:
        sys.stderr.write(f"forkless jobs: {error}\n")
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Whoever read along has seen enough. Python would complain again when it closes the stream.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="forkless jobs",
        description="Jobs that outlive their play.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def command(name: str, run: Any, text: str, *, job: str = "", hosts: bool = True) -> argparse.ArgumentParser:
        own = [line for line in EXAMPLES.splitlines() if line.startswith(f"  forkless jobs {name}")]
        sub = commands.add_parser(
            name,
            help=text,
            description=text,
            epilog="\n".join(["examples:", *own]),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        sub.set_defaults(run=run)
        if job:
            sub.add_argument("job", nargs="?" if job == "?" else None, help="the job's name")
        sub.add_argument("--host", default="", help="only jobs of this host")
        sub.add_argument("--playbook-name", default="", help="only jobs of this playbook")
        sub.add_argument(
            "--store", default=f"file:{STATE_DIR}", metavar="URL", help="file:/path, s3://... or ara+http://..."
        )
        sub.add_argument("--format", choices=["table", "json"], default="table")
        if hosts:
            reach = sub.add_argument_group("how to reach the hosts, as for ansible-playbook")
            reach.add_argument("-i", "--inventory", action="append", default=[])
            reach.add_argument("-u", "--user")
            reach.add_argument("-b", "--become", action="store_true")
            reach.add_argument("-c", "--connection")
            reach.add_argument("--private-key")
            reach.add_argument("-e", "--extra-vars", action="append", default=[])
        return sub

    command("list", _list, "list what is remembered", job="?", hosts=False)
    command("show", _show, "show one record", job="!", hosts=False)
    command("status", _status, "ask the hosts what has become of jobs", job="?")
    wait = command("wait", _wait, "wait until a job is over", job="!")
    wait.add_argument("--timeout", type=_seconds, help="give up after this time (seconds, or 10m, 2h, 1d)")
    wait.add_argument("--interval", type=_seconds, default=5.0, help="how often to ask (default: 5)")
    kill = command("kill", _kill, "end a running job", job="!")
    kill.add_argument("--signal", type=int, default=15, help="the first signal (default: 15)")
    kill.add_argument("--grace", type=_seconds, default=10.0, help="time until SIGKILL (default: 10)")
    cleanup = command("cleanup", _cleanup, "forget jobs that are over; running ones are never touched", job="?")
    cleanup.add_argument("--state", action="append", choices=ENDED, help="only in this state (may be repeated)")
    cleanup.add_argument("--older-than", type=_seconds, default=0.0, help="only if it ended so long ago (7d, 12h, ...)")
    output = command("output", _output, "show what a job has printed so far", job="!")
    output.add_argument("-f", "--follow", action="store_true", help="go on until the job is over")
    output.add_argument("--path", default="", help="the file that the job prints to")
    output.add_argument("--interval", type=_seconds, default=2.0, help="how often to look when following (default: 2)")
    return parser


def _seconds(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw]?)", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"'{text}' is no time; write seconds, or 30s, 10m, 12h, 7d, 2w")
    return float(match[1]) * _UNITS[match[2] or "s"]


# -- the commands


def _list(book: JobBook, asked: argparse.Namespace) -> int:
    records, problems = _records(book, asked)
    if asked.format == "json":
        _json([record.shown() for record in records])
    else:
        _table(
            ["HOST", "JOB", "PLAYBOOK", "ID", "SAVED", "STATE"],
            [
                [r.key.host, r.key.job_name, r.key.playbook_name or "-", r.ansible_job_id or "-", r.save_time, r.state]
                for r in records
            ],
        )
    return _tell(problems)


def _show(book: JobBook, asked: argparse.Namespace) -> int:
    record = _the_one(book, asked)
    if asked.format == "json":
        _json(record.shown())
    else:
        for name, value in record.shown().items():
            print(f"{name + ':':<16}{value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}")
    return 0


def _status(book: JobBook, asked: argparse.Namespace) -> int:
    records, problems = _records(book, asked)
    answers = _ask("status", [record for record in records if record.state != CLAIMED], asked)
    rows = [_row(answer) for answer in answers]
    rows += [
        {"host": r.key.host, "job_name": r.key.job_name, "playbook_name": r.key.playbook_name, "state": "claimed"}
        for r in records
        if r.state == CLAIMED
    ]
    if asked.format == "json":
        _json(rows)
    else:
        head = ["HOST", "JOB", "STATE", "RC", "START", "END", "WHY"]
        names = ["host", "job_name", "state", "rc", "start", "end", "why"]
        _table(head, [[_cell(row.get(name)) for name in names] for row in rows])
    return _tell(problems + [answer.trouble for answer in answers if answer.trouble])


def _wait(book: JobBook, asked: argparse.Namespace) -> int:
    deadline = None if asked.timeout is None else time.monotonic() + asked.timeout
    while True:
        record = _the_one(book, asked)
        answer = _ask("status", [record], asked)[0]
        if answer.trouble:
            return _tell([answer.trouble])
        row = _row(answer)
        if row["state"] not in ("running", "claimed"):
            break
        if deadline is not None and time.monotonic() >= deadline:
            return _tell([f"{record.key} is still {row['state']} after {asked.timeout:.0f} s."])
        time.sleep(asked.interval if deadline is None else max(0.0, min(asked.interval, deadline - time.monotonic())))
    if asked.format == "json":
        _json(row)
    else:
        print(_sentence(row))
    return 0 if row["state"] == "done" else 1


def _kill(book: JobBook, asked: argparse.Namespace) -> int:
    record = _the_one(book, asked)
    answer = _ask("kill", [record], asked, signal=asked.signal, grace=asked.grace)[0]
    if answer.trouble:
        return _tell([answer.trouble])
    row = _row(answer) | {"seen": answer.result["seen"]}
    if asked.format == "json":
        _json(row)
    else:
        seen = row["seen"]
        print(f"before: {seen['before']}; signalled: {_pids(seen['signalled'])}; killed: {_pids(seen['killed'])}")
        print(_sentence(row))
    return 1 if row["state"] == "running" else 0


def _cleanup(book: JobBook, asked: argparse.Namespace) -> int:
    records, problems = _records(book, asked)
    items = [
        {"host": host, "job_name": asked.job or "", "playbook_name": asked.playbook_name}
        for host in sorted({record.key.host for record in records})
    ]
    wanted = {"states": asked.state or list(ENDED), "older_than": asked.older_than}
    answers = _jobs_door.ask("cleanup", items, _reach(asked), **_place(asked), **wanted)
    removed = [what for answer in answers for what in answer.result.get("removed", [])]
    kept = [what for answer in answers for what in answer.result.get("kept", [])]
    if asked.format == "json":
        _json({"removed": removed, "kept": kept})
    else:
        rows = [[w["host"], w["job_name"], w["state"], "removed"] for w in removed]
        rows += [[w["host"], w["job_name"], w["state"], f"kept: {w['why']}"] for w in kept]
        _table(["HOST", "JOB", "STATE", "WHAT"], rows)
    return _tell(problems + [answer.trouble for answer in answers if answer.trouble])


def _output(book: JobBook, asked: argparse.Namespace) -> int:
    offset = 0
    while True:
        record = _the_one(book, asked)
        answer = _ask("output", [record], asked, path=asked.path, offset=offset)[0]
        if answer.trouble:
            return _tell([answer.trouble])
        result = answer.result
        running = result["job"]["state"] == "running"
        if asked.format == "json":
            _json(
                {"host": answer.host, **{name: result[name] for name in ("output", "source", "offset")}, **_job(result)}
            )
        else:
            sys.stdout.write(result["output"])
            sys.stdout.flush()
        if result["offset"] < result["size"] and result["output"]:
            offset = result["offset"]
            continue
        if not running or not asked.follow:
            if running and not result["source"] and not asked.follow:
                sys.stderr.write(
                    "Ansible holds this job's output until it ends; let it write to a file to read along.\n"
                )
            return 0
        offset = result["offset"]
        time.sleep(asked.interval)


# -- steps of these


def _records(book: JobBook, asked: argparse.Namespace) -> tuple[list[Record], list[str]]:
    problems: list[str] = []
    found = book.jobs(asked.host, job_name=asked.job or "", playbook_name=asked.playbook_name, problems=problems)
    return found, problems


def _the_one(book: JobBook, asked: argparse.Namespace) -> Record:
    found, problems = _records(book, asked)
    if len(found) == 1:
        return found[0]
    if found:
        where = ", ".join(sorted({f"{r.key.host} {r.key.playbook_name}".strip() for r in found}))
        raise ForklessError(
            f"there are several jobs '{asked.job}' ({where}); say which with --host or --playbook-name."
        )
    if problems:
        raise ForklessError(problems[0])
    raise ForklessError(f"there is no job '{asked.job}' in {book.store.url}; `forkless jobs list` shows what there is.")


def _ask(op: str, records: list[Record], asked: argparse.Namespace, **arguments: Any) -> list[_jobs_door.Answer]:
    items = [{"host": r.key.host, "job_name": r.key.job_name, "playbook_name": r.key.playbook_name} for r in records]
    return _jobs_door.ask(op, items, _reach(asked), **_place(asked), **arguments)


def _place(asked: argparse.Namespace) -> dict[str, str]:
    return {"backend": asked.store}


def _reach(asked: argparse.Namespace) -> _jobs_door.Reach:
    args: list[str] = []
    for flag, value in (("-u", asked.user), ("-c", asked.connection), ("--private-key", asked.private_key)):
        args += [flag, value] if value else []
    for value in asked.extra_vars:
        args += ["-e", value]
    return _jobs_door.Reach(tuple(asked.inventory), asked.become, tuple(args))


def _job(result: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in result.get("job", {}).items() if name not in ("stdout", "stderr")}


def _row(answer: _jobs_door.Answer) -> dict[str, Any]:
    names = {"host": answer.host, "job_name": answer.item["job_name"], "playbook_name": answer.item["playbook_name"]}
    if answer.trouble:
        return names | {"state": "unreachable", "why": answer.trouble}
    job: dict[str, Any] = answer.result["job"]
    return names | job


def _sentence(row: dict[str, Any]) -> str:
    more = [f"{name} {row[name]}" for name in ("rc", "signal") if row.get(name) is not None]
    more += [str(row[name]) for name in ("why",) if row.get(name)]
    return f"{row['job_name']} on {row['host']}: {_coloured(row['state'])}" + (f" ({'; '.join(more)})" if more else "")


def _pids(pids: list[int]) -> str:
    return ", ".join(map(str, pids)) or "none"


def _cell(value: Any) -> str:
    return "-" if value in (None, "") else str(value)


def _json(thing: Any) -> None:
    print(json.dumps(thing, indent=2, ensure_ascii=False))


def _table(head: list[str], rows: list[list[str]]) -> None:
    # A name may hold anything, and a table has one line per row.
    rows = [[_printable(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    state = head.index("STATE")
    for row in [head, *rows]:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        if row is not head:
            cells[state] = _coloured(row[state]) + cells[state][len(row[state]) :]
        print("  ".join(cells).rstrip())


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _coloured(state: str) -> str:
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR") or os.environ.get("ANSIBLE_NOCOLOR"):
        return state
    return f"\x1b[{_COLOURS.get(state, '31')}m{state}\x1b[0m"


def _tell(problems: list[str]) -> int:
    for problem in problems:
        sys.stderr.write(f"forkless jobs: {problem}\n")
    return 1 if problems else 0
