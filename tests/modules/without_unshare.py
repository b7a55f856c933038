# SPDX-License-Identifier: GPL-3.0-or-later
"""ansible-playbook's arguments, run by a program that is elsewhere than its playbook and cannot unshare(2), with modules in this process."""

from __future__ import annotations

import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent))
import forkless  # noqa: E402
import sealing  # noqa: E402  # tests/ is no package

if __name__ == "__main__":
    *args, book = sys.argv[1:]
    os.chdir("/")
    sealing.deny_unshare()
    folder, name = os.path.split(book)
    result = forkless.run(name, args=args, cwd=folder, modules="in-process", engine="threads")
    print(result.stdout)
    sys.exit(result.rc)
