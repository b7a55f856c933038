# SPDX-License-Identifier: GPL-3.0-or-later
"""forkless jobs: the records that the roles keep, and the jobs behind them, from a shell."""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import sys
from typing import TYPE_CHECKING

from forkless.cli import jobs_client, jobs_notify
from forkless.cli.jobs_logs import logs
from forkless.cli.jobs_lookup import (
    NOT_KNOWN,
    access,
    ask,
    ask_status,
    code_of,
    find_one,
    find_records,
    row_of,
    unreadable,
)
from forkless.cli.jobs_view import cell, pids_text, print_json, print_table, sentence, tell
from forkless.cli.jobs_wait import wait
from forkless.cli.terminal_text import printable
from forkless.core.errors import ForklessError, JobChangedError
from forkless.jobs import CLAIMED, STATE_DIR, JobRegistry, Record, open_store

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]

ENDED = ("done", "failed", "killed", "timed_out", "dead", "lost")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}

EXAMPLES = """\
examples:
  forkless jobs list -i hosts.ini
  forkless jobs list --no-status --store 's3://bucket/jobs' --format json
  forkless jobs show rebuild --host web1
  forkless jobs status -i hosts.ini -b -K
  forkless jobs status -i hosts.ini --vault-password-file ~/.vault
  forkless jobs wait rebuild --host web1 -i hosts.ini --timeout 1h
  forkless jobs wait rebuild dump -i hosts.ini --notify https://hooks.example.com/jobs
  forkless jobs wait rebuild dump --any -i hosts.ini
  forkless jobs logs rebuild -i hosts.ini -f --tail 20
  forkless jobs output rebuild -i hosts.ini --follow
  forkless jobs kill rebuild --host web1 -i hosts.ini --dry-run
  forkless jobs kill rebuild --host web1 -i hosts.ini
  forkless jobs cleanup -i hosts.ini --older-than 7d --dry-run
  forkless jobs forget rebuild --host web1 -i hosts.ini

Records are read from .ansible_async_state in the current folder unless --store says otherwise. show, and list with
--no-status, ask no host; the others do, with Ansible's own connections.
"""
EXIT_CODES = """\
exit codes:
  0  success; `wait`: the job is done
  1  failure: a job failed, a record is damaged, or the command was refused; `status`: a job has not ended well, or could not be asked about
  2  wrong arguments; `wait`: there is no such job
  3  not known: the host was not reached or could not answer, or the time of `wait` is up
  4  `wait`: the job is dead, lost or killed
  5  `wait`: the job passed its own time limit
With several jobs `wait` exits with the highest of their codes.
"""


