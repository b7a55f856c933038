# SPDX-License-Identifier: GPL-3.0-or-later
"""Which records a command line of `forkless jobs` names, and what their hosts say about them."""

from __future__ import annotations

import getpass
import warnings
from typing import TYPE_CHECKING, Any

from forkless.cli import jobs_client
from forkless.core.errors import ForklessError, JobLostError, SpecError

if TYPE_CHECKING:
    import argparse

    from forkless.jobs import JobRegistry, Record, Unreadable

__all__ = ["NOT_KNOWN", "ask", "ask_status", "code_of", "find_one", "find_records", "job_part", "row_of", "unreadable"]

# The exit code of a command that cannot tell: the host could not be reached, or was reached and could not answer.
NOT_KNOWN = 3


def find_records(
    book: JobRegistry, asked: argparse.Namespace, name: str | None = None
) -> tuple[list[Record], list[Unreadable]]:
    """The records that the command line names, of the job `name` only if it is given, and those that cannot be read."""
    problems: list[Unreadable] = []
    found = book.jobs(asked.host, job_name=name or "", playbook_name=asked.playbook_name, problems=problems)
    return found, problems


def find_one(book: JobRegistry, asked: argparse.Namespace, name: str) -> Record:
    """The record of the job `name`. SpecError if there are several, JobLostError if there is none."""
    found, problems = find_records(book, asked, name)
    if len(found) == 1:
        return found[0]
    if found:
        where = ", ".join(sorted({f"{r.key.host} {r.key.playbook_name}".strip() for r in found}))
        raise SpecError(f"there are several jobs '{name}' ({where}); say which with --host or --playbook-name.")
    if problems:
        raise ForklessError(str(problems[0]))
    raise JobLostError(f"there is no job '{name}' in {book.store.url}; `forkless jobs list` shows what there is.")


def ask(
    op: str,
    records: list[Record],
    asked: argparse.Namespace,
    *,
    check: bool = False,
    timeout: float | None = None,
    **arguments: object,
) -> list[jobs_client.HostAnswer]:
    """What the hosts of these records answer, one answer for each record, in the order of the hosts."""
    items = [
        {
            "host": r.key.host,
            "job_name": r.key.job_name,
            "playbook_name": r.key.playbook_name,
            "delegate_to": str(r.process.get("delegated_to") or ""),
        }
        for r in records
    ]
    return jobs_client.ask(op, items, access(asked), check=check, timeout=timeout, backend=asked.store, **arguments)


def ask_status(
    records: list[Record], asked: argparse.Namespace, *, timeout: float | None = None
) -> list[tuple[dict[str, Any], jobs_client.HostAnswer]]:
    """For each record, in their order, what has become of its job as a row, and the answer of its host."""
    answers = {_identity(answer.item): answer for answer in ask("status", records, asked, timeout=timeout)}
    found = [answers[record.key.host, record.key.job_name, record.key.playbook_name] for record in records]
    return [(row_of(answer), answer) for answer in found]


def _identity(item: dict[str, str]) -> tuple[str, str, str]:
    return item["host"], item["job_name"], item["playbook_name"]


def access(asked: argparse.Namespace) -> jobs_client.HostAccess:
    """How to reach the hosts. Passwords are asked for once, however often the hosts are."""
    known: jobs_client.HostAccess | None = getattr(asked, "access", None)
    if known is None:
        known = asked.access = _reach(asked)
    return known


def _reach(asked: argparse.Namespace) -> jobs_client.HostAccess:
    args: list[str] = []
    for flag, value in (
        ("-u", asked.user),
        ("-c", asked.connection),
        ("--private-key", asked.private_key),
        ("--become-user", asked.become_user),
        ("--become-method", asked.become_method),
        ("--become-password-file", asked.become_password_file),
        ("--connection-password-file", asked.connection_password_file),
    ):
        args += [flag, value] if value else []
    for flag, values in (
        ("-e", asked.extra_vars),
        ("--vault-password-file", asked.vault_password_file),
        ("--vault-id", asked.vault_id),
    ):
        for value in values:
            args += [flag, value]
    if any(value.endswith("@prompt") for value in asked.vault_id):
        raise SpecError(
            "--vault-id cannot prompt here, where hosts may be asked again and again; use --ask-vault-pass."
        )
    passwords = {}
    if asked.ask_pass:
        passwords["conn_pass"] = _password("SSH password: ")
    if asked.ask_become_pass:
        passwords["become_pass"] = _password("BECOME password: ")
    vault = _password("Vault password: ") if asked.ask_vault_pass else None
    return jobs_client.HostAccess(tuple(asked.inventory), asked.become, tuple(args), passwords, vault)


def _password(prompt: str) -> str:
    try:
        with warnings.catch_warnings():
            # Without a terminal the password is read from standard input, as ansible-playbook does; nothing is echoed.
            warnings.simplefilter("ignore", getpass.GetPassWarning)
            return getpass.getpass(prompt)
    except EOFError:
        raise SpecError(f"no password was given for '{prompt.rstrip(': ')}': standard input has ended.") from None


def row_of(answer: jobs_client.HostAnswer) -> dict[str, Any]:
    names = {"host": answer.host, "job_name": answer.item["job_name"], "playbook_name": answer.item["playbook_name"]}
    if answer.trouble:
        return names | {"state": "unreachable", "why": answer.trouble}
    job: dict[str, object] = answer.result["job"]
    return names | job


def code_of(answer: jobs_client.HostAnswer) -> int:
    """The exit code for an answer without a result: the host could not be asked, or it refused the request."""
    return NOT_KNOWN if answer.result.get("unreachable") or not answer.result else 1


def job_part(result: dict[str, Any]) -> dict[str, object]:
    return {name: value for name, value in result.get("job", {}).items() if name not in ("stdout", "stderr")}


def unreadable(problem: Unreadable) -> dict[str, Any]:
    names = {"host": problem.host, "job_name": problem.job_name, "playbook_name": problem.playbook_name}
    return names | {"state": "unreadable", "path": problem.place, "why": problem.why}
