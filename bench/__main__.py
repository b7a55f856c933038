# SPDX-License-Identifier: GPL-3.0-or-later
"""
python -m bench [NAME ...]: every module of this folder that measures something, or the ones named.

    python -m bench engine --rounds 5 --only memory,growth --json docs/performance.json     measure, and put the rows into a file
    python -m bench plot docs/performance.json [MORE.json ...] --svg docs/performance.svg   draw what is in the files
    python -m bench table docs/performance.json                                             the same for a terminal or, with --markdown, a page
    python -m bench publish docs/race.json --page docs/performance.md --svg docs/race.svg   the race's table in the page, and its picture
    python -m bench publish docs/network.json                                               the table of network devices in the page
"""

from __future__ import annotations

import argparse
import importlib
import pathlib

from bench import _plot, _publish, _results


def _measure(names: list[str], options: argparse.Namespace) -> None:
    here = pathlib.Path(__file__).parent
    for name in names or sorted(file.stem for file in here.glob("[!_]*.py")):
        print(f"== {name}", flush=True)
        module = importlib.import_module(f"bench.{name}")
        if not hasattr(module, "rows"):
            module.main()
            continue
        only = [one for one in options.only.split(",") if one]
        made = getattr(module, "circumstances", _results.circumstances)(options.rounds)
        last = None
        for row in module.rows(options.rounds, only):
            if last is not None and last.name != row.name:
                print(_results.table(last), flush=True)
            last = row
            if options.json:  # at once: a bench that is broken off keeps what it has
                _results.merge(options.json, [row], made)
        if last is not None:
            print(_results.table(last), flush=True)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="benches; or plot FILE...; or table FILE...; or publish FILE...")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="rows, by name, with commas between")
    parser.add_argument("--json", help="put the rows into this file")
    parser.add_argument("--svg", help="default: docs/performance.svg; for publish docs/race.svg")
    parser.add_argument("--page", default="docs/performance.md")
    parser.add_argument("--markdown", action="store_true")
    options = parser.parse_args(argv)
    if options.names[:1] == ["plot"]:
        picture = pathlib.Path(options.svg or "docs/performance.svg")
        picture.write_text(_plot.svg(*_results.read(*options.names[1:])))
    elif options.names[:1] == ["publish"]:
        for file in options.names[1:]:
            made, rows = _results.read(file)
            _publish.publish(pathlib.Path(file), made, rows, pathlib.Path(options.page), options.svg)
    elif options.names[:1] == ["table"]:
        _, rows = _results.read(*options.names[1:])
        print(_results.markdown(rows) if options.markdown else "\n".join(map(_results.table, rows)))
    else:
        _measure(options.names, options)


if __name__ == "__main__":
    main()
