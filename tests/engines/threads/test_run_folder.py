# SPDX-License-Identifier: GPL-3.0-or-later
"""A run's folder where a thread cannot have one of its own: the kernel denies unshare(2), as it does in most containers."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import textwrap

import pytest

from forkless.engines.threads import context
from forkless.engines.threads.patches import path_guard, stdlib_views, working_directory

pytestmark = pytest.mark.spawns

TESTS = pathlib.Path(__file__).parents[2]

PROLOGUE = f"""
import json, os, subprocess, sys
sys.path.insert(0, {str(TESTS)!r})
import sealing
sealing.deny_unshare()
import forkless, forkless.modules

def run(*args, **fields):
    result = forkless.run(*args, engine="threads", **fields)
    said = {{}}
    for event in result.events:
        if event.event in ("runner_on_ok", "runner_on_failed"):
            said.setdefault(event.task, {{}})[event.host] = event.event_data["res"]
    return {{"ok": result.ok, "out": result.stdout, "said": said}}
"""


def in_container(code, cwd, **environ):
    """What the code prints as JSON, run in a process that cannot unshare."""
    source = PROLOGUE + textwrap.dedent(code)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", source],
        capture_output=True, text=True, cwd=cwd, check=False, env={**os.environ, **environ},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def write(folder, files):
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
        if text.startswith("#!"):
            path.chmod(0o755)


def make_project(folder, who):
    """A project in which everything is named by a relative path; two that differ in nothing but what they say."""
    write(
        folder,
        {
            "ansible.cfg": f"""
                [defaults]
                inventory = from_cfg
                roles_path = my_roles
                # {who}
                """,
            "from_cfg": f"cfg_{who} ansible_connection=local ansible_python_interpreter={sys.executable}\n",
            "hosts.ini": f"""
                [web]
                {who} ansible_connection=local ansible_python_interpreter={sys.executable}
                """,
            "group_vars/web.yml": f"from_group: {who}\n",
            "extra.yml": f"from_extra: {who}\n",
            "note": f"note of {who}",
            "from_env": f"env_{who} ansible_connection=local\n",
            "my_roles/role/tasks/main.yml": f"- name: role\n  debug: {{msg: role of {who}}}\n",
            "vault.txt": f"secret of {who}",
            "template.j2": f"template of {who}",
            "lookup_plugins/here.py": """
                import os
                import os.path
                from os.path import exists
                from ansible.plugins.lookup import LookupBase

                class LookupModule(LookupBase):
                    def run(self, terms, variables=None, **kwargs):
                        with open("note") as file:
                            note = file.read()
                        return [[os.getcwd(), note, os.path.abspath("note"), exists("only_here"), sorted(os.listdir())[:1], os.stat("note").st_size]]
                """,
            "only_here": "",
            "play.yml": """
                - hosts: all
                  gather_facts: false
                  tasks:
                    - name: names
                      debug:
                        msg: "{{ inventory_hostname }} {{ from_group | default('') }} {{ from_extra | default('') }}"
                    - name: note
                      debug: {msg: "{{ lookup('file', 'note') }}"}
                    - name: pipe
                      debug: {msg: "{{ lookup('pipe', 'pwd') }}"}
                    - name: here
                      debug: {msg: "{{ lookup('here') }}"}
                    - name: pwd
                      command: pwd
                    - name: delegated
                      local_action: command cat note
                    - name: exists
                      debug: {msg: "{{ 'only_here' is file }}"}
                    - name: template
                      template: {src: template.j2, dest: "{{ playbook_dir }}/made"}
                    - include_role: {name: role}
                    - include_tasks: more.yml
                """,
            "more.yml": "- name: more\n  debug: {msg: more}\n",
        },
    )


@pytest.fixture
def folders(tmp_path):
    for who in ("program", "project"):
        make_project(tmp_path / who, who)
    (tmp_path / "program" / "only_here").unlink()
    return tmp_path / "program", tmp_path / "project"


def message(found, task):
    (said,) = found["said"][task].values()
    return said.get("stdout", said.get("msg"))


@pytest.mark.matrix_ends
def test_without_unshare_every_path_of_a_run_counts_from_its_folder(folders):
    program, project = folders
    found = in_container(
        f"print(json.dumps(run('play.yml', inventory='hosts.ini', args=['-e', '@extra.yml'], cwd={str(project)!r})))",
        cwd=program,
    )
    assert found["ok"], found["out"]
    assert message(found, "names") == "project project project"
    assert message(found, "note") == "note of project"
    assert message(found, "pipe") == str(project)
    assert message(found, "here") == [str(project), "note of project", f"{project}/note", True, ["ansible.cfg"], 15]
    assert message(found, "pwd") == str(project)
    assert message(found, "delegated") == "note of project"
    assert message(found, "exists") is True
    assert message(found, "role") == "role of project"
    assert message(found, "more") == "more"
    assert (project / "made").read_text() == "template of project"
    assert not (program / "made").exists()


def test_without_unshare_the_configuration_of_the_run_is_that_of_its_folder(folders):
    program, project = folders
    found = in_container(
        f"""
        by_file = run('play.yml', cwd={str(project)!r})
        by_name = run('play.yml', cwd={str(project)!r}, env={{'ANSIBLE_INVENTORY': 'from_env'}})
        programs = run('play.yml')
        print(json.dumps([by_file, by_name, programs]))
        """,
        cwd=program,
    )
    assert [next(iter(one["said"]["names"])) for one in found] == ["cfg_project", "env_project", "cfg_program"]


def test_without_unshare_two_runs_at_once_are_each_in_their_folder(folders, tmp_path):
    program, project = folders
    for folder in folders:
        (folder / "ansible.cfg").unlink()
    make_project(tmp_path / "third", "third")
    (tmp_path / "third" / "ansible.cfg").unlink()
    for folder in (project, tmp_path / "third"):
        os.mkfifo(folder / "gate")
        play = folder / "play.yml"
        play.write_text(play.read_text().replace("tasks:\n", "tasks:\n    - command: cat gate\n", 1))
    found = in_container(
        f"""
        folders = {[str(project), str(tmp_path / "third")]!r}
        runs = [forkless.start('play.yml', inventory='hosts.ini', cwd=one, engine='threads') for one in folders]
        gates = [open(one + '/gate', 'w') for one in folders]  # both are under way
        here = os.getcwd()
        child = subprocess.run(['pwd'], stdout=subprocess.PIPE, text=True).stdout.strip()
        for gate in gates:
            gate.close()
        said = []
        for one in runs:
            result = one.wait()
            said.append([e.event_data['res'].get('msg') for e in result.events if e.event == 'runner_on_ok' and e.task in ('note', 'pipe', 'here')])
        print(json.dumps([here, child, said]))
        """,
        cwd=program,
    )
    assert found[:2] == [str(program)] * 2
    for said, folder in zip(found[2], (project, tmp_path / "third"), strict=True):
        assert said[:2] == [f"note of {folder.name}", str(folder)]
        assert said[2][:2] == [str(folder), f"note of {folder.name}"]


def test_without_unshare_a_vault_password_file_and_an_inventory_script_are_those_of_the_folder(folders):
    program, project = folders
    for folder in folders:
        script = '#!/bin/sh\nhost=$(cat note | tr " " _)\necho "{\\"all\\": {\\"hosts\\": [\\"$host\\"]}}"\n'
        write(folder, {"script.sh": script})
    found = in_container(
        f"""
        from ansible.parsing.vault import VaultLib, VaultSecret
        text = VaultLib([('default', VaultSecret(b'secret of project'))]).encrypt('treasure: inside')
        open({str(project / "extra.yml")!r}, 'wb').write(text)
        print(json.dumps([
            run('play.yml', inventory='hosts.ini', cwd={str(project)!r}, args=['-e', '@extra.yml', '--vault-password-file', 'vault.txt']),
            run(module='debug', module_args='msg={{{{ inventory_hostname }}}}', hosts='all', inventory='./script.sh', cwd={str(project)!r}),
        ]))
        """,
        cwd=program,
    )
    assert found[0]["ok"], found[0]["out"]
    assert "note_of_project" in found[1]["out"]


def test_without_unshare_a_module_in_this_process_works_in_the_folder_or_is_refused(folders):
    program, project = folders
    write(
        project,
        {
            "library/opens.py": """
                import os
                from ansible.module_utils.basic import AnsibleModule
                module = AnsibleModule({'how': {}})
                if module.params['how'] == 'itself':
                    open('mark', 'w').close()
                    os.chmod('mark', 0o600)
                else:
                    import pathlib
                    pathlib.Path('mark').write_text('')
                module.exit_json(at=os.getcwd(), mask=os.umask(0o77))
                """,
            "modules.yml": """
                - hosts: all
                  gather_facts: false
                  tasks:
                    - name: itself
                      opens: {how: itself}
                    - name: stat
                      stat: {path: mark}
                    - name: copy
                      copy: {content: x, dest: "{{ playbook_dir }}/copied"}
                    - name: by a library
                      opens: {how: pathlib}
                      ignore_errors: true
                """,
        },
    )
    found = in_container(
        f"""
        import os
        mask = os.umask(0o022)
        said = run('modules.yml', inventory='hosts.ini', modules='in-process', cwd={str(project)!r})
        print(json.dumps([said, os.getcwd(), os.umask(mask)]))
        """,
        cwd=program,
    )
    said = {task: next(iter(hosts.values())) for task, hosts in found[0]["said"].items()}
    assert found[0]["ok"], found[0]["out"]
    assert (said["itself"]["at"], said["itself"]["mask"]) == (str(project), 0o022)
    assert said["stat"]["stat"]["mode"] == "0600"
    refusal = json.dumps(said["by a library"])
    assert "relative path" in refusal, refusal
    assert "engine='runner'" in refusal
    assert found[1:] == [str(program), 0o022]
    assert not (program / "mark").exists()


def test_without_unshare_a_plugin_that_changes_its_folder_or_umask_changes_its_workers(folders):
    program, project = folders
    write(
        project,
        {
            "lookup_plugins/moves.py": """
                import os
                import subprocess
                from ansible.plugins.lookup import LookupBase

                class LookupModule(LookupBase):
                    def run(self, terms, variables=None, **kwargs):
                        seen = [os.getcwd(), os.umask(0o077)]
                        os.chdir("my_roles")
                        open("made_private", "w").close()
                        child = subprocess.run(["sh", "-c", "pwd; umask"], stdout=subprocess.PIPE, text=True).stdout.split()
                        return [[*seen, os.getcwd(), os.umask(0o077), oct(os.stat("made_private").st_mode)[-3:], *child]]
                """,
            "moves.yml": """
                - hosts: all
                  gather_facts: false
                  tasks:
                    - name: one
                      debug: {msg: "{{ lookup('moves') }}"}
                    - name: two
                      debug: {msg: "{{ lookup('moves') }}"}
                """,
        },
    )
    found = in_container(
        f"""
        mask = os.umask(0o022)
        said = run('moves.yml', inventory='hosts.ini', cwd={str(project)!r})
        print(json.dumps([said, os.getcwd(), os.umask(mask)]))
        """,
        cwd=program,
    )
    inner = f"{project}/my_roles"
    for task in ("one", "two"):
        assert message(found[0], task) == [str(project), 0o022, inner, 0o077, "600", inner, "0077"]
    assert found[1:] == [str(program), 0o022]


@pytest.mark.parametrize("path", ["note", b"note", "", "/etc/passwd", "..", "a/../note"])
def test_views_of_paths_agree_with_the_real_ones_in_that_folder(tmp_path, monkeypatch, path):
    project = tmp_path / "project"
    write(project, {"note": "x", "a/b": "y"})
    (project / "link").symlink_to("a")
    run_context = context.RunContext(ident="x", stop=None, folder=str(project))
    names = ("exists", "isfile", "isdir", "lexists", "abspath", "realpath", "islink")
    with working_directory.used(), context.enter_worker(run_context, None):
        seen = {name: getattr(stdlib_views.os_view.path, name)(path) for name in names}
        seen |= {"relpath": stdlib_views.os_view.path.relpath(path) if path else None}
        listed = sorted(stdlib_views.os_view.listdir()), [root for root, _, _ in stdlib_views.os_view.walk("a")]
    monkeypatch.chdir(project)
    real = {name: getattr(os.path, name)(path) for name in names}
    assert seen == real | {"relpath": os.path.relpath(path) if path else None}
    assert listed == (sorted(os.listdir()), [root for root, _, _ in os.walk("a")])


def test_changing_to_what_is_no_folder_fails_as_it_does_for_real(tmp_path):
    (tmp_path / "file").write_text("")
    run_context = context.RunContext(ident="x", stop=None, folder=str(tmp_path))
    with working_directory.used(), context.enter_worker(run_context, None):
        with pytest.raises(NotADirectoryError):
            stdlib_views.os_view.chdir("file")
        with pytest.raises(FileNotFoundError):
            stdlib_views.os_view.chdir("nowhere")
        with working_directory.entered("/"):
            assert stdlib_views.os_view.getcwd() == "/"
        assert stdlib_views.os_view.getcwd() == str(tmp_path)


def test_the_programs_threads_may_use_relative_paths_meanwhile(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path_guard.watch()
    with working_directory.used():
        pathlib.Path("mine").write_text("x")
        assert os.listdir() == ["mine"]
        run_context = context.RunContext(ident="x", stop=None, folder="/")
        with (
            context.enter_worker(run_context, None),
            pytest.raises(Exception, match="'mine' is a relative path.*engine='runner'"),
        ):
            pathlib.Path("mine").read_text()
        with context.enter_worker(run_context, None), pytest.raises(Exception, match="would move the whole program"):
            os.chdir("/")
        run_context.folder = str(tmp_path)
        with context.enter_worker(run_context, None):
            assert pathlib.Path("mine").read_text() == "x", "the program is in the run's folder"
