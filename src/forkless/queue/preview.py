# SPDX-License-Identifier: GPL-3.0-or-later
"""Which hosts a run would have, before it is launched."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from forkless.core.errors import SpecError
from forkless.queue.errors import QueueRequestError
from forkless.runs import slices

if TYPE_CHECKING:
    from forkless.core.spec import RunSpec

__all__ = ["hosts_of"]


def hosts_of(spec: RunSpec) -> list[str]:
    """The hosts of a playbook after its limit, as ansible-playbook would find them here. Takes seconds; nothing is run."""
    try:
        return slices.hosts_of(
            spec.argv(), spec.cwd, dict(os.environ) | dict(spec.env), anyway=True, with_implicit=True
        )
    except SpecError as err:
        said = str(err).replace("no host is left to split: the", "no host is left: the")
        raise QueueRequestError(said.replace("could not be read for slices", "cannot be read")) from None
