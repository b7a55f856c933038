# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
"""
Keeps what Ansible's vault protects out of records, which are plain text: values that are encrypted one by one (!vault). Ansible does not
remember which values came from a file that is encrypted as a whole.
"""

from __future__ import annotations

from ansible.errors import AnsibleError
from ansible.parsing import vault

try:
    from ansible.parsing.vault import EncryptedString
except ImportError:  # up to ansible-core 2.18
    from ansible.parsing.yaml.objects import AnsibleVaultEncryptedUnicode as EncryptedString

MASK = "********"
SHORTEST = 4  # of a secret that is masked inside of other text; a shorter one would hit too much that is none
# Not of this host alone, or the same once more.
ELSEWHERE = ("hostvars", "vars", "groups")


def without_vaulted(thing, variables):
    """
    `thing`, with a mask in place of every text that is, or contains, the value of a variable from the vault; and whether
    there was one.
    """
    secrets = sorted(set(_secrets(variables)), key=len, reverse=True)
    return _masked(thing, secrets)


def _secrets(variables):
    for name, value in variables.items():
        if name not in ELSEWHERE:
            yield from _vaulted(value, 0)


def _vaulted(value, depth):
    if isinstance(value, EncryptedString):
        try:
            text = str(value)
        except AnsibleError:
            return  # this run has no secret for it, so nothing can have shown it
        yield text
    elif isinstance(value, dict) and depth < 20:
        for inner in value.values():
            yield from _vaulted(inner, depth + 1)
    elif isinstance(value, (list, tuple)) and depth < 20:
        for inner in value:
            yield from _vaulted(inner, depth + 1)


def _is_vaulted(text):
    """Since ansible-core 2.19 a value remembers that it came from the vault, also where no variable has it any more."""
    helper = getattr(vault, "VaultHelper", None)
    return helper is not None and helper.get_ciphertext(text, with_tags=False) is not None


def _masked(thing, secrets):
    if isinstance(thing, dict):
        pairs = [(_masked(key, secrets), _masked(value, secrets)) for key, value in thing.items()]
        return {key[0]: value[0] for key, value in pairs}, any(key[1] or value[1] for key, value in pairs)
    if isinstance(thing, (list, tuple)):
        parts = [_masked(one, secrets) for one in thing]
        return [part[0] for part in parts], any(part[1] for part in parts)
    if isinstance(thing, EncryptedString) or (isinstance(thing, str) and _is_vaulted(thing)):
        return MASK, True
    if not isinstance(thing, str):
        return thing, False
    text = thing
    for secret in secrets:
        if text == secret or len(secret) >= SHORTEST:
            text = text.replace(secret, MASK) if secret else text
    return text, text != thing
