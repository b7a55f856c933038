# SPDX-License-Identifier: GPL-3.0-or-later
"""ansible-playbook's flags as a RunSpec for the queue, without importing Ansible; and the flags that say how a run is queued."""

from __future__ import annotations

import argparse
import datetime as dt
import getpass
import os
from typing import TYPE_CHECKING

from forkless.core.errors import SpecError
from forkless.core.spec import RunSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forkless.queue.requests import LaunchOptions

__all__ = ["add_ansible_flags", "add_queue_flags", "options_of", "slices", "spec_of"]

# Flags of ansible-playbook that have no field in RunSpec and are passed on as they are: name, other names, whether it takes a value.
PASSED_ON = (
    ("--force-handlers", (), False),
    ("--flush-cache", (), False),
    ("--start-at-task", (), True),
    ("--private-key", ("--key-file",), True),
    ("--user", ("-u",), True),
    ("--connection", ("-c",), True),
    ("--timeout", ("-T",), True),
    ("--ssh-common-args", (), True),
    ("--sftp-extra-args", (), True),
    ("--scp-extra-args", (), True),
    ("--ssh-extra-args", (), True),
    ("--become-method", (), True),
    ("--become-user", (), True),
    ("--module-path", ("-M",), True),
)
# Flags that ask a person at a terminal while a run is under way, or that do not run anything.
REFUSED = {
    "--step": "asks before each task, and a worker has no terminal",
    "--syntax-check": "runs nothing; use forkless playbook",
    "--list-tasks": "runs nothing; use forkless playbook",
    "--list-tags": "runs nothing; use forkless playbook",
    "--list-hosts": "runs nothing; use forkless playbook",
}


class _PassedOn(argparse.Action):
    """Collects the flag as it was given, in order."""

    def __call__(
        self, _parser: object, namespace: argparse.Namespace, values: object, option_string: str | None = None
    ) -> None:
        kept = [*(getattr(namespace, "passed_on", None) or ()), self.option_strings[0]]
        namespace.passed_on = kept if self.nargs == 0 else [*kept, str(values)]
        del option_string


class _Refused(argparse.Action):
    def __call__(
        self, parser: argparse.ArgumentParser, _namespace: object, _values: object, option_string: str | None = None
    ) -> None:
        parser.error(f"{option_string} {self.metavar}")


def add_ansible_flags(parser: argparse.ArgumentParser) -> None:
    """ansible-playbook's own flags, all of them."""
    parser.add_argument("playbook", nargs="+", help="playbooks, in the project")
    group = parser.add_argument_group("ansible-playbook's flags")
    group.add_argument(
        "-i",
        "--inventory",
        "--inventory-file",
        action="append",
        default=[],
        help="an inventory of the project, or a list with commas",
    )
    group.add_argument("-l", "--limit", help="narrow the hosts")
    group.add_argument("-t", "--tags", action="append", default=[], help="only tasks with these tags")
    group.add_argument("--skip-tags", action="append", default=[], help="no tasks with these tags")
    group.add_argument(
        "-e",
        "--extra-vars",
        action="append",
        default=[],
        help="variables: k=v, JSON, or @FILE of the project; they travel sealed",
    )
    group.add_argument("-C", "--check", action="store_true", help="change nothing, say what would change")
    group.add_argument("-D", "--diff", action="store_true", help="show differences")
    group.add_argument("-b", "--become", action="store_true", help="become another user")
    group.add_argument("-f", "--forks", type=int, help="hosts at a time")
    group.add_argument("-v", "--verbose", action="count", default=0, help="more output")
    group.add_argument(
        "-K", "--ask-become-pass", action="store_true", help="ask here for the become password; it travels sealed"
    )
    group.add_argument(
        "-k", "--ask-pass", action="store_true", help="ask here for the connection password; it travels sealed"
    )
    group.add_argument(
        "-J",
        "--ask-vault-password",
        "--ask-vault-pass",
        action="store_true",
        help="ask here for the vault password; it travels sealed",
    )
    for flag, what in (
        ("--vault-password-file", "the vault password"),
        ("--become-password-file", "the become password"),
        ("--connection-password-file", "the connection password"),
    ):
        others = {
            "--vault-password-file": ["--vault-pass-file"],
            "--become-password-file": ["--become-pass-file"],
            "--connection-password-file": ["--conn-pass-file"],
        }
        group.add_argument(flag, *others[flag], metavar="FILE", help=f"read {what} here; it travels sealed")
    group.add_argument(
        "--vault-id", action="append", default=[], help="[LABEL@]FILE or [LABEL@]prompt: one vault password, read here"
    )
    for flag, more, takes in PASSED_ON:
        if takes:
            group.add_argument(flag, *more, action=_PassedOn, help=argparse.SUPPRESS)
        else:
            group.add_argument(flag, *more, action=_PassedOn, nargs=0, help=argparse.SUPPRESS)
    for flag, why in REFUSED.items():
        group.add_argument(flag, action=_Refused, nargs=0, metavar=why, help=argparse.SUPPRESS)


