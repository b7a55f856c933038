# SPDX-License-Identifier: GPL-3.0-or-later
"""Makes a RunSpec from an ansible-runner private_data_dir: env/, inventory/ and project/, read as ansible-runner does."""

from __future__ import annotations

import json
import os
import shlex
import tempfile
from typing import TYPE_CHECKING, Any

from forkless.core.answers import Answers
from forkless.core.errors import SpecError
from forkless.core.spec import RunSpec
from forkless.engines.runner.parent_death import ParentDeathWatch

if TYPE_CHECKING:
    import argparse
    import contextlib

__all__ = ["PrivateDataDir"]


class PrivateDataDir:
    """One private_data_dir. `spec()` may write files with secrets; only this user can read them, and `around` removes them."""

    def __init__(self, path: str, around: contextlib.ExitStack) -> None:
        self.path = os.path.abspath(path)
        self._around = around
        self._scratch = ""
        if not os.path.isdir(self.path):
            raise SpecError(f"{self.path} is not a folder; a private_data_dir has project/, inventory/ and env/ in it")

    def spec(self, asked: argparse.Namespace) -> RunSpec:
        settings = self._mapping("settings")
        env = {str(key): str(value) for key, value in self._mapping("envvars").items()}
        words = [*self._cmdline(asked.cmdline), *self._key()]
        project = self._place(asked.project_dir, "project")
        fields: dict[str, Any] = {
            "inventory": self._inventory(asked.inventory),
            "limit": asked.limit,
            "forks": asked.forks,
            "verbosity": asked.v,
            "args": [*words, *self._extra_vars()],
            "env": self._paths(env, project, asked.roles_path),
            "cwd": project if os.path.isdir(project) else self.path,
            "answers": self._answers(),
            "artifacts": self._place(asked.artifact_dir, "artifacts"),
            "keep": asked.rotate_artifacts or None,
            "ident": asked.ident,
            "timeout": _number(settings, "job_timeout"),
            "idle_timeout": _number(settings, "idle_timeout"),
        }
        return RunSpec(**fields, **self._what(asked))

    def _what(self, asked: argparse.Namespace) -> dict[str, Any]:
        if asked.module:
            return {"module": asked.module, "module_args": asked.module_args, "hosts": asked.hosts or "all"}
        if asked.role:
            return {"playbook": self._role(asked)}
        if asked.playbook:
            return {"playbook": asked.playbook}
        args = self._file("args")
        if args is not None:  # in ansible-runner env/args has the module's arguments, and -m may be missing
            raise SpecError(f"{self.path}/env/args needs a module; name it with -m")
        raise SpecError("nothing to run: name a playbook of the project with -p, a module with -m, or a role with -r")

    # -- env/ ------------------------------------------------------------------------------------------------------

    def _file(self, name: str) -> str | None:
        try:
            with open(os.path.join(self.path, "env", name), encoding="utf-8") as file:
                return file.read()
        except FileNotFoundError:
            return None
        except (OSError, UnicodeError) as err:
            raise SpecError(f"{self.path}/env/{name} cannot be read: {getattr(err, 'strerror', err)}") from None

    def _mapping(self, name: str) -> dict[str, object]:
        import yaml

        text = self._file(name)
        if text is None or not text.strip():
            return {}
        try:
            found = yaml.safe_load(text)
        except yaml.YAMLError as err:
            # str(err) is not shown: it quotes the line, and these files contain passwords.
            mark = getattr(err, "problem_mark", None)
            where = f": line {mark.line + 1}, column {mark.column + 1}" if mark else ""
            raise SpecError(f"{self.path}/env/{name} is neither YAML nor JSON{where}") from None
        if found is None:
            return {}
        if not isinstance(found, dict):
            raise SpecError(f"{self.path}/env/{name} must hold names and values, not {type(found).__name__}")
        return found

    def _cmdline(self, given: str | None) -> list[str]:
        text = given if given is not None else self._file("cmdline") or ""
        try:
            return shlex.split(text)
        except ValueError as err:
            source = "given with --cmdline" if given is not None else f"in {self.path}/env/cmdline"
            raise SpecError(f"the command line {source} cannot be split into words: {err}") from None

    def _extra_vars(self) -> list[str]:
        return ["-e", f"@{self.path}/env/extravars"] if self._mapping("extravars") else []

    def _answers(self) -> dict[str, str]:
        """Patterns of prompts and their answers: for -k, -K and the vault password, and for prompts of the play itself."""
        found = {str(pattern): str(answer) for pattern, answer in self._mapping("passwords").items()}
        try:
            Answers(found)
        except SpecError as err:
            raise SpecError(f"{self.path}/env/passwords: {err}") from None
        return found

    def _key(self) -> list[str]:
        key = self._file("ssh_key")
        if not key:
            return []
        key = self._opened(key if key.endswith("\n") else key + "\n")
        return ["--private-key", self._private("ssh_key", key)]

    def _opened(self, key: str) -> str:
        """
        The private key, decrypted with the passphrase from env/passwords.

        ansible-runner starts an agent for such a key. forkless does not: the decrypted key is in a file that only this user
        can read, in memory if the system has /dev/shm, until the run has ended.
        """
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives import serialization as form

        read = form.load_ssh_private_key if "BEGIN OPENSSH" in key else form.load_pem_private_key
        try:
            read(key.encode(), None)
        except TypeError:
            question = f"Enter passphrase for {self.path}/env/ssh_key: "
        except (ValueError, UnsupportedAlgorithm):
            return key  # cryptography cannot read it; ssh may be able to, and reports an error otherwise
        else:
            return key
        passphrase = Answers(self._answers()).to(question)
        if passphrase is None:
            raise SpecError(f"{self.path}/env/ssh_key has a passphrase, and env/passwords does not answer {question!r}")
        try:
            found: Any = read(key.encode(), passphrase.encode())
        except ValueError:
            raise SpecError(
                f"the passphrase of {self.path}/env/ssh_key in env/passwords is not the right one"
            ) from None
        except UnsupportedAlgorithm as err:
            raise SpecError(f"{self.path}/env/ssh_key cannot be opened with its passphrase here: {err}") from None
        kind = form.PrivateFormat.OpenSSH
        return str(found.private_bytes(form.Encoding.PEM, kind, form.NoEncryption()), "ascii")

    # -- files with secrets ---------------------------------------------------------------------------------------------

    def _private(self, name: str, text: str) -> str:
        if not self._scratch:
            place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108  # TemporaryDirectory has mode 0700
            self._scratch = self._around.enter_context(tempfile.TemporaryDirectory(prefix="forkless-run-", dir=place))
            self._around.enter_context(ParentDeathWatch(folder=self._scratch))
        path = os.path.join(self._scratch, name)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def _role(self, asked: argparse.Namespace) -> str:
        role: dict[str, object] = {"name": asked.role}
        if asked.role_vars:
            role["vars"] = _pairs(asked.role_vars)
        play = {"hosts": asked.hosts or "all", "gather_facts": not asked.role_skip_facts, "roles": [role]}
        return self._private("main.json", json.dumps([play]))

    # -- folders ---------------------------------------------------------------------------------------------------

    def _place(self, given: str | None, name: str) -> str:
        return os.path.abspath(given) if given else os.path.join(self.path, name)

    def _inventory(self, given: list[str] | None) -> list[str]:
        if given:
            # As in ansible-runner: the name of an entry of inventory/, a path, or a list of hosts.
            inside = [os.path.join(self.path, "inventory", one) for one in given]
            return [place if os.path.exists(place) else (one if "," in one else os.path.abspath(one)) for one, place in zip(given, inside, strict=True)]  # fmt: skip
        place = os.path.join(self.path, "inventory")
        return [place] if os.path.exists(place) else []

    def _paths(self, env: dict[str, str], project: str, roles: str | None) -> dict[str, str]:
        more = [roles and os.path.abspath(roles), os.path.join(project, "roles"), env.get("ANSIBLE_ROLES_PATH")]
        there = [one for one in more if one and (os.path.isdir(one) or one == env.get("ANSIBLE_ROLES_PATH"))]
        return env | ({"ANSIBLE_ROLES_PATH": os.pathsep.join(there)} if there else {})


def _pairs(text: str) -> dict[str, str]:
    try:
        pairs = [word.split("=", 1) for word in shlex.split(text)]
        return {name: value for name, value in pairs}  # noqa: C416  # the unpacking checks the pairs
    except ValueError:
        raise SpecError(
            "--role-vars wants 'name=value name=value', with quotes around a value that has spaces"
        ) from None


def _number(settings: dict[str, Any], name: str) -> float | None:
    value = settings.get(name)
    if value in (None, 0):
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        raise SpecError(f"env/settings: {name} must be a number of seconds, not {value!r}") from None
