# SPDX-License-Identifier: GPL-3.0-or-later
"""
The command lines and variables that tools give to `ansible-playbook`, as their sources build them: the shim answers as stock does.

These are the tools that cannot be run here. Those that can are in tests/upstream/tools.py.
"""

from __future__ import annotations

import json
import os
import re
import select
import subprocess

import pytest

import shim_support
from shim_support import PLAY, call, environ, environment, shim

pytestmark = [pytest.mark.spawns, pytest.mark.timeout(300)]

PROJECT = """\
- name: A project's play
  hosts: all
  gather_facts: false
  tasks:
    - name: First
      ansible.builtin.debug: {msg: first}
      tags: [one]
    - name: A value
      ansible.builtin.debug:
        msg: "{{ ansible_user | default('-') }} {{ packer_build_name | default('-') }} {{ greeting | default('-') }} {{ secret | default('-') }}"
      tags: [two]
    - name: A change
      ansible.builtin.lineinfile: {line: x, create: true, path: "{{ playbook_dir }}/made-{{ inventory_hostname }}"}
      diff: true
      check_mode: true
      tags: [two]
"""
# By name: where it was read, arguments, and variables.
LINES = {
    # awx/main/tasks/jobs.py RunJob.build_args, behind which ansible_runner/config/runner.py puts inventory, variables and playbook.
    "AWX, a job": (
        ["-u", "root", "--diff", "--forks=5", "--force-handlers", "-l", "web1,web2", "-vv", "-t", "one,two", "--skip-tags=three",
         "-i", "hosts", "-e", "@extravars", "site.yml"],
        {"ANSIBLE_RETRY_FILES_ENABLED": "False", "JOB_ID": "7", "ANSIBLE_FORCE_COLOR": "1", "DISPLAY": ""},
    ),
    "AWX, a check with a start": (
        ["--check", "-u", "root", "--become", "--become-method", "sudo", "--start-at-task=A value", "-i", "hosts", "-e", "@extravars", "site.yml"],
        {"ANSIBLE_RETRY_FILES_ENABLED": "False"},
    ),
    # LocalExecutor.getPlaybookArgs in services/tasks, db_lib/AnsiblePlaybook.go makeCmd. It gives a terminal as well: see below.
    "Semaphore": (
        ["-i", "hosts", "--user", "deploy", "--ssh-common-args", "-o IdentitiesOnly=yes", "--diff", "--check", "--vault-id=prod@vault-password",
         "--extra-vars", '{"greeting":"hello","semaphore_vars":{"task_details":{"id":3,"url":null,"username":"admin"}}}',
         "--extra-vars", "secret=hush", "--limit=web1", "--tags=one,two", "--skip-tags=three", "site.yml"],
        {"PYTHONUNBUFFERED": "1", "ANSIBLE_FORCE_COLOR": "True", "ANSIBLE_HOST_KEY_CHECKING": "False", "PWD": "{cwd}"},
    ),
    # plugins/provisioners/ansible/provisioner/host.rb and base.rb.
    "Vagrant": (
        ["--connection=ssh", "--timeout=30", "--user=vagrant", "--limit=web1", "--inventory=inventory", '--extra-vars={"greeting":"hello"}', "-v",
         "--tags=two", "--skip-tags=three", "site.yml"],
        {"PYTHONUNBUFFERED": "1", "ANSIBLE_NOCOLOR": "true", "ANSIBLE_HOST_KEY_CHECKING": "false",
         "ANSIBLE_SSH_ARGS": "-o UserKnownHostsFile=/dev/null -o IdentitiesOnly=yes -o ControlMaster=auto -o ControlPersist=60s"},
    ),
    # provisioner/ansible/provisioner.go createCmdArgs.
    "Packer": (
        ["-e", 'packer_build_name="debian \\"12\\""', "-e", "packer_builder_type=qemu", "-e", "packer_http_addr=10.0.2.2:8310",
         "--ssh-extra-args", "'-o IdentitiesOnly=yes'", "-e", "ansible_ssh_private_key_file=/tmp/ansible-key1234", "-i", "hosts", "{cwd}/site.yml"],
        {},
    ),
    # provisioner/ansible-local/provisioner.go executeAnsiblePlaybook, which gives the line to a shell.
    "Packer, in the machine": (
        ["{cwd}/site.yml", "--extra-vars", "packer_build_name=debian packer_builder_type=qemu packer_http_addr=10.0.2.2:8310 -o IdentitiesOnly=yes",
         "-c", "local", "-i", "{cwd}/hosts"],
        {"ANSIBLE_FORCE_COLOR": "1", "PYTHONUNBUFFERED": "1"},
    ),
    # provider/resource_playbook.go of ansible/terraform-provider-ansible.
    "Terraform, a resource": (
        ["-i", "hosts", "-vv", "--force-handlers", "-e", "hostname=web1", "--tags", "one,two", "--limit", "web1", "--check", "--diff",
         "-e", "@extravars", "--vault-id", "prod@vault-password", "-e", "secret='a b'", "site.yml"],
        {},
    ),
    # framework/action_playbook_run.go of the same.
    "Terraform, an action": (
        ["-v", "--force-handlers", "--flush-cache", "--skip-tags", "three", "--vault-password-file", "vault-password", "--check", "--diff",
         "-e", "greeting=hello", "-e", "@login.json", "--forks", "5", "--inventory", "inventory.json", "--limit", "web1", "--tags", "two",
         "--ssh-common-args", "-o IdentitiesOnly=yes", "--timeout", "30", "--connection", "local", "--user", "deploy", "site.yml"],
        {},
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tools")
    return shim(folder / "shim"), environment(folder / "env")


@pytest.fixture
def project(tmp_path):
    (tmp_path / "site.yml").write_text(PROJECT)
    hosts = "web1 ansible_connection=local\nweb2 ansible_connection=local\n[all:vars]\nansible_python_interpreter=/usr/bin/python3\n"
    (tmp_path / "hosts").write_text(hosts)
    host = {"ansible_connection": "local", "ansible_python_interpreter": "/usr/bin/python3"}
    (tmp_path / "inventory.json").write_text(
        json.dumps({"all": {"children": {"web": {"hosts": {"web1": host, "web2": host}}}}})
    )
    (tmp_path / "inventory").mkdir()
    (tmp_path / "inventory/vagrant_ansible_inventory").write_text("# Generated by Vagrant\n\n" + hosts)
    (tmp_path / "extravars").write_text("greeting: hello\n")
    (tmp_path / "login.json").write_text(json.dumps({"secret": "hush"}))
    (tmp_path / "vault-password").write_text("secret\n")
    return tmp_path


def lines(text):
    """Hosts answer in any order."""
    text = re.sub(r"\x1b\[[\d;]*m", "", text)
    return sorted(re.sub(r"(?<=ansible-local-)\w+/tmp\w+", "X", line) for line in text.split("\n"))


@pytest.mark.parametrize("tool", LINES)
def test_the_shim_answers_as_stock(places, project, tool):
    path, bin_ = places
    words, variables = LINES[tool]
    words = ["ansible-playbook", *(word.replace("{cwd}", str(project)) for word in words)]
    env = environ(project, bin_, **{name: value.replace("{cwd}", str(project)) for name, value in variables.items()})
    theirs = call(words, env, project)
    ours = call(words, {**env, "PATH": f"{path}:{env['PATH']}"}, project)
    assert (ours.returncode, lines(ours.stdout), lines(ours.stderr)) == (
        theirs.returncode, lines(theirs.stdout), lines(theirs.stderr),
    )  # fmt: skip
    assert theirs.returncode == 0, theirs.stdout + theirs.stderr
    assert "A value" in ours.stdout


# By name: a command that calls `ansible-playbook`, as its caller starts it.
CALLERS = {
    # internal/builtin/provisioners/local-exec of Terraform gives the line to a shell, with nothing on stdin and one pipe for both streams.
    "Terraform, local-exec": ["sh", "-c", "exec 2>&1; ansible-playbook -u root -i 'web1,' -e @login.json -e greeting=hello -c local site.yml"],
    "a Makefile": ["make", "--no-print-directory", "deploy", "FLAGS=-e greeting=hello"],
    "Python, without stdin": [
        "python3", "-c", ("import os, subprocess, sys; os.close(0)\n"
        "sys.exit(subprocess.run(['ansible-playbook', '-i', 'hosts', 'site.yml'], close_fds=True).returncode)"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("caller", CALLERS)
def test_who_calls_it_otherwise_is_answered_as_by_stock(places, project, caller):
    path, bin_ = places
    (project / "Makefile").write_text(
        "deploy: site.yml\n\t@ansible-playbook -i hosts $(FLAGS) $<\n\t@ansible-playbook --syntax-check -i hosts $<\n"
    )
    env = environ(project, bin_, ANSIBLE_PYTHON_INTERPRETER="/usr/bin/python3")
    theirs = call(CALLERS[caller], env, project)
    ours = call(CALLERS[caller], {**env, "PATH": f"{path}:{env['PATH']}"}, project)
    assert (ours.returncode, lines(ours.stdout), lines(ours.stderr)) == (
        theirs.returncode, lines(theirs.stdout), lines(theirs.stderr),
    )  # fmt: skip
    assert theirs.returncode == 0, theirs.stdout + theirs.stderr
    assert "A value" in ours.stdout


def test_packer_and_vagrant_find_the_version_where_they_look_for_it(places, project):
    path, bin_ = places
    done = call(["ansible-playbook", "--version"], environ(project, path, bin_), project)
    assert re.search(r"\w (\d+\.\d+[.\d+]*)", done.stdout)  # Packer's expression
    python = f"{bin_}/python"  # Vagrant asks Python for the version of the package
    code = "import importlib.metadata; print(importlib.metadata.version('ansible-core'))"
    assert call([python, "-c", code], environ(project, path, bin_), project).returncode == 0


def test_semaphore_answers_prompts_at_a_terminal_from_which_it_reads_no_output(places, project):
    """db_lib/AnsiblePlaybook.go RunPlaybook: stdin is a terminal, stdout and stderr are pipes, and a prompt stands at the beginning of what it reads."""
    path, bin_ = places
    (project / "site.yml").write_text(PLAY)
    words = ["-i", "hosts", "--user", "deploy", "--ask-pass", "--ask-become-pass", "--vault-id=prod@prompt", "site.yml"]
    prompts = ("SSH password:", "BECOME password", "Vault password (prod):")
    told = []
    for on_path in ([bin_], [path, bin_]):
        env = {**environ(project, *on_path, PYTHONUNBUFFERED="1", ANSIBLE_FORCE_COLOR="True"), "TERM": "xterm"}
        ours, theirs = os.openpty()
        command = subprocess.Popen(
            ["/usr/bin/setsid", "--ctty", "/usr/bin/env", "ansible-playbook", *words],
            env=env, cwd=project, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        os.close(theirs)
        asked = []
        while len(asked) < len(prompts):
            assert select.select([ours], [], [], 120)[0], asked
            text = os.read(ours, 100).decode().strip()
            if found := [one for one in prompts if text.startswith(one)]:
                asked += found
                os.write(ours, b"x\n")
        out, err = command.communicate(timeout=120)
        os.close(ours)
        told.append((command.returncode, asked, lines(out.replace(str(path), str(bin_))), lines(err)))
    assert told[0] == told[1]
    assert f"program={path}" in out


def test_awx_asks_for_passwords_at_the_terminal_of_ansible_runner(places, project):
    """Its prompts are answered by pattern: they must be stock's."""
    from terminal import Terminal

    path, bin_ = places
    (project / "site.yml").write_text(PLAY)
    words = ["-u", "root", "--ask-pass", "--become", "--ask-become-pass", "--ask-vault-pass", "-i", "hosts", "site.yml"]
    env = {**environ(project, path, bin_), "TERM": "dumb"}
    with Terminal(*words, cwd=project, env=env, program=[str(path / "ansible-playbook")]) as terminal:
        for prompt in (r"SSH password:\s*?$", r"BECOME password.*:\s*?$", r"Vault password:\s*?$"):
            terminal.until(lambda prompt=prompt: re.search(prompt, terminal.raw.decode(), re.MULTILINE))
            terminal.type("x\n")
        assert terminal.wait() == 0
    assert os.fspath(path) in terminal.raw.decode().replace("\r\n", "")
    assert shim_support.PLAY