def add_queue_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the queue's flags")
    group.add_argument(
        "--slices",
        type=slices,
        metavar="N|auto",
        help="split the hosts over so many runs; auto: as many as there are workers",
    )
    group.add_argument("--slices-anyway", action="store_true", help="also where slices change what the playbook means")
    group.add_argument(
        "--label",
        action="append",
        default=[],
        metavar="NAME",
        help="only a worker with this label (may be repeated: with all of them)",
    )
    group.add_argument(
        "--lock",
        default="inventory",
        metavar="none|NAME",
        help="runs with the same name wait for each other (default: the inventory)",
    )
    group.add_argument("--priority", type=int, default=0, metavar="N", help="higher ones begin first (default: 0)")
    group.add_argument(
        "--retries",
        type=int,
        default=0,
        metavar="N",
        help="begin again up to N times if the worker is lost (default: 0). What it did until then stays done",
    )
    group.add_argument(
        "--secret",
        action="append",
        default=[],
        metavar="WHAT=REFERENCE",
        help="vault, become, connection, extra_vars.NAME or env.NAME, from env:NAME, file:PATH or cmd:COMMAND on the worker",
    )
    group.add_argument("--project", metavar="DIR", help="the folder that travels (default: this one)")
    group.add_argument(
        "--shared-folder", action="store_true", help="send nothing: workers see this folder under the same path"
    )
    group.add_argument("--git", metavar="URL", help="send nothing: workers fetch this repository")
    group.add_argument("--commit", metavar="REF", help="commit, branch or tag of --git, as it is now (default: HEAD)")
    group.add_argument("--webhook", metavar="URL", help="send a message there when the run has ended")
    group.add_argument(
        "--webhook-secret",
        metavar="REFERENCE",
        help="sign it with this secret of the worker: env:NAME, file:PATH or cmd:COMMAND",
    )
    group.add_argument("--run-timeout", type=float, metavar="SECONDS", help="stop the run after so long")


def slices(text: str) -> int | str:
    """The value of --slices."""
    if text == "auto":
        return text
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is neither a whole number above zero nor auto")
    return int(text)


def _content(path: str) -> str:
    try:
        if os.access(path, os.X_OK):
            raise SpecError(
                f"{path} is a program; workers cannot run it from here. Say --secret vault=cmd:COMMAND, which the worker runs"
            )
        with open(os.path.expanduser(path), encoding="utf-8") as file:
            return file.read().strip()
    except (OSError, UnicodeDecodeError) as err:
        raise SpecError(
            f"the password file {path} cannot be read: {getattr(err, 'strerror', None) or 'it is not text'}"
        ) from None


