# SPDX-License-Identifier: GPL-3.0-or-later
"""What is done to a module when it is imported: at once, once, by one finder, and to nothing else."""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import sys
import threading
import types
import zipfile

import pytest

from forkless.core.errors import UnsupportedError
from forkless.patching import after_import, seams
from forkless.patching.seams import Seam, always

NAME = "forkless_test_imported_late"
OTHER = "forkless_test_imported_besides"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for name in (NAME, OTHER):
        (tmp_path / f"{name}.py").write_text("value = 'its own'\n")
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    yield tmp_path
    for name in (NAME, OTHER):
        sys.modules.pop(name, None)


def late(path="value", stand_in=None):
    return Seam(f"{NAME}:{path}", "a reason", stand_in or always("ours"), late=True)


def test_a_late_seam_goes_in_when_its_module_is_imported_and_comes_out_with_the_others(folder):
    before = list(sys.meta_path)
    with seams.installed([late()]):
        assert NAME not in sys.modules, "it is not imported for the seam"
        module = importlib.import_module(NAME)
        assert module.value == "ours"
        assert importlib.import_module(OTHER).value == "its own"
        assert type(module.__loader__) is type(module.__spec__.loader) is importlib.machinery.SourceFileLoader
    assert module.value == "its own"
    assert list(sys.meta_path) == before
    with seams.installed([late()]):
        assert module.value == "ours", "it is there: nothing to wait for"
    assert module.value == "its own"


def test_a_module_that_nothing_imports_gets_no_seam_after_the_block(folder):
    with seams.installed([late()]):
        pass
    assert importlib.import_module(NAME).value == "its own"


def test_an_import_fails_if_its_module_lacks_what_is_replaced(folder):
    with seams.installed([late("nowhere")]):
        with pytest.raises(UnsupportedError, match=f"{NAME}:nowhere is missing"):
            importlib.import_module(NAME)
        assert NAME not in sys.modules


def test_a_module_imported_under_the_same_name_but_kept_elsewhere_is_left_alone(folder):
    acted = []
    with (
        seams.installed([late()]),
        after_import.acting(lambda name: name == NAME, acted.append),
    ):
        spec = importlib.util.find_spec(NAME)
        private = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(private)
        assert private.value == "its own"
        assert acted == []
        assert NAME not in sys.modules, "the seam must not import the module either"
        assert importlib.import_module(NAME).value == "ours", "the seam still waits for the real one"
    assert acted == [sys.modules[NAME]]


def test_a_module_that_another_thread_is_importing_gets_its_seam_when_that_thread_has_it(folder):
    """What is in sys.modules may not be executed to its end yet: the name would be missing in it."""
    steps = types.SimpleNamespace(begun=threading.Event(), go_on=threading.Event())
    (folder / f"{NAME}.py").write_text(
        "import sys\n"
        f"steps = sys.modules[{OTHER!r}].steps\n"
        "steps.begun.set()\n"
        "assert steps.go_on.wait(240)\n"
        "value = 'its own'\n"
    )
    importlib.import_module(OTHER).steps = steps
    importing = threading.Thread(target=importlib.import_module, args=(NAME,))
    importing.start()
    assert steps.begun.wait(240)
    seen, entered = [], threading.Event()

    def enter():
        try:
            with seams.installed([late()]):
                seen.append(importlib.import_module(NAME).value)
        except UnsupportedError as error:
            seen.append(error)
        entered.set()

    entering = threading.Thread(target=enter)
    entering.start()
    early = entered.wait(0.2)
    steps.go_on.set()
    entering.join(240)
    importing.join(240)
    assert not early
    assert seen == ["ours"]
    assert sys.modules[NAME].value == "its own"


def test_other_modules_of_an_archive_are_not_taken_for_the_wanted_one(folder):
    """The modules of an archive share one loader."""
    with zipfile.ZipFile(folder / "both.zip", "w") as archive:
        for name in (NAME, OTHER):
            archive.write(folder / f"{name}.py", f"{name}.py")
    sys.path.insert(0, str(folder / "both.zip"))
    acted = []
    try:
        with after_import.acting(lambda name: name == NAME, lambda module: acted.append(module.__name__)):
            assert "both.zip" in importlib.import_module(NAME).__file__
            importlib.import_module(OTHER)
    finally:
        sys.path.remove(str(folder / "both.zip"))
        sys.path_importer_cache.pop(str(folder / "both.zip"), None)
    assert acted == [NAME]


def test_two_who_wait_for_one_module_act_in_their_order_and_by_one_finder(folder):
    acted = []
    before = len(sys.meta_path)
    with (
        after_import.acting(lambda name: name == NAME, lambda _: acted.append("first")),
        after_import.acting(lambda name: name in (NAME, OTHER), lambda module: acted.append(module.__name__)),
    ):
        assert len(sys.meta_path) == before + 1
        importlib.import_module(NAME)
        importlib.import_module(OTHER)
    assert acted == ["first", NAME, OTHER]
    assert len(sys.meta_path) == before


def test_no_thread_sees_the_module_before_the_seam_is_in(folder):
    """A second thread that imports the module while the stand-in is being made waits for it."""
    making, imported, seen = threading.Event(), threading.Event(), []

    def stand_in(_original, _site):
        making.set()
        assert not imported.wait(0.2), "the other thread did not wait"
        return "ours"

    def second():
        making.wait(240)
        seen.append(importlib.import_module(NAME).value)
        imported.set()

    with seams.installed([late(stand_in=stand_in)]):
        other = threading.Thread(target=second)
        other.start()
        importlib.import_module(NAME)
        other.join(240)
    assert seen == ["ours"]


def test_a_seam_whose_module_is_imported_while_the_block_ends_is_taken_out_again(folder):
    making, over = threading.Event(), threading.Event()

    def stand_in(_original, _site):
        making.set()
        over.wait(240)
        return "ours"

    with seams.installed([late(stand_in=stand_in)]):
        other = threading.Thread(target=importlib.import_module, args=(NAME,))
        other.start()
        making.wait(240)
    over.set()
    other.join(240)
    assert sys.modules[NAME].value == "its own"
