-- SPDX-License-Identifier: GPL-3.0-or-later
-- Four roles for least privilege. Each is a group: GRANT forkless_worker TO your_worker_user.
-- A role may call the functions that are its business; the functions run with the rights of the schema's owner.

-- Applied by each upgrade as well, by an owner who may not be allowed to create roles: what is missing then is left out, and said (schema.py).

DO $$
DECLARE
    one text;
BEGIN
    PERFORM pg_advisory_xact_lock(718281828, 3);
    FOREACH one IN ARRAY ARRAY['forkless_reader', 'forkless_launcher', 'forkless_worker', 'forkless_page'] LOOP
        IF to_regrole(one) IS NULL THEN
            BEGIN
                EXECUTE format('CREATE ROLE %I NOLOGIN', one);
            EXCEPTION WHEN insufficient_privilege THEN
                NULL;
            END;
        END IF;
    END LOOP;
END;
$$;

REVOKE ALL ON SCHEMA forkless FROM PUBLIC;
REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA forkless FROM PUBLIC;

DO $$
DECLARE
    one text;
BEGIN
    -- Reader: what is shown. No sealed value, no reference, no archive of a project. The others see it, too.
    FOREACH one IN ARRAY ARRAY['forkless_reader', 'forkless_launcher', 'forkless_worker'] LOOP
        IF to_regrole(one) IS NOT NULL THEN
            EXECUTE format('GRANT USAGE ON SCHEMA forkless TO %I', one);
            EXECUTE format('GRANT SELECT ON forkless.run_view, forkless.schedule_view, forkless.event_batch, forkless.host, forkless.worker, '
                'forkless.label_limit, forkless.schema_version, forkless.setting TO %I', one);
            EXECUTE format('GRANT EXECUTE ON FUNCTION forkless.waits_for(bigint), forkless.worker_key() TO %I', one);
        END IF;
    END LOOP;

    -- Launcher: launch, cancel, relaunch.
    IF to_regrole('forkless_launcher') IS NOT NULL THEN
        GRANT EXECUTE ON FUNCTION forkless.launch(jsonb, bytea, uuid), forkless.relaunch(bigint, jsonb, jsonb, text),
            forkless.ask_about_job(bigint, text, jsonb, text), forkless.cancel(bigint, text), forkless.put_bundle(text, bytea), forkless.keep_bundle(text),
            forkless.put_schedule(text, text, text, timestamptz, text, jsonb, bytea, uuid, text), forkless.remove_schedule(text),
            forkless.enable_schedule(text, boolean, timestamptz) TO forkless_launcher;
        GRANT SELECT, INSERT, DELETE ON forkless.job_record TO forkless_launcher;
    END IF;

    -- Worker: claims runs, opens their secrets with the workers' key, writes events and results, sweeps.
    IF to_regrole('forkless_worker') IS NOT NULL THEN
        GRANT SELECT ON forkless.run, forkless.bundle, forkless.schedule, forkless.webhook TO forkless_worker;
        GRANT SELECT, INSERT, UPDATE, DELETE ON forkless.procrastinate_jobs, forkless.procrastinate_workers, forkless.procrastinate_events,
            forkless.procrastinate_periodic_defers TO forkless_worker;
        GRANT SELECT, INSERT, DELETE ON forkless.job_record TO forkless_worker;
        GRANT USAGE ON ALL SEQUENCES IN SCHEMA forkless TO forkless_worker;
        GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA forkless TO forkless_worker;
        REVOKE EXECUTE ON FUNCTION forkless.launch(jsonb, bytea, uuid), forkless.relaunch(bigint, jsonb, jsonb, text),
            forkless.ask_about_job(bigint, text, jsonb, text),
            forkless.put_bundle(text, bytea), forkless.set_retention(double precision, double precision), forkless.prune(timestamptz),
            forkless.limit_label(text, int) FROM forkless_worker;
    END IF;

    -- Page: what a launcher may, and the page's own users, sessions and tokens. What was done can be added to, not changed.
    IF to_regrole('forkless_page') IS NOT NULL THEN
        IF to_regrole('forkless_launcher') IS NOT NULL AND NOT pg_has_role('forkless_page', 'forkless_launcher', 'MEMBER') THEN
            BEGIN
                GRANT forkless_launcher TO forkless_page;
            EXCEPTION WHEN insufficient_privilege THEN
                NULL;
            END;
        END IF;
        GRANT SELECT, INSERT, UPDATE, DELETE ON forkless.page_user, forkless.page_session, forkless.page_token, forkless.page_delivery
            TO forkless_page;
        GRANT SELECT, INSERT ON forkless.page_audit TO forkless_page;
    END IF;
END;
$$;
