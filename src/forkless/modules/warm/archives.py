# SPDX-License-Identifier: GPL-3.0-or-later
"""
The archive of a module is loaded and taken apart once for a run, and is not part of what Ansible wraps for a warm interpreter.

Ansible writes the archive of each module to a file of its own, reads it again for every task, and makes of it a program of some 400 kB with the
archive in it. A warm interpreter has the archive's files already, so the program is only needed for its arguments: with `archive_by_reference`
the program has an empty archive. FORKLESS_DISABLE=archive-cache switches it off.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
from typing import TYPE_CHECKING, ClassVar, Protocol

from forkless.core import switches
from forkless.core.own_thread_locals import OwnThreadLocal
from forkless.core.versions import since
from forkless.modules.ansible_types import environ_of
from forkless.modules.warm import payload
from forkless.patching.seam import for_speed

if TYPE_CHECKING:
    import types
    from collections.abc import Iterator

__all__ = ["STAND_INS", "ArchiveReference", "archive_by_reference"]

MOST = 256  # archives; a full cache is cleared


class ArchiveReference:
    """What was left out of a wrapped module, if anything was."""

    manifest: payload.Manifest | None = None


class _Taken(OwnThreadLocal):
    reference: ArchiveReference | None = None


_taken = _Taken()


@contextlib.contextmanager
def archive_by_reference() -> Iterator[ArchiveReference]:
    """Modules that the calling thread builds in this block may lack their archive; the object that is yielded then has its content."""
    outer, _taken.reference = _taken.reference, ArchiveReference()
    try:
        yield _taken.reference
    finally:
        _taken.reference = outer


class _CachedModule(Protocol):
    """What is used of ansible-core's class of this name."""

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[object]]]
    zip_data: bytes
    source_mapping: dict[str, str]


def load_once(original: types.MethodType, _site: str) -> object:
    """_CachedModule.load, a class method. What it returned before is valid as long as the file is the same."""
    load = original.__func__
    loaded: dict[tuple[object, ...], tuple[_CachedModule, payload.Manifest]] = {}

    @functools.wraps(load)
    def stand_in(cls: type, path: str) -> object:
        reference = _taken.reference
        if reference is None or switches.disabled("archive-cache", environ_of("ansible.plugins.action")):
            return load(cls, path)
        stat = os.stat(path)
        key = (path, stat.st_ino, stat.st_size, stat.st_mtime_ns)
        found = loaded.get(key)
        if found is None:
            module: _CachedModule = load(cls, path)
            manifest = payload.manifest_of(module.zip_data)
            found = dataclasses.replace(module, zip_data=b""), manifest
            if len(loaded) >= MOST:
                loaded.clear()
            loaded[key] = found
        module, reference.manifest = found
        return dataclasses.replace(module, source_mapping=dict(module.source_mapping))

    return classmethod(stand_in)


STAND_INS = (
    for_speed(
        "ansible.executor.module_common:_CachedModule.load",
        "every task would read the archive, and wrap and hash it again",
        load_once,
        since("2.19"),
    ),
)
