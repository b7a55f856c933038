# SPDX-License-Identifier: GPL-3.0-or-later
"""
Records in a bucket: `s3://bucket/prefix`, revision N of a job as the object `<prefix>/<host>/[<playbook>/]<job>/N.json`.

The guarantees depend on one request: PUT with `If-None-Match: *`. Some S3 servers ignore the condition, and every
controller would get the claim. So before its first write a store tests the condition with the object
`<prefix>/.forkless-trial`, which it does not remove, and refuses a server that ignores it. boto3 finds the credentials in
its usual places; `?endpoint=` and `?region=` select a server other than Amazon's.
"""

from __future__ import annotations

import re
import time
import urllib.parse
from typing import TYPE_CHECKING, Any

from forkless.core.errors import SpecError, StoreError, UnsupportedError
from forkless.jobs.stores.store import RevisionLog

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["S3Store"]

_ENTRY = re.compile(r"(.*)/(\d{8,})\.json")
_TRIES = 5
_TRIAL = ".forkless-trial"


class S3Store(RevisionLog):
    def __init__(self, url: str) -> None:
        parts = urllib.parse.urlsplit(url)
        if not parts.netloc or "@" in parts.netloc:
            raise SpecError(
                "the URL of the S3 store names no bucket; it must look like s3://bucket/prefix, without credentials in it."
            )
        asked = dict(urllib.parse.parse_qsl(parts.query))
        if unknown := set(asked) - {"endpoint", "region"}:
            raise SpecError(f"an s3: store has no setting {', '.join(sorted(unknown))}; there are endpoint and region.")
        self._bucket = parts.netloc
        self._prefix = parts.path.strip("/")
        self._endpoint = asked.get("endpoint") or None
        self._region = asked.get("region") or None
        self.url = f"s3://{self._bucket}/{self._prefix}".rstrip("/")
        self._lazy: Any = None
        self._tried = False

    def revisions(self, host: str = "") -> dict[str, int | None]:
        found: dict[str, int | None] = {}
        for name in self._names(f"{host}/" if host else ""):
            if match := _ENTRY.fullmatch(name):
                found[match[1]] = max(found.get(match[1]) or 0, int(match[2]))
        return dict(sorted(found.items()))

    def close(self) -> None:
        if self._lazy is not None:
            self._lazy.close()

    # -- what RevisionLog needs

    def _numbers(self, stem: str) -> list[int]:
        names = (_ENTRY.fullmatch(name) for name in self._names(f"{stem}/"))
        return [int(match[2]) for match in names if match and match[1] == stem]

    def _get(self, stem: str, revision: int) -> bytes | None:
        answer = self._ask("get_object", "be read", absent=("NoSuchKey", "404"), Key=self._name(stem, revision))
        if answer is None:
            return None
        with answer["Body"] as body:
            return bytes(self._reading(body.read))

    def _create(self, stem: str, revision: int, body: bytes) -> bool:
        self._try_conditions()
        return self._put_once(self._name(stem, revision), body)

    def _erase(self, stem: str, revision: int) -> None:
        self._ask("delete_object", "be tidied up", Key=self._name(stem, revision))

    # -- requests

    def _put_once(self, name: str, body: bytes) -> bool:
        for _ in range(_TRIES):
            answer = self._ask(
                "put_object",
                "be written",
                absent=("PreconditionFailed", "412", "ConditionalRequestConflict", "409"),
                Key=name,
                Body=body,
                IfNoneMatch="*",
                ContentType="application/json",
            )
            if answer is not None:
                return True
            # Amazon responds 409 while two such requests race and neither has succeeded yet.
            if self._ask("head_object", "be looked up", absent=("404", "NoSuchKey"), Key=name) is not None:
                return False
            time.sleep(0.1)
        raise StoreError(
            f"{self.url} did not report which writer was first for {name}; nothing was claimed. Try again."
        )

    def _try_conditions(self) -> None:
        """
        Create the same object twice, on condition that it does not exist: a server that accepts both ignores the condition.

        A lost response does no harm: the client then repeats the request, and a server that honours the condition
        refuses it.
        """
        if self._tried:
            return
        name = self._full(_TRIAL)
        if self._put_once(name, b"{}") and self._put_once(name, b"{}"):
            raise UnsupportedError(
                f"the server of {self.url} ignores `If-None-Match: *`, so two controllers could both start a job; "
                "use one that honours conditional writes."
            )
        self._tried = True

    def _names(self, below: str) -> list[str]:
        start = self._full("") if self._prefix else ""
        found: list[str] = []
        more: dict[str, Any] = {}
        while True:
            page = self._ask("list_objects_v2", "be listed", Prefix=start + below, **more) or {}
            found += [entry["Key"][len(start) :] for entry in page.get("Contents", [])]
            if not page.get("IsTruncated"):
                return found
            more = {"ContinuationToken": page["NextContinuationToken"]}

    def _ask(self, request: str, what: str, absent: tuple[str, ...] = (), **arguments: object) -> Any:
        import botocore.exceptions as wrong

        try:
            return getattr(self._client(), request)(Bucket=self._bucket, **arguments)
        except wrong.ClientError as error:
            code = str(error.response.get("Error", {}).get("Code", ""))
            status = str(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", ""))
            if code in absent or (status in absent and code != "NoSuchBucket"):
                return None
            if status == "501":
                raise UnsupportedError(
                    f"the server of {self.url} does not know `If-None-Match: *` ({code}), so two controllers could both "
                    "start a job; use one that honours conditional writes."
                ) from None
            raise StoreError(f"the jobs in {self.url} could not {what}: {code or status}.") from error
        except (wrong.BotoCoreError, OSError) as error:
            raise StoreError(f"the jobs in {self.url} could not {what}: {error}") from error

    def _reading(self, read: Callable[..., object]) -> Any:
        import botocore.exceptions as wrong

        try:
            return read()
        except (wrong.BotoCoreError, OSError) as error:
            raise StoreError(f"the jobs in {self.url} could not be read: {error}") from error

    def _client(self) -> object:
        if self._lazy is None:
            try:
                import boto3
                from botocore.config import Config
            except ImportError:
                raise UnsupportedError("s3: stores need boto3 on the controller: pip install 'forkless[s3]'.") from None
            self._lazy = boto3.session.Session().client(
                "s3",
                endpoint_url=self._endpoint,
                region_name=self._region,
                config=Config(
                    connect_timeout=10, read_timeout=30, retries={"mode": "standard", "total_max_attempts": 3}
                ),
            )
        return self._lazy

    def _full(self, name: str) -> str:
        return f"{self._prefix}/{name}" if self._prefix else name

    def _name(self, stem: str, revision: int) -> str:
        return self._full(f"{stem}/{revision:08d}.json")
