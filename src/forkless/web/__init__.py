# SPDX-License-Identifier: GPL-3.0-or-later
"""
`forkless serve`: a page that shows the runs of a queue as they happen, and steers them.

The page reads and changes nothing but the queue (forkless.queue). It holds no state of a run, so it may be ended and started at any time.
"""
