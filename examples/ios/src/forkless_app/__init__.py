# SPDX-License-Identifier: GPL-3.0-or-later
"""A playbook list, a run with its output as it comes, and a way to stop it: for a phone."""
