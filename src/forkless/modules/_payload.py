# SPDX-License-Identifier: GPL-3.0-or-later
"""
What Ansible has wrapped a module into, taken apart again.

The archive in it is known by its content: a changed module or module_util makes another archive, so nothing here can be stale. Each
file of it is sent to a host once, with its code where the host's Python is the one that runs here.
"""

from __future__ import annotations

import base64
import collections
import contextlib
import functools
import hashlib
import importlib.machinery
import importlib.util
import io
import json
import marshal
import os
import re
import threading
import types
import zipfile
import zlib
from dataclasses import dataclass
from typing import Any

from forkless.modules import _parcel
from forkless.modules._trees import literal_eval

__all__ = ["MAGIC", "Manifest", "Piece", "Wrapped", "take_apart"]

MAGIC = importlib.util.MAGIC_NUMBER.hex()
MOST = 256  # archives that are remembered

# Up to 2.18 a text with holes; since 2.19 a call with its arguments, one to a line. All values are written by repr, so none has a line of its own.
_OLD = {
    "zip_data": re.compile(rb"^    ZIPDATA = '([A-Za-z0-9+/=]*)'$", re.MULTILINE),
    "module_fqn": re.compile(rb"^        runpy\.run_module\(mod_name=('[^'\n]+'), init_globals=dict", re.MULTILINE),
    "ansible_module": re.compile(
        rb"^        temp_path = tempfile\.mkdtemp\(prefix='ansible_' \+ ('[^'\n]+') \+", re.MULTILINE
    ),
    "params": re.compile(rb"^    ANSIBALLZ_PARAMS = (.*)$", re.MULTILINE),
}
_RLIMIT = re.compile(rb"^    requested_soft = min\(existing_hard, (\d+)\)$", re.MULTILINE)
_sha = functools.partial(hashlib.sha1, usedforsecurity=False)
_CALL = b"\n    _ansiballz_main(\n"
# What is imported before a module comes that needs it: not what is embedded only to be read, or to be run as a program.
_BEFORE = re.compile(r"ansible/module_utils/(?!_embed/).+\.py$")


@dataclass(frozen=True)
class Piece:
    """One file of an archive, packed for the wire."""

    key: str
    path: str
    text: bytes
    code: bytes


@dataclass(frozen=True)
class Manifest:
    """What an archive has in it: module names, and for each whether it is a package and the piece that it is."""

    digest: str
    files: tuple[tuple[str, bool, Piece], ...]
    core: tuple[str, ...]
    """Those that are ansible-core's own, word for word."""

    def order(self) -> bytes:
        files = [(name, package, piece.key) for name, package, piece in self.files]
        return json.dumps({"digest": self.digest, "files": files, "core": self.core}).encode()


class Wrapped(bytes):
    """A wrapped module as Ansible made it, with what was found in it."""

    manifest: Manifest
    order: dict[str, Any]
    environ: dict[str, str]


def take_apart(data: bytes) -> Wrapped | None:
    """None for what is not wrapped in a way that is known here."""
    found = _arguments(data)
    if found is None or found.pop("extensions", None):
        return None
    manifest = _manifest(found.pop("zip_data"))
    wrapped = Wrapped(data)
    wrapped.manifest = manifest
    wrapped.order = {
        "digest": manifest.digest,
        "fqn": found["module_fqn"],
        "module": found["ansible_module"],
        "params": found["params"],
        "profile": found.get("profile", "legacy"),
        "rlimit": found.get("rlimit_nofile", 0),
    }
    return wrapped