def main(argv: Sequence[str] | None = None) -> int:
    asked = _parser().parse_args(argv)
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        # A name that the terminal's encoding lacks must not hide the other jobs.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        store = open_store(asked.store)
        try:
            code: int = asked.run(JobRegistry(store), asked)
            return code
        finally:
            store.close()
    except ForklessError as error:
        sys.stderr.write(f"forkless jobs: {printable(str(error))}\n")
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader has closed the pipe. Python would raise again when it closes the stream.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="forkless jobs",
        description="Jobs that outlive their play.",
        epilog=f"{EXAMPLES}\n{EXIT_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def command(name: str, run: object, text: str, *, job: str, hosts: bool = True) -> argparse.ArgumentParser:
        own = [line for line in EXAMPLES.splitlines() if line.startswith(f"  forkless jobs {name}")]
        sub = commands.add_parser(
            name,
            help=text,
            description=text,
            epilog="\n".join(["examples:", *own, "", EXIT_CODES]),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        sub.set_defaults(run=run)
        nargs = {"one": None, "some": "+", "any": "?"}[job]
        sub.add_argument("job", nargs=nargs, metavar="JOB", help="the job's name")
        sub.add_argument("--host", default="", help="only jobs of this host")
        sub.add_argument("--playbook-name", default="", help="only jobs of this playbook")
        sub.add_argument(
            "--store", default=f"file:{STATE_DIR}", metavar="URL", help="file:/path, s3://..., ara+http://... or queue:"
        )
        sub.add_argument("--format", choices=["table", "json"], default="table")
        if hosts:
            _add_connection_options(sub)
        return sub

    listing = command("list", _list, "list what is remembered, and what has become of it", job="any")
    listing.add_argument("--no-status", action="store_true", help="records only; no host is asked")
    listing.add_argument(
        "--timeout",
        type=_seconds,
        default=30.0,
        help="hosts that have not answered after this time count as unreachable (default: 30)",
    )
    command("show", _show, "show one record", job="one", hosts=False)
    status = command("status", _status, "ask the hosts what has become of jobs", job="any")
    status.add_argument(
        "--timeout", type=_seconds, help="hosts that have not answered after this time count as unreachable"
    )
    waiting = command("wait", wait, "wait until jobs are over", job="some")
    waiting.add_argument("--any", action="store_true", help="until one of them is over, not all")
    waiting.add_argument("--timeout", type=_seconds, help="give up after this time (seconds, or 10m, 2h, 1d)")
    waiting.add_argument("--interval", type=_seconds, default=5.0, help="seconds between two questions (default: 5)")
    waiting.add_argument(
        "--notify",
        metavar="URL",
        type=_url,
        help="POST what has become of the jobs there, as JSON; it never changes the exit code",
    )
    waiting.add_argument(
        "--notify-secret-file",
        metavar="PATH",
        help="sign the message with this secret (default: the variable "
        + jobs_notify.SECRET_VARIABLE
        + ", if it is set)",
    )
    kill = command("kill", _kill, "end a running job", job="one")
    kill.add_argument("--signal", type=int, default=15, help="the first signal (default: 15)")
    kill.add_argument("--grace", type=_seconds, default=10.0, help="seconds until SIGKILL (default: 10)")
    cleanup = command("cleanup", _cleanup, "remove jobs that are over; running ones are never touched", job="any")
    cleanup.add_argument("--state", action="append", choices=ENDED, help="only in this state (may be repeated)")
    cleanup.add_argument("--older-than", type=_seconds, default=0.0, help="only if it ended so long ago (7d, 12h, ...)")
    forget = command("forget", _forget, "remove records; nothing on the hosts is touched", job="some")
    forget.add_argument(
        "--force",
        action="store_true",
        help="also of a job that runs or cannot be asked about: its name is free, and the job runs on",
    )
    for sub in (kill, cleanup, forget):
        sub.add_argument("--dry-run", action="store_true", help="say what would be done, and change nothing")
    for name in ("logs", "output"):
        text = "show what a job has printed so far" + (" (the same as logs)" if name == "output" else "")
        output = command(name, logs, text, job="one")
        output.add_argument("-f", "--follow", action="store_true", help="go on until the job is over")
        output.add_argument("--tail", type=int, metavar="N", help="only the last N lines")
        output.add_argument("--path", default="", help="the file that the job prints to, if it cannot be found out")
        output.add_argument(
            "--interval", type=_seconds, default=2.0, help="with --follow: seconds between two looks (default: 2)"
        )
    return parser


def _add_connection_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("how to reach the hosts, as for ansible-playbook; passwords are asked for once")
    group.add_argument("-i", "--inventory", action="append", default=[])
    group.add_argument("-u", "--user")
    group.add_argument("-c", "--connection")
    group.add_argument("--private-key", "--key-file")
    group.add_argument("-e", "--extra-vars", action="append", default=[])
    group.add_argument("-b", "--become", action="store_true")
    group.add_argument("--become-user")
    group.add_argument("--become-method")
    group.add_argument("-k", "--ask-pass", action="store_true")
    group.add_argument("--connection-password-file", "--conn-pass-file")
    group.add_argument("-K", "--ask-become-pass", action="store_true")
    group.add_argument("--become-password-file", "--become-pass-file")
    group.add_argument("-J", "--ask-vault-pass", "--ask-vault-password", action="store_true")
    group.add_argument("--vault-password-file", "--vault-pass-file", action="append", default=[])
    group.add_argument("--vault-id", action="append", default=[])


def _url(text: str) -> str:
    try:
        return jobs_notify.check_url(text)
    except ForklessError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _seconds(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw]?)", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"'{text}' is no time; write seconds, or 30s, 10m, 12h, 7d, 2w")
    return float(match[1]) * _UNITS[match[2] or "s"]


# -- the commands


def _list(registry: JobRegistry, asked: argparse.Namespace) -> int:
    records, problems = find_records(registry, asked, asked.job)
    rows = [record.shown() for record in records]
    troubles = []
    if not asked.no_status:
        for row, (now, answer) in zip(rows, ask_status(records, asked, timeout=asked.timeout), strict=True):
            row.update({name: now[name] for name in ("state", "why") if now.get(name)})
            troubles.append(answer.trouble)
    rows += [unreadable(problem) for problem in problems]
    if asked.format == "json":
        print_json(rows)
    else:
        names = ["host", "job_name", "playbook_name", "ansible_job_id", "save_time", "state"]
        print_table(
            ["HOST", "JOB", "PLAYBOOK", "ID", "SAVED", "STATE"],
            [[cell(row.get(name)) for name in names] for row in rows],
        )
    tell(trouble for trouble in troubles if trouble)
    return tell(map(str, problems))


def _show(registry: JobRegistry, asked: argparse.Namespace) -> int:
    record = find_one(registry, asked, asked.job)
    if asked.format == "json":
        print_json(record.shown())
    else:
        for name, value in record.shown().items():
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            print(f"{name + ':':<16}{printable(text)}")
    return 0


