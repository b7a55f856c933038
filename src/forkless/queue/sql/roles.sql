-- SPDX-License-Identifier: GPL-3.0-or-later
-- Four roles for least privilege. Each is a group: GRANT forkless_worker TO your_worker_user.
-- A role may call the functions that are its business; the functions run with the rights of the schema's owner.

DO $$
BEGIN
    PERFORM pg_advisory_xact_lock(718281828, 3);
    IF NOT EXISTS (SELECT 1 FROM pg_roles WHERE rolname = 'forkless_reader') THEN
        CREATE ROLE forkless_reader NOLOGIN;
    END IF;
    IF NOT EXISTS (SELECT 1 FROM pg_roles WHERE rolname = 'forkless_launcher') THEN
        CREATE ROLE forkless_launcher NOLOGIN;
    END IF;
    IF NOT EXISTS (SELECT 1 FROM pg_roles WHERE rolname = 'forkless_worker') THEN
        CREATE ROLE forkless_worker NOLOGIN;
    END IF;
    IF NOT EXISTS (SELECT 1 FROM pg_roles WHERE rolname = 'forkless_page') THEN
        CREATE ROLE forkless_page NOLOGIN;
    END IF;
END;
$$;

REVOKE ALL ON SCHEMA forkless FROM PUBLIC;
REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA forkless FROM PUBLIC;
GRANT USAGE ON SCHEMA forkless TO forkless_reader, forkless_launcher, forkless_worker;

-- Reader: what is shown. No sealed value, no reference, no archive of a project.
GRANT SELECT ON forkless.run_view, forkless.schedule_view, forkless.event_batch, forkless.host, forkless.worker, forkless.label_limit,
    forkless.schema_version, forkless.setting TO forkless_reader, forkless_launcher, forkless_worker;
GRANT EXECUTE ON FUNCTION forkless.waits_for(bigint), forkless.worker_key() TO forkless_reader, forkless_launcher, forkless_worker;

-- Launcher: launch, cancel, relaunch. It sees what a reader sees.
GRANT EXECUTE ON FUNCTION forkless.launch(jsonb, bytea, uuid), forkless.relaunch(bigint, jsonb, jsonb, text), forkless.cancel(bigint, text),
    forkless.put_bundle(text, bytea), forkless.keep_bundle(text),
    forkless.put_schedule(text, text, text, timestamptz, text, jsonb, bytea, uuid, text), forkless.remove_schedule(text),
    forkless.enable_schedule(text, boolean, timestamptz) TO forkless_launcher;

-- Worker: claims runs, opens their secrets with the workers' key, writes events and results, sweeps.
GRANT SELECT ON forkless.run, forkless.bundle, forkless.schedule, forkless.webhook TO forkless_worker;
GRANT SELECT, INSERT, UPDATE, DELETE ON forkless.procrastinate_jobs, forkless.procrastinate_workers, forkless.procrastinate_events,
    forkless.procrastinate_periodic_defers TO forkless_worker;
GRANT SELECT, INSERT, DELETE ON forkless.job_record TO forkless_worker, forkless_launcher;
GRANT USAGE ON ALL SEQUENCES IN SCHEMA forkless TO forkless_worker;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA forkless TO forkless_worker;
REVOKE EXECUTE ON FUNCTION forkless.launch(jsonb, bytea, uuid), forkless.relaunch(bigint, jsonb, jsonb, text),
    forkless.put_bundle(text, bytea), forkless.set_retention(double precision, double precision), forkless.prune(timestamptz),
    forkless.limit_label(text, int) FROM forkless_worker;

-- Page: what a launcher may, and the page's own users, sessions and tokens. What was done can be added to, not changed.
GRANT forkless_launcher TO forkless_page;
GRANT SELECT, INSERT, UPDATE, DELETE ON forkless.page_user, forkless.page_session, forkless.page_token, forkless.page_delivery TO forkless_page;
GRANT SELECT, INSERT ON forkless.page_audit TO forkless_page;
