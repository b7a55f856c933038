# SPDX-License-Identifier: GPL-3.0-or-later
"""What the candidates of the race are given to do: plays, inventories and projects, written into a folder."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pathlib

FOUR_OPERATIONS = """
- hosts: all
  gather_facts: false
  tasks:
    - file: {path: ~/race/folder, state: directory}
    - file: {path: ~/race/folder/touched, state: touch}
    - copy: {src: payload.txt, dest: ~/race/folder/payload.txt}
    - shell: cat ~/race/folder/payload.txt > ~/race/folder/out
"""
FOUR_OPERATIONS_OF_PYINFRA = """
from pyinfra.operations import files, server
files.directory(path="race/folder")
files.file(path="race/folder/touched", touch=True)
files.put(src="payload.txt", dest="race/folder/payload.txt")
server.shell(commands=["cat race/folder/payload.txt > race/folder/out"])
"""
BECOME_USERS = ("root", "daemon", "games", "nobody")
# Keywords that may make tasks wait for each other: title, and the tasks on ten hosts.
KEYWORDS = {
    "delegate": (
        "10 hosts x 3 tasks of 0.5 s, all delegated to one host",
        "{command: sleep 0.5, delegate_to: '{{ groups.all[0] }}', loop: [1, 2, 3]}",
    ),
    "run-once": (
        "run_once for ten hosts, 10 items",
        "{command: sleep 0.1, run_once: true, loop: '{{ range(10) | list }}'}",
    ),
    "throttle": ("a task of 0.5 s on ten hosts, two at a time", "{command: sleep 0.5, throttle: 2}"),
    "become": (
        "become to four users on each of ten hosts",
        f"{{command: id -un, become: true, become_user: '{{{{ item }}}}', loop: {json.dumps(BECOME_USERS)}}}",
    ),
}
START = "- hosts: h1\n  gather_facts: false\n  tasks: [{debug: {msg: hello}}]\n"
_LOCAL = """
- hosts: all
  connection: local
  gather_facts: false
  vars: {ansible_python_interpreter: "{{ ansible_playbook_python }}"}
