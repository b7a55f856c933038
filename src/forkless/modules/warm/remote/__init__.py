# SPDX-License-Identifier: GPL-3.0-or-later
"""The code that runs on the host: plain Python 3.8, sent as text and never installed."""
