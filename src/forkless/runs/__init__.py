# SPDX-License-Identifier: GPL-3.0-or-later
"""A run from start to result: its thread, events, artifacts and limits, and the asyncio interface."""
