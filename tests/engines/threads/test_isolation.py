# SPDX-License-Identifier: GPL-3.0-or-later
"""What a forked worker could not leak, a thread must not. Where it can be shown, each test shows the leak without its fix too."""

from __future__ import annotations

import contextlib
import os
import sys
import threading

import pytest

from engines_support import messages, world_of_runs
from forkless.core.stop import Stop
from forkless.engines.threads import context
from forkless.engines.threads import engine as threads
from forkless.engines.threads.patches import plugin_imports, plugin_loader
from forkless.engines.threads.workers import threads as worker_threads_of
from forkless.engines.threads.workers import worker_process

pytestmark = pytest.mark.spawns

EACH = "{{ inventory_hostname }}"
ALL = {f"h{n}" for n in range(1, 7)}


def same_as_name(result, task=None):
    said = messages(result, task)
    assert set(said) == ALL, result.stdout
    return all(said[host] == host for host in ALL)


@pytest.mark.matrix
def test_templated_arguments_of_one_host_never_interrupt_another(project, monkeypatch):
    tasks = f"- debug:\n    msg: '{EACH}'\n"
    assert same_as_name(project.run(tasks, forks=6))
    monkeypatch.setattr(worker_process, "copy_task", lambda task: task)
    assert not same_as_name(project.run(tasks, forks=6))


@pytest.mark.matrix
def test_loop_variables_and_block_names_stay_with_their_host(project):
    result = project.run(
        f"""
        - name: block of {EACH}
          block:
            - debug:
                msg: "{{{{ thing }}}}"
              loop: ["{EACH}"]
              loop_control: {{loop_var: thing}}
        """,
        forks=6,
    )
    items = [e for e in result.events if e.event == "runner_item_on_ok"]
    assert {e.host: e.event_data["res"]["msg"] for e in items} == {host: host for host in ALL}


@pytest.mark.matrix
def test_environment_of_a_task_stays_with_its_host(project):
    result = project.run(
        f"""
        - command: printenv WHO
          environment: {{WHO: "{EACH}"}}
          register: out
        - debug: {{msg: "{{{{ out.stdout }}}}"}}
        """
    )
    assert same_as_name(result)
    assert "WHO" not in os.environ


@pytest.mark.matrix
def test_lookups_named_as_builtins_leave_the_builtins_of_their_package_alone(project):
    result = project.run(
        """
        - debug: {msg: "{{ lookup('list', [1]) }} {{ lookup('dict', {'a': 1}) }} {{ lookup('vars', 'inventory_hostname') }}"}
        - debug: {msg: "{{ item }}"}
          with_items: [1, [2]]
        """
    )
    assert result.rc == 0, result.stdout


MUTATES = """
- name: mutate in a template
  debug:
    msg: "{{ mylist.append(inventory_hostname) }} {{ mydict.update({inventory_hostname: 1}) }}"
- name: look
  debug:
    msg: "{{ mylist | length }} {{ mydict | length }}"
"""


# With ANSIBLE_DEBUG ansible-core 2.18 has an object around the variables, that tells where each is from.
@pytest.mark.parametrize("where", ["play", "group_vars", "inventory", "extra", "play, debugging"])
@pytest.mark.matrix
def test_a_variable_mutated_in_a_template_is_not_seen_by_others(project, where):
    fields = {"env": {"ANSIBLE_DEBUG": "1"}} if "debugging" in where else {}
    if where.startswith("play"):
        fields["head"] = "vars: {mylist: [0], mydict: {a: 1}}"
    elif where == "group_vars":
        project.write("group_vars/all.yml", "mylist: [0]\nmydict: {a: 1}\n")
    elif where == "inventory":
        project.write(
            "hosts.yml",
            "all: {hosts: {h1: {}, h2: {}, h3: {}, h4: {}, h5: {}, h6: {}}, vars: {mylist: [0], mydict: {a: 1}, ansible_connection: local}}",
        )
        fields["inventory"] = str(project.folder / "hosts.yml")
    else:
        fields["extra_vars"] = {"mylist": [0], "mydict": {"a": 1}}
    result = project.run(MUTATES, forks=6, **fields)
    assert result.rc == 0, result.stdout
    assert set(messages(result, "look").values()) == {"1 1"}, result.stdout


