# SPDX-License-Identifier: GPL-3.0-or-later
"""
A plain run in environments that have other packages beside Ansible, or that lack some that Ansible can do without.

Environments are made below .cache/beside once; the newest jinja2 is in the first of them.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import pathlib
import shutil
import subprocess
import sys
import textwrap

import pytest

pytestmark = [pytest.mark.spawns, pytest.mark.timeout(600), pytest.mark.xdist_group("beside")]

ROOT = pathlib.Path(__file__).resolve().parents[3]

# What lives most often beside Ansible.
PACKAGES = """
ansible-lint ansible-navigator ansible-pylibssh ansible-runner ara asyncssh attrs azure-identity bcrypt boto3 celery cryptography
distro django dnspython docker fastapi gevent gitpython google-auth hvac jmespath jsonschema kubernetes ldap3 lxml mitogen molecule
napalm ncclient netaddr netmiko ntc-templates openai openshift paramiko passlib pexpect proxmoxer psutil psycopg2-binary pyinfra
pymongo pymysql pyopenssl pytest-ansible python-dateutil pyvmomi pywinrm redis requests rich ruamel.yaml setuptools six sqlalchemy
textfsm uvloop xmltodict yamllint
""".split()

PLAY = """
- hosts: all
  gather_subset: [min]
  tasks:
    - ansible.builtin.command: echo {{ inventory_hostname }}
      register: said
    - ansible.builtin.assert:
        that: [said.stdout == inventory_hostname, ansible_facts.distribution | length > 0]
    - ansible.builtin.copy: {content: "{{ [1, 2] | max }}", dest: "{{ folder }}/{{ inventory_hostname }}"}
    - ansible.builtin.template: {src: template.j2, dest: "{{ folder }}/{{ inventory_hostname }}.txt"}
"""

RUN = """
import sys
sys.modules.update(dict.fromkeys(sys.argv[3].split(",")) if sys.argv[3] else {})  # None: as if it were not installed
import forkless
for how in sys.argv[2].split(","):
    result = forkless.run(
        "play.yml",
        cwd=sys.argv[1],
        inventory="h1,h2,",
        args=["-c", "local"],
        modules=how,
        engine="threads",
        extra_vars={"ansible_python_interpreter": sys.executable, "folder": sys.argv[1]},
    )
    assert result.rc == 0, result.stdout
    assert result.stats["ok"] == {"h1": 5, "h2": 5}, result.stdout