"""


def keyword_play(name: str) -> str:
    return f"- hosts: all\n  gather_facts: false\n  tasks:\n    - {KEYWORDS[name][1]}\n"


def inventory(folder: pathlib.Path, kind: str, count: int) -> list[str]:
    """An inventory with so many hosts in ten groups: "ini", "yaml", or "constructed" (INI with groups made from variables)."""
    names = [f"h{number}" for number in range(1, count + 1)]
    if kind == "yaml":
        groups = {
            f"group{ten}": {"hosts": {name: {"number": at, "site": f"s{at % 7}"} for at, name in enumerate(names) if at % 10 == ten}}
            for ten in range(10)
        }  # fmt: skip
        lines = ["all:", "  children:"]
        for group, content in groups.items():
            lines += [f"    {group}:", "      hosts:"]
            lines += [f"        {name}: {json.dumps(own)}" for name, own in content["hosts"].items()]
        (folder / "hosts.yml").write_text("\n".join(lines) + "\n")
        return ["-i", "hosts.yml"]
    lines = []
    for ten in range(10):
        lines.append(f"[group{ten}]")
        lines += [f"{name} number={at} site=s{at % 7}" for at, name in enumerate(names) if at % 10 == ten]
    (folder / "hosts.ini").write_text("\n".join(lines) + "\n")
    if kind == "ini":
        return ["-i", "hosts.ini"]
    (folder / "z.constructed.yml").write_text(
        "plugin: ansible.builtin.constructed\nstrict: true\ncompose: {label: \"inventory_hostname ~ '-' ~ site\"}\n"
        "keyed_groups: [{prefix: site, key: site}]\n"
    )
    return ["-i", "hosts.ini", "-i", "z.constructed.yml"]


def _hosts(folder: pathlib.Path, count: int) -> list[str]:
    (folder / "hosts.ini").write_text(f"n[1:{count}]\n")
    return ["-i", "hosts.ini", "-f", "10", "play.yml"]


def loop_items(folder: pathlib.Path, count: int) -> list[str]:
    tasks = f"  tasks: [{{command: sleep 0.2, loop: '{{{{ range({count}) | list }}}}', vars: {{forkless_loop_workers: 8}}}}]\n"
    (folder / "play.yml").write_text(_LOCAL + tasks)
    return _hosts(folder, 1)


def looped_include(folder: pathlib.Path, count: int) -> list[str]:
    """include_tasks and include_role in a loop: the cost of an item must not grow with the items before it."""
    (folder / "included.yml").write_text("- debug: {msg: '{{ item }}'}\n")
    (folder / "roles/small/tasks").mkdir(parents=True, exist_ok=True)
    (folder / "roles/small/tasks/main.yml").write_text("- debug: {msg: '{{ item }}'}\n")
    tasks = (
        f"    - {{include_tasks: included.yml, loop: '{{{{ range({count}) | list }}}}'}}\n"
        f"    - {{include_role: {{name: small}}, loop: '{{{{ range({count // 4}) | list }}}}'}}\n"
    )
    (folder / "play.yml").write_text(f"{_LOCAL}  tasks:\n{tasks}")
    return _hosts(folder, 3)


def nested_variables(folder: pathlib.Path, count: int) -> list[str]:
    """Variables made of variables made of variables: since 2.19 each mention templates the whole chain below it again."""
    lines = ["  vars:", "    level0: \"{{ range(40) | map('string') | list }}\""]
    lines += [f"    level{n}: \"{{{{ level{n - 1} | map('regex_replace', '$', '.') | list }}}}\"" for n in range(1, 8)]
    lines += [
        '    table: "{{ dict(level7 | zip(level6)) }}"',
        "  tasks:",
        f'    - debug: {{msg: "{{{{ table[level7[item % 40]] }}}} {{{{ level5 | length }}}}"}}\n      loop: "{{{{ range({count}) | list }}}}"',
    ]  # fmt: skip
    head = "- hosts: all\n  connection: local\n  gather_facts: false\n"
    (folder / "play.yml").write_text(head + "\n".join(lines) + "\n")
    return _hosts(folder, 2)


def hostvars_of_all(folder: pathlib.Path, count: int) -> list[str]:
    """Every host reads a variable of every host."""
    expression = "{{ groups.all | map('extract', hostvars, 'own') | join(',') | length }}"
    text = f"{_LOCAL}  tasks:\n    - set_fact: {{own: 'x{{{{ inventory_hostname }}}}'}}\n    - debug: {{msg: \"{expression}\"}}\n"
    (folder / "play.yml").write_text(text)
    return _hosts(folder, count)


def large_facts(folder: pathlib.Path, count: int) -> list[str]:
    """A fact of 5 MB for each host, and tasks that have nothing to do with it."""
    (folder / "library").mkdir(exist_ok=True)
    (folder / "library/large_fact.py").write_text(
        "from ansible.module_utils.basic import AnsibleModule\n"
        "module = AnsibleModule({})\n"
        "module.exit_json(ansible_facts={'large': [{'name': 'entry %d' % n, 'text': 'x' * 60} for n in range(50000)]})\n"
    )
    tasks = "    - large_fact:\n" + "".join("    - debug: {msg: '{{ inventory_hostname }}'}\n" for _ in range(8))
    (folder / "play.yml").write_text(f"{_LOCAL}  tasks:\n{tasks}")
    return _hosts(folder, count)


def long_template(folder: pathlib.Path, count: int) -> list[str]:
    """A template of so many lines on ten hosts."""
    lines = "".join(
        f"setting_{n} = {{{{ inventory_hostname | upper }}}} {{{{ values[{n % 10}] }}}}{{% if {n} is odd %}} odd{{% endif %}}\n"
        for n in range(count)
    )
    (folder / "long.j2").write_text(lines)
    tasks = f"    - template: {{src: long.j2, dest: '{folder}/out-{{{{ inventory_hostname }}}}'}}\n"
    text = _LOCAL.rstrip("}\n") + f", values: {list(range(10))}}}\n  tasks:\n{tasks}"
    (folder / "play.yml").write_text(text)
    return _hosts(folder, 10)


def giant(folder: pathlib.Path, count: int) -> list[str]:
    """A project as large as those that install clusters: so many roles of 20 tasks, of which most are skipped or only template."""
    names = [f"part{n}" for n in range(count)]
    for at, name in enumerate(names):
        role = folder / "roles" / name
        for part in ("tasks", "defaults", "handlers"):
            (role / part).mkdir(parents=True, exist_ok=True)
        defaults = [f"{name}_option{n}: '{{{{ cluster_name }}}}-{n}'" for n in range(15)]
        (role / "defaults/main.yml").write_text(
            "\n".join([f"{name}_enabled: {str(at % 5 == 0).lower()}", *defaults]) + "\n"
        )
        (role / "handlers/main.yml").write_text(f"- name: Restart {name}\n  debug: {{msg: restarted}}\n")
        tasks = []
        for n in range(20):
            skipped = n % 10 != 0
            tasks.append(
                f"- name: {name} step {n}\n"
                + (f"  command: /bin/false\n  when: {name}_enabled and kind == 'other'\n  notify: Restart {name}\n" if skipped else
                   f"  set_fact: {{{name}_result: '{{{{ {name}_option{n % 15} }}}} {{{{ inventory_hostname }}}}'}}\n")
            )  # fmt: skip
        (role / "tasks/main.yml").write_text("".join(tasks))
    (folder / "group_vars").mkdir(exist_ok=True)
    settings = "".join(f"setting_{n}: '{{{{ cluster_name }}}} {n}'\n" for n in range(300))
    (folder / "group_vars/all.yml").write_text(f"cluster_name: giant\nkind: this\n{settings}")
    (folder / "play.yml").write_text(_LOCAL + f"  roles: {json.dumps(names)}\n")
    return _hosts(folder, 1)


# name -> what makes it, title with {count}, sizes, goal against stock
ON_THE_CONTROLLER = {
    "loop-items": (loop_items, "{count} items of 0.2 s, 8 at once with forkless", (50,), 6.0),
    "include-loop": (
        looped_include,
        "include_tasks and include_role in a loop, {count} items, 3 hosts",
        (50, 200),
        5.0,
    ),
    "nested-variables": (nested_variables, "variables made of variables, {count} items, 2 hosts", (20, 80), 5.0),
    "hostvars": (hostvars_of_all, "every one of {count} hosts reads hostvars of all", (50, 200), 5.0),
    "large-facts": (large_facts, "a fact of 5 MB and 8 small tasks on {count} hosts", (5,), 5.0),
    "long-template": (long_template, "template with {count} lines on 10 hosts", (500, 2000), 5.0),
    "giant": (giant, "{count} roles of 20 tasks, most skipped, 1 host", (60,), 5.0),
}
