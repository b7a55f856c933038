# SPDX-License-Identifier: GPL-3.0-or-later
"""
What a module is imported from on the far side of warm modules: the files of its payload, by content, in memory.

They stand in for the archive that Ansible would send. Who asks for what lies beside the code, or starts itself again, gets a real
archive, written at that moment. This text travels in front of that of `_far`: it needs nothing but a stdlib of 3.8.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import marshal
import os
import shutil
import tempfile
import zipfile
import zipimport
import zlib
from typing import Any

ROOT = "/tmp/ansible_warm_payload.zip"  # noqa: S108  # never opened: the name that sources have in tracebacks


class Source:
    """One file of a module's payload: where it lies in it, its text (packed) and its code."""

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
            self._code = marshal.loads(zlib.decompress(self._code))  # noqa: S302  # from who may run code here anyway
        return self._code


class Archive:
    """The payload as a file, for who needs one: written when it is first asked for."""

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
        with zipfile.ZipFile(place, "w") as file:
            for _, _, source in self._files.values():
                file.writestr(zipfile.ZipInfo(source.path), source.bytes())
            file.writestr(zipfile.ZipInfo("sitecustomize.py"), 'import sys\nsys.path.insert(0, "%s")\n' % place)

    def remove(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


class Finder:
    """Answers for the files of one payload, in the place of the archive that would be first in sys.path."""

    def __init__(self) -> None:
        self.files: dict[str, tuple[bool, str, Source]] = {}
        self.archive = Archive({}, "")

    def serve(self, files: dict[str, Any], module: str = "") -> Archive:
        self.files, self.archive = files, Archive(files, module)
        return self.archive

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        found = self.files.get(name)
        if found is None:
            return None
        package, _, source = found
        origin = ROOT + "/" + source.path
        loader: Any = Loader(self, name, source, package)
        spec = importlib.machinery.ModuleSpec(name, loader, origin=origin, is_package=package)
        spec.has_location = True
        if package:
            spec.submodule_search_locations = [os.path.dirname(origin)]
        return spec

    def invalidate_caches(self) -> None:
        """Nothing is looked up twice."""


class Loader:
    def __init__(self, finder: Finder, name: str, source: Source, package: bool) -> None:
        self.name, self._finder, self._source, self._package = name, finder, source, package

    def create_module(self, spec: Any) -> None:
        return None

    def exec_module(self, module: Any) -> None:
        exec(self._source.code(), module.__dict__)  # noqa: S102  # that is what a loader does

    def get_code(self, name: str) -> Any:
        return self._source.code()

    def get_source(self, name: str) -> str:
        return self._source.source()

    def get_filename(self, name: str) -> str:
        return ROOT + "/" + self._source.path

    def is_package(self, name: str) -> bool:
        return self._package

    def get_data(self, path: str) -> Any:
        """For pkgutil.get_data: what lies in the archive, by the name that it would have there."""
        for _, _, source in self._finder.files.values():
            if os.path.normpath(path) in (ROOT + "/" + source.path, source.path):
                return source.bytes()
        raise OSError(0, "", path)  # as zipimport has it

    def get_resource_reader(self, name: str) -> Any:
        """For importlib.resources, whose ways differ from one Python to the next: so it is zipimport's own."""
        above = name.split(".")[:-1]
        importer: Any = zipimport.zipimporter(os.path.join(self._finder.archive.place(), *above))
        return importer.get_resource_reader(name)
