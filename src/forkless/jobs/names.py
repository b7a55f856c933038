# SPDX-License-Identifier: GPL-3.0-or-later
"""Names of hosts, playbooks and jobs as parts of a path: any name is safe, and a plain name is not changed."""

from __future__ import annotations

import hashlib
import string

from forkless.core.errors import SpecError

__all__ = ["digest", "segment"]

_PLAIN = frozenset(string.ascii_letters + string.digits + "._-+=@,")
# A file name may have 255 bytes; the rest is for the suffixes that stores add.
_LONGEST = 200


def segment(name: str, what: str) -> str:
    """
    `name` as one part of a path.

    A character that could lead out of the folder, hide the file, or be treated differently by another file system is
    written as %XX of its UTF-8 bytes. A name that is too long is truncated and ends in a digest of the whole name; the
    record contains the full name.
    """
    if not name or not name.strip():
        raise SpecError(f"the {what} is empty; give it a name that tells it from the others.")
    if "\0" in name:
        raise SpecError(f"the {what} {name!r} has a zero byte in it; no file system or server can keep that.")
    if not _is_unicode(name):
        raise SpecError(f"the {what} {name!r} is not valid Unicode: it has half of a surrogate pair in it.")
    safe = "".join(c if c in _PLAIN else "".join(f"%{byte:02X}" for byte in c.encode()) for c in name)
    if safe.startswith("."):  # would be "..", a hidden file, or one of the store's own files
        safe = "%2E" + safe[1:]
    if len(safe) > _LONGEST:
        cut = safe[: _LONGEST - 33]
        if "%" in cut[-2:]:  # not in the middle of %XX
            cut = cut[: cut.rindex("%")]
        safe = f"{cut}~{hashlib.sha256(name.encode()).hexdigest()[:32]}"
    return safe


def _is_unicode(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def digest(*names: str) -> str:
    """A short name for a combination of names. It is the same on every machine."""
    return hashlib.sha256("\0".join(names).encode()).hexdigest()[:24]
