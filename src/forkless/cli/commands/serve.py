# SPDX-License-Identifier: GPL-3.0-or-later
"""forkless serve: the page that shows and steers runs."""

from __future__ import annotations

import argparse
import os

from forkless.core.errors import SpecError

__all__ = ["main", "parser"]

EXAMPLES = """\
examples:
  forkless serve                                             start playbooks of this folder, and watch them
  forkless serve --project ~/infra                           the same for another folder
  forkless serve --port 9000 --open                          another port; opens the browser
  FORKLESS_DATABASE=postgresql://user@db/forkless forkless serve     the page of a queue that has workers elsewhere
  forkless serve --config /etc/forkless/page.toml            for a team: users and roles, several projects, hooks

The address that is printed contains a token: anyone who has the address may do everything. Without FORKLESS_DATABASE a PostgreSQL of your own and one
worker are started, and end with this command.

SIGTERM: runs under way in this command may go on for --shutdown-after seconds, then they are stopped and handed back; it ends 30 seconds later at the
latest. Ctrl-C: they may finish. A second signal of either kind stops them at once.
"""


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="forkless serve",
        description="Show the runs of the queue in a browser, as they happen, and steer them.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    made.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help="a loopback address (default: 127.0.0.1)")
    made.add_argument("--port", type=int, default=8750, metavar="N", help="0: any free one (default: 8750)")
    made.add_argument("--open", action="store_true", help="open the page in the browser")
    made.add_argument(
        "--project",
        metavar="DIR",
        help="a folder whose playbooks may be started from the page (default: the current one, if it has playbooks)",
    )
    made.add_argument(
        "--processes",
        type=int,
        metavar="N",
        help="runs at a time that this command carries out itself (default: 1; 0 if FORKLESS_DATABASE is set)",
    )
    made.add_argument(
        "--shutdown-after",
        type=float,
        default=15.0,
        metavar="SECONDS",
        help="how long runs of this command may go on after SIGTERM (default: 15)",
    )
    made.add_argument("--config", metavar="FILE", help="address, login, projects and hooks, as TOML")
    made.add_argument(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="answer requests for this Host, too: the name of a reverse proxy",
    )
    return made


def main(argv: list[str]) -> int:
    asked = parser().parse_args(argv)
    if asked.processes is not None and asked.processes < 0:
        raise SpecError(f"--processes must be 0 or more, not {asked.processes}")
    if not 0 <= asked.shutdown_after < float("inf"):  # NaN is neither
        raise SpecError(f"--shutdown-after must be 0 or more, not {asked.shutdown_after:g}")
    from forkless.cli.view.queue_report import page_of
    from forkless.web.server import PageOptions, serve

    processes = asked.processes
    if processes is None:
        processes = 0 if os.environ.get("FORKLESS_DATABASE") else 1
    return serve(
        PageOptions(
            host=asked.host, port=asked.port, project=asked.project, names=tuple(asked.allow_host), processes=processes,
            shutdown_after=asked.shutdown_after, open_browser=asked.open, config=asked.config, report=page_of,
        )
    )  # fmt: skip
