# SPDX-License-Identifier: GPL-3.0-or-later
"""Stores for job records: `store` has the contract, and each of the other modules is a back end."""
