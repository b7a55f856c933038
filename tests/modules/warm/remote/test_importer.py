# SPDX-License-Identifier: GPL-3.0-or-later
"""What a warm module is imported from: it answers as the archive would that Ansible sends."""

from __future__ import annotations

import base64
import collections
import concurrent.futures
import contextlib
import importlib
import importlib.resources
import io
import pathlib
import pkgutil
import sys
import threading
import time
import zipfile
import zlib

import pytest

import forkless
from forkless.modules.warm import payload, program
from forkless.modules.warm.remote import importer

FILES = {
    "fk_parcel/__init__.py": "",
    "fk_parcel/inner/__init__.py": "HERE = __file__\n",
    "fk_parcel/inner/code.py": "VALUE = 7\n",
    "fk_parcel/inner/words.txt": "beside the code",
}


def packed(files, when=(2026, 1, 1, 0, 0, 0)):
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        for path, text in files.items():
            archive.writestr(zipfile.ZipInfo(path, when), text)
    return base64.b64encode(held.getvalue())


@contextlib.contextmanager
def imported(way, folder):
    """The files as a warm module has them, or from the archive that a cold one has."""
    if way == "archive":
        (folder / "payload.zip").write_bytes(base64.b64decode(packed(FILES)))
        place, undo = sys.path, str(folder / "payload.zip")
        sys.path.insert(0, undo)
        tidy = contextlib.nullcontext()
    else:
        manifest = payload.manifest_of(packed(FILES))
        finder = importer.Importer()
        archive = finder.serve(
            {
                name: (package, one.key, importer.SourceFile(one.path, one.text, one.code))
                for name, package, one in manifest.files
            },
            "mine",
        )
        place, undo = sys.meta_path, finder
        sys.meta_path.insert(0, finder)
        tidy = contextlib.closing(type("", (), {"close": staticmethod(archive.remove)}))
    try:
        with tidy:
            yield
    finally:
        place.remove(undo)
        sys.path_importer_cache.pop(undo, None)
        for name in [name for name in sys.modules if name.startswith("fk_parcel")]:
            del sys.modules[name]


def asked(folder):
    """Whatever one may ask a package that came in an archive."""
    inner = importlib.import_module("fk_parcel.inner")
    files = importlib.resources.files("fk_parcel.inner")
    with importlib.resources.as_file(files / "words.txt") as path:
        extracted = path.read_text()
    loader = inner.__spec__.loader
    above = str(pathlib.Path(inner.HERE).parent)
    found = {
        "code": importlib.import_module("fk_parcel.inner.code").VALUE,
        "get_data": pkgutil.get_data("fk_parcel.inner", "words.txt"),
        "source": pkgutil.get_data("fk_parcel.inner", "code.py"),
        "beside": loader.get_data(f"{above}/../inner/words.txt") if folder is None else b"beside the code",
        "read": files.joinpath("words.txt").read_text(),
        "there": sorted(one.name for one in files.iterdir()),
        "missing": files.joinpath("nothing").is_file(),
        "extracted": extracted,
        "filename": loader.get_filename("fk_parcel.inner") == inner.HERE,
    }
    with pytest.raises(OSError, match="nothing"):
        pkgutil.get_data("fk_parcel.inner", "nothing")
    return found


