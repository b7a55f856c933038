# SPDX-License-Identifier: GPL-3.0-or-later
"""The environment of a run is seen by any code on its threads, and by nobody else."""

from __future__ import annotations

import datetime as dt
import os
import ssl
import subprocess
import tempfile
import threading

import pytest

from engines_support import messages
from forkless.engines.threads import context, engine
from forkless.engines.threads.patches import child_processes
from forkless.patching import thread_environ

pytestmark = pytest.mark.spawns

# A plugin that leaves looking to libraries. It imports them where it uses them, so that nothing can be put into its names beforehand.
ASKS = """
from ansible.plugins.lookup import LookupBase

class LookupModule(LookupBase):
    def run(self, terms, variables=None, **kwargs):
        import os
        import subprocess
        import urllib.request
        out = subprocess.run(["sh", "-c", "echo $http_proxy"], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
        return [{
            "proxy": urllib.request.getproxies_environment().get("http"),
            "home": os.path.expanduser("~/x"),
            "child": out,
            "bytes": os.environb.get(b"http_proxy", b"").decode(),
            "listed": "http_proxy" in list(os.environ) and dict(os.environ).get("http_proxy"),
        }]
"""
ASK = "- debug: {msg: \"{{ lookup('asks') }}\"}\n"


def run_asking(project, **fields):
    project.write("lookup_plugins/asks.py", ASKS)
    result = project.run(ASK, args=["--limit", "h1"], **fields)
    assert result.ok, result.stdout
    return messages(result)["h1"]


@pytest.mark.matrix_ends
def test_libraries_and_their_children_see_the_environment_of_the_run(project):
    before = dict(os.environ)
    seen = run_asking(project, env={"http_proxy": "http://proxy.example:3128", "HOME": str(project.folder)})
    assert seen == {
        "proxy": "http://proxy.example:3128",
        "home": f"{project.folder}/x",
        "child": "http://proxy.example:3128",
        "bytes": "http://proxy.example:3128",
        "listed": "http://proxy.example:3128",
    }
    assert dict(os.environ) == before


def test_a_home_given_to_a_run_is_what_a_tilde_means_in_it(project):
    project.write("elsewhere/hosts.ini", "h1 ansible_connection=local where=elsewhere\n")
    project.write("elsewhere/note", "from elsewhere")
    result = project.run(
        "- debug: {msg: \"{{ where }} {{ lookup('file', '~/note') }}\"}\n",
        env={"HOME": str(project.folder / "elsewhere")},
        inventory="~/hosts.ini",
    )
    assert messages(result) == {"h1": "elsewhere from elsewhere"}, result.stdout


@pytest.mark.matrix_ends
def test_a_home_given_to_a_run_is_what_a_tilde_means_in_its_configuration(project):
    project.write("ansible.cfg", "[defaults]\ninventory = ~/hosts.ini\nroles_path = ~/my_roles\n")
    project.write("elsewhere/hosts.ini", "h1 ansible_connection=local\n")
    project.write("elsewhere/my_roles/role/tasks/main.yml", "- debug: {msg: from elsewhere}\n")
    result = project.run(
        "- include_role: {name: role}\n", env={"HOME": str(project.folder / "elsewhere")}, inventory=None
    )
    assert messages(result) == {"h1": "from elsewhere"}, result.stdout


DEFAULTS = """
from ansible.plugins.lookup import LookupBase

class LookupModule(LookupBase):
    def run(self, terms, variables=None, **kwargs):
        import ssl
        import tempfile
        with tempfile.NamedTemporaryFile() as file:
            name = file.name
        names = [dict(part[0] for part in one["subject"])["commonName"] for one in ssl.create_default_context().get_ca_certs()]
        return [[name, names]]
"""


def test_temporary_files_and_certificates_follow_the_environment_of_the_run(project, tmp_path):
    (tmp_path / "temporary").mkdir()
    make_certificate(tmp_path / "ca.pem", "authority of the run")
    before = tempfile.gettempdir()
    project.write("lookup_plugins/defaults.py", DEFAULTS)
    env = {"TMPDIR": str(tmp_path / "temporary"), "SSL_CERT_FILE": str(tmp_path / "ca.pem"), "SSL_CERT_DIR": "/nowhere"}
    result = project.run("- debug: {msg: \"{{ lookup('defaults') }}\"}\n", env=env, limit="h1")
    name, authorities = messages(result)["h1"]
    assert os.path.dirname(name) == env["TMPDIR"]
    assert authorities == ["authority of the run"]
    assert tempfile.gettempdir() == before
    assert "set_default_verify_paths" not in vars(ssl.SSLContext)


def make_certificate(path, name):
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    start = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject).issuer_name(subject).public_key(key.public_key()).serial_number(1)
        .not_valid_before(start).not_valid_after(start + dt.timedelta(days=36500))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )  # fmt: skip
    path.write_bytes(made.public_bytes(serialization.Encoding.PEM))


