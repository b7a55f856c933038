# SPDX-License-Identifier: GPL-3.0-or-later
"""Which ansible.netcommon is known, and what the doctor says of it."""

from __future__ import annotations

import shutil

import prepare_collections
from forkless.cli.commands import doctor
from forkless.engines.threads.network import netcommon

PLUGINS = prepare_collections.FOLDER / "ansible_collections" / "ansible" / "netcommon" / "plugins"


def test_the_examined_releases_are_known():
    assert netcommon.known_versions() == ["7.2.0", "8.2.0", "8.5.3", "8.7.1"]
    assert [one for plugin in netcommon.IN_THE_RUN for one in netcommon.changed(str(PLUGINS), plugin)] == []


def test_the_doctor_names_the_release_and_the_function_that_is_not_known(tmp_path, monkeypatch):
    copied = tmp_path / "netcommon"
    shutil.copytree(PLUGINS, copied / "plugins")
    shutil.copy(PLUGINS.parent / "MANIFEST.json", copied)
    monkeypatch.setattr(netcommon, "installed", lambda: str(copied / "plugins"))
    version = netcommon.read_version(str(PLUGINS))
    assert doctor._netcommon() == doctor.Finding(
        "ansible.netcommon", True, f"{version}, known", "connections to network devices live in the run"
    )
    plugin = copied / "plugins" / "connection" / "network_cli.py"
    plugin.write_text(plugin.read_text().replace("    def close(self):\n", "    def close(self):\n        pass\n"))
    found = doctor._netcommon()
    assert not found.ok
    assert version in found.found
    assert found.means.endswith("helper processes: connection/network_cli.py: close")


def test_only_plugins_whose_answers_are_tested_live_in_the_run():
    names = ("network_cli", "netconf", "httpapi", "grpc", "libssh")
    package = "ansible_collections.ansible.netcommon.plugins.connection."
    found = [name for name in names if netcommon.plugin_at(package + name, str(PLUGINS / "connection" / f"{name}.py"))]
    assert found == ["network_cli", "netconf", "httpapi", "grpc"]
