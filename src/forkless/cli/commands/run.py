# SPDX-License-Identifier: GPL-3.0-or-later
"""forkless run: an ansible-runner private_data_dir, run and recorded as `ansible-runner run` does."""

from __future__ import annotations

import argparse
import contextlib
import sys
from typing import TYPE_CHECKING

import forkless
from forkless import engines
from forkless.cli import terminal_text
from forkless.cli.private_data_dir import PrivateDataDir
from forkless.cli.view import run_view
from forkless.core.errors import ForklessError, SpecError

if TYPE_CHECKING:
    from forkless.core.events import Event

__all__ = ["main", "parser"]

EXAMPLES = """\
examples:
  forkless run /srv/job -p site.yml
  forkless run /srv/job -p site.yml -i nightly --rotate-artifacts 20 --limit web
  forkless run /srv/job -m ping --hosts all
  forkless run /srv/job -r webserver --hosts web --role-vars 'port=8080'
  forkless run /srv/job -p site.yml --json | jq .event

The folder is ansible-runner's: project/ with the playbooks, inventory/, and env/ with envvars, extravars, passwords, settings,
cmdline and ssh_key. env/passwords answers what is asked: by -k and -K in env/cmdline, and by vars_prompt and pause. What the run left is in artifacts/IDENT/, as ansible-runner writes it. Exit codes are Ansible's.
"""


class _FolderView:
    """Passes a run's events and text to the view."""

    def __init__(self, view: run_view.RunView, quiet: bool) -> None:
        self._view, self._quiet = view, quiet

    def event(self, event: Event) -> None:
        self._view.event(event)

    def text(self, text: str) -> None:
        if not self._quiet:
            self._view.text(text)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="forkless run",
        description="Run an ansible-runner private_data_dir.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    made.add_argument("private_data_dir", help="the folder with project/, inventory/ and env/")
    what = made.add_mutually_exclusive_group()
    what.add_argument("-p", "--playbook", help="a playbook of the project")
    what.add_argument("-m", "--module", help="a module, run on --hosts")
    what.add_argument("-r", "--role", help="a role, run on --hosts")
    made.add_argument("-a", "--args", dest="module_args", help="the module's arguments")
    made.add_argument("--hosts", help="hosts for -m and -r (default: all)")
    made.add_argument("--role-vars", help="variables for the role: 'name=value name=value'")
    made.add_argument("--role-skip-facts", action="store_true", help="gather no facts for the role")
    made.add_argument("--roles-path", help="where the role is looked for first")
    made.add_argument("-i", "--ident", help="names the artifact folder (default: a fresh one)")
    made.add_argument("--limit", help="Ansible's --limit")
    made.add_argument("--forks", type=int, help="Ansible's --forks")
    made.add_argument("--cmdline", help="more arguments for Ansible, in place of env/cmdline")
    made.add_argument("-v", action="count", default=0, help="more output (-vvv for more)")
    made.add_argument("--inventory", action="append", help="in place of inventory/")
    made.add_argument("--project-dir", help="in place of project/")
    made.add_argument("--artifact-dir", help="in place of artifacts/")
    made.add_argument("--rotate-artifacts", type=int, default=0, metavar="N", help="keep the last N artifact folders")
    made.add_argument("-j", "--json", action="store_true", help="events as lines of JSON on stdout: --format jsonl")
    made.add_argument("-q", "--quiet", action="store_true", help="print nothing")
    ours = made.add_argument_group("forkless")
    ours.add_argument(
        "--engine",
        choices=engines.NAMES,
        help="threads: in this process; runner: in a child process, by ansible-runner; queue: on a worker (default: what `forkless doctor` names)",
    )
    run_view.add_flags(ours)
    return made


def main(argv: list[str]) -> int:
    asked = parser().parse_args(argv)
    if asked.json:
        asked.format = "jsonl"
    if asked.quiet:
        asked.plain = True
    with contextlib.ExitStack() as around:
        view = None
        try:
            spec = PrivateDataDir(asked.private_data_dir, around).spec(asked)
            view = run_view.RunView(asked)
            run = forkless.start(spec=spec, engine=asked.engine, listener=_FolderView(view, asked.quiet))
        except ForklessError as error:
            if view is not None:
                view.drop()
            sys.stderr.write(f"forkless run: {terminal_text.escaped(str(error))}\n")
            return 2 if isinstance(error, SpecError) else 1
        view.open()
        return _follow(run, view, spec)


def _follow(run: forkless.Run, view: run_view.RunView, spec: forkless.RunSpec) -> int:
    facts = {"command": "forkless run", "engine": run.engine, "artifacts": str(spec.artifacts), "ident": run.ident}
    facts |= {"playbook": ", ".join(map(str, spec.playbook))} if spec.playbook else {"module": str(spec.module)}
    result = None
    while result is None:
        try:
            result = run.wait()
        except KeyboardInterrupt:
            sentence = "stopping: no new task is started. Ctrl-C again leaves at once."
            if not view.stopping(sentence):
                sys.stderr.write(f"\nforkless run: {sentence}\n")
            run.cancel()
        except ForklessError as error:
            view.drop()
            sys.stderr.write(f"forkless run: {terminal_text.escaped(str(error))}\n")
            return 1
    text = result.stdout if view.format == "json" else ""
    view.close(status=str(result.status), rc=result.rc, facts=facts, text=text, ident=run.ident)
    if result.sentence:
        sys.stderr.write(f"forkless run: {terminal_text.escaped(result.sentence)}\n")
    return result.rc
