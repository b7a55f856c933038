# SPDX-License-Identifier: GPL-3.0-or-later
"""The file of `forkless serve --config`: its own address, who logs in how, projects, and messages that start runs."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from forkless.core.errors import SpecError
from forkless.queue import secrets

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["HookSettings", "LoginSettings", "PageSettings", "ProjectSettings", "read"]

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
KINDS = ("github", "gitlab", "hmac")


@dataclass(frozen=True, kw_only=True)
class LoginSettings:
    """How people log in. `proxy_role` is for names that are no user here; empty refuses them."""

    users: bool = True
    proxy_header: str = ""
    proxy_secret: str = field(default="", repr=False)
    proxy_role: str = ""


@dataclass(frozen=True, kw_only=True)
class ProjectSettings:
    """A folder, or a git repository that is fetched when a run of it is started."""

    folder: str = ""
    git: str = ""
    ref: str = "HEAD"


@dataclass(frozen=True, kw_only=True)
class HookSettings:
    """A message from outside that starts a run. `ref` keeps messages about other branches from it."""

    kind: str
    secret: str = field(repr=False)
    project: str = ""
    playbook: str
    inventory: str = ""
    limit: str = ""
    tags: str = ""
    check: bool = False
    ref: str = ""


@dataclass(frozen=True, kw_only=True)
class PageSettings:
    address: str = ""
    login: LoginSettings | None = None
    projects: Mapping[str, ProjectSettings] = field(default_factory=dict)
    hooks: Mapping[str, HookSettings] = field(default_factory=dict)
    secret_names: frozenset[str] = frozenset()
    """Variables of the environment that hold a secret of the page."""

    @property
    def host(self) -> str:
        """The Host header of requests for `address`."""
        return urlsplit(self.address).netloc

    @property
    def https(self) -> bool:
        return self.address.startswith("https://")


def read(path: str) -> PageSettings:
    """Raises SpecError with a sentence about what is wrong. References to secrets are resolved here, once."""
    try:
        with open(path, "rb") as file:
            told = tomllib.load(file)
    except OSError as err:
        raise SpecError(f"the configuration {path} cannot be read: {err.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as err:
        raise SpecError(f"the configuration {path} is not TOML: {err}") from None
    _known(told, {"address", "login", "projects", "hooks"}, "")
    address = str(told.get("address", "")).rstrip("/")
    if address and not re.fullmatch(r"https?://[A-Za-z0-9.-]+(:\d+)?", address):
        raise SpecError(f"address = '{address}' is not like https://ansible.example.com")
    login = _table(told, "login")
    projects = {name: _project(name, one) for name, one in _tables(told, "projects").items()}
    hooks = {name: _hook(name, one, projects) for name, one in _tables(told, "hooks").items()}
    references = [str(login.get("proxy_secret", "")), *(str(one["secret"]) for one in _tables(told, "hooks").values())]
    return PageSettings(
        address=address, login=_login(login) if "login" in told else None, projects=projects, hooks=hooks,
        secret_names=frozenset(one.removeprefix("env:") for one in references if one.startswith("env:")),
    )  # fmt: skip


def _login(told: Mapping[str, object]) -> LoginSettings:
    _known(told, {"users", "proxy_header", "proxy_secret", "proxy_role"}, "login")
    header = str(told.get("proxy_header", ""))
    secret = str(told.get("proxy_secret", ""))
    if bool(header) != bool(secret):
        raise SpecError(
            "login: proxy_header and proxy_secret go together: without the secret any program of this machine could send the header"
        )
    if header and not re.fullmatch(r"[A-Za-z][A-Za-z0-9-]{0,60}", header):
        raise SpecError(f"login: proxy_header = '{header}' is not the name of a header")
    role = str(told.get("proxy_role", ""))
    if role not in ("", "viewer", "operator", "admin"):
        raise SpecError(f"login: there is no role '{role}'; there are viewer, operator, admin")
    value = _secret(secret, "login: proxy_secret") if secret else ""
    return LoginSettings(
        users=bool(told.get("users", not header)), proxy_header=header, proxy_secret=value, proxy_role=role
    )


def _project(name: str, told: Mapping[str, object]) -> ProjectSettings:
    _known(told, {"folder", "git", "ref"}, f"projects.{name}")
    if bool(told.get("folder")) == bool(told.get("git")):
        raise SpecError(f"projects.{name} has either a folder or a git address")
    return ProjectSettings(
        folder=str(told.get("folder", "")), git=str(told.get("git", "")), ref=str(told.get("ref", "HEAD"))
    )


def _hook(name: str, told: Mapping[str, object], projects: Mapping[str, ProjectSettings]) -> HookSettings:
    where = f"hooks.{name}"
    _known(told, {"kind", "secret", "project", "playbook", "inventory", "limit", "tags", "check", "ref"}, where)
    if told.get("kind") not in KINDS:
        raise SpecError(f"{where}: kind is one of {', '.join(KINDS)}")
    for needed in ("secret", "playbook"):
        if not told.get(needed):
            raise SpecError(f"{where} has no {needed}")
    project = str(told.get("project", ""))
    if project and project not in projects:
        raise SpecError(f"{where}: there is no project '{project}'")
    texts = {key: str(told.get(key, "")) for key in ("playbook", "inventory", "limit", "tags", "ref")}
    secret = _secret(str(told["secret"]), f"{where}: secret")
    return HookSettings(kind=str(told["kind"]), secret=secret, project=project, check=bool(told.get("check")), **texts)


def _secret(reference: str, where: str) -> str:
    if not secrets.is_reference(reference):
        raise SpecError(f"{where} is a reference, not the secret itself: env:NAME, file:PATH or cmd:COMMAND")
    value = secrets.resolve(reference)
    if len(value) < 16:
        raise SpecError(f"{where} has fewer than 16 characters; make one with: openssl rand -hex 32")
    return value


def _known(told: Mapping[str, object], names: set[str], where: str) -> None:
    for name in told:
        if name not in names:
            at = f" in [{where}]" if where else ""
            raise SpecError(f"the configuration has no '{name}'{at}; there are {', '.join(sorted(names))}")


def _table(told: Mapping[str, object], name: str) -> Mapping[str, object]:
    found = told.get(name, {})
    if not isinstance(found, dict):
        raise SpecError(f"the configuration's '{name}' is a table: [{name}]")
    return found


def _tables(told: Mapping[str, object], name: str) -> Mapping[str, Mapping[str, object]]:
    found = _table(told, name)
    for key in found:
        if not _NAME.fullmatch(key):
            raise SpecError(f"[{name}.{key}]: a name has small letters, digits, _ and -")
    return {key: _table(found, key) for key in found}
