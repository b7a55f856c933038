# SPDX-License-Identifier: GPL-3.0-or-later
"""The Pythons and ansible-cores that forkless is made for are listed once; whoever names them says the same."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys
import tomllib

import pytest
import yaml

from forkless import UnsupportedError
from forkless.cli.commands import doctor
from forkless.cli.shim import launch
from forkless.core import versions
from forkless.core.errors import SeamError
from forkless.engines.threads import importing
from forkless.engines.threads.patches import table

pytestmark = [pytest.mark.spawns]
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


@pytest.mark.matrix
def test_every_known_minor_has_fingerprints_and_no_other_has():
    text = (ROOT / "src/forkless/patching/fingerprints.json").read_text()
    assert set(json.loads(text)) == set(versions.KNOWN)


def test_every_seam_names_known_minors_only():
    assert {minor for seam in table.SEAMS for minor in seam.minors} <= set(versions.KNOWN)


def test_the_classifiers_name_every_python():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [line.rpartition(" ")[2] for line in project["classifiers"] if "Python :: 3." in line]
    assert named == list(versions.PYTHONS)
    assert project["requires-python"] == f">={versions.PYTHONS[0]}"
    assert project["dependencies"] == [f"ansible-core>={versions.KNOWN[0]}"]


@pytest.mark.parametrize("page", ["docs/comparison.md", "docs/platforms.md"])
def test_the_pages_name_the_first_and_the_last(page):
    assert f"{versions.KNOWN[0]}–{versions.KNOWN[-1]}" in (ROOT / page).read_text()


def test_no_page_names_another_range():
    ends = {versions.KNOWN[0]: versions.KNOWN[-1], versions.PYTHONS[0]: versions.PYTHONS[-1]}
    written = re.compile(rf"(?<![\d.])({'|'.join(map(re.escape, ends))})(?:–| to )(\d\.\d+)")
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "src").rglob("*.md")]
    found = {(page.name, *pair) for page in pages for pair in written.findall(page.read_text())}
    assert len(found) > 2
    assert {one for one in found if ends[one[1]] != one[2]} == set()


@pytest.mark.parametrize("name", ["test", "matrix"])
def test_the_hosted_tests_have_every_python(name):
    """`make test` and `make matrix` only name the pairs of a Python that the machine does not have."""
    workflow = yaml.safe_load((ROOT / f".github/workflows/{name}.yml").read_text())
    steps = workflow["jobs"][name]["steps"]
    installed = next(
        step["with"]["python-version"] for step in steps if step.get("uses", "").startswith("actions/setup-")
    )
    assert installed.split() == list(reversed(versions.PYTHONS)), "the last one is `python`"


def test_nobody_else_lists_the_minors():
    """A second list would be forgotten with the next minor."""
    listed = re.compile(r"""["']2\.18["'],\s*["']2\.19["'],\s*["']2\.20["']""")
    places = [*(ROOT / "src").rglob("*.py"), *(ROOT / "tests").rglob("*.py"), ROOT / "noxfile.py"]
    assert [str(path) for path in places if listed.search(path.read_text())] == []


def test_the_short_matrix_has_every_minor_that_the_default_pair_has_not():
    assert set(versions.SHORT_MATRIX) <= set(versions.PAIRS)
    assert {core for _, core in versions.SHORT_MATRIX} | {"2.19"} == set(versions.KNOWN)


def test_the_error_for_an_unknown_minor_names_the_known_ones():
    assert "ansible-core>=2.18,<2.23" in str(SeamError("2.99.0"))


@pytest.fixture
def noxfile(monkeypatch):
    """The noxfile as it is read with FORKLESS_TEST_ROOT."""
    monkeypatch.setenv("FORKLESS_TEST_ROOT", "/srv/testing")
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr("nox.registry._REGISTRY", {})
    spec = importlib.util.spec_from_file_location("noxfile_with_a_root", ROOT / "noxfile.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


def test_the_pythons_of_a_root_are_tested_with_those_of_this_machine(noxfile, monkeypatch):
    def run(command, **_):
        inside = command[0] == "unshare"
        if inside and "/usr/bin/python3.13" not in command:
            return subprocess.CompletedProcess(command, 127, "", "")
        return subprocess.CompletedProcess(command, 0, "3.13.15\n" if inside else "3.13.2\n", "")

    monkeypatch.setattr(noxfile.subprocess, "run", run)
    here, there = noxfile.oldest_and_newest("3.13")
    assert (here.full, here.prefix) == ("3.13.2", ())
    assert (there.full, there.path) == ("3.13.15", "/usr/bin/python3.13")
    assert {"/srv/testing", os.getcwd(), os.path.dirname(noxfile.UV)} < set(there.prefix)
    assert noxfile.interpreters("3.15") == []


@pytest.fixture
def tested(noxfile, monkeypatch):
    """The pairs that a session of nox tests where these Pythons are found: (full version, what pip is asked for)."""

    def run(session, *found):
        pairs = []

        def interpreters(minor):
            return [
                noxfile.Interpreter(full, f"/usr/bin/python{full}")
                for full in found
                if versions.minor_of(full) == minor
            ]

        monkeypatch.setattr(noxfile, "interpreters", interpreters)

        def environment(_session, python, core):
            pairs.append((python.full, core))
            return "environment"

        monkeypatch.setattr(noxfile, "_environment", environment)
        monkeypatch.setattr(noxfile, "_everything", environment)
        monkeypatch.setattr(noxfile, "side_by_side", lambda commands, _at_a_time: ((name, 0, "") for name in commands))
        getattr(noxfile, session)(None)
        return pairs

    return run


@pytest.mark.parametrize("newest", ["3.14.8", "3.15.0"])
def test_the_short_matrix_has_one_pair_with_the_newest_python_of_the_machine(tested, noxfile, newest):
    pairs = tested("matrix", "3.11.7", "3.12.1", "3.13.0", "3.13.15", newest)
    assert {core.minor for core in versions.CORES} - {versions.minor_of(core.strip("=~")) for _, core in pairs} == {
        "2.19"
    }
    assert [core for python, core in pairs if python == newest] == [noxfile.releases(versions.CORES[-1])[-1]]
    assert not [python for python, _ in pairs if python == "3.13.0"], "the newest patch release of each"


@pytest.mark.parametrize(
    ("found", "are"),
    [(["3.11.7", "3.13.0"], True), (["3.11.7", "3.14.0"], True), (["3.11.7"], False), (["3.12.1", "3.13.0"], False)],
)
def test_the_default_pair_leaves_tests_to_the_ends_if_both_are_among_the_pairs(tested, noxfile, found, are):
    minors = {versions.minor_of(core.strip("=~")) for _, core in tested("matrix", *found)}
    assert noxfile.ends_are_tested() == are == (minors >= {versions.KNOWN[0], versions.KNOWN[-1]})


def test_the_long_matrix_has_oldest_and_newest_of_both_for_every_pair(tested):
    found = [f"{python}.{patch}" for python in versions.PYTHONS for patch in (0, 3, 15)]
    pairs = tested("full", *found)
    assert len(pairs) == len(set(pairs))
    for python, minor in versions.PAIRS:
        core = next(one for one in versions.CORES if one.minor == minor)
        asked = {one for full, one in pairs if full == f"{python}.0" and versions.minor_of(one.strip("=~")) == minor}
        assert asked == {one for full, one in pairs if full == f"{python}.15" and one in asked}
        assert len(asked) == len({core.oldest, core.newest}), asked
    assert not [full for full, _ in pairs if full.endswith(".3")]


def test_a_root_that_cannot_be_used_is_named(noxfile, monkeypatch):
    failed = subprocess.CompletedProcess([], 1, "", "unshare: Operation not permitted")
    monkeypatch.setattr(noxfile.subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(RuntimeError, match="/srv/testing cannot be used: unshare: Operation not permitted"):
        noxfile.interpreters("3.15")


MEET = """
import pathlib, sys, time
pathlib.Path(sys.argv[1]).touch()
end = time.monotonic() + 100
while not pathlib.Path(sys.argv[2]).exists():
    if time.monotonic() > end:
        sys.exit("nobody came")
    time.sleep(0.01)