def _status(registry: JobRegistry, asked: argparse.Namespace) -> int:
    records, problems = find_records(registry, asked, asked.job)
    if asked.job and not records and not problems:
        find_one(registry, asked, asked.job)
    answers = ask_status(records, asked, timeout=asked.timeout)
    rows = [row for row, _ in answers] + [unreadable(problem) for problem in problems]
    if asked.format == "json":
        print_json(rows)
    else:
        head = ["HOST", "JOB", "STATE", "RC", "START", "END", "WHY"]
        names = ["host", "job_name", "state", "rc", "start", "end", "why"]
        print_table(head, [[cell(row.get(name)) for name in names] for row in rows])
    tell([*map(str, problems), *(answer.trouble for _, answer in answers if answer.trouble)])
    return 0 if all(row["state"] in ("running", "done", "claimed") for row in rows) else 1


def _kill(registry: JobRegistry, asked: argparse.Namespace) -> int:
    record = find_one(registry, asked, asked.job)
    answer = ask("kill", [record], asked, check=asked.dry_run, signal=asked.signal, grace=asked.grace)[0]
    if answer.trouble:
        tell([answer.trouble])
        return code_of(answer)
    row = row_of(answer) | {"seen": answer.result["seen"]}
    seen = row["seen"]
    if asked.format == "json":
        print_json(row | ({"dry_run": True} if asked.dry_run else {}))
    elif asked.dry_run:
        print(sentence(row))
        print(f"would be signalled: {pids_text(seen['would_signal'])}; nothing was changed.")
    else:
        print(
            f"before: {printable(str(seen['before']))}; signalled: {pids_text(seen['signalled'])}; killed: {pids_text(seen['killed'])}"
        )
        print(sentence(row))
    return 1 if row["state"] == "running" and not asked.dry_run else 0


def _cleanup(registry: JobRegistry, asked: argparse.Namespace) -> int:
    records, problems = find_records(registry, asked, asked.job)
    items = [
        {"host": host, "job_name": asked.job or "", "playbook_name": asked.playbook_name}
        for host in sorted({record.key.host for record in records})
    ]
    wanted = {"states": asked.state or list(ENDED), "older_than": asked.older_than, "backend": asked.store}
    answers = jobs_client.ask("cleanup", items, access(asked), check=asked.dry_run, **wanted)
    if not asked.dry_run:
        registry.purge(asked.host)  # of hosts, too, that have no job any more
    removed = [what for answer in answers for what in answer.result.get("removed", [])]
    kept = [what for answer in answers for what in answer.result.get("kept", [])]
    if asked.format == "json":
        dry = {"dry_run": True} if asked.dry_run else {}
        print_json(
            {"removed": removed, "kept": kept, "unreadable": [unreadable(problem) for problem in problems]} | dry
        )
    else:
        verb = "would be removed" if asked.dry_run else "removed"
        rows = [[w["host"], w["job_name"], w["state"], verb] for w in removed]
        rows += [[w["host"], w["job_name"], w["state"], f"kept: {w['why']}"] for w in kept]
        rows += [[p.host, p.job_name, "unreadable", "kept: it cannot be understood"] for p in problems]
        print_table(["HOST", "JOB", "STATE", "WHAT"], rows)
    told = tell([*map(str, problems), *(answer.trouble for answer in answers if answer.trouble)])
    return 1 if any(what["state"] == "unknown" for what in kept) else told


def _forget(registry: JobRegistry, asked: argparse.Namespace) -> int:
    records = [find_one(registry, asked, name) for name in dict.fromkeys(asked.job)]
    if asked.force:
        states = [(record.state, "") for record in records]
    else:
        states = [(row["state"], answer.trouble) for row, answer in ask_status(records, asked)]
    rows, code = [], 0
    for record, (state, trouble) in zip(records, states, strict=True):
        why = "" if asked.force else _why_not_forgotten(registry, record, state, trouble)
        if why:
            code = max(code, NOT_KNOWN if trouble else 1)
        elif not asked.dry_run:
            try:
                registry.forget(record)
            except JobChangedError as error:
                why, code = str(error), max(code, 1)
        what = f"kept: {why}" if why else "would be forgotten" if asked.dry_run else "forgotten"
        rows.append({"host": record.key.host, "job_name": record.key.job_name, "state": state, "what": what})
    if asked.format == "json":
        print_json(rows)
    else:
        print_table(["HOST", "JOB", "STATE", "WHAT"], [[str(value) for value in row.values()] for row in rows])
    return code


def _why_not_forgotten(registry: JobRegistry, record: Record, state: str, trouble: str) -> str:
    if trouble:
        return f"it is not known whether the job runs ({trouble.rstrip('.')}); --force forgets it all the same"
    if state == "running":
        return "it is running; end it first, or use --force: it then runs on, and its name is free"
    if record.state == CLAIMED and not registry.is_over(record):
        return "a controller is about to start it; --force forgets it all the same"
    return ""
