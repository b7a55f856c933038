# SPDX-License-Identifier: GPL-3.0-or-later
"""From a RunSpec to a row and back: what is plain, what is sealed, and what is a reference that the worker resolves."""

from __future__ import annotations

import configparser
import getpass
import os
import platform
import re
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forkless.core.spec import RunSpec
from forkless.queue import job_store, secrets
from forkless.queue import project as projects
from forkless.queue.errors import QueueRequestError

if TYPE_CHECKING:
    import datetime as dt
    from typing import Literal

    from forkless.queue.records import Json

__all__ = ["LaunchOptions", "Prepared", "RunSpec", "clean_labels", "prepare", "rebuild", "versions", "whoami"]

# Fields of a spec that hold no secret and are stored as they are.
_PLAIN = (
    "playbook", "module", "hosts", "inventory", "limit", "tags", "skip_tags", "check", "diff", "become", "forks", "verbosity",
    "timeout", "idle_timeout", "stuck_after", "modules", "live_output",
)  # fmt: skip
# Fields that may hold a secret. They travel sealed.
_SEALED = ("module_args", "extra_vars", "vault_password", "passwords", "answers", "args", "env")
# Arguments without a field of their own that hold no secret, with the number of values that each takes.
_KNOWN_ARGUMENTS = {
    "--force-handlers": 0, "--flush-cache": 0, "--step": 0, "--start-at-task": 1, "-u": 1, "--user": 1, "-c": 1, "--connection": 1,
    "-T": 1, "--timeout": 1, "--become-method": 1, "--become-user": 1, "--private-key": 1, "--key-file": 1, "-M": 1, "--module-path": 1, "-K": 0, "-k": 0,
    "--ask-become-pass": 0, "--ask-pass": 0,
}  # fmt: skip
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=/-]{0,62}")
MOST_LABELS = 6


def versions() -> dict[str, str]:
    """The versions of Python, ansible-core and forkless on this machine."""
    import importlib.metadata

    def version(package: str) -> str:
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            return ""

    from forkless import __version__

    return {"forkless": __version__, "ansible_core": version("ansible-core"), "python": platform.python_version()}


def whoami() -> str:
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a user id without a name
        name = str(os.getuid())
    return f"{name}@{socket.gethostname()}"


def clean_labels(labels: Sequence[str]) -> list[str]:
    for label in labels:
        if not _LABEL.fullmatch(label):
            raise QueueRequestError(
                f"'{label}' is not a label: letters, digits and . _ = / - such as site=fra, 63 at most"
            )
    if len(set(labels)) > MOST_LABELS:
        raise QueueRequestError(f"{len(set(labels))} labels are more than {MOST_LABELS}")
    return sorted(set(labels))


@dataclass(frozen=True, kw_only=True)
class LaunchOptions:
    """How a run is queued; what it does is its RunSpec."""

    lock: str | None = "inventory"
    """`"inventory"`: runs on the same inventory wait for each other. Any other name: runs with the same name wait for each other. None: the run waits for no other run."""
    labels: Sequence[str] = ()
    """Only a worker that has all these labels takes the run."""
    priority: int = 0
    at: dt.datetime | None = None
    retries: int = 0
    """How often the run may begin again after its worker was lost."""
    secrets: Mapping[str, str] | None = None
    """References by field: `{"vault_password": "env:VAULT", "become_pass": "file:/etc/pass", "extra_vars.token": "cmd:pass token"}`."""
    project: str | None = None
    """The folder that travels; by default the spec's cwd."""
    shared_folder: bool = False
    """The folder is not sent: workers see it under the same path."""
    git: str | None = None
    """A git URL that the worker fetches instead, at `commit`; paths of the spec are relative to it."""
    commit: str | None = None
    slices: int | Literal["auto"] | None = None
    """Split the hosts over so many runs; "auto": as many as there are worker processes."""
    slices_anyway: bool = False
    """Split also where it changes what the playbook means."""
    webhook: str | None = None
    webhook_secret: str | None = None
    """A reference; the worker signs the message with it."""
    by: str | None = None
    home: str | None = None
    """What names the project for the records of its jobs, if the folder that travels is a copy that does not stay; by default machine and folder."""
    delivery: tuple[str, str] | None = None
    """A sender and what names its message: the run is queued unless one was for the same message. Not for schedules."""
    without: Sequence[str] = ()
    """Files that must not travel with the project, such as those that passwords were read from."""


