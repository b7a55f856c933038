# SPDX-License-Identifier: GPL-3.0-or-later
"""Optimizations: work that is done once, or skipped where its result is known. Each has a name in FORKLESS_DISABLE."""
