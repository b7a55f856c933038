# SPDX-License-Identifier: GPL-3.0-or-later
"""
Records in ARA, `ara+http://server` or `ara+https://server`, for people who already use ARA to look at playbooks.

An ARA record is a key and a value that belong to a playbook; playbook and key together are unique. One playbook, labelled
`forkless-jobs`, has all the job records. ARA cannot guarantee that a job is started once: it has no conditional update,
two controllers that find an empty server at the same moment may each create such a playbook, and `ara playbook prune`
deletes the playbook with its records. So claims are refused unless they are kept in another store (`?claims=file:/path`,
`?claims=s3://...`), or the playbook is given (`?playbook=12`).

The user name and password come from the URL or, better, from ARA_API_USERNAME and ARA_API_PASSWORD, as for ARA itself.
"""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
import os
import re
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

from forkless.core.errors import SpecError, StoreError
from forkless.jobs.record import now, stamp
from forkless.jobs.stores.paired import PairedStore
from forkless.jobs.stores.store import JobStore, RevisionLog, open_store

__all__ = ["LABEL", "AraStore", "open_ara"]

LABEL = "forkless-jobs"
_ENTRY = re.compile(r"job/(.*)/(\d{8,})")
_LONGEST_KEY = 250
_PAGE = 500


def open_ara(url: str, state_dir: str) -> JobStore:
    parts = urllib.parse.urlsplit(url)
    asked = dict(urllib.parse.parse_qsl(parts.query))
    if unknown := set(asked) - {"claims", "playbook"}:
        raise SpecError(
            f"an ara+http: store has no setting {', '.join(sorted(unknown))}; there are claims and playbook."
        )
    if not parts.hostname:
        raise SpecError("the URL of the ARA server names no host; it must look like ara+http://127.0.0.1:8000.")
    playbook = asked.get("playbook", "")
    if playbook and not playbook.isdigit():
        raise SpecError(f"'{playbook}' is no number of a playbook in ARA.")
    store = AraStore(parts, int(playbook) if playbook else None)
    return PairedStore(store, open_store(asked["claims"], state_dir)) if "claims" in asked else store


