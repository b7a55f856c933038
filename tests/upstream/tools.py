# SPDX-License-Identifier: GPL-3.0-or-later
"""
Tools that call `ansible-playbook` themselves, from PyPI and unchanged, with stock's command on PATH and with the shim before it.

    python tests/upstream/tools.py [NAME ...] [--rounds N] [--out FILE.json]

Prints one row for each tool: its version, what was run, and the seconds of wall and CPU time of both (the least of the rounds). A tool
fails if its exit code is not 0, if the play ran in the wrong program, or if what it did differs. The tools are installed into
.cache/tools once. ansible-pull is in `make test` as well; the others take too long, or need too many packages, for it.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = pathlib.Path(__file__).resolve().parents[2]
VENV = ROOT / ".cache" / "tools"
PACKAGES = (
    "molecule",
    "ansible-navigator",
    "ansible-runner",
    "ansible-lint",
    "pytest-ansible",
    "pytest",
    "ansible-builder",
    "ara[server]",
)
# The most seconds for one run. The limit is only for hangs.
PATIENCE = 1800.0

# Written by each play: the program that its process is, and whether that is a file of the shim.
EVIDENCE = """\
    - name: Which program
      ansible.builtin.copy:
        content: "{{ program }} {{ 'shim' if '# forkless shim' in lookup('ansible.builtin.file', program) else 'stock' }}\\n"
        dest: EVIDENCE_FILE
        mode: '0644'
      vars:
        words: "{{ lookup('ansible.builtin.file', '/proc/self/cmdline') | regex_findall('[^\\\\x00]+') }}"
        program: "{{ words | select('search', '/ansible(-playbook)?$') | first }}"
      delegate_to: localhost
      connection: local
      run_once: true