print(sys.argv[1])
sys.exit(int(sys.argv[3]))
"""


def test_pairs_are_tested_side_by_side_and_one_that_fails_hides_no_other(noxfile, tmp_path, monkeypatch):
    """The first two wait for each other."""
    monkeypatch.chdir(tmp_path)
    words = {"one": ("one", "two", "3"), "two": ("two", "one", "0"), "three": ("three", "one", "0")}
    commands = {name: [sys.executable, "-S", "-c", MEET, *more] for name, more in words.items()}
    told = list(noxfile.side_by_side(commands, 2))
    assert told == [("one", 3, "one\n"), ("two", 0, "two\n"), ("three", 0, "three\n")]


@pytest.mark.parametrize(
    ("python", "core", "sentence"),
    [
        ((3, 15), "2.21.5", "ansible-core 2.20 and 2.21 end at Python 3.14; install ansible-core 2.22"),
        ((3, 11), "2.20.0", "ansible-core 2.20 and 2.21 begin at Python 3.12; install ansible-core 2.18 or 2.19"),
        ((3, 16), "2.22.0", "ansible-core 2.22 ends at Python 3.15; use Python 3.13 or 3.14 or 3.15"),
        ((3, 14), "2.17.14", "it begins at ansible-core 2.18; install ansible-core 2.20 or 2.21 or 2.22"),
        ((3, 16), "2.17.14", "it begins at ansible-core 2.18; use Python 3.11 to 3.15"),
        ((3, 16), "2.18.0", "ansible-core 2.18 and 2.19 end at Python 3.13; use Python 3.11 or 3.12 or 3.13"),
        ((3, 13), "2.21.5", None),
        ((3, 16), "2.99.0", None),
    ],
)
def test_a_python_that_an_ansible_core_does_not_support_is_named_in_one_sentence(python, core, sentence):
    said = versions.unsupported(python, core)
    assert said is None if sentence is None else said.endswith(sentence), said


@pytest.fixture
def too_new(monkeypatch):
    """The installed ansible-core ends before the Python that runs here, and cannot be imported."""
    minor = versions.minor_of(importlib.metadata.version("ansible-core"))
    name = "{}.{}".format(*sys.version_info[:2])
    ends = tuple(python for core in versions.CORES if core.minor == minor for python in core.pythons if python < name)
    cores = [
        versions.Core(core.minor, core.oldest, core.newest, ends or ("3.10",)) if core.minor == minor else core
        for core in versions.CORES
    ]
    monkeypatch.setattr(versions, "CORES", tuple(cores))

    def broken(*_):
        raise AttributeError("module 'dataclasses' has no attribute '_is_type'")

    monkeypatch.setattr(importing, "_import_carefully", broken)
    monkeypatch.delitem(sys.modules, "ansible.cli", raising=False)
    monkeypatch.setattr(importing, "purge", dict)


@pytest.mark.matrix
def test_a_run_on_a_python_that_is_too_new_says_so(too_new):
    with pytest.raises(UnsupportedError, match=r"does not support Python 3\.\d+: ansible-core .* Python 3\.1\d"):
        importing.import_ansible(ours=False)


@pytest.mark.matrix
def test_the_doctor_says_so_too(too_new, capsys):
    assert doctor.main(["--seams", "--format", "json"]) == 1
    report = json.loads(capsys.readouterr().out)
    packages = {one["name"]: one["means"] for one in report["packages"]}
    said = [packages["ansible-core"], packages["seams"], *report["stock"][:1], *report["sections"]["seams"]]
    assert [bool(re.match(r"ansible-core \S+ does not support Python 3\.", one)) for one in said] == [True] * 4, said


def test_the_shim_leaves_such_a_python_to_stock_with_the_sentence(too_new):
    assert re.match(r"ansible-core \S+ does not support Python 3\.", launch.why_not())
