# SPDX-License-Identifier: GPL-3.0-or-later
"""The shim: files named `ansible-playbook`, `ansible` and `ansible-console` that run in forkless, and in stock Ansible where forkless cannot."""
