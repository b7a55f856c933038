# SPDX-License-Identifier: GPL-3.0-or-later
"""Modules written on the spot, run in this process."""

from __future__ import annotations

import importlib.metadata
import os
import sys
import textwrap
import warnings

import pytest

import sshd_targets
from forkless import modules

HEAD = "#!/usr/bin/python\nfrom ansible.module_utils.basic import AnsibleModule\n"


@pytest.fixture(scope="session", autouse=True)
def ansible_is_there():
    """Importing it runs ldconfig and `ip link` (uuid.getnode): once, before any test."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # 2.18 warns when it is imported a second time in a process
        import ansible.utils.display
        import ansible.utils.vars  # noqa: F401


@pytest.fixture
def one_python_for_each_minor():
    """These take long. What they look at differs by ansible-core's minor: each is tried once, with the Python that `make test` has for it, and with the newest."""
    python, core = sys.version_info[:2], importlib.metadata.version("ansible-core").rpartition(".")[0]
    if python < (3, 13) and (python, core) not in {((3, 11), "2.18"), ((3, 11), "2.19"), ((3, 12), "2.20")}:
        pytest.skip(f"ansible-core {core} is tried with another Python")


@pytest.fixture
def run_module(tmp_path):
    """Writes a module and runs it: `body` is what main() does with `module`; `spec` its arguments."""
    count = iter(range(1000))
    with modules.installed():

        def run(body, arguments=None, *, spec="{}", head="", **more):
            path = tmp_path / f"module_{next(count)}.py"
            text = textwrap.dedent(body)
            main = f"module = AnsibleModule(argument_spec={spec}, supports_check_mode=True)\n{text}"
            path.write_text(
                f"{HEAD}{head}\ndef main():\n{textwrap.indent(main, '    ')}\nif __name__ == '__main__':\n    main()\n"
            )
            return modules.run(str(path), arguments or {}, **more)

        yield run


@pytest.fixture
def builtin():
    """Runs a module of ansible-core's own."""
    import ansible.modules

    folder = os.path.dirname(ansible.modules.__file__)
    with modules.installed():
        yield lambda name, arguments=None, **more: modules.run(f"{folder}/{name}.py", arguments or {}, **more)


@pytest.fixture(scope="session")
def sshds():
    if sshd_targets.SSHD is None:
        pytest.fail(sshd_targets.MISSING, pytrace=False)
    with sshd_targets.targets(2, more=sshd_targets.QUICK_KEY_EXCHANGE) as up:
        yield up
