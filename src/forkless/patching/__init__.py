# SPDX-License-Identifier: GPL-3.0-or-later
"""Replaces names in ansible-core and the stdlib, and restores them. Used by the threads engine, modules and multiprocessing."""
