# SPDX-License-Identifier: GPL-3.0-or-later
"""Secrets: a marker goes in by every way there is, and is looked for in everything that a run writes down or says of itself."""

from __future__ import annotations

import importlib.metadata
import json
import pathlib
import subprocess
import sys

import pytest

import forkless
from forkless.cli import main
from forkless.engines.threads.patches.callbacks import Listener
from forkless.jobs import open_store
from forkless.runs.artifacts import Artifacts

pytestmark = [pytest.mark.spawns]

MINOR = tuple(map(int, importlib.metadata.version("ansible-core").split(".")[:2]))
SECRET = "correct-horse-battery"
VAULT_PASSWORD = "open-sesame-vault"

# Takes a secret by name, by alias, in suboptions, in a list of them, and from the environment; fails or changes when asked to.
KEEPER = """
#!/usr/bin/python
from ansible.module_utils.basic import AnsibleModule, env_fallback
sub = dict(type="dict", options=dict(token=dict(type="str", no_log=True), name=dict(type="str")))
module = AnsibleModule(
    dict(
        name=dict(type="str"),
        secret=dict(type="str", no_log=True, aliases=["geheim"]),
        keys=dict(type="list", elements="dict", options=sub["options"]),
        login=sub,
        from_env=dict(type="str", no_log=True, fallback=(env_fallback, ["KEEPER_TOKEN"])),
        bad=dict(type="bool", default=False),
    ),
    supports_check_mode=True,
)
given = module.params["secret"] or ""
diff = dict(before="", after="the secret is " + given + chr(10))
if module.params["bad"]:
    module.fail_json(msg="refused: " + given, diff=diff)
module.exit_json(changed=True, echo=given, keys=module.params["keys"], login=module.params["login"], diff=diff)
"""

TASKS = """
- name: by name
  keeper: {name: one, secret: "{{ secret }}"}
  notify: tell
- name: by alias
  keeper: {geheim: "{{ secret }}"}
- name: in suboptions
  keeper: {login: {name: me, token: "{{ secret }}"}, keys: [{token: "{{ secret }}"}]}
- name: from the environment of the task
  keeper: {name: one}
  environment: {KEEPER_TOKEN: "{{ secret }}"}
- name: as a line
  keeper: name=one secret={{ secret }}
- name: as an action with args
  action: keeper name=one
  args: {secret: "{{ secret }}"}
- name: from the vault
  keeper: {secret: "{{ vaulted }}"}
- name: in a loop
  keeper: {name: "{{ item }}", secret: "{{ secret }}"}
  loop: [1, 2]
- name: for another host
  keeper: {secret: "{{ secret }}"}
  delegate_to: h2
- name: that fails
  keeper: {secret: "{{ secret }}", bad: true}
  ignore_errors: true
- name: again and again
  keeper: {secret: "{{ secret }}", bad: true}
  register: tried
  until: tried is not failed
  retries: 1
  delay: 0
  ignore_errors: true
- name: in the background
  keeper: {secret: "{{ secret }}"}
  async: 60
  poll: 1
- name: by module_defaults
  keeper: {name: one}
  module_defaults: {keeper: {secret: "{{ secret }}"}}
- name: "a title with {{ item }}"
  debug: {msg: "{{ item }}"}
  loop: ["{{ secret }}"]
  no_log: true
- name: looked at before it runs
  command: "echo {{ secret }}"
  when: false
"""


@pytest.fixture
def kept(project):
    """A project in which a secret comes from a variable file, from the vault and from the environment."""
    from ansible.parsing.vault import VaultLib, VaultSecret

    project.write("library/keeper.py", KEEPER.lstrip())
    lib = VaultLib([("default", VaultSecret(VAULT_PASSWORD.encode()))])
    cipher = lib.encrypt(f"vaulted: {SECRET}\n", VaultSecret(VAULT_PASSWORD.encode())).decode()
    (project.folder / "group_vars/all").mkdir(parents=True)
    project.write("group_vars/all/vault.yml", cipher)
    return project


def everything_in(folder: pathlib.Path) -> dict[str, str]:
    return {str(path): path.read_text(errors="replace") for path in folder.rglob("*") if path.is_file()}


def assert_nothing_is_told(result: forkless.Result, artifacts: pathlib.Path) -> None:
    for event in result.events:
        assert SECRET not in json.dumps(event.as_dict()), event.as_dict()
    assert SECRET not in result.stdout
    written = everything_in(artifacts)
    assert len(written) > 10
    assert not [path for path, text in written.items() if SECRET in text or VAULT_PASSWORD in text]


HANDLERS = """
handlers:
  - name: tell
    keeper: {secret: "{{ secret }}"}
"""


