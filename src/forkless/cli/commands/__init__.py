# SPDX-License-Identifier: GPL-3.0-or-later
"""One module for each command, found by its name."""
