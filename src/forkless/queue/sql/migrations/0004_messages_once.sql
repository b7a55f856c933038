-- SPDX-License-Identifier: GPL-3.0-or-later
-- Version 4: `launch` takes the message of a hook together with the run that it starts. With the functions of version 3 the page would
-- start a second run for a message that is sent again, so it must not work with them.

CREATE INDEX page_delivery_at ON page_delivery (at);

-- The runs that asked a host about its jobs.
CREATE INDEX run_about_job ON run ((spec ->> 'hosts')) WHERE spec ? 'job';
