# SPDX-License-Identifier: GPL-3.0-or-later
"""Is it the host that it was? Read from known_hosts; answered with a sentence when it is not."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import threading
from typing import TYPE_CHECKING, Any

from forkless.ssh._errors import HostKeyError
from forkless.ssh._library import asyncssh

if TYPE_CHECKING:
    from forkless.ssh._settings import Settings

__all__ = ["HostKeys"]

# Guards the appending to known_hosts files by this process; O_APPEND does between processes.
_writing = threading.Lock()


class HostKeys:
    """What is known about one host's key, and the judgement on the one that it shows."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.changed = False  # the judgement was 'no matter', on a key that is not the known one
        self.refusal: HostKeyError | None = None
        lines = [line for path in settings.known_hosts for line in _lines(path)]
        name, port = settings.known_as, settings.port if settings.port != 22 else None
        try:
            known = asyncssh().import_known_hosts("".join(lines)).match(name, "", port)
            # Where a port has no key of its own the library looks again without it, and forgets what was revoked for it.
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
        Every kind of key that we can check, the known kinds first, so that the host shows the one that we know.

        All others stay on offer: a host that lost the known kind must be told apart from one that cannot be talked to.
        """
        public = asyncssh().public_key
        first = [alg for key in self.keys for alg in key.sig_algorithms]
        plain = [*first, *public.get_default_public_key_algs()]
        # Certificates only where there is an authority to check them against; else the plain key behind it is judged.
        certified = public.get_default_certificate_algs() if self.authorities else []
        return list(dict.fromkeys(alg.decode() for alg in [*certified, *plain]))

    def judge(self, key: Any) -> bool:
        """Whether to go on with a key that is not among the known ones."""
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
                f"someone stands between you and it. Nothing was sent. If you know why, remove the old key with "
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
        """Add the key to the first known_hosts file, as ssh does; a place that cannot be written is no reason to stop."""
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
            pass  # read-only home: the key is asked about again next time, and accepted again


def _lines(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            # ssh skips a line that it cannot read; the library would refuse the whole file for it.
            return [line.strip() + "\n" for line in file if len(line.split()) > 2 and not line.lstrip().startswith("#")]
    except OSError:
        return []
