# SPDX-License-Identifier: GPL-3.0-or-later
"""
Extracts the archive and the arguments from a module that Ansible has wrapped.

Archives and files are cached by a hash of their content, so a changed module or module_util is never served from the
cache. Each file is sent to an interpreter once, with its bytecode if the host's Python has the same bytecode version.
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
from dataclasses import dataclass, field
from typing import Any

from forkless.core.syntax_trees import literal_eval
from forkless.modules.warm.remote import importer

__all__ = ["MAGIC", "Manifest", "Piece", "Wrapped", "manifest_of", "take_apart"]

MAGIC = importlib.util.MAGIC_NUMBER.hex()
MOST = 256  # archives in the cache
MOST_PIECES = 4096  # files in the cache

# Up to 2.18 the wrapper is a template; since 2.19 it ends with a call that has one argument on each line. All values
# are written by repr, so no value contains a line break.
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
# Files that the host may import before any module runs. Embedded files are only read, or run as programs.
_BEFORE = re.compile(r"ansible/module_utils/(?!_embed/).+\.py$")
# Ways in which code finds its own path, or passes it to another process. A match in a comment only costs an archive on
# the host.
_ASKS = re.compile(
    rb"__file__|__path__|__spec__|__loader__|__main__\s*\.|_modlib_path|\bsys\s*\.\s*path\b|\bfrom sys import\b|get_module_path"
    rb"|\b(?:inspect|pkgutil|runpy|zipimport|zipfile|multiprocessing|concurrent)\b|\bimportlib\b(?!\.import_module)"
)
# The only module_utils of ansible-core that need the archive; other matches in its files are harmless.
_CORE_ASKS = ("ansible.module_utils.common.respawn", "ansible.module_utils.embed")
# async_wrapper in the form that a warm interpreter can run: it starts the module by one call and reads its output by
# another. Its own path it only shows in the system's log.
_ASYNC_WRAPPER = "ansible.modules.async_wrapper"
_KNOWN_WRAPPER = re.compile(
    rb"script = subprocess\.Popen\(\s+cmd,[^()]*\)\s+\(outdata, stderr\) = script\.communicate\(\)\n"
)
_WRITTEN_BY_ANSIBLE = (
    "ansible",
    "ansible.module_utils",
)  # packages whose text Ansible generates; they only extend their `__path__`


@dataclass(frozen=True)
class Piece:
    """One file of an archive, its text and bytecode compressed for sending."""

    key: str
    path: str
    text: bytes

    @functools.cached_property
    def code(self) -> bytes:
        """Made when the first host with this Python's bytecode asks for it, and b"" if there is none. Any thread may read it."""
        if self.path.endswith(".py"):
            with contextlib.suppress(SyntaxError, ValueError):  # reported when the host compiles the file
                return zlib.compress(marshal.dumps(_code(self.path, zlib.decompress(self.text))), 6)
        return b""


@dataclass(frozen=True)
class Manifest:
    """The content of an archive: for each module its name, whether it is a package, and its file."""

    digest: str
    files: tuple[tuple[str, bool, Piece], ...]
    core: tuple[str, ...]
    """Names of the module_utils whose text is identical to the installed ansible-core's."""
    needs_archive: bool
    """Whether the module may look up its own path or pass it to a program, so that the archive must exist as a file."""
    is_core_async_wrapper: bool
    """Whether this is the async_wrapper of the installed ansible-core, in a form that is known."""

    def order(self) -> bytes:
        files = [(name, package, piece.key) for name, package, piece in self.files]
        return json.dumps({"digest": self.digest, "files": files, "core": self.core}).encode()


@dataclass(frozen=True)
class Wrapped:
    """A module as Ansible wrapped it (`data`), and what was extracted from it."""

    data: bytes = field(repr=False)
    manifest: Manifest = field(repr=False)
    order: dict[str, object] = field(repr=False)
    environ: dict[str, str] = field(default_factory=dict, repr=False)
    """The task's own variables."""
    interpreter: tuple[str, ...] = ()
    argv: tuple[str, ...] = ()
    """The command line that stock Ansible would start it with, for async_wrapper and for the module that it starts."""
    job: Wrapped | None = field(default=None, repr=False)
    """The module that this one, async_wrapper, starts."""

    @property
    def fqn(self) -> str:
        return str(self.order["fqn"])

    @property
    def whole_order(self) -> dict[str, object]:
        job = None if self.job is None else self.job.whole_order
        return {**self.order, "interpreter": self.interpreter, "argv": self.argv, "job": job}

    @property
    def manifests(self) -> tuple[Manifest, ...]:
        """What the host must have before it can run this."""
        return (self.manifest,) if self.job is None else (self.job.manifest, self.manifest)


def take_apart(data: bytes, manifest: Manifest | None = None) -> Wrapped | None:
    """
    Extract a wrapped module; None if the wrapper has an unknown form or uses extensions. Any thread may call this.

    `manifest`: the content of the archive, for a module that was wrapped without it.
    """
    found = _arguments(data)
    if found is None or found.pop("extensions", None):
        return None
    archive = found.pop("zip_data")
    if manifest is None:
        manifest = manifest_of(archive)
    order = {
        "digest": manifest.digest,
        "archive": manifest.needs_archive,
        "fqn": found["module_fqn"],
        "module": found["ansible_module"],
        "params": found["params"],
        "profile": found.get("profile", "legacy"),
        "rlimit": found.get("rlimit_nofile", 0),
    }
    if "secrets" in found:
        order["secrets"] = sorted(found["secrets"])
    return Wrapped(data, manifest, order)


