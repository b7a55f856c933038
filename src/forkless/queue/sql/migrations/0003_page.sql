-- SPDX-License-Identifier: GPL-3.0-or-later
-- Version 3: who may use the page of this queue, and what they did.

CREATE TABLE page_user (
    name text PRIMARY KEY CHECK (name ~ '^[A-Za-z0-9][A-Za-z0-9._@+-]{0,99}$'),
    role text NOT NULL CHECK (role IN ('viewer', 'operator', 'admin')),
    -- argon2; NULL for a user that only a reverse proxy vouches for.
    password text,
    created timestamptz NOT NULL DEFAULT now()
);

-- A browser that is logged in. Of the secret in its cookie only the hash is kept.
CREATE TABLE page_session (
    id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    hash bytea NOT NULL UNIQUE,
    user_name text NOT NULL REFERENCES page_user ON DELETE CASCADE,
    about text NOT NULL DEFAULT '',
    created timestamptz NOT NULL DEFAULT now(),
    seen timestamptz NOT NULL DEFAULT now(),
    ends timestamptz NOT NULL
);
CREATE INDEX page_session_ends ON page_session (ends);

-- A token for programs: it may do what `role` allows and its user still may, until `ends`.
CREATE TABLE page_token (
    id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    hash bytea NOT NULL UNIQUE,
    user_name text NOT NULL REFERENCES page_user ON DELETE CASCADE,
    name text NOT NULL,
    role text NOT NULL CHECK (role IN ('viewer', 'operator', 'admin')),
    created timestamptz NOT NULL DEFAULT now(),
    seen timestamptz,
    ends timestamptz NOT NULL
);

CREATE TABLE page_audit (
    id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    at timestamptz NOT NULL DEFAULT now(),
    who text NOT NULL,
    what text NOT NULL,
    run_id bigint,
    about text NOT NULL DEFAULT ''
);

-- Messages from outside that started a run: a message that is sent again starts none.
CREATE TABLE page_delivery (
    hook text NOT NULL,
    delivery text NOT NULL,
    at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (hook, delivery)
);
