# SPDX-License-Identifier: GPL-3.0-or-later
"""The replacements in ansible-core while a run is active: one module for each part of ansible-core, and the table of all seams."""
