-- SPDX-License-Identifier: GPL-3.0-or-later
-- Version 5: a worker calls `resume` whenever it has to connect again, and the functions of version 4 have none.

SELECT 1;
