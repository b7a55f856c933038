# SPDX-License-Identifier: GPL-3.0-or-later
"""The seams: each has a reason, is where it was, goes in and comes out; an ansible-core that we do not know is refused."""

from __future__ import annotations

import dataclasses
import pickle
import subprocess
import sys
import textwrap

import pytest

import forkless
from engines_support import messages
from forkless.cli.commands import doctor
from forkless.core import syntax_trees, versions
from forkless.engines.threads import engine, importing
from forkless.engines.threads.patches import table
from forkless.patching import fingerprints
from forkless.patching import seams as patching

pytestmark = [
    pytest.mark.spawns,
    pytest.mark.matrix,
]


@pytest.fixture(autouse=True)
def ansible_is_imported():
    importing.import_ansible(ours=False)


@pytest.fixture
def unknown(monkeypatch):
    """The installed ansible-core, under a version that does not exist yet."""
    monkeypatch.setattr(patching, "version", lambda: "2.99.1")
    monkeypatch.setattr(engine, "_checked", False)
    monkeypatch.delenv("FORKLESS_ALLOW_UNKNOWN", raising=False)


def test_every_seam_has_a_reason_and_nothing_of_this_minor_has_moved():
    assert all(seam.why.strip() for seam in table.SEAMS)
    assert patching.moved(table.SEAMS, patching.version()) == []


# With "1", as the tool for a new ansible-core runs these tests.
@pytest.mark.parametrize("allow_unknown", ["", "1"])
def test_each_seam_is_compared_once_before_it_goes_in(monkeypatch, allow_unknown):
    monkeypatch.setenv("FORKLESS_ALLOW_UNKNOWN", allow_unknown)
    compared = []
    real = patching._state

    def state(seam, *args, **kwargs):
        compared.append(seam)
        return real(seam, *args, **kwargs)

    monkeypatch.setattr(patching, "_state", state)
    monkeypatch.setattr(patching, "_left_out", {})
    patching.check(table.SEAMS)
    with patching.installed(table.SEAMS):
        pass
    assert compared == patching.for_minor(table.SEAMS, patching.minor(patching.version()))
    patching.check(table.SEAMS)
    assert len(compared) == 2 * len(set(compared)), "who asks again is told what is true then"


@pytest.mark.parametrize("allow_unknown", ["", "1"])
def test_seams_for_speed_that_a_check_has_found_changed_stay_out(monkeypatch, allow_unknown):
    monkeypatch.setenv("FORKLESS_ALLOW_UNKNOWN", allow_unknown)
    monkeypatch.setattr(patching, "_left_out", {})
    seam = patching.for_speed("ansible.playbook.base:FieldAttributeBase.dump_attrs", "a reason", patching.always(None))
    real = patching._state
    monkeypatch.setattr(
        patching, "_state", lambda seam, *_, **__: patching.SeamState(seam, patching.State.LEFT_OUT, "has changed")
    )
    patching.check([seam])
    monkeypatch.setattr(patching, "_state", real)
    before = patching.look(seam)
    with patching.installed([seam]):
        assert patching.look(seam) == before


def test_every_seam_goes_in_and_comes_out_again():
    mine = patching.for_minor(table.SEAMS, patching.minor(patching.version()))
    before = {seam.site: patching.look(seam) for seam in mine}
    with pytest.raises(ZeroDivisionError), patching.installed(table.SEAMS):
        1 / 0  # noqa: B018  # whatever happens in between
    assert {seam.site: patching.look(seam) for seam in mine} == before


def test_what_comes_from_the_stdlib_looks_the_same_in_every_python():
    seams = [seam for seam in table.SEAMS if seam.site.endswith((":deepcopy", ":literal_eval"))]
    assert {patching.look(seam) for seam in seams if seam.in_ansible} == {
        "stdlib copy.deepcopy",
        "stdlib ast.literal_eval",
    }


def test_literals_in_templates_and_arguments_are_read_one_at_a_time_while_a_run_is_on_stage():
    import ast

    import jinja2.lexer
    from ansible.module_utils.common import validation

    with patching.installed(table.SEAMS):
        assert jinja2.lexer.literal_eval is validation.literal_eval is syntax_trees.literal_eval
    assert jinja2.lexer.literal_eval is validation.literal_eval is ast.literal_eval


def test_an_unknown_minor_is_refused_with_what_moved(project, unknown, monkeypatch):
    monkeypatch.setattr(fingerprints, "fingerprints", dict)
    with pytest.raises(forkless.SeamError) as caught:
        project.run("- debug: {msg: hi}\n")
    assert caught.value.version == "2.99.1"
    assert any("WorkerProcess" in line for line in caught.value.moved)
    assert "FORKLESS_ALLOW_UNKNOWN=1" in str(caught.value)


