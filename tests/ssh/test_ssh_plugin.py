# SPDX-License-Identifier: GPL-3.0-or-later
"""The connection plugin: on stock ansible-playbook, and on forkless, where all tasks of a run share one connection."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import time

import pytest
import yaml

import forkless
import sshd_targets

pytestmark = [pytest.mark.xdist_group("sshd"), pytest.mark.spawns, pytest.mark.timeout(600)]

SOURCE = pathlib.Path(__file__).parent.parent.parent / "src"
STOCK = [str(pathlib.Path(sys.executable).parent / "ansible-playbook")]

PLAY = """
- hosts: targets
  gather_facts: false
  tasks:
    - ansible.builtin.command: id -un
      register: me
    - ansible.builtin.copy: {content: "{{ inventory_hostname }}", dest: "~/plugin"}
    - ansible.builtin.fetch: {src: "~/plugin", dest: "{{ out }}/"}
    - ansible.builtin.command: cat plugin
      delegate_to: "{{ groups.targets[-1] }}"
      register: there
    - ansible.builtin.meta: reset_connection
    - ansible.builtin.raw: echo raw
      register: raw
    - ansible.builtin.assert:
        that:
          - me.stdout == ansible_user
          - there.stdout == groups.targets[-1] or groups.targets | length == 1
          - raw.stdout_lines == ['raw']
"""


@pytest.fixture
def project(sshds, tmp_path):
    (tmp_path / "hosts.ini").write_text(sshds.inventory())
    (tmp_path / "play.yml").write_text(PLAY)
    return tmp_path


def stock(project, *more, book="play.yml", **environ):
    return subprocess.run(
        [*STOCK, "-i", "hosts.ini", book, "-e", f"out={project}/out", *more],
        cwd=project, env={**os.environ, "PYTHONPATH": str(SOURCE), "ANSIBLE_NOCOLOR": "1", **environ},
        capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip


def logins(target):
    return target.log().count("Accepted publickey")


def test_on_stock_ansible_it_does_what_the_builtin_one_does(project, sshds):
    done = stock(project, ANSIBLE_PIPELINING="1")
    assert done.returncode == 0, done.stdout + done.stderr
    for target in sshds.hosts:
        assert (project / "out" / target.name / "~" / "plugin").exists() or list(
            (project / "out" / target.name).rglob("plugin")
        )


def test_passwords_are_in_no_word_of_the_most_talkative_run(as_root, project, sshds):
    (project / "hosts.ini").write_text(
        sshds.inventory().replace(f"ansible_ssh_private_key_file={sshds.key}", "ansible_private_key_file=/none")
    )
    (project / "pw").write_text(sshd_targets.PASSWORD)
    (project / "become.yml").write_text(
        "- hosts: targets[0]\n  gather_facts: false\n  become: true\n  become_user: nobody\n  become_flags: -H -S\n"
        "  tasks: [{ansible.builtin.command: id -un, register: me}, {ansible.builtin.assert: {that: me.stdout == 'nobody'}}]\n"
    )
    done = stock(
        project, "-vvvvv", "--connection-password-file", "pw", "--become-password-file", "pw", "-e", "ansible_shell_allow_world_readable_temp=true",
        book="become.yml", ANSIBLE_PIPELINING="1",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert sshd_targets.PASSWORD not in done.stdout + done.stderr


def test_an_unknown_host_is_unreachable_with_the_reason(project, sshds):
    (project / "hosts.ini").write_text(sshds.inventory().replace(sshds.known_hosts, str(project / "nobody")))
    done = stock(project, "-l", "target0")
    assert done.returncode == 4
    assert "is not known: it shows SHA256:" in done.stdout + done.stderr


def on_forkless(project, **more):
    return forkless.run(project / "play.yml", inventory=project / "hosts.ini", cwd=project, engine="threads", **more)


def test_on_forkless_a_run_logs_in_once_and_once_more_after_a_reset(project, sshds):
    before = [logins(target) for target in sshds.hosts]
    result = on_forkless(project, extra_vars={"out": str(project / "out")})
    assert result.rc == 0, result.stdout
    assert [logins(t) - b for t, b in zip(sshds.hosts, before, strict=True)] == [2] * len(before)


def test_a_task_that_passes_its_time_limit_is_stopped_on_the_host_too(project, sshds):
    (project / "play.yml").write_text(
        "- hosts: targets[0]\n  gather_facts: false\n  tasks:\n"
        "    - ansible.builtin.shell: echo $$ > ~/pid; exec sleep 600\n      timeout: 3\n      ignore_errors: true\n"
        "    - ansible.builtin.shell: for i in $(seq 100); do kill -0 $(cat ~/pid) 2>/dev/null || break; sleep 0.2; done; kill -0 $(cat ~/pid) 2>/dev/null && echo alive || echo gone\n      register: state\n"
        "    - ansible.builtin.debug: {msg: 'it is {{ state.stdout }}'}\n"
    )
    result = on_forkless(project)
    assert result.rc == 0, result.stdout
    assert "it is gone" in result.stdout


def test_cancelling_a_run_ends_the_command_on_the_host(as_root, project, sshds):
    (project / "play.yml").write_text(
        "- hosts: targets[0]\n  gather_facts: false\n  tasks:\n"
        "    - ansible.builtin.shell: echo $$ > ~/long; exec sleep 600\n"
    )
    pid_file = sshds.hosts[0].folder / "home" / "long"
    run = forkless.start(project / "play.yml", inventory=project / "hosts.ini", cwd=project, engine="threads")
    deadline = time.monotonic() + 240
    while not (pid_file.exists() and pid_file.read_text().strip()):
        assert time.monotonic() < deadline, run.wait(1).stdout
        time.sleep(0.05)
    run.cancel()
    assert run.wait(240).status.value == "canceled"
    process = pathlib.Path("/proc") / pid_file.read_text().strip()
    while process.exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def names(option):
    kinds = ("vars", "ini", "env", "cli", "keyword")
    found = [(kind, one) for kind in kinds for one in option.get(kind, [])]
    return {(kind, one.get("section", ""), one.get("key") or one["name"]) for kind, one in found}


@pytest.mark.matrix
def test_every_option_has_all_the_names_that_it_has_in_the_builtin_plugin():
    import ansible.plugins.connection.ssh as builtin

    text = (SOURCE / "ansible_collections/forkless/core/plugins/connection/ssh.py").read_text()
    ours = yaml.safe_load(text.partition('DOCUMENTATION = """')[2].partition('"""')[0])["options"]
    theirs = yaml.safe_load(builtin.DOCUMENTATION)["options"]
    about_programs = {
        "control_path", "control_path_dir", "pkcs11_provider", "scp_executable", "scp_extra_args", "sftp_batch_mode",
        "sftp_executable", "sftp_extra_args", "ssh_executable", "sshpass_prompt", "password_mechanism", "verbosity",
    }  # fmt: skip
    assert set(theirs) - set(ours) <= about_programs
    for name in set(theirs) & set(ours):
        missing = {one for one in names(theirs[name]) - names(ours[name]) if not one[2].startswith("delegated_vars[")}
        assert not missing, name
        assert ours[name].get("secret", False) or not theirs[name].get("secret"), name


def test_importing_the_library_starts_no_program():
    code = (
        "import sys; seen = []\n"
        "sys.addaudithook(lambda event, args: seen.append(event) if event in "
        "('subprocess.Popen', 'os.posix_spawn', 'os.fork', 'os.system') else None)\n"
        "from forkless.ssh.asyncssh_import import asyncssh; asyncssh()\n"
        "import json; print(json.dumps(seen))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == []
