-- SPDX-License-Identifier: GPL-3.0-or-later
-- Version 2: records of jobs that outlive a play, for projects that travel.

-- One revision of one record. `scope` stands for the folder that the records would be in on one machine; the primary key lets one
-- of two writers create a revision.
CREATE TABLE job_record (
    scope text NOT NULL,
    stem text NOT NULL,
    revision bigint NOT NULL,
    body bytea NOT NULL,
    created timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (scope, stem, revision)
);
