# SPDX-License-Identifier: GPL-3.0-or-later
"""The archive of a module is loaded once for a run, and what a warm interpreter is told is the same without it."""

from __future__ import annotations

import base64
import dataclasses
import io
import sys
import zipfile

import pytest

import forkless
from forkless import modules
from forkless.core import versions
from forkless.modules.warm import payload
from forkless.modules.warm.archives import archive_by_reference
from forkless.modules.warm.interpreter import WarmInterpreter
from forkless.patching import seams

SINCE_2_19 = pytest.mark.skipif(
    versions.nearest(seams.version()) not in versions.since("2.19"),
    reason="2.18 has no class for what it loads, so there is nothing to replace",
)
pytestmark = [pytest.mark.matrix, pytest.mark.spawns, SINCE_2_19]
PLAY = """
- hosts: all
  gather_facts: false
  tasks:
    - ping: {data: "{{ inventory_hostname }}"}
    - ping: {data: second}
    - command: echo {{ inventory_hostname }}
    - command: echo job
      async: 30
      poll: 1
"""


def archive(text):
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as file:
        file.writestr("ansible/modules/one.py", text)
    return base64.b64encode(made.getvalue())


@pytest.fixture
def common(monkeypatch):
    monkeypatch.delenv("FORKLESS_DISABLE", raising=False)
    import ansible.executor.module_common

    return ansible.executor.module_common


def dumped(common, path, text):
    made = common._CachedModule(
        zip_data=archive(text), metadata=common.ModuleMetadataV1(serialization_profile="legacy"), source_mapping={"a": "b"}
    )  # fmt: skip
    made.dump(str(path))
    return made


def test_what_is_loaded_lacks_its_archive_only_where_a_reference_is_taken(common, tmp_path):
    path = str(tmp_path / "one")
    whole = dumped(common, path, "ONE = 1")
    with modules.installed(actions=True):
        for _ in range(2):
            with archive_by_reference() as reference:
                found = common._CachedModule.load(path)
            assert dataclasses.replace(found, zip_data=whole.zip_data) == whole
            assert found.zip_data == b""
            assert reference.manifest is payload.manifest_of(whole.zip_data)
            assert common._CachedModule.load(path) == whole
            found.source_mapping.clear()  # what one task changes, the next does not see


def test_an_archive_that_was_replaced_is_loaded_again(common, tmp_path):
    path = str(tmp_path / "one")
    with modules.installed(actions=True):
        for number in range(3):
            whole = dumped(common, path, f"ONE = {number}")
            with archive_by_reference() as reference:
                common._CachedModule.load(path)
            assert reference.manifest is payload.manifest_of(whole.zip_data)


def orders_of(tmp_path, monkeypatch, off):
    """What hosts are told in a run, and how often ansible-core loaded an archive."""
    monkeypatch.setenv("FORKLESS_DISABLE", off)
    orders, sizes = [], []
    send, take = WarmInterpreter._send_order, payload.take_apart

    def sent(self, number, manifests, order):
        kept = {key: value for key, value in order.items() if key not in ("argv", "job", "params", "lay")}
        orders.append((sorted(kept.items(), key=str), [one.digest for one in manifests]))
        return send(self, number, manifests, order)

    def taken(data, *more):
        sizes.append(len(data))
        return take(data, *more)

    monkeypatch.setattr(WarmInterpreter, "_send_order", sent)
    monkeypatch.setattr(payload, "take_apart", taken)
    result = forkless.run(playbook="play.yml", inventory="hosts", engine="threads", cwd=tmp_path)
    monkeypatch.setattr(WarmInterpreter, "_send_order", send)
    monkeypatch.setattr(payload, "take_apart", take)
    result.raise_for_failures()
    said = [
        (one.event_data["host"], one.event_data["res"].get("ping") or one.event_data["res"].get("stdout"))
        for one in result.events
        if one.event == "runner_on_ok"
    ]
    # Each kind once: how often a job is asked whether it has ended is a matter of time.
    kinds = {str(order): order for order in orders}
    return [kinds[one] for one in sorted(kinds)], sorted(said, key=str), sizes


def test_it_can_be_switched_off_and_hosts_are_told_the_same(tmp_path, monkeypatch):
    (tmp_path / "play.yml").write_text(PLAY)
    # HOME need not be the home that ansible-core's async_status looks in.
    (tmp_path / "hosts").write_text(
        f"h[1:3] ansible_connection=local ansible_python_interpreter={sys.executable} ansible_async_dir={tmp_path / 'jobs'}\n"
    )
    on, said_on, small = orders_of(tmp_path, monkeypatch, "")
    off, said_off, whole = orders_of(tmp_path, monkeypatch, "archive-cache")
    assert on == off
    assert said_on == said_off
    assert len(said_on) >= 12
    assert len([size for size in whole if size < 50_000]) == 0
    # One of the three hosts builds each module, and the others refer to it; the module and the wrapper of a job are built whole for each host.
    assert len([size for size in small if size < 50_000]) >= 5
    assert len([size for size in small if size >= 50_000]) >= 8