ACTION = """
from ansible.plugins.action import ActionBase
SEEN = []

class ActionModule(ActionBase):
    TRANSFERS_FILES = False

    def run(self, tmp=None, task_vars=None):
        host = task_vars['inventory_hostname']
        task_vars['mylist'].append(host)
        task_vars['mydict']['inner'].append(host)
        dict.__getitem__(task_vars['vars'], 'mydict')['inner'].append(host)
        dict.__getitem__(task_vars['vars'], 'groups')['all'].append(host)
        task_vars['groups']['all'].append(host)
        other = task_vars['hostvars']['h1']
        other['mydict']['inner'].append(host)
        SEEN.append(host)
        return {'changed': False, 'msg': '%d %d %d' % (len(task_vars['mylist']), len(task_vars['mydict']['inner']), len(SEEN))}
"""


@pytest.mark.matrix
def test_a_variable_mutated_by_a_plugin_is_not_seen_by_others_nor_is_its_module_state(project, monkeypatch):
    project.write("action_plugins/scribble.py", ACTION)
    tasks = """
        - scribble:
        - scribble:
        - debug: {msg: "{{ mylist | length }} {{ mydict.inner | length }}"}
    """
    project.write("group_vars/all.yml", "mylist: [0]\nmydict: {inner: [0]}\n")
    fields = {"forks": 6}
    result = project.run(tasks, **fields)
    assert result.rc == 0, result.stdout
    said = [e.event_data["res"]["msg"] for e in result.events if e.event == "runner_on_ok" and e.task == "scribble"]
    assert set(said) == {"2 3 1"}, said  # the one in `vars` is the same list, as on stock
    assert set(messages(result, "debug").values()) == {"1 1"}
    monkeypatch.setattr(worker_process, "private_task_vars", lambda value: value)
    result = project.run(tasks, **fields)
    assert set(messages(result, "debug").values()) != {"1 1"}


@pytest.mark.matrix
def test_filter_state_stays_with_its_worker(project):
    project.write(
        "filter_plugins/count.py",
        "N = []\ndef count(x):\n    N.append(x)\n    return len(N)\nclass FilterModule:\n    def filters(self):\n        return {'count_calls': count}\n",
    )
    result = project.run(
        "- debug: {msg: \"{{ 'x' | count_calls }}\"}\n- debug: {msg: \"{{ 'x' | count_calls }}\"}\n", forks=6
    )
    assert result.rc == 0, result.stdout
    assert set(map(str, messages(result).values())) == {"1"}, result.stdout


@pytest.mark.matrix
def test_the_inventory_host_keeps_its_variables_and_groups(project):
    project.write("host_vars/h1.yml", "mine: 7\n")
    result = project.run(
        """
        - debug: {msg: "{{ mine | default('none') }} {{ group_names }}"}
        - debug: {msg: "{{ mine | default('none') }} {{ group_names }} {{ hostvars['h1'].mine }}"}
        """
    )
    said = messages(result)
    assert said["h1"].startswith("7 ")
    assert all(text.endswith(" 7") for text in said.values())


@pytest.mark.matrix
def test_facts_set_by_one_host_are_not_anothers(project):
    result = project.run(f"- set_fact: {{fact: '{EACH}'}}\n- debug: {{msg: '{{{{ fact }}}}'}}\n", forks=6)
    assert same_as_name(result)