@dataclass(frozen=True)
class Prepared:
    """A launch that was checked and packed; `literal` is to be sealed."""

    request: dict[str, Json]
    bundle: projects.Bundle | None
    literal: dict[str, Json]


def _sort_arguments(args: Sequence[str]) -> bool:
    """Whether all arguments are known to hold no secret."""
    rest = list(args)
    while rest:
        flag, _, value = rest.pop(0).partition("=")
        if flag not in _KNOWN_ARGUMENTS:
            return False
        if _KNOWN_ARGUMENTS[flag] and not value:
            if not rest:
                return False
            rest.pop(0)
    return True


def _locate(spec: RunSpec, options: LaunchOptions) -> tuple[dict[str, Json], projects.Bundle | None, dict[str, Json]]:
    """Where the files are for the worker; the archive; and the paths of the spec relative to the project."""
    paths: dict[str, Json] = {"playbook": list(spec.playbook), "inventory": list(spec.inventory)}
    if options.git:
        if options.shared_folder or options.project:
            raise QueueRequestError("--git goes without --project and --shared-folder: the repository is the project")
        for kind, given in paths.items():
            for path in given:
                if os.path.isabs(path):
                    raise QueueRequestError(f"{kind} {path} must be relative to the git repository")
        commit = projects.resolve_commit(options.git, options.commit or "HEAD")
        return {"kind": "git", "url": options.git, "commit": commit, "name": options.git}, None, paths
    if options.commit:
        raise QueueRequestError("--commit goes with --git")
    root = os.path.normpath(os.path.join(spec.cwd, options.project or "."))
    if not os.path.isdir(root):
        raise QueueRequestError(f"the project {root} is not a folder")
    if options.shared_folder:
        for kind, given in paths.items():
            paths[kind] = [
                one if kind == "inventory" and "," in one else os.path.join(spec.cwd, os.path.expanduser(one))
                for one in given
            ]
        _check_exist(paths, "/")
        return {"kind": "folder", "path": root, "name": root}, None, paths
    for kind, given in paths.items():
        paths[kind] = [
            one
            if kind == "inventory" and "," in one
            else projects.inside(os.path.join(spec.cwd, os.path.expanduser(one)), root, kind)
            for one in given
        ]
    _check_exist(paths, root)
    settings = _settings(root)
    _refuse_password_files(root, settings)
    stay = (os.path.join(spec.cwd, os.path.expanduser(one)) for one in options.without)
    bundle = projects.pack(
        root,
        without=frozenset(os.path.relpath(one, root) for one in stay),
        needed=[*_needed(root, paths, spec.args), *_needed_by_settings(root, settings)],
    )
    located = {
        "kind": "bundle", "sha256": bundle.sha256, "name": os.path.basename(root) or root, "home": options.home or job_store.scope_of_folder(root),
    }  # fmt: skip
    commit = projects.head_of(root)
    return located | ({"commit": commit} if commit else {}), bundle, paths


def _check_exist(paths: Mapping[str, Sequence[str]], root: str) -> None:
    for kind, found in paths.items():
        for path in found:
            if not ("," in path and kind == "inventory") and not os.path.exists(os.path.join(root, path)):
                raise QueueRequestError(f"{kind} {os.path.join(root, path)} does not exist")


