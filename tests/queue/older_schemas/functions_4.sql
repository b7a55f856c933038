-- SPDX-License-Identifier: GPL-3.0-or-later
-- The functions and views of version 4 without their bodies: what an upgrade replaces must have the same arguments, answers and columns.
CREATE FUNCTION take_dispatch_lock() RETURNS void LANGUAGE plpgsql AS $$BEGIN END$$;
CREATE FUNCTION tell(of_run bigint, root bigint, at_counter bigint, now_status text) RETURNS void LANGUAGE plpgsql AS $$BEGIN END$$;
CREATE FUNCTION queue_for(wanted text[]) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$BEGIN END$$;
CREATE FUNCTION put_job(of_run bigint, wanted text[], at_priority int) RETURNS bigint LANGUAGE plpgsql AS $$BEGIN END$$;
CREATE FUNCTION drop_job(job bigint) RETURNS void LANGUAGE plpgsql AS $$BEGIN END$$;
CREATE FUNCTION obstacle(r run) RETURNS text LANGUAGE plpgsql STABLE AS $$BEGIN END$$;
CREATE FUNCTION dispatch_one(which bigint) RETURNS boolean LANGUAGE plpgsql AS $$BEGIN END$$;
CREATE FUNCTION dispatch_lock(which text) RETURNS void LANGUAGE plpgsql AS $$BEGIN END$$;
CREATE FUNCTION withdraw_unserved() RETURNS void LANGUAGE plpgsql AS $$BEGIN END$$;
CREATE FUNCTION dispatch_due() RETURNS void LANGUAGE plpgsql SECURITY DEFINER AS $$BEGIN END$$;
CREATE FUNCTION launch(request jsonb, sealed_values bytea, sealed_origin uuid) RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER AS $$BEGIN END$$;
CREATE FUNCTION relaunch(of_run bigint, slice_hosts jsonb, only_hosts jsonb, by_whom text) RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER AS $$BEGIN END$$;
CREATE FUNCTION ask_about_job(of_run bigint, on_host text, about jsonb, by_whom text) RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER AS $$BEGIN END$$;
CREATE FUNCTION claim(which bigint, job bigint, by_worker bigint, by_name text, its_versions jsonb, seconds double precision) RETURNS jsonb LANGUAGE plpgsql SECURITY DEFINER AS $$BEGIN END$$;
CREATE FUNCTION append_events(which bigint, of_attempt int, from_counter bigint, to_counter bigint, lines bytea, raw_size int, at_place text, new_progress jsonb) RETURNS text LANGUAGE plpgsql SECURITY DEFINER AS $$BEGIN END$$;
CREATE FUNCTION after_end(r run) RETURNS void LANGUAGE plpgsql AS $$BEGIN END$$;
CREATE FUNCTION finish(which bigint, of_attempt int, with_status text, with_rc int, with_sentence text, recap jsonb) RETURNS text LANGUAGE plpgsql SECURITY DEFINER AS $$BEGIN END$$;
CREATE FUNCTION give_up(which bigint, of_attempt int, seen_renewals bigint, why text) RETURNS text LANGUAGE plpgsql SECURITY DEFINER AS $$BEGIN END$$;
CREATE FUNCTION requeue(which bigint, old_job bigint) RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER AS $$BEGIN END$$;
CREATE FUNCTION drop_leftover_job(job bigint) RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER AS $$BEGIN END$$;
CREATE FUNCTION cancel(which bigint, by_whom text) RETURNS text LANGUAGE plpgsql SECURITY DEFINER AS $$BEGIN END$$;
CREATE FUNCTION put_bundle(its_sha256 text, its_content bytea) RETURNS void LANGUAGE plpgsql SECURITY DEFINER AS $$BEGIN END$$;
CREATE FUNCTION keep_bundle(its_sha256 text) RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER AS $$BEGIN END$$;
CREATE FUNCTION register_worker(its_name text, its_host text, its_pid int, its_labels text[], its_versions jsonb) RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER AS $$BEGIN END$$;
CREATE FUNCTION worker_seen(which bigint, is_stopping boolean) RETURNS void LANGUAGE plpgsql SECURITY DEFINER AS $$BEGIN END$$;
CREATE FUNCTION worker_here(which bigint, its_name text, its_host text, its_pid int, its_labels text[], its_versions jsonb, is_stopping boolean) RETURNS void LANGUAGE plpgsql SECURITY DEFINER AS $$BEGIN END$$;
CREATE FUNCTION remove_worker(which bigint) RETURNS void LANGUAGE plpgsql SECURITY DEFINER AS $$BEGIN END$$;
CREATE FUNCTION drop_unused_bundles(before timestamptz) RETURNS void LANGUAGE plpgsql AS $$BEGIN END$$;
CREATE FUNCTION prune(before timestamptz) RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER AS $$BEGIN END$$;
CREATE FUNCTION set_retention(event_days double precision, run_days double precision) RETURNS void LANGUAGE plpgsql SECURITY DEFINER AS $$BEGIN END$$;
CREATE FUNCTION apply_retention() RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER AS $$BEGIN END$$;
CREATE VIEW run_view AS
    SELECT id, parent_id, slice, slices, status, spec, project, bundle, hosts, lock, holds_lock, labels, priority, not_before, retries,
           queue_job, attempt, worker_id, worker_name, worker_versions, renewed, lost_after, counter, place, progress, note,
           cancel_requested, canceled_by, created, created_by, database_user, versions, started, ended, rc, sentence, relaunch_of,
           schedule_id, schedule_due, secrets <> '{}'::jsonb OR sealed IS NOT NULL AS has_secrets
    FROM run;
CREATE FUNCTION waits_for(which bigint) RETURNS text LANGUAGE plpgsql STABLE SECURITY DEFINER AS $$BEGIN END$$;
CREATE FUNCTION worker_key() RETURNS text LANGUAGE plpgsql STABLE SECURITY DEFINER AS $$BEGIN END$$;
CREATE FUNCTION offer_worker_key(public_key text) RETURNS text LANGUAGE plpgsql SECURITY DEFINER AS $$BEGIN END$$;
CREATE VIEW schedule_view AS
    SELECT id, name, cron, time_zone, enabled, due, if_running, request - 'secrets' - 'webhook' AS request, created, created_by, last_due, last_run, note
    FROM schedule;
CREATE FUNCTION limit_label(which text, new_most int) RETURNS void LANGUAGE plpgsql SECURITY DEFINER AS $$BEGIN END$$;
CREATE FUNCTION put_schedule(its_name text, its_cron text, its_zone text, next_due timestamptz, its_if_running text, its_request jsonb, sealed_values bytea, sealed_origin uuid, by_whom text) RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER AS $$BEGIN END$$;
CREATE FUNCTION remove_schedule(its_name text) RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER AS $$BEGIN END$$;
CREATE FUNCTION enable_schedule(its_name text, is_enabled boolean, next_due timestamptz) RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER AS $$BEGIN END$$;
CREATE FUNCTION fire_schedule(which bigint, at_due timestamptz, next_due timestamptz) RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER AS $$BEGIN END$$;
CREATE FUNCTION take_webhook() RETURNS jsonb LANGUAGE plpgsql SECURITY DEFINER AS $$BEGIN END$$;
CREATE FUNCTION webhook_done(which bigint, trouble text, most_tries int) RETURNS void LANGUAGE plpgsql SECURITY DEFINER AS $$BEGIN END$$;