LEAKY = """
import os, sys
from ansible.plugins.action import ActionBase

class ActionModule(ActionBase):
    def run(self, tmp=None, task_vars=None):
        seen = dict(cwd=os.getcwd(), env=os.environ.get('FORKLESS_LEAK'), umask=oct(os.umask(0o022)))
        os.umask(0o077)
        os.chdir('/')
        os.environ['FORKLESS_LEAK'] = task_vars['inventory_hostname']
        return dict(changed=False, msg=seen)
"""


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="only Linux gives a thread a folder and umask of its own"
)
@pytest.mark.matrix
def test_folder_umask_and_environ_of_a_worker_are_its_own(project, monkeypatch):
    project.write("action_plugins/leaky.py", LEAKY)
    before = os.getcwd(), dict(os.environ)
    result = project.run("- leaky:\n- leaky:\n", forks=3)
    assert result.rc == 0, result.stdout
    seen = [e.event_data["res"]["msg"] for e in result.events if e.event == "runner_on_ok"]
    assert len(seen) == 12
    assert {one["cwd"] for one in seen} == {str(project.folder)}
    assert {one["env"] for one in seen} == {None}
    assert len({one["umask"] for one in seen}) == 1
    assert (os.getcwd(), dict(os.environ)) == before
    monkeypatch.setattr(threads.modules, "has_own_folder", lambda: True)  # it says so, and is not
    monkeypatch.setattr(worker_threads_of, "has_own_folder", lambda: False)
    monkeypatch.setattr(threads.thread_environ, "provided", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(plugin_imports, "VIEWS", {})
    umask = os.umask(0o022)
    try:
        project.run("- leaky:\n- leaky:\n", forks=3)
        assert os.getcwd() == "/", "without the fix the plugin changes the program's own folder"
        assert os.environ.pop("FORKLESS_LEAK")
    finally:
        os.chdir(before[0])
        os.umask(umask)


PRINTS = """
import sys
from ansible.plugins.action import ActionBase

class ActionModule(ActionBase):
    def run(self, tmp=None, task_vars=None):
        print('to nobody')
        sys.stdout.write('to nobody either')
        return dict(changed=False, msg='done')
"""


@pytest.mark.matrix
def test_a_plugin_that_prints_does_not_interrupt_the_programs_stdout(project, capfd):
    project.write("action_plugins/prints.py", PRINTS)
    result = project.run("- prints:\n", limit="h1")
    assert result.rc == 0, result.stdout
    out, err = capfd.readouterr()
    assert out == ""
    assert err == ""


@pytest.mark.matrix
def test_decrypted_vault_files_are_gone_from_disk_at_the_end(project, monkeypatch):
    from ansible.parsing.vault import VaultLib, VaultSecret

    secret = VaultSecret(b"open sesame")
    secret.load()
    plain = "the-secret-content"
    locked = VaultLib([("default", secret)]).encrypt(plain, secret=secret)
    project.write("secret.txt", locked.decode())
    home = project.folder / "home"
    env = {"ANSIBLE_LOCAL_TEMP": str(home / "tmp"), "ANSIBLE_HOME": str(home)}
    result = project.run(
        f"- copy: {{src: secret.txt, dest: '{project.folder}/out-{EACH}', mode: '0600'}}\n",
        vault_password="open sesame",
        env=env,
        forks=6,
    )
    assert result.rc == 0, result.stdout
    assert (project.folder / "out-h1").read_text() == plain
    left = [path for path in home.rglob("*") if path.is_file() and plain in path.read_text(errors="replace")]
    assert left == []
    assert plain not in result.stdout


@pytest.mark.matrix
def test_the_base_folder_of_the_loader_is_not_moved_by_roles(project):
    project.write("roles/r/tasks/main.yml", "- debug: {msg: \"{{ lookup('template', 't.j2') }}\"}\n")
    project.write("roles/r/templates/t.j2", "role {{ inventory_hostname }}")
    project.write("templates/t.j2", "play {{ inventory_hostname }}")
    project.write(
        "play.yml",
        "- hosts: all\n  gather_facts: false\n  strategy: free\n  roles: [r]\n  tasks:\n"
        "    - debug: {msg: \"{{ lookup('template', 't.j2') }} {{ playbook_dir }}\"}\n",
    )
    result = project.run(forks=6)
    assert result.rc == 0, result.stdout
    assert messages(result) == {host: f"play {host} {project.folder}" for host in ALL}


def test_plugins_load_under_a_race(projects):
    """Thirty hosts, each free to run ahead, a switch between threads every ten microseconds, four rounds."""
    crowd = projects("crowd", hosts=30)
    for n in range(4):
        crowd.write(
            f"lookup_plugins/lk{n}.py",
            f"from ansible.plugins.lookup import LookupBase\nclass LookupModule(LookupBase):\n    def run(self, terms, variables=None, **kw):\n        return ['{n}' + t for t in terms]\n",
        )
        crowd.write(
            f"filter_plugins/f{n}.py",
            f"class FilterModule:\n    def filters(self):\n        return {{'flt{n}': lambda x: x + '{n}'}}\n",
        )
        crowd.write(f"roles/r{n}/tasks/main.yml", f"- debug: {{msg: \"{{{{ lookup('lk{n}', 'a') | flt{n} }}}}\"}}\n")
    crowd.write(
        "play.yml",
        "- hosts: all\n  gather_facts: false\n  strategy: free\n  tasks:\n"
        + "".join(f"    - include_role: {{name: r{n}}}\n" for n in range(4)),
    )
    interval = sys.getswitchinterval()
    sys.setswitchinterval(0.00001)
    try:
        for _ in range(4):
            result = crowd.run(forks=30)
            assert result.rc == 0, result.stdout
            assert all(counts["ok"] == 8 for counts in result.hosts.values()), result.hosts
    finally:
        sys.setswitchinterval(interval)


@pytest.mark.parametrize("locked", [True, False])
def test_the_loader_is_entered_by_one_thread_at_a_time(locked):
    """With its lock two callers of one run never meet inside; without it they do."""
    meeting = threading.Barrier(2)
    met = []

    def inside(_loader):
        try:
            meeting.wait(0.5 if locked else 60)
            met.append(True)
        except threading.BrokenBarrierError:
            met.append(False)

    enter = plugin_loader.locked("loader_lock")(inside, "") if locked else inside

    run_context = context.RunContext(ident="run", stop=Stop())

    def call():
        with context.enter_worker(run_context, None):
            enter(None)

    threads = [threading.Thread(target=call) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert any(met) is not locked


@pytest.mark.matrix
def test_a_prompt_is_answered_to_the_host_that_asked(project, monkeypatch):
    project.run(
        "- debug: {msg: hi}\n", limit="h1"
    )  # so that the Display that is patched below is the one of this configuration
    project.write(
        "action_plugins/asks.py",
        """
        from ansible.plugins.action import ActionBase
        from ansible.utils.display import Display

        class ActionModule(ActionBase):
            BYPASS_HOST_LOOP = False

            def run(self, tmp=None, task_vars=None):
                host = task_vars['inventory_hostname']
                return dict(changed=False, msg=Display().prompt_until('who, ' + host).decode())
        """,
    )
    Display = world_of_runs()["ansible.utils.display"].Display  # noqa: N806  # a class
    real = Display.prompt_until

    def answer(display, msg, **kwargs):
        if "who, " in msg and threading.current_thread().name.startswith("Thread"):
            return msg.split(", ")[1].encode()
        return real(display, msg, **kwargs)

    monkeypatch.setattr(Display, "prompt_until", answer)
    result = project.run("- asks:\n", forks=6)
    assert result.rc == 0, result.stdout
    assert messages(result) == {host: host for host in ALL}


@pytest.mark.matrix
def test_a_warning_is_said_once_and_again_in_the_next_run(project):
    project.write(
        "lookup_plugins/warns.py",
        "from ansible.plugins.lookup import LookupBase\nfrom ansible.utils.display import Display\n"
        "class LookupModule(LookupBase):\n    def run(self, terms, variables=None, **kw):\n"
        "        Display().warning('mind the gap')\n        return ['x']\n",
    )
    for _ in range(2):
        result = project.run("- debug: {msg: \"{{ lookup('warns') }}\"}\n", forks=6)
        assert result.rc == 0, result.stdout
        assert result.stdout.count("mind the gap") == 1, result.stdout


def test_a_syntax_tree_that_another_thread_spoilt_is_made_again():
    from forkless.core import syntax_trees
    from forkless.modules.warm import payload

    calls = []

    def spoilt(text):
        calls.append(text)
        if len(calls) < 3:
            raise SystemError("AST constructor recursion depth mismatch (before=60, after=54)")
        return "tree"

    assert syntax_trees.one_at_a_time(spoilt)("x") == "tree"
    with pytest.raises(SystemError, match="another"):
        syntax_trees.one_at_a_time(lambda: (_ for _ in ()).throw(SystemError("another")))()
    # What Ansible wrapped a module into is read by every worker, so there too.
    assert payload.literal_eval is syntax_trees.literal_eval