@pytest.mark.parametrize("how", ["warm", "in-process", "cold"])
@pytest.mark.matrix_ends
def test_a_secret_that_only_the_module_knows_to_be_one_is_in_nothing_that_a_run_writes(kept, tmp_path, how):
    result = kept.run(
        TASKS,
        head=HANDLERS,
        # What a second host adds does not depend on how modules run, and a module in a process of its own takes long.
        limit="h1" if how == "cold" else "h1:h2",
        diff=True,
        modules=how,
        # Where HOME is not what the list of users says, stock's async_status would look in another folder.
        extra_vars={"secret": SECRET, "ansible_async_dir": str(tmp_path / "async")},
        vault_password=VAULT_PASSWORD,
        artifacts=tmp_path / "artifacts",
    )
    assert result.rc == 0, result.stdout
    assert_nothing_is_told(result, tmp_path / "artifacts")
    names = {event.event_data.get("task"): event.event_data["task_args"] for event in result.events if event.task}
    assert names["by name"] == "name, secret"
    assert names["tell"] == "secret"


@pytest.mark.matrix_ends
def test_arguments_are_shown_as_they_stand_in_the_playbook_where_ansible_was_told_to_show_them(kept, tmp_path):
    result = kept.run(
        '- {name: one, keeper: {name: "{{ inventory_hostname }}", secret: "{{ secret }}"}}\n'
        '- {name: two, keeper: {name: x, secret: "{{ secret }}"}, no_log: true}\n',
        limit="h1",
        env={"ANSIBLE_DISPLAY_ARGS_TO_STDOUT": "1"},
        extra_vars={"secret": SECRET},
        vault_password=VAULT_PASSWORD,
        artifacts=tmp_path / "artifacts",
    )
    assert result.rc == 0, result.stdout
    assert_nothing_is_told(result, tmp_path / "artifacts")
    shown = {event.task: event.event_data["task_args"] for event in result.events if event.event == "runner_on_ok"}
    assert shown["one"] == "name={{ inventory_hostname }}, secret={{ secret }}"
    assert shown["two"] == "name, secret"


@pytest.mark.matrix_ends
def test_the_extra_vars_of_a_run_are_not_printed_with_its_options_and_those_among_its_arguments_win(project):
    result = project.run(
        """
        - assert: {that: "secret | length == 21 and which == 'arguments' and deep.list[1] == 2"}
        """,
        limit="h1",
        verbosity=4,
        extra_vars={"secret": SECRET, "which": "mapping", "deep": {"list": [1, 2]}},
        args=["-e", "which=arguments"],
    )
    assert "verbosity: 4" in result.stdout
    assert "which=arguments" in result.stdout
    assert SECRET not in result.stdout
    assert SECRET not in json.dumps([event.as_dict() for event in result.events])
    assert result.rc == 0, result.stdout


@pytest.mark.matrix_ends
def test_what_ansible_core_knows_to_be_secret_is_masked_where_it_does_not_mask_itself():
    heard = []
    listener = Listener("me", heard.append)
    listener.mask = lambda text: text.replace(SECRET, "$REDACTED$")
    fields = {
        "artifact_data": {"a": [{SECRET: f"b{SECRET}"}], "n": 1},
        "task": SECRET,
        "task_path": f"/a/{SECRET}.yml:1",
    }
    listener.emit("playbook_on_stats", {**fields, "whatever comes": SECRET, "host": SECRET, "uuid": SECRET})
    (event,) = heard
    assert event.event_data == {
        "artifact_data": {"a": [{"$REDACTED$": "b$REDACTED$"}], "n": 1},
        "task": "$REDACTED$",
        "task_path": "/a/$REDACTED$.yml:1",
        "whatever comes": "$REDACTED$",
        "host": SECRET,  # readers compare it
        "uuid": SECRET,
    }


@pytest.mark.skipif(MINOR < (2, 22), reason="ansible-core masks since 2.22")
@pytest.mark.matrix_ends
def test_a_secret_in_a_title_or_in_the_statistics_is_masked_in_events_as_it_is_in_the_output(kept, tmp_path):
    result = kept.run(
        """
        - keeper: {secret: "{{ vaulted }}"}
        - {name: "for {{ vaulted }}", debug: {msg: hi}}
        - set_stats: {data: {token: "{{ vaulted }}"}}
        """,
        limit="h1",
        vault_password=VAULT_PASSWORD,
        artifacts=tmp_path / "artifacts",
    )
    assert result.rc == 0, result.stdout
    assert_nothing_is_told(result, tmp_path / "artifacts")
    assert "for $REDACTED$" in {event.task for event in result.events}