def _vault_password(asked: argparse.Namespace) -> str | None:
    sources = [asked.vault_password_file] if asked.vault_password_file else []
    sources += [one.rpartition("@")[2] for one in asked.vault_id]
    if asked.ask_vault_password:
        sources.append("prompt")
    if len(sources) > 1:
        raise SpecError("a queued run takes one vault password; use --secret vault=REFERENCE or one of the flags, once")
    if not sources:
        return None
    return getpass.getpass("Vault password: ") if sources[0].startswith("prompt") else _content(sources[0])


def _extra_vars(values: Sequence[str], root: str) -> list[str]:
    """-e as arguments; files among them relative to the project."""
    from forkless.queue.project import inside

    out = []
    for value in values:
        if value.startswith("@"):
            out += [
                "-e",
                "@" + inside(os.path.join(os.getcwd(), os.path.expanduser(value[1:])), root, "the variables file"),
            ]
        else:
            out += ["-e", value]
    return out


def spec_of(asked: argparse.Namespace) -> RunSpec:
    root = os.path.abspath(asked.project or ".")
    passwords = {}
    for name, ask, path, question in (
        ("conn_pass", asked.ask_pass, asked.connection_password_file, "SSH password: "),
        ("become_pass", asked.ask_become_pass, asked.become_password_file, "BECOME password: "),
    ):
        if path:
            passwords[name] = _content(path)
        elif ask:
            passwords[name] = getpass.getpass(question)
    extra = list(asked.extra_vars) if asked.git or asked.shared_folder else _extra_vars(asked.extra_vars, root)
    if asked.git or asked.shared_folder:
        extra = [word for value in extra for word in ("-e", value)]
    return RunSpec(
        playbook=asked.playbook, inventory=asked.inventory, limit=asked.limit, tags=asked.tags, skip_tags=asked.skip_tags,
        check=asked.check, diff=asked.diff, become=asked.become, forks=asked.forks, verbosity=asked.verbose,
        vault_password=_vault_password(asked), passwords=passwords, args=[*(getattr(asked, "passed_on", None) or ()), *extra],
        timeout=asked.run_timeout,
    )  # fmt: skip


def _when(text: str | None) -> dt.datetime | None:
    if text is None:
        return None
    now = dt.datetime.now().astimezone()
    try:
        if text.startswith("+"):
            units = {"s": 1, "m": 60, "h": 3600, "d": 86400}
            found = now + dt.timedelta(seconds=float(text[1:-1]) * units[text[-1]])
        else:
            found = dt.datetime.fromisoformat(text)
            found = found if found.tzinfo is not None else found.astimezone()
    except (ValueError, KeyError, OverflowError):
        raise SpecError(f"--at '{text}' is neither a time (2026-01-31T03:00) nor a delay (+2h)") from None
    if found < now - dt.timedelta(minutes=1):  # not "now", which a script has computed a moment ago
        raise SpecError(f"--at {found:%Y-%m-%d %H:%M %Z} is over; leave --at out to begin now")
    return found


def options_of(asked: argparse.Namespace) -> LaunchOptions:
    from forkless.queue.requests import LaunchOptions

    secrets = {}
    for text in asked.secret:
        name, equals, reference = text.partition("=")
        if not equals:
            raise SpecError(
                f"--secret '{text.split(':')[0]}' is not WHAT=REFERENCE, for example vault=env:VAULT_PASSWORD"
            )
        secrets[name] = reference
    files = [asked.vault_password_file, asked.become_password_file, asked.connection_password_file]
    files += [one.rpartition("@")[2] for one in asked.vault_id]
    return LaunchOptions(
        lock=None if asked.lock == "none" else asked.lock, labels=asked.label, priority=asked.priority, at=_when(getattr(asked, "at", None)),
        retries=asked.retries, secrets=secrets, project=asked.project, shared_folder=asked.shared_folder, git=asked.git,
        commit=asked.commit, webhook=asked.webhook, slices=asked.slices, slices_anyway=asked.slices_anyway,
        webhook_secret=asked.webhook_secret, without=[one for one in files if one and not one.startswith("prompt")],
    )  # fmt: skip
