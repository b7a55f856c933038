# SPDX-License-Identifier: GPL-3.0-or-later
"""Messages from outside that start a run: whether one is signed, and whether it is about what the hook is for."""

from __future__ import annotations

import hashlib
import hmac
import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from forkless.web.settings import HookSettings

__all__ = ["delivery_of", "is_signed", "why_not"]

_MOST_DELIVERY = 200
_SIGNATURE = {"github": "x-hub-signature-256", "hmac": "x-forkless-signature"}
_DELIVERY = {"gitlab": "x-gitlab-event-uuid", "hmac": "x-forkless-delivery"}


def is_signed(hook: HookSettings, headers: Mapping[str, str], body: bytes) -> bool:
    """GitHub signs the body with the secret, a plain hook its delivery number as well; GitLab sends the secret itself."""
    if hook.kind == "gitlab":
        return hmac.compare_digest(headers.get("x-gitlab-token", "").encode(), hook.secret.encode())
    if hook.kind == "hmac":
        number = headers.get(_DELIVERY["hmac"], "")
        if not 0 < len(number) <= _MOST_DELIVERY:
            return False
        body = number.encode() + b"\n" + body
    expected = "sha256=" + hmac.new(hook.secret.encode(), body, hashlib.sha256).hexdigest()
    return hmac.compare_digest(headers.get(_SIGNATURE[hook.kind], "").encode(), expected.encode())


def delivery_of(hook: HookSettings, headers: Mapping[str, str], body: bytes) -> str:
    """
    What names a message: it is the same when the message is sent again.

    It is part of what is signed, so a message that was intercepted cannot be sent again under another name. GitHub does not sign its delivery
    number, so its messages are named by the body. GitLab signs nothing; `why_not` refuses its messages without a number.
    """
    if hook.kind == "github":
        return hashlib.sha256(body).hexdigest()
    return headers.get(_DELIVERY[hook.kind], "")[:_MOST_DELIVERY].replace("\0", "")


def why_not(hook: HookSettings, headers: Mapping[str, str], body: bytes) -> str:
    """Why a signed message starts nothing; empty if it does."""
    if hook.kind == "github" and headers.get("x-github-event") == "ping":
        return "pong"
    if not delivery_of(hook, headers, body):
        return f"the message has no number ({_DELIVERY[hook.kind]}), without which it could be sent again"
    if not hook.ref:
        return ""
    try:
        told = json.loads(body)
    except ValueError:
        return "the message is not JSON"
    ref = told.get("ref") if isinstance(told, dict) else None
    return "" if ref == hook.ref else f"the hook is for {hook.ref}"
