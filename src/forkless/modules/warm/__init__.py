# SPDX-License-Identifier: GPL-3.0-or-later
"""Modules that run in a warm interpreter on their host: the controller's side."""
