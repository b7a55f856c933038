-- SPDX-License-Identifier: GPL-3.0-or-later
-- Version 1: every table. procrastinate's own tables are created beside them, in the same schema.

CREATE TABLE schema_version (
    version int PRIMARY KEY,
    applied timestamptz NOT NULL DEFAULT now()
);

-- Names and values that hold for the whole queue: the version of procrastinate's tables, the workers' public key, how long events are kept.
CREATE TABLE setting (
    name text PRIMARY KEY,
    value text NOT NULL
);

-- How many runs that ask for a label may be under way at once.
CREATE TABLE label_limit (
    label text PRIMARY KEY,
    most int NOT NULL CHECK (most > 0)
);

-- A project as a compressed archive, named by its content.
CREATE TABLE bundle (
    sha256 text PRIMARY KEY CHECK (sha256 ~ '^[0-9a-f]{64}$'),
    content bytea NOT NULL,
    created timestamptz NOT NULL DEFAULT now(),
    used timestamptz NOT NULL DEFAULT now()
);
-- The content is compressed already.
ALTER TABLE bundle ALTER COLUMN content SET STORAGE EXTERNAL;

-- What each worker process says of itself. Nothing is decided by it but whether a label is served at all.
CREATE TABLE worker (
    id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    name text NOT NULL,
    host text NOT NULL,
    pid int NOT NULL,
    labels text[] NOT NULL DEFAULT '{}',
    versions jsonb NOT NULL DEFAULT '{}',
    started timestamptz NOT NULL DEFAULT now(),
    seen timestamptz NOT NULL DEFAULT now(),
    stopping boolean NOT NULL DEFAULT false
);

CREATE TABLE schedule (
    id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    name text NOT NULL UNIQUE,
    cron text NOT NULL,
    time_zone text NOT NULL,
    enabled boolean NOT NULL DEFAULT true,
    due timestamptz,
    if_running text NOT NULL DEFAULT 'skip' CHECK (if_running IN ('skip', 'queue')),
    request jsonb NOT NULL,
    origin uuid NOT NULL,
    sealed bytea,
    created timestamptz NOT NULL DEFAULT now(),
    created_by text NOT NULL,
    last_due timestamptz,
    last_run bigint,
    note text
);

-- A run. A run in slices is one row without a job of its own, with one child row for each slice.
CREATE TABLE run (
    id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    parent_id bigint REFERENCES run ON DELETE CASCADE,
    slice int,
    slices int NOT NULL DEFAULT 0,
    status text NOT NULL DEFAULT 'waiting'
        CHECK (status IN ('waiting', 'running', 'successful', 'failed', 'canceled', 'lost')),

    -- What to run. `spec` has no secret: values that may be one are in `sealed`, or `secrets` says where the worker finds them.
    spec jsonb NOT NULL,
    project jsonb NOT NULL,
    bundle text REFERENCES bundle,
    hosts text[],
    origin uuid NOT NULL,
    sealed bytea,
    secrets jsonb NOT NULL DEFAULT '{}',

    -- When it may begin.
    lock text,
    holds_lock boolean NOT NULL DEFAULT false,
    labels text[] NOT NULL DEFAULT '{}',
    priority int NOT NULL DEFAULT 0,
    not_before timestamptz,
    retries int NOT NULL DEFAULT 0,
    queue_job bigint,

    -- Who carries it out. `attempt` fences every write; `renewals` counts the signs of life of an attempt.
    attempt int NOT NULL DEFAULT 0,
    worker_id bigint,
    worker_name text,
    worker_versions jsonb,
    renewals bigint NOT NULL DEFAULT 0,
    renewed timestamptz,
    lost_after double precision,
    attempt_counter bigint NOT NULL DEFAULT 0,
    -- The position of the last event in the stream of the run: of all its slices and attempts.
    counter bigint NOT NULL DEFAULT 0,
    place text,
    progress jsonb NOT NULL DEFAULT '{}',
    note text,

    cancel_requested timestamptz,
    canceled_by text,
    created timestamptz NOT NULL DEFAULT now(),
    created_by text NOT NULL,
    database_user text NOT NULL DEFAULT session_user,
    versions jsonb NOT NULL DEFAULT '{}',
    started timestamptz,
    ended timestamptz,
    rc int,
    sentence text,

    relaunch_of bigint,
    schedule_id bigint REFERENCES schedule ON DELETE SET NULL,
    schedule_due timestamptz,
    webhook jsonb,
    UNIQUE (schedule_id, schedule_due)
);
-- One holder for each lock, whatever a function does.
CREATE UNIQUE INDEX run_lock_holder ON run (lock) WHERE holds_lock;
CREATE INDEX run_lock_waiting ON run (lock, priority DESC, id) WHERE status = 'waiting' AND parent_id IS NULL AND queue_job IS NULL;
CREATE INDEX run_undispatched ON run (priority DESC, id) WHERE status = 'waiting' AND parent_id IS NULL AND queue_job IS NULL;
CREATE INDEX run_active ON run (id) WHERE status IN ('waiting', 'running');
CREATE INDEX run_of_parent ON run (parent_id, slice) WHERE parent_id IS NOT NULL;
CREATE INDEX run_roots ON run (id DESC) WHERE parent_id IS NULL;
CREATE INDEX run_ended ON run (ended) WHERE ended IS NOT NULL;
CREATE INDEX run_bundle ON run (bundle);

-- Events `first` to `last` of one attempt, as compressed lines of JSON.
CREATE TABLE event_batch (
    run_id bigint NOT NULL REFERENCES run ON DELETE CASCADE,
    attempt int NOT NULL,
    first bigint NOT NULL,
    last bigint NOT NULL,
    -- Where the batch stands in the stream of the run, or of the run that it is a slice of.
    root_id bigint NOT NULL,
    root_last bigint NOT NULL,
    size int NOT NULL,
    events bytea NOT NULL,
    created timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (run_id, attempt, last)
);
ALTER TABLE event_batch ALTER COLUMN events SET STORAGE EXTERNAL;
CREATE UNIQUE INDEX event_batch_stream ON event_batch (root_id, root_last);

-- The recap of each run by host.
CREATE TABLE host (
    run_id bigint NOT NULL REFERENCES run ON DELETE CASCADE,
    host text NOT NULL,
    ok int NOT NULL,
    changed int NOT NULL,
    unreachable int NOT NULL,
    failed int NOT NULL,
    skipped int NOT NULL,
    rescued int NOT NULL,
    ignored int NOT NULL,
    PRIMARY KEY (run_id, host)
);
CREATE INDEX host_history ON host (host, run_id DESC);

-- A message that is to be sent because a run ended.
CREATE TABLE webhook (
    id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    run_id bigint NOT NULL REFERENCES run ON DELETE CASCADE,
    url text NOT NULL,
    secret text,
    tries int NOT NULL DEFAULT 0,
    next_try timestamptz NOT NULL DEFAULT now(),
    delivered timestamptz,
    given_up boolean NOT NULL DEFAULT false,
    problem text
);
CREATE INDEX webhook_due ON webhook (next_try) WHERE delivered IS NULL AND NOT given_up;
