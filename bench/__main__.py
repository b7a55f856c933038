# SPDX-License-Identifier: GPL-3.0-or-later
"""python -m bench [NAME ...]: every module of this folder that measures something, or the ones named."""

from __future__ import annotations

import importlib
import pathlib
import sys


def main(names: list[str]) -> None:
    here = pathlib.Path(__file__).parent
    for name in names or sorted(file.stem for file in here.glob("[!_]*.py")):
        print(f"== {name}", flush=True)
        importlib.import_module(f"bench.{name}").main()


if __name__ == "__main__":
    main(sys.argv[1:])