@pytest.mark.parametrize("engine", ["threads", "runner"])
def test_the_environment_is_not_in_events_though_facts_have_it(kept, tmp_path, engine):
    if engine == "runner":
        pytest.importorskip("ansible_runner", reason="pip install 'forkless[runner]'")
    spec = kept.spec(
        """
        - setup: {gather_subset: env}
          register: found
        - setup: {gather_subset: env}
          loop: [1]
        - assert: {that: [found.ansible_facts.ansible_env.TOKEN == secret]}
        - set_fact: {env: production}
        """,
        limit="h1",
        env={"TOKEN": SECRET},
        extra_vars={"secret": SECRET},
        vault_password=VAULT_PASSWORD,
        artifacts=tmp_path / "artifacts",
    )
    result = forkless.run(engine=engine, **spec)
    assert result.rc == 0, result.stdout
    assert_nothing_is_told(result, tmp_path / "artifacts")
    facts = [event.event_data["res"].get("ansible_facts") for event in result.events if event.event == "runner_on_ok"]
    assert facts[-1] == {"env": "production"}


@pytest.mark.parametrize("form", ["jsonl", "json"])
def test_the_command_line_tells_no_secret_in_its_formats_its_report_or_its_profile(kept, form):
    (kept.folder / "password").write_text(VAULT_PASSWORD + "\n")
    (kept.folder / "vars.json").write_text(
        json.dumps({"secret": SECRET, "ansible_async_dir": str(kept.folder / "async")})
    )
    kept.spec(TASKS, head=HANDLERS)
    command = [
        sys.executable,
        "-m",
        "forkless",
        "playbook",
        "play.yml",
        "-i",
        "hosts.ini",
        "--limit",
        "h1:h2",
        "--diff",
    ]
    more = [
        "-e",
        "@vars.json",
        "--vault-password-file",
        "password",
        "--report",
        "run.html",
        "--profile",
        "--format",
        form,
    ]
    done = subprocess.run([*command, *more], cwd=kept.folder, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    report = (kept.folder / "run.html").read_text()
    assert "by name" in done.stdout
    assert "by name" in report
    for text in (done.stdout, done.stderr, report):
        assert SECRET not in text
        assert VAULT_PASSWORD not in text


@pytest.mark.parametrize(
    "given",
    [
        ("-e", f"password={SECRET}"),
        (f"-epassword={SECRET}",),
        ("-vve", f"password={SECRET}"),
        (f"--extra-vars=password={SECRET}",),
        ("--extra", f"password={SECRET}"),
        ("--limit", "h1", "-e", json.dumps({"password": SECRET})),
    ],
)
def test_the_command_in_the_artifacts_has_no_values_of_variables(given, tmp_path):
    spec = forkless.RunSpec(playbook="site.yml", args=("-e", "@vars.yml", *given), artifacts=tmp_path)
    words = Artifacts._command(spec)["command"]
    assert SECRET not in json.dumps(words)
    assert words[:3] == ["ansible-playbook", "-e", "@vars.yml"]
    assert words[-1] == "site.yml"


def test_the_command_in_the_artifacts_has_no_arguments_of_a_module(tmp_path):
    spec = forkless.RunSpec(
        module="ping", module_args=f"data={SECRET}", hosts="all", args=("-o", "-a", SECRET), artifacts=tmp_path
    )
    words = Artifacts._command(spec)["command"]
    assert SECRET not in json.dumps(words)
    assert words[-1] == "all"


def test_the_repr_of_a_request_and_its_errors_have_no_secrets():
    spec = forkless.RunSpec(
        module="ping",
        hosts="all",
        module_args={"data": SECRET},
        extra_vars={"a": SECRET},
        args=("-e", f"a={SECRET}"),
        env={"A": SECRET},
        vault_password=SECRET,
        passwords={"conn_pass": SECRET},
        answers={"Password": SECRET},
    )
    assert SECRET not in repr(spec)
    with pytest.raises(forkless.SpecError, match="not a list of int, str") as caught:
        forkless.RunSpec(playbook="site.yml", args=["-e", f"a={SECRET}", 1])
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("url", [f"s3://key:{SECRET}@bucket", f"ara+http://me:{SECRET}@", f"other://{SECRET}@x"])
def test_a_store_that_cannot_be_opened_is_not_quoted_with_its_password(url):
    with pytest.raises(forkless.ForklessError) as caught:
        open_store(url)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("passwords", f'"^Password": "{SECRET}\n- x: [', "env/passwords is neither YAML nor JSON: line "),
        ("extravars", f"password: {SECRET}: x\n", "env/extravars is neither YAML nor JSON: line 1"),
        ("cmdline", f"-e \"password='{SECRET}", "env/cmdline cannot be split into words"),
    ],
)
def test_a_file_of_secrets_that_cannot_be_read_is_not_quoted(name, text, words, tmp_path, capsys):
    for folder in ("env", "project"):
        (tmp_path / folder).mkdir()
    (tmp_path / "env" / name).write_text(text)
    assert main(["run", str(tmp_path), "-p", "site.yml"]) != 0
    said = "".join(capsys.readouterr())
    assert words in said
    assert SECRET not in said
