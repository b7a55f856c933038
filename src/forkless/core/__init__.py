# SPDX-License-Identifier: GPL-3.0-or-later
"""Values, platform probes and process control. Nothing here imports another package of forkless, or Ansible."""
