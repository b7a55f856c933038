# SPDX-License-Identifier: GPL-3.0-or-later
"""
Lists which files of collections may have module-level state, and of what kind: the threads engine executes these per worker.

    pip download --no-deps ansible                               all collections that are released together
    python tests/scan_collections.py ansible-*.whl               kinds of state, with the number of files and an example of each
    python tests/scan_collections.py ansible-*.whl --global      only the files with a `global` statement, by name
"""

from __future__ import annotations

import collections
import sys
import zipfile
from collections.abc import Iterator

from forkless.engines.threads.patches.stateless_files import Findings, examine

# Workers never execute documentation, and modules are executed for each task in any case.
LEFT_OUT = ("/plugins/modules/", "/plugins/doc_fragments/", "/tests/")


def scan(wheel: str) -> Iterator[tuple[str, Findings]]:
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.startswith("ansible_collections/") and name.endswith(".py") and "/plugins/" in name:
                if not any(part in name for part in LEFT_OUT):
                    try:
                        yield name.removeprefix("ansible_collections/"), examine(archive.read(name))
                    except SyntaxError as error:
                        print(f"{name}: {error}", file=sys.stderr)


def main(wheel: str, *flags: str) -> None:
    kinds: dict[str, list[str]] = collections.defaultdict(list)
    total = 0
    for name, found in scan(wheel):
        total += 1
        for kind in sorted({kind.partition(":")[0] for _, kind in found.state}) or ["no state"]:
            kinds[kind].append(name)
    if "--global" in flags:
        print("\n".join(kinds["global statement"]))
        return
    for kind, names in sorted(kinds.items(), key=lambda item: -len(item[1])):
        print(f"{len(names):6} of {total}  {kind:50} {names[0]}")


if __name__ == "__main__":
    main(*sys.argv[1:])