@pytest.mark.parametrize(
    ("version", "pythons", "sentence"),
    [
        (
            "2.17.14",
            versions.PYTHONS,
            r"does not support ansible-core 2\.17\.14: it begins at ansible-core 2\.18; install",
        ),
        (None, ("3.10",), r"does not support Python 3\.\d+: .* Python 3\.10; "),
    ],
    ids=["an old ansible-core", "a new Python"],
)
def test_a_pair_that_is_not_supported_is_refused_in_one_sentence(project, monkeypatch, version, pythons, sentence):
    """Also where everything could be imported, and nothing has moved."""
    full = version or patching.version()
    cores = [dataclasses.replace(core, pythons=pythons) for core in versions.CORES]
    monkeypatch.setattr(versions, "CORES", tuple(cores))
    monkeypatch.setattr(patching, "version", lambda: full)
    monkeypatch.setattr(engine, "_checked", False)
    monkeypatch.delenv("FORKLESS_ALLOW_UNKNOWN", raising=False)
    with pytest.raises(forkless.UnsupportedError, match=sentence) as caught:
        project.run("- debug: {msg: hi}\n")
    assert str(caught.value).endswith(", or set FORKLESS_ALLOW_UNKNOWN=1 to go on anyway")
    assert "\n" not in str(caught.value)
    monkeypatch.setenv("FORKLESS_ALLOW_UNKNOWN", "1")
    patching.check(table.SEAMS)


def test_who_insists_may_go_on(project, unknown, monkeypatch):
    monkeypatch.setenv("FORKLESS_ALLOW_UNKNOWN", "1")
    newest = patching.importlib.metadata.version("ansible-core").startswith(patching.KNOWN[-1])
    if newest:  # an unknown one is taken for the newest; on an older one its seams would not fit
        result = project.run("- debug: {msg: hi}\n", limit="h1")
        assert result.rc == 0, result.stdout
    else:
        patching.check(table.SEAMS)


NO_SUCH = [
    patching.Seam("ansible.plugins.strategy:NoSuchThing", "a reason", lambda original, _site: original),
    patching.Seam("ansible.plugins.no_such_module:Thing", "a reason", lambda original, _site: original),
]


@pytest.mark.parametrize("gone", NO_SUCH, ids=["a name", "a module"])
def test_a_seam_that_is_gone_is_named_even_in_a_known_minor(gone, monkeypatch):
    monkeypatch.delenv("FORKLESS_ALLOW_UNKNOWN", raising=False)
    for refused in (patching.check, lambda seams: patching.installed(seams).__enter__()):
        with pytest.raises(
            forkless.SeamError, match="is a known version, but the installed copy differs from its tested releases"
        ) as caught:
            refused([*table.SEAMS, gone])
        assert f"  - {gone.site}: " in str(caught.value)
        assert "FORKLESS_ALLOW_UNKNOWN=1" in str(caught.value)
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@pytest.mark.parametrize("gone", NO_SUCH, ids=["a name", "a module"])
def test_the_variable_that_the_error_advises_does_what_it_says_in_a_known_minor(project, gone, monkeypatch):
    monkeypatch.setattr(table, "SEAMS", (*table.SEAMS, gone))
    monkeypatch.setattr(engine, "_checked", False)
    monkeypatch.setenv("FORKLESS_ALLOW_UNKNOWN", "1")
    result = project.run("- debug: {msg: hi}\n", limit="h1")
    assert result.rc == 0, result.stdout


def test_the_doctor_prints_the_list(capsys):
    assert doctor.main(["--seams"]) == 0
    out = capsys.readouterr().out
    assert "ansible.plugins.strategy:WorkerProcess  (a thread in place of the process)" in out
    assert ", 0 moved" in out


def test_late_seams_wait_for_the_import_of_their_modules_and_come_out_with_the_others():
    line = textwrap.dedent(
        """
        import importlib, sys
        from forkless.engines.threads.patches import table; from forkless.patching import place, seams
        from forkless.engines.threads import importing
        importing.import_ansible(ours=False)
        late = [seam for seam in seams.for_minor(table.SEAMS, seams.minor(seams.version())) if seam.late]
        few_need = {"ansible.module_utils.urls", "urllib.request"}
        assert few_need <= {seam.module for seam in late}
        assert few_need.isdisjoint(sys.modules)
        def there():
            return {seam.site: place.find(seam.site).read()[0] for seam in late}
        with seams.installed(table.SEAMS):
            assert few_need.isdisjoint(sys.modules)
            for seam in late:
                importlib.import_module(seam.module)
            during = there()
        after = there()
        same = [site for site, thing in during.items() if thing is after[site]]
        assert not same, same
        with seams.installed(table.SEAMS):
            same = [site for site, thing in there().items() if thing is after[site]]
            assert not same, same
        assert not seams.moved(table.SEAMS, seams.version())
        """
    )
    done = subprocess.run([sys.executable, "-c", line], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_module_that_runs_here_has_the_late_seams(project):
    module = """
        #!/usr/bin/python
        import platform
        from ansible.module_utils.basic import AnsibleModule
        from ansible.module_utils.facts.system import platform as facts
        AnsibleModule({}).exit_json(own=facts.platform is not platform)
    """
    project.write("library/look.py", textwrap.dedent(module).lstrip())
    result = project.run(
        "- look:\n  register: seen\n- debug: {msg: '{{ seen.own }}'}\n", modules="in-process", limit="h1"
    )
    assert set(messages(result, "debug").values()) == {True}, result.stdout


def test_a_place_that_some_patch_releases_do_not_have_is_left_out_there(monkeypatch):
    site = "ansible.plugins.strategy:NoSuchThing"
    which = patching.minor(patching.version())
    gone = patching.Seam(site, "a reason", lambda original, _site: original)
    known = {which: {"sites": {site: ["function () #0123456789ab", "missing"]}, "files": {}}}
    monkeypatch.setattr(fingerprints, "fingerprints", lambda: known)
    patching.check([gone])
    with patching.installed([gone]):
        pass
    assert patching.moved([gone], patching.version()) == []