def test_what_lies_beside_the_code_is_found_as_in_an_archive(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with imported("archive", tmp_path):
        theirs = asked(tmp_path)
    with imported("warm", tmp_path):
        assert asked(None) == theirs
    assert theirs["read"] == "beside the code"
    assert [path.name for path in tmp_path.iterdir()] == ["payload.zip"], "the archive is gone with its module"


def test_the_texts_that_travel_need_nothing_of_ours():
    parts = [program.server_part(name) for name in (program.LIVE_OUTPUT, program.ASYNC_JOB)]
    text, live, job = (zlib.decompress(one).decode() for one in (program.server_program(ask_groups=False).text, *parts))
    for one in (text, live, job):
        compile(one, "far", "exec")
        lines = [line for line in one.splitlines() if line.startswith(("from ", "import "))]
        assert not [line for line in lines if "forkless" in line or "ansible" in line]
    assert "class Importer" in text and "def become_the_module" in text
    assert "class OutputReader" in live and "class OutputReader" not in text
    assert "def fork_in_place_of" in job and "def fork_in_place_of" not in text


def test_an_archive_that_ten_hosts_come_with_is_read_once(monkeypatch):
    read, together = [], threading.Barrier(10)
    original = payload._read

    def slowly(archive):
        read.append(archive)
        time.sleep(0.05)  # time for the others to come; without them it is only slower
        return original(archive)

    def come(archive):
        together.wait(240)
        return payload.manifest_of(archive)

    monkeypatch.setattr(payload, "_read", slowly)
    archive = packed({"ansible/module_utils/one.py": f"# {time.time_ns()}"})
    with concurrent.futures.ThreadPoolExecutor(10) as pool:
        found = list(pool.map(come, [archive] * 10))
    assert len(read) == 1
    assert all(one is found[0] for one in found)


def test_three_hundred_runs_keep_no_more_than_one(monkeypatch):
    monkeypatch.setattr(payload, "_manifests", collections.OrderedDict())
    monkeypatch.setattr(payload, "_pieces", collections.OrderedDict())
    files = {"ansible/module_utils/one.py": "# " + "x" * 100_000, "ansible/modules/mine.py": "VALUE = 1\n"}
    archives = [packed(files, (2026, 1, 1, 0, number // 30, number % 30 * 2)) for number in range(300)]
    assert len(set(archives)) == 300, "each has its time in it"
    kept = {id(payload.manifest_of(archive)) for archive in archives}
    assert len(kept) == 1
    assert len(payload._pieces) == len(files)
    assert len(payload._manifests) <= payload.MOST
    assert sum(sys.getsizeof(key) for key in payload._manifests) < 100 * payload.MOST


@pytest.mark.spawns
def test_a_run_more_keeps_no_manifest_and_no_piece_more(tmp_path):
    (tmp_path / "play.yml").write_text("- hosts: all\n  gather_facts: false\n  tasks: [{ping: }, {stat: {path: /}}]\n")
    (tmp_path / "hosts").write_text(f"h ansible_connection=local ansible_python_interpreter={sys.executable}\n")

    def kept():
        forkless.run(playbook="play.yml", inventory="hosts", engine="threads", cwd=tmp_path).raise_for_failures()
        return {one.digest for one in payload._manifests.values()}, set(payload._pieces)

    assert kept() == kept() == kept()


MODULE = """#!/usr/bin/python
import sys
early = [name for name in ("importlib.metadata", "email") if name in sys.modules]
import importlib.resources, inspect, os, pkgutil
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils import mine
def never():
    from ansible.module_utils import late
%s
module = AnsibleModule({})
forks = []
os.register_at_fork(before=lambda: forks.append(1))
module.run_command(["true"], check_rc=True)
quick = not forks
mask = module.run_command(["sh", "-c", "umask"], umask=0o27, check_rc=True)[1]
module.exit_json(
    quick=quick, mask=int(mask, 8), ready=type(sys.meta_path[0].files["ansible.module_utils.late"][2]._code).__name__,
    early=early, parent=__import__("os").getppid(), source=inspect.getsource(mine),
    data=pkgutil.get_data("ansible.module_utils", "mine.py").decode(),
    read=importlib.resources.files("ansible.module_utils").joinpath("mine.py").read_text(), %s
)
"""
EMBED = """
from ansible.module_utils.embed import EmbedManager
thing = EmbedManager.embed("ansible.module_utils._embed", "dnf.py")
with thing.path_context_manager as path:
    embedded = len(path.read_text())
"""


# ansible-core 2.21 reads what is to be embedded by a function that Python 3.11 and 3.12 call deprecated, and 3.13 no longer does.
@pytest.mark.filterwarnings("ignore:path is deprecated:DeprecationWarning")
@pytest.mark.spawns
@pytest.mark.matrix
def test_a_warm_module_reads_what_came_with_it_and_imports_no_more_than_it_needs(tmp_path):
    ansible = pathlib.Path(importlib.util.find_spec("ansible").origin).parent
    embeds = (ansible / "module_utils/embed.py").exists()
    (tmp_path / "library").mkdir()
    (tmp_path / "module_utils").mkdir()
    (tmp_path / "library/mine.py").write_text(MODULE % ((EMBED, "embedded=embedded") if embeds else ("", "")))
    (tmp_path / "module_utils/mine.py").write_text("VALUE = 1\n")
    (tmp_path / "module_utils/late.py").write_text("raise SystemExit('nobody asked for it')\n")
    (tmp_path / "play.yml").write_text("- hosts: all\n  gather_facts: false\n  tasks: [{mine: }, {mine: }]\n")
    (tmp_path / "hosts").write_text(f"a ansible_connection=local ansible_python_interpreter={sys.executable}\n")
    result = forkless.run("play.yml", inventory="hosts", engine="threads", cwd=tmp_path)
    result.raise_for_failures()
    found = [event.event_data["res"] for event in result.events if event.event == "runner_on_ok"]
    assert found[0]["parent"] == found[1]["parent"], "it was warm"
    for one in found:
        assert (one["source"], one["data"], one["read"], one["early"]) == (*["VALUE = 1\n"] * 3, [])
        assert (one["quick"], one["mask"]) == (True, 0o27), "a program is started without a fork unless it has a umask"
        assert one["ready"] == "code", "what a module may import is compiled before it is forked"
        assert not embeds or one["embedded"] == len((ansible / "module_utils/_embed/dnf.py").read_text())