class AraStore(RevisionLog):
    def __init__(self, parts: urllib.parse.SplitResult, playbook: int | None) -> None:
        host = parts.hostname or ""
        where = f"[{host}]" if ":" in host else host
        self._server = f"{parts.scheme.removeprefix('ara+')}://{where}{f':{parts.port}' if parts.port else ''}{parts.path.rstrip('/')}"
        self.url = f"ara+{self._server}"
        user = urllib.parse.unquote(parts.username or "") or os.environ.get("ARA_API_USERNAME", "")
        word = urllib.parse.unquote(parts.password or "") or os.environ.get("ARA_API_PASSWORD", "")
        self._headers = {"Accept": "application/json", "Content-Type": "application/json"}
        if user:
            self._headers["Authorization"] = "Basic " + base64.b64encode(f"{user}:{word}".encode()).decode()
        self._playbook = playbook
        self.claims = playbook is not None
        self.no_claims = (
            f"ARA alone ({self.url}) cannot promise that a job is started once; keep the claims elsewhere, with "
            "?claims=file:/path or ?claims=s3://bucket/prefix at the end of its URL."
        )

    def revisions(self, host: str = "") -> dict[str, int | None]:
        found: dict[str, int | None] = {}
        for key, number in self._keys().items():
            if (match := _ENTRY.fullmatch(key)) is None:
                continue
            stem = match[1]
            if stem.startswith("~"):  # the stem is too long for a key; the value has the stem
                stem = str(self._value(number).get("stem", ""))
            if stem and (not host or stem.startswith(f"{host}/")):
                found[stem] = max(found.get(stem) or 0, int(match[2]))
        return dict(sorted(found.items()))

    # -- what RevisionLog needs

    def _numbers(self, stem: str) -> list[int]:
        short = _short(stem)
        found = (_ENTRY.fullmatch(key) for key in self._keys())
        return [int(match[2]) for match in found if match and match[1] == short]

    def _get(self, stem: str, revision: int) -> bytes | None:
        number = self._number(_key(stem, revision))
        if number is None:
            return None
        record = self._value(number).get("record")
        return (json.dumps(record, indent=2, ensure_ascii=False) + "\n").encode()

    def _create(self, stem: str, revision: int, body: bytes) -> bool:
        playbook = self._container(make=True)
        wanted = {
            "playbook": playbook,
            "key": _key(stem, revision),
            "value": {"stem": stem, "record": json.loads(body)},
            "type": "json",
        }
        status, answer = self._request("POST", "/api/v1/records", wanted, also=(400, 500))
        if status == 201:
            return True
        # 400: the key is not unique. 500: two requests raced, and the database's unique constraint refused this one.
        if self._number(_key(stem, revision)) is not None:
            return False
        raise StoreError(f"the jobs in {self.url} could not be written: it answered {status} {_brief(answer)}.")

    def _erase(self, stem: str, revision: int) -> None:
        number = self._number(_key(stem, revision))
        if number is not None:
            self._request("DELETE", f"/api/v1/records/{number}", also=(404,))

    # -- requests

    def _container(self, *, make: bool) -> int | None:
        """The id of the playbook that has the records; the oldest if there are two. `make` creates it if there is none."""
        if self._playbook is None:
            _, page = self._request("GET", f"/api/v1/playbooks?label={LABEL}&order=id&limit=1")
            if page.get("results"):
                self._playbook = int(page["results"][0]["id"])
            elif make:
                started = stamp(now())
                wanted = {
                    "name": LABEL,
                    "labels": [LABEL],
                    "path": "forkless://jobs",
                    "ansible_version": "-",
                    "status": "running",  # ARA must not show it as a run that has ended
                    "started": started,
                }
                self._request("POST", "/api/v1/playbooks", wanted)
                return self._container(make=False)
        return self._playbook

    def _keys(self) -> dict[str, int]:
        """The key and the id of every record in the playbook."""
        playbook = self._container(make=False)
        if playbook is None:
            return {}
        found: dict[str, int] = {}
        offset = 0
        while True:
            _, page = self._request(
                "GET", f"/api/v1/records?playbook={playbook}&order=id&limit={_PAGE}&offset={offset}"
            )
            found |= {str(row["key"]): int(row["id"]) for row in page["results"]}
            offset += len(page["results"])
            if not page["results"] or offset >= page["count"]:
                return found

    def _number(self, key: str) -> int | None:
        playbook = self._container(make=False)
        if playbook is None:
            return None
        _, page = self._request("GET", f"/api/v1/records?playbook={playbook}&key={urllib.parse.quote(key, safe='')}")
        return int(page["results"][0]["id"]) if page.get("results") else None

    def _value(self, number: int) -> dict[str, object]:
        status, record = self._request("GET", f"/api/v1/records/{number}", also=(404,))
        value = record.get("value") if status == 200 else None
        return value if isinstance(value, dict) else {}

    def _request(
        self, method: str, path: str, content: object = None, also: tuple[int, ...] = ()
    ) -> tuple[int, dict[str, Any]]:
        body = None if content is None else json.dumps(content).encode()
        request = urllib.request.Request(self._server + path, body, self._headers, method=method)  # noqa: S310 -- http or https, by open_store
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
                return answer.status, json.loads(answer.read() or b"{}")
        except urllib.error.HTTPError as error:
            with error:
                text = error.read()
            if error.code in also:
                return error.code, {"detail": text.decode(errors="replace")}
            if error.code in (401, 403):
                raise StoreError(
                    f"{self.url} requires a login ({error.code}); set ARA_API_USERNAME and ARA_API_PASSWORD."
                ) from None
            raise StoreError(
                f"the jobs in {self.url} cannot be used: it answered {error.code} to {method} {path}."
            ) from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise StoreError(f"the jobs in {self.url} could not be reached: {_reason(error)}.") from error


def _reason(error: Exception) -> str:
    return str(getattr(error, "reason", None) or error or type(error).__name__)


def _brief(answer: dict[str, Any]) -> str:
    return str(answer.get("detail", ""))[:200]


def _short(stem: str) -> str:
    """The stem, or a digest of it if it is too long: a key in ARA has at most 255 characters."""
    return stem if len(stem) <= _LONGEST_KEY - 14 else "~" + hashlib.sha256(stem.encode()).hexdigest()


def _key(stem: str, revision: int) -> str:
    return f"job/{_short(stem)}/{revision:08d}"