def _arguments(data: bytes) -> dict[str, Any] | None:
    try:
        at = data.find(_CALL, max(0, data.find(b'if __name__ == "__main__":'))) if _CALL in data else -1
        if at >= 0:
            lines = data[at + len(_CALL) :].splitlines()
            pairs = (line.partition(b"=")[::2] for line in lines if line.endswith(b","))
            raw = {name.decode(): value[:-1] for name, value in pairs}
            archive = raw.pop("zip_data").strip(b"'")
            raw.pop("date_time", None)
            return {"zip_data": archive, **{name: literal_eval(value.decode()) for name, value in raw.items()}}
        values = {name: pattern.search(data) for name, pattern in _OLD.items()}
        if not all(values.values()) or b"COVERAGE_FILE" in data or b"find `coverage`" in data:
            return None
        texts = {name: match[1] for name, match in values.items() if match}
        limit = _RLIMIT.search(data)
        return {
            "zip_data": texts.pop("zip_data"),
            "rlimit_nofile": int(limit[1]) if limit else 0,
            **{name: literal_eval(value.decode()) for name, value in texts.items()},
        }
    except (KeyError, ValueError, SyntaxError):
        return None


_lock = threading.Lock()  # guards what is known, and nothing else
_reading = threading.Lock()
_manifests: collections.OrderedDict[bytes, Manifest] = collections.OrderedDict()


def _manifest(archive: bytes) -> Manifest:
    found = _known(archive)
    if found is not None:
        return found
    with _reading:  # a dozen hosts come with the same one at once: the first reads it
        made = _known(archive) or _read(archive)
        with _lock:
            _manifests[archive] = made
            while len(_manifests) > MOST:
                _manifests.popitem(last=False)
    return made


def _known(archive: bytes) -> Manifest | None:
    with _lock:
        if archive in _manifests:
            _manifests.move_to_end(archive)
        return _manifests.get(archive)


def _read(archive: bytes) -> Manifest:
    files: list[tuple[str, bool, Piece]] = []
    core: list[str] = []
    with zipfile.ZipFile(io.BytesIO(base64.b64decode(archive))) as opened:
        for path in dict.fromkeys(opened.namelist()):
            source = opened.read(path)
            piece = _piece(path, source)
            name = path[:-3].replace("/", ".") if path.endswith(".py") else path  # which no import will ask for
            package = name.endswith(".__init__")
            name = name.removesuffix(".__init__")
            files.append((name, package, piece))
            if _BEFORE.match(path) and _core_file(path, _sha(source).digest()) is not None:
                core.append(name)
    # What everything needs comes first: it is what tells whether another import has something to say.
    core.sort(key=lambda name: (name != "ansible.module_utils.basic", name))
    digest = _sha("\n".join(f"{name} {package} {piece.key}" for name, package, piece in files).encode())
    return Manifest(digest.hexdigest(), tuple(files), tuple(core))


@functools.lru_cache(maxsize=4096)
def _piece(path: str, source: bytes) -> Piece:
    code = b""
    if path.endswith(".py"):
        with contextlib.suppress(SyntaxError, ValueError):  # the module's own failure, and so it is told where it runs
            code = zlib.compress(marshal.dumps(_code(path, source)), 1)
    return Piece(f"{_sha(source).hexdigest()}:{path}", path, zlib.compress(source, 1), code)


def _code(path: str, source: bytes) -> types.CodeType:
    name = f"{_parcel.ROOT}/{path}"
    file = _core_file(path, _sha(source).digest())
    if file is not None:  # its code lies beside it, most likely, and to read it is a tenth of the work
        code = importlib.machinery.SourceFileLoader(name, file).get_code(name)
        if code is not None:
            return _renamed(code, name)
    return compile(source, name, "exec", dont_inherit=True)


def _renamed(code: types.CodeType, name: str) -> types.CodeType:
    inner = tuple(_renamed(one, name) if isinstance(one, types.CodeType) else one for one in code.co_consts)
    return code.replace(co_filename=name, co_consts=inner)


@functools.lru_cache(maxsize=4096)
def _core_file(path: str, digest: bytes) -> str | None:
    """Where ansible-core has that very file."""
    import ansible

    place = os.path.join(os.path.dirname(os.path.dirname(ansible.__file__)), path)
    try:
        with open(place, "rb") as file:
            return place if _sha(file.read()).digest() == digest else None
    except OSError:
        return None