def _arguments(data: bytes) -> dict[str, Any] | None:
    try:
        at = data.find(_CALL, max(0, data.find(b'if __name__ == "__main__":'))) if _CALL in data else -1
        if at >= 0:
            lines = data[at + len(_CALL) :].splitlines()
            pairs = (line.partition(b"=")[::2] for line in lines if line.endswith(b","))
            raw = {name.decode(): value[:-1] for name, value in pairs}
            archive = raw.pop("zip_data").strip(b"'")
            raw.pop("date_time", None)
            return {"zip_data": archive, **{name: _value(value.decode()) for name, value in raw.items()}}
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


def _value(text: str) -> Any:
    """Evaluate a literal or a frozenset of literals (the `secrets` argument since 2.22), whose repr is a call."""
    frozen = re.fullmatch(r"frozenset\((.*)\)", text)
    return frozenset(literal_eval(frozen[1] or "()")) if frozen else literal_eval(text)


_lock = threading.Lock()  # guards _manifests
_reading = threading.Lock()  # held while an archive is read; guards _pieces
# Manifests by a hash of the archive. Ansible builds an archive for each module and run with the current time in it, so
# most archives lead to a manifest that exists already.
_manifests: collections.OrderedDict[bytes, Manifest] = collections.OrderedDict()
_pieces: collections.OrderedDict[str, Piece] = collections.OrderedDict()


def manifest_of(archive: bytes) -> Manifest:
    """The content of an archive, which is a zip file in base64. Any thread may call this."""
    key = hashlib.sha256(archive).digest()
    found = _known(key)
    if found is not None:
        return found
    with _reading:  # workers of many hosts ask for the same archive at once; only the first reads it
        made = _known(key) or _read(archive)
        with _lock:
            made = next((one for one in _manifests.values() if one.digest == made.digest), made)
            _manifests[key] = made
            while len(_manifests) > MOST:
                _manifests.popitem(last=False)
    return made


def _known(key: bytes) -> Manifest | None:
    with _lock:
        if key in _manifests:
            _manifests.move_to_end(key)
        return _manifests.get(key)


def _read(archive: bytes) -> Manifest:
    files: list[tuple[str, bool, Piece]] = []
    core: list[str] = []
    asks = wraps = False
    with zipfile.ZipFile(io.BytesIO(base64.b64decode(archive))) as opened:
        for path in dict.fromkeys(opened.namelist()):
            source = opened.read(path)
            piece = _piece(path, source)
            name = path[:-3].replace("/", ".") if path.endswith(".py") else path  # no import uses such a name
            package = name.endswith(".__init__")
            name = name.removesuffix(".__init__")
            files.append((name, package, piece))
            if _BEFORE.match(path) and _core_file(path, _sha(source).digest()) is not None:
                core.append(name)
                asks = asks or name in _CORE_ASKS
            elif name == _ASYNC_WRAPPER and _core_file(path, _sha(source).digest()) and _KNOWN_WRAPPER.search(source):
                wraps = True
            elif name not in _WRITTEN_BY_ANSIBLE:
                asks = asks or _ASKS.search(source) is not None
    # `basic` comes first: it imports the module that collects warnings, which tell whether a later import warned.
    core.sort(key=lambda name: (name != "ansible.module_utils.basic", name))
    digest = _sha("\n".join(f"{name} {package} {piece.key}" for name, package, piece in files).encode())
    return Manifest(digest.hexdigest(), tuple(files), tuple(core), asks, wraps and not asks)


def _piece(path: str, source: bytes) -> Piece:
    key = f"{_sha(source).hexdigest()}:{path}"
    if key in _pieces:
        _pieces.move_to_end(key)
        return _pieces[key]
    piece = _pieces[key] = Piece(key, path, zlib.compress(source, 6))
    while len(_pieces) > MOST_PIECES:
        _pieces.popitem(last=False)
    return piece


class _Reader(importlib.machinery.SourceFileLoader):
    """Reads the .pyc of a file but never writes one: Ansible does not import the files that it sends to hosts."""

    def set_data(self, *_: Any, **__: Any) -> None: ...


def _code(path: str, source: bytes) -> types.CodeType:
    name = f"{importer.ROOT}/{path}"
    file = _core_file(path, _sha(source).digest())
    if file is not None:  # reading its .pyc takes a tenth of the time of compiling
        code = _Reader(name, file).get_code(name)
        if code is not None:
            return _renamed(code, name)
    return compile(source, name, "exec", dont_inherit=True)


def _renamed(code: types.CodeType, name: str) -> types.CodeType:
    inner = tuple(_renamed(one, name) if isinstance(one, types.CodeType) else one for one in code.co_consts)
    return code.replace(co_filename=name, co_consts=inner)


@functools.lru_cache(maxsize=4096)
def _core_file(path: str, digest: bytes) -> str | None:
    """The path of this file in the installed ansible-core, or None if the content there differs."""
    import ansible

    place = os.path.join(os.path.dirname(os.path.dirname(ansible.__file__)), path)
    try:
        with open(place, "rb") as file:
            return place if _sha(file.read()).digest() == digest else None
    except OSError:
        return None
