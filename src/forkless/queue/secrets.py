# SPDX-License-Identifier: GPL-3.0-or-later
"""
Values that may be secret. No such value is ever stored in a table as plain text.

A *reference* (`env:NAME`, `file:PATH`, `cmd:COMMAND`) is resolved on the worker. A literal value is *sealed*: encrypted for the
workers' key, so that neither the database nor a launcher can read it. A sealed value is bound to the launch that it was made for.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import uuid
from typing import TYPE_CHECKING

from forkless.queue import programs
from forkless.queue.embedded import state_folder
from forkless.queue.errors import QueueError, QueueRequestError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = [
    "KEY_VARIABLE",
    "check_reference",
    "create_key",
    "is_reference",
    "key_path",
    "load_key",
    "open_sealed",
    "public_of",
    "resolve",
    "seal",
]

KEY_VARIABLE = "FORKLESS_WORKER_KEY"
_PURPOSE = b"forkless sealed values 1"
_REFERENCE = re.compile(r"(env|file|cmd):(.+)", re.DOTALL)
# Seconds that a command may take to print a secret.
_PATIENCE = 30


def is_reference(value: str) -> bool:
    return _REFERENCE.fullmatch(value) is not None


def check_reference(value: str) -> str:
    if not is_reference(value):
        raise QueueRequestError("a reference to a secret is env:NAME, file:PATH or cmd:COMMAND")
    return value


def resolve(reference: str, stopping: Callable[[], object] | None = None) -> str:
    """
    Resolve the reference on this machine and return the value. An error message never contains the value. Raises StoppedError once
    `stopping()` is true while a command runs.
    """
    found = _REFERENCE.fullmatch(reference)
    if found is None:
        raise QueueError("a reference to a secret is env:NAME, file:PATH or cmd:COMMAND")
    kind, what = found.groups()
    if kind == "env":
        if what not in os.environ:
            raise QueueError(f"the secret {reference} is not there: the worker has no variable {what}")
        return os.environ[what]
    if kind == "file":
        try:
            with open(os.path.expanduser(what), encoding="utf-8") as file:
                return file.read().rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as err:
            raise QueueError(
                f"the secret {reference} cannot be read on the worker: {getattr(err, 'strerror', None) or 'not text'}"
            ) from None
    try:
        done = programs.call(["/bin/sh", "-c", what], seconds=_PATIENCE, stopping=stopping)
    except programs.TooSlowError:
        raise QueueError(f"the command of a secret did not end within {_PATIENCE} s on the worker") from None
    except OSError as err:
        raise QueueError(f"the command of a secret could not be started on the worker: {err.strerror}") from None
    if done.code:
        raise QueueError(f"the command of a secret failed on the worker with exit status {done.code}")
    try:
        return done.stdout.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError:
        raise QueueError("the command of a secret printed something that is not text in UTF-8") from None


# -- sealing ------------------------------------------------------------------------------------------------------


def key_path() -> str:
    return os.environ.get(KEY_VARIABLE) or os.path.join(state_folder(), "worker.key")


def create_key(path: str) -> bytes:
    """Create the workers' private key unless it exists, readable by its owner only. Returns it."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    with contextlib.suppress(FileNotFoundError):
        return load_key(path)
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    raw = X25519PrivateKey.generate().private_bytes_raw()
    fresh = f"{path}.{uuid.uuid4().hex}"
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(base64.b64encode(raw) + b"\n")
    try:
        os.link(fresh, path)  # unlike rename it does not replace the key that another process made meanwhile
    except FileExistsError:
        return load_key(path)
    finally:
        os.unlink(fresh)
    return raw


def load_key(path: str) -> bytes:
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_mode & 0o077:
            raise QueueError(f"other users may read the workers' key {path}; chmod 600 it")
        try:
            raw = base64.b64decode(file.read().strip(), validate=True)
        except ValueError:
            raw = b""
    if len(raw) != 32:
        raise QueueError(f"{path} is not a key that `forkless queue key` made")
    return raw


def public_of(private: bytes) -> str:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    return base64.b64encode(X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()).decode()


def _cipher(shared: bytes, both: bytes) -> object:
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return ChaCha20Poly1305(HKDF(hashes.SHA256(), 32, both, _PURPOSE).derive(shared))


def seal(values: Mapping[str, object], public: str, origin: uuid.UUID) -> bytes:
    """Encrypt the values for the owner of the key behind `public`; `origin` is the launch that they are for."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    theirs = X25519PublicKey.from_public_bytes(base64.b64decode(public))
    ours = X25519PrivateKey.generate()
    head = ours.public_key().public_bytes_raw()
    cipher = _cipher(ours.exchange(theirs), head + theirs.public_bytes_raw())
    assert isinstance(cipher, ChaCha20Poly1305)  # noqa: S101  # for the type checker
    # The key is used once, so the nonce may be constant.
    return head + cipher.encrypt(bytes(12), json.dumps(values).encode(), origin.bytes)


def open_sealed(sealed: bytes, private: bytes, origin: uuid.UUID) -> dict[str, object]:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    ours = X25519PrivateKey.from_private_bytes(private)
    head = sealed[:32]
    cipher = _cipher(
        ours.exchange(X25519PublicKey.from_public_bytes(head)), head + ours.public_key().public_bytes_raw()
    )
    assert isinstance(cipher, ChaCha20Poly1305)  # noqa: S101  # for the type checker
    try:
        values: dict[str, object] = json.loads(cipher.decrypt(bytes(12), sealed[32:], origin.bytes))
    except InvalidTag:
        raise QueueError(
            "the run's secrets cannot be opened: they were sealed for another key than this worker's, or for another launch"
        ) from None
    return values
