# SPDX-License-Identifier: GPL-3.0-or-later
"""One task on one thread: the thread, the copies of what fork would have copied, and how the task is interrupted."""