def test_two_runs_at_once_see_each_their_own_and_the_program_its_own(projects):
    one, two = projects("one"), projects("two")
    met = threading.Barrier(3, timeout=60)
    runs = []
    for which in (one, two):
        which.write("lookup_plugins/asks.py", ASKS)
        tasks = f"- command: cat {which.folder}/gate\n{ASK}"
        os.mkfifo(which.folder / "gate")
        runs.append(which.start(tasks, args=["--limit", "h1"], env={"http_proxy": f"http://{which.folder.name}"}))

    def open_gate(which):
        with open(which.folder / "gate", "w"):  # returns when the run has opened it for reading, so it is under way
            met.wait()

    helpers = [threading.Thread(target=open_gate, args=(which,)) for which in (one, two)]
    for helper in helpers:
        helper.start()
    met.wait()
    assert type(os.environ) is thread_environ.ThreadEnviron
    assert "http_proxy" not in os.environ
    assert subprocess.run(["printenv", "http_proxy"], stdout=subprocess.PIPE, check=False).stdout == b""
    for helper in helpers:
        helper.join()
    seen = [messages(run.wait())["h1"] for run in runs]
    assert [one["proxy"] for one in seen] == ["http://one", "http://two"]
    assert [one["child"] for one in seen] == ["http://one", "http://two"]


@pytest.mark.matrix_ends
def test_what_a_library_sets_in_a_worker_reaches_neither_the_next_host_nor_the_program(project):
    project.write(
        "lookup_plugins/sets.py",
        """
        from ansible.plugins.lookup import LookupBase

        class LookupModule(LookupBase):
            def run(self, terms, variables=None, **kwargs):
                import os
                import subprocess
                before = os.environ.get("FORKLESS_LEFT")
                os.environ["FORKLESS_LEFT"] = terms[0]
                child = subprocess.run(["printenv", "FORKLESS_LEFT"], stdout=subprocess.PIPE, text=True).stdout.strip()
                return [f"{before} {child}"]
        """,
    )
    result = project.run("- debug: {msg: \"{{ lookup('sets', inventory_hostname) }}\"}\n", forks=1)
    assert messages(result) == {f"h{n}": f"None h{n}" for n in range(1, 7)}, result.stdout
    assert "FORKLESS_LEFT" not in os.environ


def test_after_the_last_run_environ_and_popen_are_what_they_were(project):
    kind, start = type(os.environ), subprocess.Popen.__init__
    project.run("- debug:\n", env={"A": "b"})
    assert type(os.environ) is kind
    assert subprocess.Popen.__init__ is start
    assert engine._config_gate._active_runs == 0


class _Fixed:
    def __init__(self, variables):
        self.variables = variables

    def seen(self):
        return self.variables

    changed = seen


def test_an_environment_of_a_thread_behaves_as_one(monkeypatch):
    monkeypatch.setenv("FORKLESS_OUTER", "yes")
    own = {"A": "1", "ODD": "\udcff"}
    with thread_environ.provided(_Fixed(own)):
        assert os.environ["A"] == "1"
        assert os.environb[b"ODD"] == b"\xff"
        assert dict(os.environ) == own
        assert os.environ.copy() == own
        assert len(os.environ) == 2
        assert sorted(os.environ) == ["A", "ODD"]
        assert "FORKLESS_OUTER" not in os.environ
        assert repr(os.environ) == f"environ({own!r})"
        os.environ["B"] = "2"
        assert os.environ.pop("A") == "1"
        assert os.environ.setdefault("C", "3") == "3"
        assert (os.environ | {"D": "4"})["D"] == "4"
        with pytest.raises(KeyError, match="'A'"):
            del os.environ["A"]
        with pytest.raises(KeyError, match="'A'"):
            os.environ["A"]
        with pytest.raises(TypeError):
            os.environ["E"] = 5
        with pytest.raises(TypeError):
            os.environ[5]
        assert os.getenv("B") == "2"
    assert own == {"B": "2", "C": "3", "ODD": "\udcff"}
    assert os.environ["FORKLESS_OUTER"] == "yes"
    assert "B" not in os.environ


def test_a_mapping_that_the_program_put_in_place_of_environ_stays_what_it_is(monkeypatch):
    mine = {"A": "1"}
    monkeypatch.setattr(os, "environ", mine)
    with thread_environ.provided(_Fixed({"A": "2"})):
        assert os.environ is mine
        monkeypatch.undo()
        assert os.environ.get("HOME")
    assert type(os.environb) is type(os.environ) is thread_environ._Real


def test_popen_takes_its_arguments_by_place_as_well(tmp_path):
    run_context = context.RunContext(ident="x", stop=None, environ={"A": "1"})
    provider = _Fixed(run_context.environ)
    with thread_environ.provided(provider), child_processes.started_for_runs():
        by_place = ["printenv", -1, None, None, subprocess.PIPE, None, None, True, False, str(tmp_path), None]
        child = subprocess.Popen(*by_place)
        assert child.communicate()[0] == b"A=1\n"
        child = subprocess.Popen(["printenv"], stdout=subprocess.PIPE, env={"B": "2"})
        assert child.communicate()[0] == b"B=2\n"
