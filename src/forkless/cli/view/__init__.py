# SPDX-License-Identifier: GPL-3.0-or-later
"""How a run is shown: the live view, the profile, the report."""
