# SPDX-License-Identifier: GPL-3.0-or-later
"""
Extracts real collections for the tests from the package `ansible` on PyPI: community.general, ansible.utils, and those for network devices.

Only these of about a hundred collections are kept, of fortinet.fortios only one module, of cisco.iosxr what speaks gRPC. A release of `ansible` goes with one minor of
ansible-core, and its netcommon may fail with another: each minor has a folder of its own. tests/prepare.py runs it.
"""

from __future__ import annotations

import importlib.metadata
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import zipfile

MINOR = ".".join(importlib.metadata.version("ansible-core").split(".")[:2])
# 2.22 has no release of `ansible` yet.
PACKAGE = {"2.18": "ansible~=11.0", "2.19": "ansible~=12.0", "2.20": "ansible~=13.0"}.get(MINOR, "ansible~=14.0")
FOLDER = pathlib.Path(__file__).parent / f".collections-{MINOR}"
COLLECTIONS = (
    "community/general",
    "ansible/utils",
    "ansible/netcommon",
    "cisco/ios",
    "arista/eos",
    "cisco/iosxr",
    "fortinet/fortios",
)
WANTED = tuple(f"ansible_collections/{one}/" for one in COLLECTIONS)
MISSING = "real collections are not there; get them with: python tests/prepare_collections.py"


def _wanted(name: str) -> bool:
    """Whether a file is extracted. fortinet.fortios has 700 modules that are alike, and of cisco.iosxr no module is used."""
    if not name.startswith(WANTED) or name.split("/")[3] in ("docs", "tests", "changelogs"):
        return False
    if "/cisco/iosxr/plugins/" in name:
        return "/plugins/sub_plugins/grpc/" in name
    return "/fortinet/fortios/plugins/modules/" not in name or name.endswith("/fortios_monitor_fact.py")


def there() -> bool:
    return all((FOLDER / one).is_dir() for one in WANTED)


def prepare() -> None:
    if there():
        return
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:", "-d", folder, PACKAGE],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        wheels = list(pathlib.Path(folder).glob("ansible-*.whl"))
        if not wheels:
            print(
                f"missing: the package ansible ({done.stderr.strip().splitlines()[-1:]}); the tests that need it say so"
            )
            return
        draft = FOLDER.with_name(f"{FOLDER.name}.draft{os.getpid()}")  # another process may do the same
        with zipfile.ZipFile(wheels[0]) as wheel:
            wheel.extractall(draft, [name for name in wheel.namelist() if _wanted(name)])
        try:
            draft.rename(FOLDER)
        except OSError:  # another process was first, or an earlier attempt left an incomplete folder
            if there():
                shutil.rmtree(draft)
            else:
                shutil.rmtree(FOLDER)
                draft.rename(FOLDER)


if __name__ == "__main__":
    prepare()
