# SPDX-License-Identifier: GPL-3.0-or-later
"""One HTTP request that says how jobs have ended. If the request fails, the command's exit code stays the same."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import time
import urllib.error
import urllib.parse
import urllib.request

from forkless.cli.jobs_view import tell
from forkless.core.errors import SpecError

__all__ = ["SECRET_VARIABLE", "check_url", "notify"]

SECRET_VARIABLE = "FORKLESS_NOTIFY_SECRET"  # noqa: S105 -- the name of a variable, not a secret
_TRIES = 4
_SECONDS_BETWEEN = (1.0, 5.0, 15.0)
_ANSWER_WITHIN = 10.0
# What a job has printed is left out: it may hold secrets, and the receiver is another party.
_FIELDS = ("host", "job_name", "playbook_name", "ansible_job_id", "state", "rc", "signal", "start", "end", "why")


def check_url(text: str) -> str:
    parts = urllib.parse.urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise SpecError("--notify takes a URL that begins with http:// or https://.")
    return text


def notify(url: str, rows: list[dict[str, object]], exit_code: int, *, secret_file: str | None) -> None:
    """
    POST what has become of the jobs, as JSON, at most four times; an answer 4xx other than 408 and 429 is final.

    With a secret the header X-Forkless-Signature holds `sha256=` and the HMAC-SHA256 of the body, in hexadecimal digits.
    """
    jobs = [{name: row.get(name) for name in _FIELDS} for row in rows]
    body = json.dumps({"exit_code": exit_code, "jobs": jobs}).encode()
    headers = {"Content-Type": "application/json", "User-Agent": "forkless-jobs"}
    try:
        secret = _secret(secret_file)
    except OSError as error:
        # An unsigned message would be refused, or worse, believed.
        tell([f"the message was not sent: its secret could not be read: {error}."])
        return
    if secret:
        headers["X-Forkless-Signature"] = "sha256=" + hmac.new(secret, body, hashlib.sha256).hexdigest()
    why = ""
    for attempt in range(_TRIES):
        if attempt:
            time.sleep(_SECONDS_BETWEEN[attempt - 1])
        why, final = _post(urllib.request.Request(url, body, headers, method="POST"))  # noqa: S310 -- check_url
        if not why:
            return
        if final:
            break
    # Its host only: paths and queries of such URLs are often secret.
    tell([f"{urllib.parse.urlsplit(url).hostname} could not be notified: {why}."])


def _secret(path: str | None) -> bytes:
    if path is None:
        return os.environb.get(SECRET_VARIABLE.encode(), b"")
    with open(path, "rb") as file:
        return file.read().strip()


def _post(request: urllib.request.Request) -> tuple[str, bool]:
    """Why the message was not taken ("" if it was), and whether it makes no sense to try again."""
    try:
        with urllib.request.urlopen(request, timeout=_ANSWER_WITHIN):  # noqa: S310 -- check_url
            return "", True
    except urllib.error.HTTPError as error:
        with error:
            return f"it answered {error.code}", 400 <= error.code < 500 and error.code not in (408, 429)
    except (OSError, ValueError) as error:
        return str(getattr(error, "reason", error)), False
