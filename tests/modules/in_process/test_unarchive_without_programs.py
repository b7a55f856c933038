# SPDX-License-Identifier: GPL-3.0-or-later
"""unarchive with no program: zip and tar, as the real ones would leave the files."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
import zipfile

import pytest

from forkless.modules.in_process import programs


@pytest.fixture
def tree(tmp_path):
    tree = tmp_path / "tree"
    (tree / "sub").mkdir(parents=True)
    (tree / "plain").write_text("plain\n")
    (tree / "script").write_text("#!/bin/sh\n")
    (tree / "script").chmod(0o755)
    (tree / "sub" / "deep ü").write_bytes(os.urandom(100_000))
    for path in [*tree.rglob("*"), tree]:
        os.utime(path, (1_600_000_000, 1_600_000_000))
    return tree


def pack(tree, kind):
    path = tree.parent / f"archive.{kind}"
    if kind == "zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
            for one in sorted(tree.rglob("*")):
                file.write(one, one.relative_to(tree))
    else:
        with tarfile.open(path, {"tar": "w", "tgz": "w:gz", "txz": "w:xz"}[kind]) as file:
            for one in sorted(tree.iterdir()):
                file.add(one, one.name)
    return path


def picture(folder):
    return {
        str(p.relative_to(folder)): (
            p.stat().st_mode,
            p.read_bytes() if p.is_file() else None,
            int(p.stat().st_mtime) if p.is_file() else 0,
        )
        for p in folder.rglob("*")
    }


@pytest.mark.parametrize("kind", ["zip", "tar", "tgz", "txz"])
def test_it_unpacks_and_the_second_time_finds_nothing_to_do(builtin, tree, tmp_path, kind):
    arguments = {"src": str(pack(tree, kind)), "dest": str(tmp_path / "out"), "remote_src": True}
    (tmp_path / "out").mkdir()
    first = builtin("unarchive", arguments, programs=False)
    assert first.get("changed") is True, first
    assert picture(tmp_path / "out") == picture(tree)
    assert builtin("unarchive", arguments, programs=False)["changed"] is False
    (tmp_path / "out" / "plain").write_text("other")
    assert builtin("unarchive", arguments, programs=False)["changed"] is True
    assert picture(tmp_path / "out") == picture(tree)


@pytest.mark.spawns
def test_it_leaves_what_the_real_tar_leaves(builtin, tree, tmp_path):
    if not shutil.which("tar"):
        pytest.skip("no tar to compare with")
    archive = pack(tree, "tgz")
    for name in ("ours", "theirs"):
        (tmp_path / name).mkdir()
    ours = builtin(
        "unarchive",
        {"src": str(archive), "dest": str(tmp_path / "ours"), "remote_src": True, "list_files": True},
        programs=False,
    )
    theirs = builtin(
        "unarchive",
        {"src": str(archive), "dest": str(tmp_path / "theirs"), "remote_src": True, "list_files": True},
        programs=True,
    )
    assert picture(tmp_path / "ours") == picture(tmp_path / "theirs")
    assert sorted(ours["files"]) == sorted(theirs["files"])
    same = subprocess.run(
        ["tar", "--diff", "-C", tmp_path / "ours", "-zf", archive], capture_output=True, text=True, check=False
    )
    assert same.returncode == 0, same.stdout + same.stderr


def test_what_is_left_out_is_left_out(builtin, tree, tmp_path):
    (tmp_path / "out").mkdir()
    arguments = {
        "src": str(pack(tree, "tar")),
        "dest": str(tmp_path / "out"),
        "remote_src": True,
        "exclude": ["script"],
    }
    assert builtin("unarchive", arguments, programs=False)["changed"]
    assert not (tmp_path / "out" / "script").exists()
    assert (tmp_path / "out" / "plain").exists()


def test_an_archive_that_reaches_outside_is_refused(builtin, tmp_path):
    (tmp_path / "evil").write_text("evil")
    with tarfile.open(tmp_path / "evil.tar", "w") as file:
        file.add(tmp_path / "evil", "../escaped")
    (tmp_path / "out").mkdir()
    result = builtin(
        "unarchive",
        {"src": str(tmp_path / "evil.tar"), "dest": str(tmp_path / "out"), "remote_src": True},
        programs=False,
    )
    assert result["failed"]
    assert not (tmp_path / "escaped").exists()


@pytest.mark.parametrize("old_python", [False, True], ids=["", "without filters"])
def test_a_hard_link_that_leads_outside_is_refused(builtin, tmp_path, monkeypatch, old_python):
    if old_python:
        monkeypatch.delattr(tarfile, "tar_filter", raising=False)
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "out").mkdir()
    for name in ("../secret", str(tmp_path / "secret")):
        with tarfile.open(tmp_path / "evil.tar", "w") as file:
            link = tarfile.TarInfo("linked")
            link.type, link.linkname = tarfile.LNKTYPE, name
            file.addfile(link)
        result = builtin(
            "unarchive",
            {"src": str(tmp_path / "evil.tar"), "dest": str(tmp_path / "out"), "remote_src": True},
            programs=False,
        )
        assert "would be extracted outside" in str(result), result
        assert not (tmp_path / "out" / "linked").exists()


@pytest.mark.parametrize("old_python", [False, True], ids=["", "without filters"])
def test_hard_links_within_the_archive_are_made_and_the_root_is_a_folder_too(tmp_path, monkeypatch, old_python):
    if old_python:
        monkeypatch.delattr(tarfile, "tar_filter", raising=False)
    (tmp_path / "one").write_text("text")
    (tmp_path / "two").hardlink_to(tmp_path / "one")
    inside = str(tmp_path / "out").lstrip("/")
    with tarfile.open(tmp_path / "links.tar", "w") as file:
        for name in ("one", "two"):
            file.add(tmp_path / name, f"{inside}/{name}")
    assert programs.tar(["--extract", "-C", "/", "-f", str(tmp_path / "links.tar")])[0] == 0
    assert (tmp_path / "out" / "two").samefile(tmp_path / "out" / "one")


def test_an_option_that_only_the_real_tar_has_is_named(builtin, tree, tmp_path):
    (tmp_path / "out").mkdir()
    arguments = {
        "src": str(pack(tree, "tar")),
        "dest": str(tmp_path / "out"),
        "remote_src": True,
        "extra_opts": ["--transform=s/a/b/"],
    }
    result = builtin("unarchive", arguments, programs=False)
    assert "--transform=s/a/b/" in result["msg"]


def test_something_that_is_no_archive_is_refused(builtin, tmp_path):
    (tmp_path / "text").write_text("not an archive")
    (tmp_path / "out").mkdir()
    result = builtin(
        "unarchive", {"src": str(tmp_path / "text"), "dest": str(tmp_path / "out"), "remote_src": True}, programs=False
    )
    assert result["failed"]
