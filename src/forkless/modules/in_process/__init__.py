# SPDX-License-Identifier: GPL-3.0-or-later
"""Modules that run in this process, because no program can be started or because the run asks for it."""