# Folders beside a playbook that Ansible would take from elsewhere on the worker if they were left out.
_BESIDE_PLAYBOOK = (
    "roles", "collections", "library", "module_utils", "action_plugins", "callback_plugins", "filter_plugins", "lookup_plugins",
    "test_plugins", "vars_plugins", "strategy_plugins", "connection_plugins", "become_plugins", "inventory_plugins", "cache_plugins",
)  # fmt: skip
_VARIABLES = ("group_vars", "host_vars")
# What ansible.cfg may name: its section, its name, and what stands between several paths.
_PATHS_OF_SETTINGS = (
    ("defaults", "inventory", ","), ("defaults", "roles_path", ":"), ("defaults", "collections_path", ":"),
    ("defaults", "collections_paths", ":"), ("defaults", "library", ":"), ("defaults", "module_utils", ":"),
    ("defaults", "vault_password_file", ""), ("defaults", "playbook_dir", ""),
    *(("defaults", name, ":") for name in _BESIDE_PLAYBOOK if name.endswith("_plugins")),
)  # fmt: skip


def _needed(root: str, paths: Mapping[str, Sequence[str]], args: Sequence[str]) -> list[projects.Needed]:
    """What the run names itself, and what Ansible reads beside that."""
    found = []
    for kind, given in paths.items():
        for path in given:
            if kind == "inventory" and "," in path:
                continue
            found.append(projects.Needed(kind, path, contents="all" if kind == "inventory" else "none"))
            beside = path if kind == "inventory" and os.path.isdir(os.path.join(root, path)) else os.path.dirname(path)
            names = (*_VARIABLES, *_BESIDE_PLAYBOOK) if kind == "playbook" else _VARIABLES
            found += [
                projects.Needed("the folder", one, contents="all" if name in _VARIABLES else "entries", by_choice=True)
                for name in names
                if os.path.isdir(os.path.join(root, one := os.path.join(beside, name)))
            ]
    words = list(args)
    for number, word in enumerate(words):
        flag, equals, value = word.partition("=")
        if flag in ("-e", "--extra-vars"):
            text = value if equals else next(iter(words[number + 1 :]), "")
        else:
            text = word[2:] if word.startswith("-e@") else ""
        if text.startswith("@") and (path := _inside(root, text[1:])):
            found.append(projects.Needed("the variables file", path))
    return found


def _inside(root: str, path: str) -> str:
    """The path relative to the project, if it is something in it; otherwise ""."""
    relative = os.path.relpath(os.path.normpath(os.path.join(root, os.path.expanduser(path))), root)
    there = (
        relative not in (".", "..") and not relative.startswith("../") and os.path.exists(os.path.join(root, relative))
    )
    return relative if there else ""


def _settings(root: str) -> configparser.ConfigParser | None:
    """The project's ansible.cfg; None if it cannot be read, of which Ansible will complain in the run."""
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    try:
        parser.read(os.path.join(root, "ansible.cfg"), encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError):
        return None
    return parser


def _needed_by_settings(root: str, settings: configparser.ConfigParser | None) -> list[projects.Needed]:
    """ansible.cfg, and what of the project it names."""
    found = [projects.Needed("the configuration", "ansible.cfg")] if _inside(root, "ansible.cfg") else []
    for section, name, between in _PATHS_OF_SETTINGS if settings is not None else ():
        assert settings is not None  # noqa: S101  # for the type checker
        value = settings.get(section, name, fallback="").replace("{{CWD}}", root).replace("{{ CWD }}", root)
        found += [
            projects.Needed(f"{name} of ansible.cfg,", path, contents="all" if name == "inventory" else "entries")
            for one in (value.split(between) if between else [value])
            if one.strip() and (path := _inside(root, one.strip()))
        ]
    return found


