# SPDX-License-Identifier: GPL-3.0-or-later
"""
Two real collections for the tests, community.general and ansible.utils, out of the package `ansible` on PyPI.

Only the two folders are kept; the package has a hundred. Run by tests/prepare.py.
"""

from __future__ import annotations

import pathlib
import shutil
import subprocess
import sys
import tempfile
import zipfile

FOLDER = pathlib.Path(__file__).parent / ".collections"
WANTED = ("ansible_collections/community/general/", "ansible_collections/ansible/utils/")
MISSING = "two real collections are not there; get them with: python tests/prepare_collections.py"


def there() -> bool:
    return all((FOLDER / one).is_dir() for one in WANTED)


def prepare() -> None:
    if there():
        return
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:", "-d", folder, "ansible>=11"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        wheels = list(pathlib.Path(folder).glob("ansible-*.whl"))
        if not wheels:
            print(
                f"missing: the package ansible ({done.stderr.strip().splitlines()[-1:]}); the tests that need it say so"
            )
            return
        draft = FOLDER.with_name(".collections.draft")
        shutil.rmtree(draft, ignore_errors=True)
        with zipfile.ZipFile(wheels[0]) as wheel:
            wheel.extractall(draft, [name for name in wheel.namelist() if name.startswith(WANTED)])
        shutil.rmtree(FOLDER, ignore_errors=True)
        draft.rename(FOLDER)


if __name__ == "__main__":
    prepare()
