# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks a host's key against the known_hosts files, and explains a refusal."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import threading
from typing import TYPE_CHECKING, Any

from forkless.ssh.asyncssh_import import asyncssh
from forkless.ssh.errors import HostKeyError

if TYPE_CHECKING:
    from forkless.ssh.settings import Settings

__all__ = ["HostKeys"]

# Serializes this process's writes to known_hosts files; O_APPEND keeps writes of several processes apart.
_writing = threading.Lock()


class HostKeys:
    """
    The known keys of one host, and the decision about the key that it presents. Used by one login, on the loop's
    thread.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.changed = False  # the key differs from the known one but was accepted (StrictHostKeyChecking=no)
        self.refusal: HostKeyError | None = None
        name, port = settings.known_as, settings.port if settings.port != 22 else None
        names = {name, f"[{name}]:{settings.port}"}
        lines = [line for path in settings.known_hosts for line in _file(path).lines_about(names)]
        try:
            known = asyncssh().import_known_hosts("".join(lines)).match(name, "", port)
            # If no key is known for the port, asyncssh looks again without the port and loses the keys revoked for it.
            revoked = asyncssh().import_known_hosts(
                "".join(one.split(None, 1)[1] for one in lines if one.startswith("@revoked"))
            )
        except ValueError as err:
            raise HostKeyError(f"known_hosts cannot be read ({err}); looked into {self._files()}") from err
        self.keys, self.authorities = known[:2]
        self.revoked = [*revoked.match(name, "", port)[0], *revoked.match(name, "", None)[0]]
        self.trusted = (self.keys, self.authorities, self.revoked, *known[3:])

    def algorithms(self) -> list[str]:
        """
        All key algorithms that can be checked, those of known keys first, so that the host presents a known key.

        The others remain in the list so that a host without the known key type gives a changed host key, not a failed
        negotiation.
        """
        public = asyncssh().public_key
        first = [alg for key in self.keys for alg in key.sig_algorithms]
        plain = [*first, *public.get_default_public_key_algs()]
        # Certificates are offered only if an authority is known that can verify them.
        certified = public.get_default_certificate_algs() if self.authorities else []
        return list(dict.fromkeys(alg.decode() for alg in [*certified, *plain]))

    def judge(self, key: Any) -> bool:
        """Whether to accept a key that is not among the known ones. If not, `refusal` has the error."""
        print_ = key.get_fingerprint()
        who = f"{self.settings.known_as}:{self.settings.port}"
        known = bool(self.keys or self.authorities)
        if self.settings.strict == "no":
            self.changed = known
            if not known:
                self._remember(key)
            return True
        if known:
            was = ", ".join(sorted(one.get_fingerprint() for one in self.keys)) or "one signed by a known authority"
            self.refusal = HostKeyError(
                f"the host key of {who} HAS CHANGED. It shows {print_}; known is {was}. Either the host was set up anew, or "
                f"another machine answers in its place (an attack). Nothing was sent. If you know why, remove the old key with "
                f"`ssh-keygen -R '{self._entry()}'` (looked into {self._files()}) and add the new one"
            )
            return False
        if self.settings.strict == "accept-new":
            self._remember(key)
            return True
        self.refusal = HostKeyError(
            f"the host key of {who} is not known: it shows {print_}, and {self._files()} has none for '{self._entry()}'. "
            f"Compare it with the host's own, then add it (`ssh-keyscan -p {self.settings.port} {self.settings.known_as}` prints "
            "the line), or accept unknown hosts with -o StrictHostKeyChecking=accept-new in ansible_ssh_common_args"
        )
        return False

    def _files(self) -> str:
        return " and ".join(self.settings.known_hosts[:1]) or "no known_hosts file (there is none to look into)"

    def _entry(self) -> str:
        host, port = self.settings.known_as, self.settings.port
        return host if port == 22 else f"[{host}]:{port}"

    def _remember(self, key: Any) -> None:
        """Add the key to the first known_hosts file, as ssh does. A file that cannot be written is ignored."""
        if not self.settings.known_hosts:
            return
        path, entry = self.settings.known_hosts[0], self._entry()
        if self.settings.hash_known_hosts:
            salt = os.urandom(20)
            digest = hmac.new(salt, entry.encode(), hashlib.sha1).digest()
            entry = f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()}"
        public = key.export_public_key("openssh").decode().split()
        line = f"{entry} {public[0]} {public[1]}\n"
        try:
            with _writing:
                os.makedirs(os.path.dirname(path) or ".", mode=0o700, exist_ok=True)
                fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
                try:
                    os.write(fd, line.encode())
                finally:
                    os.close(fd)
        except OSError:
            pass  # for example a read-only home: the next connection decides about the key again


class _KnownHostsFile:
    """The lines of a known_hosts file, so that those about a host are found without looking at all keys: decoding a key takes asyncssh 40 us."""

    def __init__(self, text: str) -> None:
        self._named: dict[str, list[tuple[int, str]]] = {}
        self._hashed: list[tuple[int, str, bytes, bytes]] = []
        self._others: list[tuple[int, str]] = []  # patterns, markers, and what asyncssh may complain about
        for number, given in enumerate(text.split("\n")):
            words = given.split()
            # ssh skips malformed lines; asyncssh would refuse the whole file.
            if len(words) < 3 or words[0].startswith("#"):
                continue
            line = given.strip() + "\n"
            if words[0].startswith("|1|"):
                try:
                    salt, digest = (base64.b64decode(part, validate=True) for part in words[0][3:].split("|"))
                    self._hashed.append((number, line, salt, digest))
                    continue
                except ValueError:
                    pass
            if words[0].startswith("@") or any(one in words[0] for one in "*?|/!"):
                self._others.append((number, line))
            else:
                for name in set(words[0].split(",")):
                    self._named.setdefault(name, []).append((number, line))

    def lines_about(self, names: set[str]) -> list[str]:
        """The lines that may be about a host of one of these names, in the order of the file, each once."""
        found = {*self._others, *(one for name in names for one in self._named.get(name, ()))}
        for number, line, salt, digest in self._hashed:
            if any(hmac.digest(salt, name.encode(), "sha1") == digest for name in names):
                found.add((number, line))
        return [line for _, line in sorted(found)]


_files: dict[str, tuple[object, _KnownHostsFile]] = {}  # by path, with the file's state; used on the loop's thread only
_MOST_FILES = 32


def _file(path: str) -> _KnownHostsFile:
    """As it is now. A file that was not changed is not read again for every host."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            found = os.fstat(file.fileno())
            state = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
            if path in _files and _files[path][0] == state:
                return _files[path][1]
            read = _KnownHostsFile(file.read())
    except OSError:
        return _KnownHostsFile("")
    if len(_files) >= _MOST_FILES:
        _files.clear()
    _files[path] = state, read
    return read
