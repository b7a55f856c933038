# SPDX-License-Identifier: GPL-3.0-or-later
"""Connections to network devices, kept in the run: what ansible-core starts a helper process for."""
