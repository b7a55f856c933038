# SPDX-License-Identifier: GPL-3.0-or-later
"""Files that travel with the order for their module: the same on the host as with a session for every request, and with fewer of them."""

from __future__ import annotations

import io
import json
import re
import shutil
import tarfile

import pytest

import forkless
from forkless.modules.warm import remote_temp_dir
from forkless.modules.warm.execution import WarmExecution
from forkless.modules.warm.interpreter import WarmInterpreter
from forkless.modules.warm.remote import main
from forkless.modules.warm.remote_files import WarmRemoteExecution

pytestmark = [pytest.mark.xdist_group("sshd"), pytest.mark.spawns, pytest.mark.timeout(600)]

# A module that is told of a folder writes to it; an action that does everything by hand; one that makes a folder and leaves it to others.
MODULE = """#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
import os
from ansible.module_utils.basic import AnsibleModule
module = AnsibleModule({"src": {"type": "str"}})
with open(os.path.join(module.tmpdir, "scratch"), "w") as file:
    file.write("x")
src = module.params["src"]
seen = {"mode": oct(os.stat(src).st_mode & 0o700), "uid": os.stat(src).st_uid, "text": open(src).read()} if src else {}
module.exit_json(seen=seen, uid=os.geteuid())
"""
ACTION = """# SPDX-License-Identifier: GPL-3.0-or-later
from ansible.plugins.action import ActionBase

class ActionModule(ActionBase):
    TRANSFERS_FILES = True

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        folder, how = self._connection._shell.tmpdir, self._task.args["how"]
        first = self._transfer_data(folder + "first", b"one")
        if how == "a module":
            self._fixup_perms2([folder, first])
            result.update(self._execute_module("mine", {"src": first}, task_vars=task_vars))
            second = self._transfer_data(folder + "second", b"two")
            result["again"] = self._execute_module("mine", {"src": second}, task_vars=task_vars)["seen"]["text"]
        elif how == "its folder":
            made = self._execute_module("file", {"path": folder + "sub", "state": "directory"}, task_vars=task_vars)
            result.update(self._execute_module("mine", {"src": first}, task_vars=task_vars), mode=made["mode"])
        elif how == "a shell":
            done = self._low_level_execute_command("cat " + first, sudoable=False)
            result.update(rc=done["rc"], text=done["stdout"])
        elif how == "the connection":
            rc, out, _ = self._connection.exec_command("cat " + first, sudoable=False)
            result.update(rc=rc, text=out.decode())
        elif how == "to fetch it":
            self._connection.fetch_file(first, self._task.args["to"])
            with open(self._task.args["to"]) as file:
                result["text"] = file.read()
        elif how == "nothing":
            result["text"] = ""
        elif how == "a folder that cannot be removed":
            self._execute_module("file", {"path": folder + "sub/below", "state": "directory"}, task_vars=task_vars)
            self._execute_module("file", {"path": folder + "sub", "mode": "0500"}, task_vars=task_vars)
        return result
"""
PLAY = """
- hosts: targets[0]
  gather_facts: false
  become: "{{ becoming }}"
  vars: {away: "{{ place }}/away"}
  tasks:
    - shell: "umask 77; mkdir -p ~/.ansible/tmp {{ away }}; chmod 755 {{ away }}"
    - mine:
    - copy: {content: "one\\n", dest: "{{ away }}/plain"}
    - copy: {content: "one\\n", dest: "{{ away }}/plain"}
    - copy: {content: "two\\n", dest: "{{ away }}/plain", mode: "0640", backup: true}
      diff: true
    - copy: {content: "no\\n", dest: "{{ away }}/plain"}
      check_mode: true
    - copy: {content: "two\\n", dest: "{{ away }}/checked", validate: "grep -q two %s"}
    - copy: {content: "three\\n", dest: "{{ away }}/checked", validate: "grep -q two %s"}
      ignore_errors: true
    - copy: {src: tree/, dest: "{{ away }}/tree"}
    - copy: {src: tree/, dest: "{{ away }}/tree"}
    - copy: {src: large, dest: "{{ away }}/large"}
    - copy: {src: missing, dest: "{{ away }}/missing"}
      ignore_errors: true
    - copy: {content: x, dest: "~nobody-has-this-name/x"}
      ignore_errors: true
    - copy: {content: x, dest: "~/../x/carried"}
      ignore_errors: true
    - copy: {src: dots/, dest: "~/"}
      when: not becoming  # root's home is that of this machine
    - file: {path: "~/{{ item }}", state: absent}
      loop: [.bashrc, empty]
      when: not becoming
    - copy: {content: x, dest: "~/carried"}
    - stat: {path: "~/carried", get_attributes: false}
    - file: {path: "~/carried", state: absent}
    - template: {src: sheet.j2, dest: "{{ away }}/sheet", mode: "0600"}
      loop: [first, second]
    - assemble: {src: tree, dest: "{{ away }}/assembled", remote_src: false}
    - unarchive: {src: box.tar, dest: "{{ away }}"}
    - script: hello.sh there
    - by_hand: {how: a module}
    - by_hand: {how: its folder}
    - by_hand: {how: a shell}
    - by_hand: {how: the connection}
    - by_hand: {how: to fetch it, to: "{{ playbook_dir }}/fetched"}
    - by_hand: {how: nothing}
    - shell: "ls -A ~{{ ansible_user }}/.ansible/tmp; cd {{ away }}; find . -printf '%p %m %U %s\\n' | grep -v '~$' | sort; cat plain sheet assembled"
"""


