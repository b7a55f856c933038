# SPDX-License-Identifier: GPL-3.0-or-later
"""The seams: each has a reason, is where it was, goes in and comes out; an ansible-core that we do not know is refused."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

import forkless
from engines_support import messages
from forkless.cli import doctor
from forkless.engines import _quiet, _seams, _stitch, threads
from forkless.modules import _trees

pytestmark = [pytest.mark.spawns, pytest.mark.matrix]


@pytest.fixture(autouse=True)
def ansible_is_imported():
    _quiet.import_ansible(ours=False)


@pytest.fixture
def unknown(monkeypatch):
    """The installed ansible-core, under a version that does not exist yet."""
    monkeypatch.setattr(_stitch, "version", lambda: "2.99.1")
    monkeypatch.setattr(threads, "_checked", False)


def test_every_seam_has_a_reason_and_nothing_of_this_minor_has_moved():
    assert all(seam.why.strip() for seam in _seams.SEAMS)
    assert _stitch.moved(_seams.SEAMS, _stitch.version()) == []


def test_every_seam_goes_in_and_comes_out_again():
    mine = _stitch.for_minor(_seams.SEAMS, _stitch.minor(_stitch.version()))
    before = {seam.site: _stitch.look(seam) for seam in mine}
    with pytest.raises(ZeroDivisionError), _stitch.installed(_seams.SEAMS):
        1 / 0  # noqa: B018  # whatever happens in between
    assert {seam.site: _stitch.look(seam) for seam in mine} == before


def test_what_comes_from_the_stdlib_looks_the_same_in_every_python():
    seams = [seam for seam in _seams.SEAMS if seam.site.endswith((":deepcopy", ":literal_eval"))]
    assert {_stitch.look(seam) for seam in seams} == {"stdlib copy.deepcopy", "stdlib ast.literal_eval"}


def test_literals_in_templates_and_arguments_are_read_one_at_a_time_while_a_run_is_on_stage():
    import ast

    import jinja2.lexer
    from ansible.module_utils.common import validation

    with _stitch.installed(_seams.SEAMS):
        assert jinja2.lexer.literal_eval is validation.literal_eval is _trees.literal_eval
    assert jinja2.lexer.literal_eval is validation.literal_eval is ast.literal_eval


def test_an_unknown_minor_is_refused_with_what_moved(project, unknown, monkeypatch):
    monkeypatch.setattr(_stitch, "fingerprints", lambda: {"2.21": {}})
    with pytest.raises(forkless.SeamError) as caught:
        project.run("- debug: {msg: hi}\n")
    assert caught.value.version == "2.99.1"
    assert any("WorkerProcess" in line for line in caught.value.moved)
    assert "FORKLESS_ALLOW_UNKNOWN=1" in str(caught.value)


def test_who_insists_may_go_on(project, unknown, monkeypatch):
    monkeypatch.setenv("FORKLESS_ALLOW_UNKNOWN", "1")
    monkeypatch.setattr(_stitch, "KNOWN", _stitch.KNOWN)
    newest = _stitch.importlib.metadata.version("ansible-core").startswith(_stitch.KNOWN[-1])
    if newest:  # an unknown one is taken for the newest; on an older one its seams would not fit
        result = project.run("- debug: {msg: hi}\n", limit="h1")
        assert result.rc == 0, result.stdout
    else:
        _stitch.check(_seams.SEAMS)


def test_a_seam_that_is_gone_is_named_even_in_a_known_minor():
    gone = _stitch.Seam("ansible.plugins.strategy:NoSuchThing", "a reason", lambda original, _site: original)
    with pytest.raises(forkless.SeamError, match="NoSuchThing"):
        _stitch.check([*_seams.SEAMS, gone])


def test_the_doctor_prints_the_list(capsys):
    assert doctor.main(["--seams"]) == 0
    out = capsys.readouterr().out
    assert "ansible.plugins.strategy:WorkerProcess  (a thread in place of the process)" in out
    assert ", 0 moved" in out


def test_a_late_seam_waits_until_it_is_asked_for_and_comes_out_with_the_others():
    line = textwrap.dedent(
        """
        import sys
        from forkless.engines import _seams, _stitch
        (late,) = [seam for seam in _seams.SEAMS if seam.late]
        module, _, name = late.site.partition(":")
        with _stitch.installed(_seams.SEAMS) as put_late:
            assert module not in sys.modules or _stitch.minor(_stitch.version()) == "2.18", "2.18 imports it itself"
            put_late()
            put_late()
            standing = vars(sys.modules[module])[name]
            assert standing.architecture is not sys.modules[name].architecture
        assert vars(sys.modules[module])[name] is sys.modules[name]
        put_late()
        assert vars(sys.modules[module])[name] is sys.modules[name], "nothing is put in when all is over"
        with _stitch.installed(_seams.SEAMS):
            assert vars(sys.modules[module])[name] is not sys.modules[name], "it is there: why wait"
        assert not _stitch.moved(_seams.SEAMS, _stitch.version())
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
