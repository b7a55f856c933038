# SPDX-License-Identifier: GPL-3.0-or-later
"""
Imports a module's payload on the host from memory, in place of the archive that Ansible would send.

A module that may look up its own path, or respawn, gets a real archive before it starts, and everything imported before
is made to point into it (`settle`). Sent first, before child.py and main.py; needs only the stdlib of 3.8.
"""

from __future__ import annotations

import _imp
import contextlib
import importlib.machinery
import importlib.util
import marshal
import os
import shutil
import sys
import tempfile
import zlib
from typing import Any

ROOT = "/tmp/ansible_warm_payload.zip"  # noqa: S108  # never opened: the name that sources have in tracebacks while no archive exists


class SourceFile:
    """One file of a payload: its path in the archive, its compressed text and its bytecode."""

    def __init__(self, path: str, text: bytes, code: Any) -> None:
        self.path, self.text, self._code = path, text, code

    def bytes(self) -> Any:
        return zlib.decompress(self.text)

    def source(self) -> str:
        return importlib.util.decode_source(self.bytes())

    def code(self) -> Any:
        if self._code is None:
            self._code = compile(self.bytes(), ROOT + "/" + self.path, "exec", dont_inherit=True)
        elif isinstance(self._code, bytes):
            self._code = marshal.loads(zlib.decompress(self._code))  # noqa: S302  # the sender may run any code here anyway
        return self._code

    def settle(self, root: str) -> None:
        """Set co_filename below `root` in all code of this file, including that of existing functions."""
        if self.path.endswith(".py"):
            with contextlib.suppress(SyntaxError, ValueError):  # raised again when it is imported
                _imp._fix_co_filename(self.code(), root + "/" + self.path)  # type: ignore[attr-defined]


class Archive:
    """The payload as a zip file: written by the first `place()`, removed when the module has ended."""

    def __init__(self, files: dict[str, Any], module: str) -> None:
        self._files, self._module = files, module
        self._folder: str | None = None

    def place(self) -> str:
        name = "ansible_" + self._module + "_payload"
        if self._folder is None:
            self._folder = os.path.realpath(tempfile.mkdtemp(prefix=name + "_"))
            self._write(os.path.join(self._folder, name + ".zip"))
        return os.path.join(self._folder, name + ".zip")

    def _write(self, place: str) -> None:
        import zipfile  # here: few modules need the archive, and every start of the interpreter would import it

        with zipfile.ZipFile(place, "w") as file:
            for _, _, source in self._files.values():
                file.writestr(zipfile.ZipInfo(source.path), source.bytes())
            file.writestr(zipfile.ZipInfo("sitecustomize.py"), 'import sys\nsys.path.insert(0, "%s")\n' % place)

    def remove(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


class Importer:
    """Finds the modules of one payload, in place of the archive that would be first in sys.path."""

    def __init__(self) -> None:
        self.root = ROOT
        self.files: dict[str, tuple[bool, str, SourceFile]] = {}
        self.archive = Archive({}, "")

    def serve(self, files: dict[str, Any], module: str = "") -> Archive:
        self.files, self.archive = files, Archive(files, module)
        return self.archive

    def settle(self) -> str:
        """
        Write the archive and make all modules, imported before or later, point into it; return its path.

        Only for a module's forked process. The archive becomes the first entry of sys.path, as with stock Ansible.
        """
        before, self.root = self.root, self.archive.place()
        for _, _, source in self.files.values():
            source.settle(self.root)
        for name in self.files:
            module: Any = sys.modules.get(name)
            if isinstance(getattr(module, "__loader__", None), Loader):
                _move(module.__dict__, before, self.root)
                _move(module.__spec__.__dict__, before, self.root)
        sys.path.insert(0, self.root)
        return self.root

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        found = self.files.get(name)
        if found is None:
            return None
        package, _, source = found
        origin = self.root + "/" + source.path
        loader: Any = Loader(self, name, source, package)
        spec = importlib.machinery.ModuleSpec(name, loader, origin=origin, is_package=package)
        spec.has_location = True
        if package:
            spec.submodule_search_locations = [os.path.dirname(origin)]
        return spec

    def invalidate_caches(self) -> None:
        """There is no cache."""


def _move(names: dict[str, Any], before: str, after: str) -> None:
    """Replace the prefix in `__file__`, `__path__` and constants derived from them: str, path or list of str."""
    a_path = getattr(sys.modules.get("pathlib"), "PurePath", str)  # who has a path has imported pathlib
    for name, value in list(names.items()):
        if isinstance(value, list) and value and all(isinstance(one, str) for one in value):
            value[:] = [after + one[len(before) :] if one.startswith(before) else one for one in value]
        elif isinstance(value, (str, a_path)) and str(value).startswith(before):
            names[name] = type(value)(after + str(value)[len(before) :])


class Loader:
    def __init__(self, finder: Importer, name: str, source: SourceFile, package: bool) -> None:
        self.name, self._finder, self._source, self._package = name, finder, source, package

    @property
    def archive(self) -> str:
        """As in zipimport: the archive's path."""
        return self._finder.archive.place()

    @property
    def prefix(self) -> str:
        """As in zipimport: the folder inside the archive."""
        folder = os.path.dirname(os.path.dirname(self._source.path) if self._package else self._source.path)
        return folder + "/" if folder else ""

    def create_module(self, spec: Any) -> None:
        return None

    def exec_module(self, module: Any) -> None:
        exec(self._source.code(), module.__dict__)  # noqa: S102  # a loader executes code

    def get_code(self, name: str) -> Any:
        return self._source.code()

    def get_source(self, name: str) -> str:
        return self._source.source()

    def get_filename(self, name: str) -> str:
        return self._finder.root + "/" + self._source.path

    def is_package(self, name: str) -> bool:
        return self._package

    def get_data(self, path: str) -> Any:
        """For pkgutil.get_data: a file of the archive, by its path below the root or inside the archive."""
        for _, _, source in self._finder.files.values():
            if os.path.normpath(path) in (self._finder.root + "/" + source.path, source.path):
                return source.bytes()
        raise OSError(0, "", path)  # as zipimport does

    def get_resource_reader(self, name: str) -> Any:
        """For importlib.resources: zipimport's own reader, because the protocol differs between Python versions."""
        import zipimport  # here, as zipfile above

        above = name.split(".")[:-1]
        importer: Any = zipimport.zipimporter(os.path.join(self._finder.archive.place(), *above))
        return importer.get_resource_reader(name)