print("it ran")
"""


def uv(*words):
    program = shutil.which("uv", path=os.path.dirname(sys.executable) + os.pathsep + os.environ.get("PATH", ""))
    if program is None:
        pytest.skip("uv is not installed; pip install 'forkless[dev]'")
    return subprocess.run([program, *words], capture_output=True, text=True, check=False, timeout=500)


def installed(name, make):
    """A folder below the cache, made once by `make(folder)`; a test that cannot have it says why in one line."""
    folder = ROOT / ".cache" / "beside" / name
    if not (folder / ".ready").exists():
        shutil.rmtree(folder, ignore_errors=True)
        done = make(folder)
        if done.returncode:
            pytest.skip(f"{name} could not be installed: {done.stderr.strip().splitlines()[-1]}")
        (folder / ".ready").touch()
    return folder


@pytest.fixture(scope="module")
def beside():
    """A Python with the packages above and the ansible-core that we run on."""
    core = importlib.metadata.version("ansible-core")
    key = hashlib.sha256(" ".join(PACKAGES).encode()).hexdigest()[:8]

    def make(folder):
        made = uv("venv", "--quiet", "--python", sys.executable, str(folder))
        python = str(folder / "bin/python")
        return (
            made
            if made.returncode
            else uv("pip", "install", "--quiet", "--python", python, f"ansible-core=={core}", *PACKAGES)
        )

    return installed(f"py{sys.version_info.major}.{sys.version_info.minor}-core{core}-{key}", make) / "bin/python"


@pytest.fixture
def run(tmp_path):
    """Runs the play in an interpreter of its own, by these ways of running modules, without these modules."""
    (tmp_path / "play.yml").write_text(PLAY)
    (tmp_path / "template.j2").write_text("{% for one in [1, 2] %}{{ one }}{% endfor %}\n")

    def call(python, *, how="warm", without=(), first=(), script=RUN, **env):
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("ANSIBLE_", "PYTHON"))}
        path = os.pathsep.join(map(str, (*first, ROOT / "src")))
        return subprocess.run(
            [str(python), "-c", textwrap.dedent(script), str(tmp_path), how, ",".join(without)],
            cwd=tmp_path, env={**kept, "PYTHONPATH": path, **env}, capture_output=True, text=True, check=False, timeout=200,
        )  # fmt: skip

    return call


def assert_it_ran(done):
    assert (done.returncode, done.stdout) == (0, "it ran\n"), done.stderr


def test_a_plain_run_beside_the_packages_that_live_most_often_beside_ansible(beside, run):
    assert_it_ran(run(beside, how="warm,in-process,cold"))


def test_an_installed_distro_that_ansible_prefers_to_its_own_is_a_place_that_we_know(beside, run):
    script = """
        from forkless.engines.threads import importing; from forkless.engines.threads.patches import table; from forkless.patching import seams
        importing.import_ansible(ours=False)
        import ansible.module_utils.distro, distro.distro, subprocess
        import sys
        assert sys.modules["ansible.module_utils.distro"] is distro
        assert seams.moved(table.SEAMS, seams.version()) == []
        with seams.installed(table.SEAMS):
            assert distro.distro.subprocess is not subprocess
        assert distro.distro.subprocess is subprocess
        from forkless import modules
        with modules.installed():
            assert distro.distro.subprocess is not subprocess
        assert distro.distro.subprocess is subprocess
        print("it ran")
    """
    assert_it_ran(run(beside, script=script))


# All that ansible-core asks of a package of that name before it prefers it to its own.
LIKE_DISTRO = "class LinuxDistribution: pass\ndef id(): return 'debian'\n"


@pytest.mark.parametrize(
    "text",
    [
        LIKE_DISTRO,
        "import subprocess\n" + LIKE_DISTRO,
        "",
        "raise ImportError('broken')\n",
    ],
    ids=["without subprocess", "one file", "something else", "broken"],
)
def test_any_distro_that_a_program_has_is_no_reason_to_refuse(run, tmp_path, text):
    (tmp_path / "first").mkdir()
    (tmp_path / "first/distro.py").write_text(text)
    script = """
        from forkless.engines.threads import importing; from forkless.engines.threads.patches import table; from forkless.patching import seams
        importing.import_ansible(ours=False)
        seams.check(table.SEAMS)
        assert seams.moved(table.SEAMS, seams.version()) == []
        with seams.installed(table.SEAMS):
            pass
        from forkless import modules
        with modules.installed():
            pass
        print("it ran")
    """
    assert_it_ran(run(sys.executable, script=script, first=[tmp_path / "first"]))


# Packages, and C parts of packages, that ansible-core imports if they are there.
OPTIONAL = [
    "yaml._yaml", "cryptography", "passlib", "bcrypt", "crypt", "distro", "selinux", "systemd", "resolvelib", "argcomplete", "netaddr",
    "jmespath", "rich", "asyncssh", "ansible_runner", "pexpect", "ptyprocess", "paramiko", "setproctitle", "curses", "readline",
]  # fmt: skip


@pytest.mark.matrix_ends
def test_a_plain_run_without_anything_that_ansible_can_do_without(run):
    assert_it_ran(run(sys.executable, without=OPTIONAL))


@pytest.mark.matrix_ends
def test_a_plain_run_with_the_oldest_jinja2_that_ansible_allows(run):
    version = f"py{sys.version_info.major}.{sys.version_info.minor}"

    def make(folder):
        return uv("pip", "install", "--quiet", "--python", sys.executable, "--target", str(folder), "jinja2==3.1.0")

    assert_it_ran(run(sys.executable, first=[installed(f"jinja2-3.1.0-{version}", make)]))