@pytest.fixture
def project(as_root, sshds, tmp_path):
    for folder in ("library", "action_plugins", "tree/below"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "library/mine.py").write_text(MODULE)
    (tmp_path / "action_plugins/by_hand.py").write_text(ACTION)
    (tmp_path / "hosts.ini").write_text(sshds.inventory())
    (tmp_path / "tree/one").write_text("one\n")
    (tmp_path / "tree/below/two").write_text("two\n")
    (tmp_path / "large").write_bytes(b"0123456789abcdef" * (remote_temp_dir.MOST // 16 + 1))
    (tmp_path / "dots/empty").mkdir(parents=True)  # comes after the file, which makes the interpreter there too old
    (tmp_path / "dots/.bashrc").write_text("# mine\n")
    (tmp_path / "sheet.j2").write_text("{{ item }} of {{ inventory_hostname }}\n")
    (tmp_path / "hello.sh").write_text("#!/bin/sh\necho hello $1\n")
    with tarfile.open(tmp_path / "box.tar", "w") as box:
        info = tarfile.TarInfo("boxed")
        info.size = 4
        box.addfile(info, io.BytesIO(b"in it"[:4]))
    return tmp_path


@pytest.fixture
def play(project, spot):
    def run(book, **more):
        (project / "play.yml").write_text(book)
        shutil.rmtree(spot / "away", ignore_errors=True)
        extra = {"place": str(spot), **more.pop("extra", {})}
        return forkless.run(
            playbook="play.yml", inventory="hosts.ini", cwd=project, engine="threads", extra_vars=extra, **more
        )

    return run


def results(run):
    """What every task said, without what differs from run to run."""
    found = []
    for event in run.events:
        if event.event.startswith("runner_on_"):
            res = event.event_data.get("res", {})
            text = json.dumps(
                {key: value for key, value in res.items() if key not in ("start", "end", "delta")}, sort_keys=True
            )
            text = re.sub(
                r"(?<=_original_basename\": )\"\.\w{8}\"|ansible-tmp-[\d.-]+|ansible-local-\w+|/tmp\w{8}|\.\d+\.[\d-]+@[\d:]+~|\"[acm]time\": [\d.]+|\"inode\": \d+",
                "#",
                text,
            )
            found.append((event.event, event.event_data["task"], text))
    return found


# What another ansible-core changes are the actions. So on other pairs each connection and each user occurs once.
@pytest.mark.parametrize(
    ("connection", "becoming"),
    [
        pytest.param("forkless.core.ssh", False, id="forkless.core.ssh-as the user"),
        pytest.param("forkless.core.ssh", True, id="forkless.core.ssh-as root", marks=pytest.mark.matrix_ends),
        pytest.param("ssh", False, id="ssh-as the user", marks=pytest.mark.matrix_ends),
        pytest.param("ssh", True, id="ssh-as root"),
    ],
)
def test_everything_ends_as_without_it(play, connection, becoming):
    extra = {"ansible_connection": connection, "becoming": becoming}
    with_it = play(PLAY, extra=extra)
    without = play(PLAY, extra=extra, env={"FORKLESS_DISABLE": "remote-files"})
    assert with_it.rc == without.rc == 0, with_it.stdout
    for ours, theirs in zip(results(with_it), results(without), strict=True):
        assert ours == theirs
    last = results(with_it)[-1][2]
    assert '"stdout": ". ' in last, "a folder for temporary files was left"
    assert "two\\nsecond of " in last


SESSIONS = """
- hosts: targets[0]
  gather_facts: false
  tasks:
    - copy: {content: one, dest: "{{ place }}/counted"}
    - copy: {content: one, dest: "{{ place }}/counted"}
    - copy: {content: two, dest: "{{ place }}/counted"}
    - copy: {content: two, dest: "~/counted"}
    - file: {path: "~/counted", state: absent}
"""


@pytest.mark.parametrize("connection", [pytest.param("forkless.core.ssh", marks=pytest.mark.matrix), "ssh"])
def test_a_host_that_has_an_interpreter_is_asked_for_no_shell_and_no_transfer(play, connection):
    run = play(SESSIONS, extra={"ansible_connection": connection}, verbosity=3)
    assert run.rc == 0, run.stdout
    sessions = [line for line in run.stdout.splitlines() if re.search(r"(SSH: )?EXEC (?!\(warm\))|> PUT ", line)]
    assert len(sessions) <= 1, sessions  # for the home, before there was one to ask
    without = play(
        SESSIONS, extra={"ansible_connection": connection}, verbosity=3, env={"FORKLESS_DISABLE": "remote-files"}
    )
    assert len([line for line in without.stdout.splitlines() if re.search(r"EXEC (?!\(warm\))|> PUT ", line)]) > 10


HOMES = """
- hosts: targets[0]
  gather_facts: false
  tasks:
    - ping:
    - copy: {content: one, dest: "~/counted"}
    - copy: {content: two, dest: "~/counted"}
    - file: {path: "~/counted", state: absent}
"""


@pytest.mark.parametrize(("env", "requests"), [({}, []), ({"ANSIBLE_PIPELINING": "1"}, [["expand"]])])
def test_a_host_that_has_made_the_folder_for_temporary_files_is_not_asked_where_it_is(
    play, spot, monkeypatch, env, requests
):
    """It was made for `ping`; with pipelining, modules have no such folder."""
    asked = []
    request = WarmInterpreter.request
    monkeypatch.setattr(
        WarmInterpreter, "request", lambda self, what, **more: asked.append(list(what)) or request(self, what, **more)
    )
    book = f"- hosts: targets[0]\n  gather_facts: false\n  tasks:\n    - ping:\n    - copy: {{content: one, dest: {spot}/one}}\n"
    run = play(book, extra={"ansible_connection": "forkless.core.ssh"}, env=env)
    assert run.rc == 0, run.stdout
    assert asked == requests


def test_a_copy_asks_once_for_a_home_and_does_not_wait_until_its_folder_is_removed(play, monkeypatch):
    """`copy` needs the home for its `dest` and for its folder. Another task asks again: the home may have been changed."""
    asked, removed = [], []
    for name, told in (("request", asked), ("remove_folder", removed)):
        original = getattr(WarmInterpreter, name)

        def tell(self, request, original=original, told=told, **more):
            told.append(request)
            return original(self, request, **more)

        monkeypatch.setattr(WarmInterpreter, name, tell)
    run = play(HOMES, extra={"ansible_connection": "forkless.core.ssh"})
    assert run.rc == 0, run.stdout
    assert [list(one) for one in asked] == [["expand"], ["expand"]]
    assert len(removed) == 2
    assert len(set(removed)) == 2


def test_a_home_is_asked_for_again_after_a_command(monkeypatch):
    """The command may have changed it."""
    seen = []
    monkeypatch.setattr(
        WarmExecution, "low_level_execute_command", lambda self, *_, **__: seen.append(dict(self._homes))
    )
    execution = object.__new__(WarmRemoteExecution)
    execution._homes = {"~user": "/home/user"}
    assert execution._home("~user") == "/home/user"
    execution.low_level_execute_command(None, "usermod -d /elsewhere user")
    assert seen == [{}]


def test_a_folder_that_cannot_be_made_is_told_in_ansibles_own_words(play, spot):
    (spot / "closed").mkdir(mode=0o500)
    book = "- hosts: targets[0]\n  gather_facts: false\n  tasks:\n    - copy: {content: x, dest: '{{ place }}/never'}\n"
    extra = {"ansible_connection": "forkless.core.ssh", "ansible_remote_tmp": f"{spot}/closed/tmp"}
    with_it = play(book, extra=extra)
    without = play(book, extra=extra, env={"FORKLESS_DISABLE": "remote-files"})
    assert with_it.rc == without.rc == 4
    assert "Failed to create temporary directory" in with_it.stdout
    assert re.sub(r"ansible-tmp-[\d.-]+", "#", with_it.stdout) == re.sub(r"ansible-tmp-[\d.-]+", "#", without.stdout)
    assert not (spot / "never").exists()


def test_what_cannot_be_laid_down_whole_is_not_there_at_all(tmp_path):
    folder = f"{tmp_path}/above/folder/"
    lay = {
        "folder": folder,
        "make": True,
        "files": [(f"{folder}one", "b25l", 0o700), (f"{folder}no/such", "b25l", 0o600)],
    }
    with pytest.raises(FileNotFoundError):
        main.write_files(lay)
    assert not (tmp_path / "above/folder").exists()
    main.write_files({**lay, "files": lay["files"][:1]})
    assert (tmp_path / "above/folder/one").read_text() == "one"
    assert (tmp_path / "above/folder/one").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "above/folder").stat().st_mode & 0o777 == 0o700
    with pytest.raises(FileExistsError):
        main.write_files(lay)


@pytest.mark.parametrize("connection", ["forkless.core.ssh", "ssh"])
def test_a_folder_that_cannot_be_removed_after_a_hosts_last_task_is_told_of(project, sshds, play, connection):
    """Nobody waits for its removal, and no later task tells of it: the end of the run does, once for each host."""
    (project / "hosts.ini").write_text(sshds.inventory(connection))
    book = "- hosts: targets\n  gather_facts: false\n  tasks:\n  - by_hand: {how: a folder that cannot be removed}\n"
    done = play(book)
    assert done.rc == 0, done.stdout
    said = done.stdout
    # A path that is longer than a line is broken anywhere.
    warned = re.findall(r"Error deleting[^/]*stderr:\s*(/[^:]+):", said.replace("\n", ""))
    told = len(set(warned)), len(warned)
    # The hosts are those of other tests, too.
    clean = "chmod -R u+w ~/.ansible/tmp/ansible-tmp-*/sub && rm -r ~/.ansible/tmp/ansible-tmp-*"
    done = play(f"- hosts: targets\n  gather_facts: false\n  tasks:\n  - ansible.builtin.raw: {clean}\n")
    assert done.rc == 0, done.stdout
    assert told == (len(sshds.hosts), len(sshds.hosts)), said