def _refuse_password_files(root: str, parser: configparser.ConfigParser | None) -> None:
    """Refuse a project whose ansible.cfg names a file with a password inside of it: it would be stored as it is."""
    if parser is None:
        return
    entries = [
        parser.get(section, name, fallback="")
        for section, name in (
            ("defaults", "vault_password_file"), ("defaults", "connection_password_file"),
            ("privilege_escalation", "become_password_file"),
        )
    ]  # fmt: skip
    entries += [one.rpartition("@")[2] for one in parser.get("defaults", "vault_identity_list", fallback="").split(",")]
    for entry in filter(None, (one.strip() for one in entries)):
        whole = os.path.normpath(os.path.join(root, os.path.expanduser(entry)))
        if whole.startswith(root + os.sep) and os.path.isfile(whole) and not os.access(whole, os.X_OK):
            raise QueueRequestError(
                f"ansible.cfg names the file {entry} with a password inside the project, which would be stored as it is: move it out "
                "of the project, and give the password with --vault-password-file (sealed) or --secret vault=env:NAME (a reference)"
            )


def _lock_name(
    spec: RunSpec, options: LaunchOptions, project: Mapping[str, Json], inventory: Sequence[str]
) -> str | None:
    if options.lock != "inventory":
        return options.lock
    if not inventory:
        return f"inventory of {project['name']}" if spec.playbook else None
    if all("," in one for one in inventory):
        return "inventory " + " ".join(inventory)
    return f"inventory {' '.join(inventory)} of {project['name']}"


_FIELDS = {"vault": "vault_password", "vault_password": "vault_password", "become": "passwords.become_pass", "connection": "passwords.conn_pass",
           "become_pass": "passwords.become_pass", "conn_pass": "passwords.conn_pass"}  # fmt: skip


def _references(spec: RunSpec, given: Mapping[str, str]) -> tuple[dict[str, str], dict[str, Json]]:
    """References by field, from the option and from the spec's own values; and the values that are left."""
    references = {}
    for name, reference in given.items():
        field = _FIELDS.get(name, name)
        if field not in ("vault_password", "passwords.become_pass", "passwords.conn_pass") and not field.startswith(
            ("extra_vars.", "env.", "answers.")
        ):
            raise QueueRequestError(
                f"there is no secret '{name}'; there are vault, become, connection, extra_vars.NAME and env.NAME"
            )
        references[field] = secrets.check_reference(reference)
    literal: dict[str, Json] = {}
    for name in _SEALED:
        value = getattr(spec, name)
        if isinstance(value, Mapping):
            plain = dict(value)
            if name in ("passwords", "extra_vars", "env"):
                for key, one in value.items():
                    if isinstance(one, str) and name == "passwords" and secrets.is_reference(one):
                        references[f"{name}.{key}"] = one
                        del plain[key]
            value = plain
        elif name == "vault_password" and isinstance(value, str) and secrets.is_reference(value):
            references[name] = value
            value = None
        elif isinstance(value, tuple):
            value = list(value)
        if value:
            literal[name] = value
    return references, literal