"""
TASKS = "".join(
    f"    - name: Folder {number}\n      ansible.builtin.file: {{path: '{{{{ place }}}}/{number}', state: directory, mode: '0755'}}\n"
    f"    - name: File {number}\n      ansible.builtin.copy: {{content: 'x', dest: '{{{{ place }}}}/{number}/file', mode: '0644'}}\n"
    f"    - name: Look {number}\n      ansible.builtin.stat: {{path: '{{{{ place }}}}/{number}/file'}}\n"
    for number in range(5)
)


def play(hosts: str, tasks: str, *, evidence: str, place: str = "/nonexistent") -> str:
    head = f"- name: A play\n  hosts: {hosts}\n  gather_facts: false\n  vars: {{place: '{place}'}}\n  tasks:\n"
    return head + tasks + EVIDENCE.replace("EVIDENCE_FILE", evidence)


@dataclass
class Tool:
    name: str
    package: str
    what: str
    prepare: Callable[[pathlib.Path], list[str]]
    """Writes what the tool needs into a folder, and returns the command."""
    environ: dict[str, str] = field(default_factory=dict)
    fresh: bool = True
    """Each run gets a folder of its own."""


def _write(path: pathlib.Path, text: str) -> pathlib.Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def molecule(folder: pathlib.Path, command: str = "molecule test") -> list[str]:
    scenario = folder / "molecule/default"
    instances = [f"instance{number}" for number in range(3)]
    platforms = "".join(f"  - name: {name}\n" for name in instances)
    _write(
        scenario / "molecule.yml",
        "driver: {name: default}\nplatforms:\n"
        + platforms
        + "provisioner:\n  name: ansible\n  inventory:\n    group_vars:\n"
        f"      all: {{ansible_connection: local, ansible_python_interpreter: {sys.executable}}}\nverifier: {{name: ansible}}\n",
    )
    known = json.dumps(
        [
            {"instance": n, "address": "127.0.0.1", "user": "root", "port": 22, "identity_file": "/dev/null"}
            for n in instances
        ]
    )
    begin = "- name: Instances\n  hosts: localhost\n  connection: local\n  gather_facts: false\n  tasks:\n"
    made = (
        f"    - name: Remember\n      ansible.builtin.copy: {{content: '{known}', dest: '{{{{ molecule_instance_config }}}}', mode: '0600'}}\n"
        f"    - name: Home\n      ansible.builtin.file: {{path: '{folder}/made/{{{{ item }}}}', state: directory, mode: '0755'}}\n"
        f"      loop: {json.dumps(instances)}\n"
    )
    gone = (
        f"    - name: Homes\n      ansible.builtin.file: {{path: '{folder}/made', state: absent}}\n"
        "    - name: Forget\n      ansible.builtin.copy: {content: '[]', dest: '{{ molecule_instance_config }}', mode: '0600'}\n"
    )
    _write(scenario / "create.yml", begin + made)
    _write(scenario / "destroy.yml", begin + gone)
    place = f"{folder}/made/{{{{ inventory_hostname }}}}"
    _write(scenario / "converge.yml", play("all", TASKS, evidence=f"{folder}/evidence", place=place))
    check = (
        "    - name: Look\n      ansible.builtin.stat: {path: '{{ place }}/4/file'}\n      register: seen\n"
        "    - name: Check\n      ansible.builtin.assert: {that: seen.stat.exists}\n"
    )
    _write(
        scenario / "verify.yml",
        f"- name: Verify\n  hosts: all\n  gather_facts: false\n  vars: {{place: '{place}'}}\n  tasks:\n{check}",
    )
    return command.split()


def pull(folder: pathlib.Path) -> list[str]:
    repo = folder / "repo"
    _write(repo / "local.yml", play("localhost", "", evidence=f"{folder}/evidence"))
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@localhost", "-C", str(repo)]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "x"]):
        subprocess.run([*git, *words], check=True)
    return ["ansible-pull", "-U", f"file://{repo}", "-d", str(folder / "copy"), "-i", "localhost,"]


def project(folder: pathlib.Path) -> pathlib.Path:
    names = [f"web{number}" for number in range(3)]
    hosts = "".join(f"{name} ansible_connection=local ansible_python_interpreter={sys.executable}\n" for name in names)
    for name in names:
        (folder / "made" / name).mkdir(parents=True)
    _write(folder / "private/inventory/hosts", hosts)
    place = f"{folder}/made/{{{{ inventory_hostname }}}}"
    return _write(folder / "private/project/site.yml", play("all", TASKS, evidence=f"{folder}/evidence", place=place))


def navigator(folder: pathlib.Path) -> list[str]:
    site = project(folder)
    flags = ["--mode", "stdout", "--ee", "false", "--pas", "false", "--lf", str(folder / "navigator.log")]
    return ["ansible-navigator", "run", str(site), "-i", str(folder / "private/inventory/hosts"), *flags]


def runner(folder: pathlib.Path) -> list[str]:
    project(folder)
    return ["ansible-runner", "run", str(folder / "private"), "-p", "site.yml"]


def runner_from_python(folder: pathlib.Path) -> list[str]:
    project(folder)
    code = (
        "import ansible_runner, sys\n"
        f"done = ansible_runner.run(private_data_dir={str(folder / 'private')!r}, playbook='site.yml', quiet=True)\n"
        "assert done.status == 'successful' and len(list(done.events)) > 20 and done.stats['ok'], (done.status, done.stats)\n"
    )
    return ["python", "-c", code]


def lint(folder: pathlib.Path) -> list[str]:
    (folder / "roles").mkdir()
    other = "- name: A play\n  hosts: localhost\n  gather_facts: false\n  tasks:\n    - name: Say\n      ansible.builtin.debug:\n        msg: hello\n"
    _write(folder / "other.yml", other)
    # Evaluated by --syntax-check, which is all that ansible-lint runs.
    pipe = f"tr \\\\\\\\0 ' ' < /proc/$PPID/cmdline > {folder}/evidence; echo other.yml"
    _write(
        folder / "site.yml",
        f'---\n- name: Other\n  ansible.builtin.import_playbook: "{{{{ lookup(\'ansible.builtin.pipe\', \\"{pipe}\\") }}}}"\n',
    )
    return ["ansible-lint", "--offline", "--profile", "min", "-c", "/dev/null", "site.yml"]


def ara(folder: pathlib.Path) -> list[str]:
    """No tool that calls the command, but a callback that many have; its records must be complete. It counts localhost as a host."""
    site = project(folder)
    count = "import json, sys; one, = json.load(sys.stdin); sys.exit((one['status'], one['hosts'], one['tasks'], one['results'])"
    line = (
        'export ANSIBLE_CALLBACK_PLUGINS="$(python -m ara.setup.callback_plugins)"\n'
        f"ansible-playbook -i {folder}/private/inventory/hosts {site} || exit\n"
        f"ara playbook list -f json | python -c \"{count} != ('completed', 4, 16, 46))\""
    )
    return ["sh", "-c", line]


def pytest_ansible(folder: pathlib.Path) -> list[str]:
    molecule(folder)
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    return ["pytest", "-q", "--molecule", "molecule"]


def ansible_test(folder: pathlib.Path) -> list[str]:
    base = folder / "ansible_collections/ns/small"
    _write(base / "galaxy.yml", "namespace: ns\nname: small\nversion: 1.0.0\nreadme: README.md\nauthors: [x]\n")
    target = base / "tests/integration/targets/smoke"
    tasks = play("x", "", evidence=f"{folder}/evidence").partition("tasks:\n")[2]
    _write(target / "tasks/main.yml", "---\n" + "\n".join(line[4:] for line in tasks.split("\n")))
    shell = base / "tests/integration/targets/shell/runme.sh"
    _write(
        shell, "#!/usr/bin/env bash\nset -eux\nansible -m ansible.builtin.ping localhost\nansible-playbook --version\n"
    ).chmod(0o755)
    _write(base / "tests/integration/targets/shell/aliases", "")
    python = "{}.{}".format(*sys.version_info[:2])
    return ["ansible-test", "integration", "--python", python, "smoke", "shell"]


TOOLS = [
    Tool("molecule", "molecule", "molecule test: create, converge, idempotence, verify, destroy; 3 instances, 16 tasks", molecule),
    Tool("ansible-pull", "ansible-core", "ansible-pull from a git repository", pull),
    Tool("ansible-navigator", "ansible-navigator", "run --mode stdout --ee false; 3 hosts, 16 tasks", navigator),
    Tool("ansible-runner", "ansible-runner", "ansible-runner run; 3 hosts, 16 tasks", runner),
    Tool("ansible_runner", "ansible-runner", "ansible_runner.run(); 3 hosts, 16 tasks", runner_from_python),
    Tool("ansible-test", "ansible-core", "integration of a collection with 2 targets", ansible_test),
    Tool("ansible-lint", "ansible-lint", "a project with --syntax-check", lint),
    Tool("ara", "ara", "ansible-playbook with ARA's callback; 3 hosts, 16 tasks", ara),
    Tool("pytest-ansible", "pytest-ansible", "pytest --molecule, the scenario above", pytest_ansible),
]  # fmt: skip


def install() -> pathlib.Path:
    """The environment with the tools, the ansible-core of the tests, and this tree."""
    import importlib.metadata

    core = importlib.metadata.version("ansible-core")
    ready = VENV / f".ready-{core}-{zlib.crc32(' '.join(PACKAGES).encode()):x}"
    if not ready.exists():
        uv = [sys.executable, "-m", "uv"]
        subprocess.run([*uv, "venv", "-q", "--clear", "--python", sys.executable, str(VENV)], check=True)
        install_ = [*uv, "pip", "install", "-q", "--python", str(VENV / "bin/python")]
        subprocess.run([*install_, "-e", str(ROOT), f"ansible-core=={core}", *PACKAGES], check=True)
        ready.touch()
    return VENV / "bin"


def build_context(bin_: pathlib.Path, folder: pathlib.Path) -> dict[str, object]:
    """The build context of the execution environment in examples/, which ansible-builder checks and writes."""
    definition = ROOT / "examples/execution-environment/execution-environment.yml"
    words = [str(bin_ / "ansible-builder"), "create", "-f", str(definition), "-c", str(folder / "context")]
    words += ["--output-filename", "Containerfile"]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    row: dict[str, object] = {"tool": "ansible-builder", "what": "create"}
    if done.returncode != 0:
        return row | {"problem": done.stdout + done.stderr}
    steps = (folder / "context/Containerfile").read_text()
    packages = (folder / "context/_build/requirements.txt").read_text()
    if "RUN forkless shim install" not in steps.rpartition("FROM ")[2] or "forkless" not in packages:
        return row | {"problem": f"the image would have no shim:\n{steps}"}
    return row | {"version": version_of(bin_, "ansible-builder")}


def version_of(bin_: pathlib.Path, package: str) -> str:
    code = f"import importlib.metadata; print(importlib.metadata.version({package!r}))"
    return subprocess.run([str(bin_ / "python"), "-c", code], capture_output=True, text=True, check=True).stdout.strip()


@dataclass
class Ran:
    code: int
    wall: float
    cpu: float
    output: str
    program: str


def run(tool: Tool, folder: pathlib.Path, bin_: pathlib.Path, shim: pathlib.Path | None) -> Ran:
    folder.mkdir(parents=True)
    words = tool.prepare(folder)
    home = folder / "home"
    home.mkdir()
    path = [*([str(shim)] if shim else []), str(bin_), "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"]
    environ = {
        "PATH": ":".join(path), "HOME": str(home), "LC_ALL": "C.UTF-8", "ANSIBLE_LOCALHOST_WARNING": "0", "NO_COLOR": "1", "TERM": "dumb",
        "ANSIBLE_FORCE_COLOR": "0", **tool.environ,
    }  # fmt: skip
    cwd = folder / "ansible_collections/ns/small" if (folder / "ansible_collections").exists() else folder
    with open(folder / "output", "w+b") as out:
        began = time.monotonic()
        started = subprocess.Popen(
            ["/usr/bin/env", *words], cwd=cwd, env=environ, stdin=subprocess.DEVNULL, stdout=out, stderr=out
        )
        deadline = began + PATIENCE
        while True:
            pid, status, usage = os.wait4(started.pid, os.WNOHANG)
            if pid:
                break
            if time.monotonic() > deadline:
                started.kill()
            time.sleep(0.02)
        wall = time.monotonic() - began
        started.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        output = out.read().decode(errors="replace")
    evidence = folder / "evidence"
    program = evidence.read_text().strip() if evidence.exists() else ""
    return Ran(started.returncode, wall, usage.ru_utime + usage.ru_stime, output, program)


def compare(tool: Tool, bin_: pathlib.Path, shim: pathlib.Path, work: pathlib.Path, rounds: int) -> dict[str, object]:
    """Both, turn about; the least of the rounds."""
    best: dict[str, Ran] = {}
    problem = ""
    for number in range(rounds):
        for name, first in (("stock", None), ("forkless", shim)):
            ran = run(tool, work / f"{tool.name}-{name}-{number}", bin_, first)
            expected = ("shim" if first else "stock") if tool.name != "ansible-lint" else f"{first or bin_}/"
            if ran.code != 0:
                problem = f"{name}: exit code {ran.code}: " + ran.output[-1500:]
            elif expected not in ran.program:
                problem = f"{name}: the play ran in {ran.program or 'an unknown program'}, not in {expected}"
            before = best.get(name)
            best[name] = ran if before is None or ran.cpu < before.cpu else before
            if problem:
                return {"tool": tool.name, "what": tool.what, "problem": problem}
    row: dict[str, object] = {"tool": tool.name, "version": version_of(bin_, tool.package), "what": tool.what}
    for name, ran in best.items():
        row |= {f"{name}_wall": round(ran.wall, 1), f"{name}_cpu": round(ran.cpu, 1)}
    return row


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").strip().splitlines()[0])
    parser.add_argument("tools", nargs="*", help=", ".join(tool.name for tool in TOOLS))
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--out", type=pathlib.Path)
    given = parser.parse_args(argv)
    wanted = [tool for tool in TOOLS if not given.tools or tool.name in given.tools]
    bin_ = install()
    rows = []
    print(
        f"{'tool':<18} {'version':<9} {'stock: wall':>11} {'CPU':>6} {'forkless: wall':>15} {'CPU':>6}  what was run",
        flush=True,
    )
    # Not below a folder of ours: a tool would take the repository for its project.
    with tempfile.TemporaryDirectory(prefix="forkless-tools-") as folder:
        shim = pathlib.Path(folder) / "shim"
        subprocess.run([str(bin_ / "forkless"), "shim", "install", str(shim)], check=True, stdout=subprocess.DEVNULL)
        for tool in wanted:
            row = compare(tool, bin_, shim, pathlib.Path(folder), given.rounds)
            rows.append(row)
            if "problem" in row:
                print(f"{tool.name:<18} DIFFERS: {row['problem']}", flush=True)
                continue
            print(
                f"{tool.name:<18} {row['version']:<9} {row['stock_wall']:>11} {row['stock_cpu']:>6} {row['forkless_wall']:>15} "
                f"{row['forkless_cpu']:>6}  {tool.what}",
                flush=True,
            )
        if not given.tools or "ansible-builder" in given.tools:
            rows.append(build_context(bin_, pathlib.Path(folder)))
            print(
                f"{'ansible-builder':<18} {rows[-1].get('version') or 'FAILS: ' + str(rows[-1]['problem'])}  create",
                flush=True,
            )
    if given.out:
        given.out.write_text(json.dumps(rows, indent=1) + "\n")
    return 1 if any("problem" in row for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