def prepare(spec: RunSpec, options: LaunchOptions) -> Prepared:
    """Check a launch and pack its project. Nothing is sent yet."""
    if spec.artifacts is not None:
        raise QueueRequestError("artifacts= is a folder of this machine; a queued run keeps its events in the database")
    if isinstance(options.retries, bool) or not isinstance(options.retries, int) or not 0 <= options.retries < 2**31:
        raise QueueRequestError(f"retries must be a whole number, 0 or more, not {options.retries!r}")
    if not -(2**31) <= options.priority < 2**31:
        raise QueueRequestError(f"priority {options.priority} is not a number that the queue can hold")
    if options.lock is not None and not options.lock.strip():
        raise QueueRequestError(
            "the lock has no name; give it one, or none (--lock none, lock=None) for a run that waits for no other"
        )
    if options.at is not None and options.at.tzinfo is None:
        raise QueueRequestError("at= needs a time zone, for example datetime.now().astimezone()")
    if options.webhook is not None and not options.webhook.startswith(("http://", "https://")):
        raise QueueRequestError(f"the webhook '{options.webhook}' is not an http(s) address")
    labels = clean_labels(options.labels)
    references, literal = _references(spec, options.secrets or {})
    plain = {
        name: value for name in _PLAIN if (value := getattr(spec, name)) not in (None, (), False, "auto") and value != 0
    }
    if "args" in literal and _sort_arguments(literal["args"]):
        plain["args"] = literal.pop("args")
    project, bundle, paths = _locate(spec, options)
    plain |= {key: value for key, value in paths.items() if value}
    plain["names"] = sorted(
        [f"{name}.{key}" for name, value in literal.items() if isinstance(value, Mapping) for key in value]
        + [name for name, value in literal.items() if not isinstance(value, Mapping)]
        + list(references)
    )
    request = {
        "spec": plain, "project": project, "bundle": bundle.sha256 if bundle is not None else None, "secrets": references,
        "lock": _lock_name(spec, options, project, paths["inventory"]), "labels": labels, "priority": options.priority,
        "not_before": options.at.isoformat() if options.at is not None else None, "retries": options.retries,
        "created_by": options.by or whoami(), "versions": versions(),
        "webhook": {"url": options.webhook, "secret": secrets.check_reference(options.webhook_secret) if options.webhook_secret else None}
        if options.webhook else None,
    }  # fmt: skip
    return Prepared(request, bundle, literal)


def rebuild(
    plain: Mapping[str, Json],
    references: Mapping[str, str],
    literal: Mapping[str, Json],
    *,
    cwd: str,
    limit: str | None,
    ident: str,
    more_env: Mapping[str, str],
    stopping: Callable[[], object] | None = None,
) -> RunSpec:
    """The spec on the worker, with its secrets. Raises StoppedError if `stopping()` is true before all of these are known."""
    fields: dict[str, Json] = {name: value for name, value in plain.items() if name in (*_PLAIN, "args")}
    fields |= {name: value for name, value in literal.items() if name in _SEALED}
    for field, reference in references.items():
        name, _, key = field.partition(".")
        value = secrets.resolve(reference, stopping)
        if key:
            fields[name] = {**fields.get(name, {}), key: value}
        else:
            fields[name] = value
    if "job" in plain:
        fields = _about_job(fields, plain["job"])
    if limit is not None:
        fields["limit"] = limit
    # Ansible only warns of an inventory that it cannot read, and a run without hosts ends as successful. Who launched it had one that can be read.
    unparsed = {"ANSIBLE_INVENTORY_UNPARSED_FAILED": "true"} if fields.get("inventory") else {}
    if unparsed or more_env:
        fields["env"] = {**unparsed, **fields.get("env", {}), **more_env}
    return RunSpec(**fields, cwd=cwd, ident=ident)


# Seconds for which a run that asks for a job's output follows it: then the worker is free for others, and the page may ask again.
_FOLLOW = 60.0


def _about_job(fields: Mapping[str, Json], about: Mapping[str, Json]) -> dict[str, Json]:
    """The spec of a run that queue/host_jobs.py has launched: without what belongs to the playbook of the run whose secrets it uses."""
    kept = {name: value for name, value in fields.items() if name not in ("answers", "module_args")}
    given, words = iter(kept.pop("args", ())), []
    for word in given:
        name, given_here, _ = word.partition("=")
        if name == "--start-at-task":
            if not given_here:
                next(given, None)
        elif word not in ("--step", "--force-handlers", "--flush-cache"):
            words.append(word)
    told = {name: about[name] for name in ("op", "job_name", "playbook_name", "backend")}
    # What the job printed is given only to who asks for it, and to them as it comes.
    follows = about["op"] == "output"
    return kept | {
        "args": words,
        "module_args": told | ({"tail": 200, "follow": _FOLLOW} if follows else {"lines": 0}),
        "live_output": follows,
    }
