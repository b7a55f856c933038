-- SPDX-License-Identifier: GPL-3.0-or-later
-- What may be done with a queue. Every change is one function and so one statement: a client that is stopped or killed between two
-- statements leaves no open transaction behind that holds a lock. The functions are replaced as a whole by each upgrade; a function
-- that an older worker calls keeps its arguments.
--
-- Locks are taken in one order: the lock of the dispatcher, then rows of slices, then the row of their parent.

-- Taken by whatever may hand out a launch lock or count the runs of a label. Two of them never decide at the same time.
CREATE OR REPLACE FUNCTION take_dispatch_lock() RETURNS void LANGUAGE sql AS $$
    SELECT pg_advisory_xact_lock(718281828, 1)
$$;

-- Tell readers that a run changed. A hint only: readers also ask from time to time.
CREATE OR REPLACE FUNCTION tell(of_run bigint, root bigint, at_counter bigint, now_status text) RETURNS void LANGUAGE sql AS $$
    SELECT pg_notify('forkless_runs', json_build_object('run', of_run, 'root', root, 'counter', at_counter, 'status', now_status)::text)
$$;

-- The queue of procrastinate for a set of labels. The name is short because it becomes part of the name of a channel.
CREATE OR REPLACE FUNCTION queue_for(wanted text[]) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN cardinality(wanted) = 0 THEN 'forkless'
                ELSE 'forkless:' || left(encode(sha256(convert_to(
                    (SELECT string_agg(label, E'\n' ORDER BY label COLLATE "C") FROM unnest(wanted) AS label), 'UTF8')), 'hex'), 16) END
$$;

CREATE OR REPLACE FUNCTION put_job(of_run bigint, wanted text[], at_priority int) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    RETURN (procrastinate_defer_jobs_v1(ARRAY[ROW(
        queue_for(wanted), 'forkless.run', at_priority, NULL, NULL, jsonb_build_object('run', of_run), NULL
    )::procrastinate_job_to_defer_v1]))[1];
END;
$$;

-- Remove a job that nobody should work on any more. The worker that has it is refused by `claim` or `finish`.
CREATE OR REPLACE FUNCTION drop_job(job bigint) RETURNS void LANGUAGE sql AS $$
    DELETE FROM procrastinate_jobs WHERE id = job
$$;

-- Whether a worker was here within five minutes. A time in the future was written before the database's clock was set back.
CREATE OR REPLACE FUNCTION is_present(w worker) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT w.seen BETWEEN now() - interval '5 minutes' AND now() + interval '5 minutes'
$$;

-- Why a waiting run has no job yet, or NULL if it may have one now. The caller holds the dispatch lock.
CREATE OR REPLACE FUNCTION obstacle(r run) RETURNS text LANGUAGE plpgsql STABLE AS $$
DECLARE
    other bigint;
    one text;
BEGIN
    IF r.not_before > clock_timestamp() THEN
        RETURN 'it is to begin at ' || to_char(r.not_before AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS') || ' UTC';
    END IF;
    IF r.lock IS NOT NULL AND NOT r.holds_lock THEN
        SELECT id INTO other FROM run WHERE lock = r.lock AND holds_lock;
        IF FOUND THEN
            RETURN 'run ' || other || ' has the lock "' || r.lock || '"';
        END IF;
    END IF;
    SELECT l.label INTO one FROM label_limit l WHERE l.label = ANY (r.labels)
        AND (SELECT count(*) FROM run o WHERE o.slices = 0 AND l.label = ANY (o.labels) AND o.queue_job IS NOT NULL
             AND o.status IN ('waiting', 'running')) >= l.most LIMIT 1;
    IF FOUND THEN
        RETURN 'as many runs with the label ' || one || ' are under way as the limit allows';
    END IF;
    IF cardinality(r.labels) > 0 AND NOT EXISTS (
        SELECT 1 FROM worker w WHERE w.labels @> r.labels AND NOT w.stopping AND is_present(w)) THEN
        RETURN 'no worker has the label' || CASE WHEN cardinality(r.labels) > 1 THEN 's ' ELSE ' ' END || array_to_string(r.labels, ', ');
    END IF;
    RETURN NULL;
END;
$$;

-- Give a root run its lock and its jobs, if nothing stands in the way. The caller holds the dispatch lock.
CREATE OR REPLACE FUNCTION dispatch_one(which bigint) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    r run;
    child run;
BEGIN
    SELECT * INTO r FROM run WHERE id = which AND status IN ('waiting', 'running') AND parent_id IS NULL;
    IF NOT FOUND OR obstacle(r) IS NOT NULL THEN
        RETURN false;
    END IF;
    IF r.slices = 0 THEN
        IF r.status = 'waiting' AND r.queue_job IS NULL THEN
            UPDATE run SET queue_job = put_job(id, labels, priority), holds_lock = lock IS NOT NULL WHERE id = r.id;
        END IF;
        RETURN true;
    END IF;
    -- Slices: all at once, but for a limit of a label, which is looked at for each.
    FOR child IN SELECT * FROM run WHERE parent_id = r.id AND status = 'waiting' AND queue_job IS NULL ORDER BY slice LOOP
        EXIT WHEN obstacle(child) IS NOT NULL;
        UPDATE run SET queue_job = put_job(id, labels, priority) WHERE id = child.id;
    END LOOP;
    IF r.lock IS NOT NULL AND NOT r.holds_lock THEN
        UPDATE run SET holds_lock = true WHERE id = r.id;
    END IF;
    RETURN true;
END;
$$;

-- Hand a lock to the run that waits for it with the highest priority, the oldest first.
CREATE OR REPLACE FUNCTION dispatch_lock(which text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    candidate bigint;
BEGIN
    FOR candidate IN SELECT id FROM run WHERE lock = which AND status = 'waiting' AND parent_id IS NULL AND queue_job IS NULL
                     AND NOT holds_lock AND (not_before IS NULL OR not_before <= clock_timestamp())
                     AND NOT EXISTS (SELECT 1 FROM run holder WHERE holder.lock = which AND holder.holds_lock)
                     ORDER BY priority DESC, id LOOP
        EXIT WHEN dispatch_one(candidate);
    END LOOP;
END;
$$;

-- Take back jobs of runs that ask for labels which no worker has any more: they would keep their lock from others for ever.
CREATE OR REPLACE FUNCTION withdraw_unserved() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    one run;
BEGIN
    FOR one IN SELECT r.* FROM run r JOIN procrastinate_jobs j ON j.id = r.queue_job AND j.status = 'todo'
               WHERE r.status = 'waiting' AND cardinality(r.labels) > 0 AND r.attempt = 0 AND NOT EXISTS (
                   SELECT 1 FROM worker w WHERE w.labels @> r.labels AND NOT w.stopping AND is_present(w))
               ORDER BY r.id FOR UPDATE OF r, j SKIP LOCKED LOOP
        PERFORM drop_job(one.queue_job);
        UPDATE run SET queue_job = NULL, holds_lock = false WHERE id = one.id;
        UPDATE run p SET holds_lock = false WHERE p.id = one.parent_id AND p.status = 'waiting' AND NOT EXISTS (
            SELECT 1 FROM run c WHERE c.parent_id = p.id AND c.queue_job IS NOT NULL);
    END LOOP;
END;
$$;

-- Everything that may begin now: called by workers every few seconds, and when a worker appears.
CREATE OR REPLACE FUNCTION dispatch_due() RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = forkless, pg_temp AS $$
DECLARE
    candidate record;
BEGIN
    IF NOT pg_try_advisory_xact_lock(718281828, 1) THEN
        RETURN;
    END IF;
    PERFORM withdraw_unserved();
    FOR candidate IN
        SELECT DISTINCT r.lock FROM run r WHERE r.status = 'waiting' AND r.parent_id IS NULL AND r.queue_job IS NULL
            AND r.lock IS NOT NULL AND NOT r.holds_lock AND (r.not_before IS NULL OR r.not_before <= clock_timestamp())
            AND NOT EXISTS (SELECT 1 FROM run h WHERE h.lock = r.lock AND h.holds_lock) LIMIT 500 LOOP
        PERFORM dispatch_lock(candidate.lock);
    END LOOP;
    FOR candidate IN
        SELECT r.id FROM run r WHERE r.status = 'waiting' AND r.parent_id IS NULL AND r.queue_job IS NULL AND r.slices = 0
            AND (r.lock IS NULL OR r.holds_lock) AND (r.not_before IS NULL OR r.not_before <= clock_timestamp())
        UNION
        SELECT coalesce(c.parent_id, c.id) FROM run c JOIN run p ON p.id = c.parent_id WHERE c.status = 'waiting' AND c.queue_job IS NULL
            AND (p.lock IS NULL OR p.holds_lock) AND (p.not_before IS NULL OR p.not_before <= clock_timestamp())
        LIMIT 2000 LOOP
        PERFORM dispatch_one(candidate.id);
    END LOOP;
END;
$$;

-- Queue a run: one row, or one and a row for each slice. Returns its number; NULL if the message that asks for it was received before.
CREATE OR REPLACE FUNCTION launch(request jsonb, sealed_values bytea, sealed_origin uuid) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = forkless, pg_temp AS $$
DECLARE
    new_id bigint;
    parts jsonb := coalesce(request -> 'slice_hosts', '[]');
    part jsonb;
    number int := 0;
BEGIN
    PERFORM take_dispatch_lock();
    -- Together with the run: a message is taken if its run is there, and only then.
    IF jsonb_typeof(request -> 'delivery') = 'array' THEN
        DELETE FROM page_delivery WHERE at < now() - interval '1 year';
        INSERT INTO page_delivery (hook, delivery) VALUES (request #>> '{delivery,0}', request #>> '{delivery,1}') ON CONFLICT DO NOTHING;
        IF NOT FOUND THEN
            RETURN NULL;
        END IF;
    END IF;
    IF request ->> 'bundle' IS NOT NULL THEN
        UPDATE bundle SET used = now() WHERE sha256 = request ->> 'bundle';
    END IF;
    INSERT INTO run (slices, spec, project, bundle, hosts, origin, sealed, secrets, lock, labels, priority, not_before, retries,
                     created_by, versions, relaunch_of, schedule_id, schedule_due, webhook)
    SELECT jsonb_array_length(parts), request -> 'spec', request -> 'project', request ->> 'bundle',
           CASE WHEN request ? 'hosts' AND jsonb_typeof(request -> 'hosts') = 'array'
                THEN ARRAY(SELECT jsonb_array_elements_text(request -> 'hosts')) END,
           sealed_origin, sealed_values, coalesce(request -> 'secrets', '{}'), request ->> 'lock',
           ARRAY(SELECT jsonb_array_elements_text(coalesce(request -> 'labels', '[]')) ORDER BY 1),
           coalesce((request ->> 'priority')::int, 0), (request ->> 'not_before')::timestamptz,
           coalesce((request ->> 'retries')::int, 0), coalesce(request ->> 'created_by', session_user),
           coalesce(request -> 'versions', '{}'), (request ->> 'relaunch_of')::bigint,
           (request ->> 'schedule_id')::bigint, (request ->> 'schedule_due')::timestamptz,
           CASE WHEN jsonb_typeof(request -> 'webhook') = 'object' THEN request -> 'webhook' END
    RETURNING id INTO new_id;
    FOR part IN SELECT jsonb_array_elements(parts) LOOP
        number := number + 1;
        INSERT INTO run (parent_id, slice, spec, project, bundle, hosts, origin, sealed, secrets, labels, priority, retries, created_by, versions)
        SELECT id, number, spec, project, bundle, ARRAY(SELECT jsonb_array_elements_text(part)), origin, sealed, secrets, labels, priority,
               retries, created_by, versions FROM run WHERE id = new_id;
    END LOOP;
    IF request ->> 'lock' IS NULL THEN
        PERFORM dispatch_one(new_id);
    ELSE
        PERFORM dispatch_lock(request ->> 'lock');
    END IF;
    PERFORM tell(new_id, new_id, 0, 'waiting');
    RETURN new_id;
END;
$$;

-- Run the same again: the same project, values and secrets. `slice_hosts` and `only_hosts` say on which hosts.
CREATE OR REPLACE FUNCTION relaunch(of_run bigint, slice_hosts jsonb, only_hosts jsonb, by_whom text) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = forkless, pg_temp AS $$
DECLARE
    r run;
BEGIN
    SELECT * INTO r FROM run WHERE id = of_run;
    IF NOT FOUND THEN
        RAISE no_data_found USING MESSAGE = 'there is no run ' || of_run;
    END IF;
    RETURN launch(jsonb_build_object(
        'spec', r.spec, 'project', r.project, 'bundle', r.bundle, 'secrets', r.secrets, 'labels', to_jsonb(r.labels),
        'lock', coalesce(r.lock, (SELECT p.lock FROM run p WHERE p.id = r.parent_id)),
        'priority', r.priority, 'retries', r.retries, 'webhook', r.webhook, 'created_by', by_whom, 'versions', r.versions,
        'relaunch_of', r.id, 'slice_hosts', slice_hosts, 'hosts', coalesce(only_hosts, to_jsonb(r.hosts))), r.sealed, r.origin);
END;
$$;

-- Ask a host about a job that outlives its play, with the project, inventory and secrets of a run. Only the one action can be asked for, on a
-- plain name of a host, and about names in which Ansible finds no template: a template would be carried out on the worker.
CREATE OR REPLACE FUNCTION ask_about_job(of_run bigint, on_host text, about jsonb, by_whom text) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = forkless, pg_temp AS $$
DECLARE
    r run;
    asked jsonb := jsonb_build_object('op', about ->> 'op', 'id', about ->> 'id', 'job_name', about ->> 'job_name',
        'playbook_name', about ->> 'playbook_name', 'backend', about ->> 'backend');
BEGIN
    IF (on_host ~ '^[A-Za-z0-9_][A-Za-z0-9_.-]*$' AND asked ->> 'op' IN ('status', 'output', 'kill') AND asked ->> 'id' ~ '^[0-9a-f]{16}$'
        AND starts_with(asked ->> 'backend', 'queue:')
        AND strpos((asked ->> 'job_name') || (asked ->> 'playbook_name') || (asked ->> 'backend'), '{') = 0) IS NOT TRUE THEN
        RAISE data_exception USING MESSAGE = 'a host cannot be asked that about a job';
    END IF;
    -- A plain name may be that of a group: only a host has a record of the job.
    IF NOT EXISTS (SELECT FROM job_record j WHERE CASE
        WHEN left(encode(sha256(convert_to(j.scope, 'UTF8') || '\x00'::bytea || convert_to(j.stem, 'UTF8')), 'hex'), 16) = asked ->> 'id'
        THEN convert_from(j.body, 'UTF8')::jsonb ->> 'host' = on_host ELSE false END) THEN
        RAISE no_data_found USING MESSAGE = 'there is no such job on ' || on_host;
    END IF;
    SELECT * INTO r FROM run WHERE id = of_run;
    IF NOT FOUND THEN
        RAISE no_data_found USING MESSAGE = 'there is no run ' || of_run;
    END IF;
    RETURN launch(jsonb_build_object(
        'spec', jsonb_strip_nulls(jsonb_build_object('module', 'forkless.core.async_job', 'hosts', on_host, 'inventory', r.spec -> 'inventory',
            'become', r.spec -> 'become', 'args', r.spec -> 'args', 'names', r.spec -> 'names', 'job', asked)),
        'project', r.project, 'bundle', r.bundle, 'secrets', r.secrets, 'labels', to_jsonb(r.labels), 'priority', greatest(r.priority, 10),
        'created_by', by_whom, 'versions', r.versions), r.sealed, r.origin);
END;
$$;

-- Take a run on. Refused (no row) unless the run still waits and its job is the caller's.
CREATE OR REPLACE FUNCTION claim(which bigint, job bigint, by_worker bigint, by_name text, its_versions jsonb, seconds double precision)
RETURNS jsonb LANGUAGE plpgsql SECURITY DEFINER SET search_path = forkless, pg_temp AS $$
DECLARE
    r run;
    p run;
BEGIN
    UPDATE run SET status = 'running', attempt = attempt + 1, worker_id = by_worker, worker_name = by_name, worker_versions = its_versions,
        renewals = renewals + 1, renewed = now(), lost_after = seconds, attempt_counter = 0, place = NULL, progress = '{}', note = NULL,
        started = coalesce(started, now())
    WHERE id = which AND queue_job = job AND status = 'waiting' RETURNING * INTO r;
    IF NOT FOUND THEN
        -- The same worker asks again for the same job because the answer was lost.
        UPDATE run SET renewals = renewals + 1, renewed = now()
        WHERE id = which AND queue_job = job AND status = 'running' AND worker_id = by_worker RETURNING * INTO r;
        IF NOT FOUND THEN
            RETURN NULL;
        END IF;
    END IF;
    IF r.versions ->> 'ansible_core' IS DISTINCT FROM its_versions ->> 'ansible_core'
       OR substring(r.versions ->> 'python' from '^\d+\.\d+') IS DISTINCT FROM substring(its_versions ->> 'python' from '^\d+\.\d+') THEN
        UPDATE run SET note = format('launched with ansible-core %s on Python %s, carried out with ansible-core %s on Python %s',
            r.versions ->> 'ansible_core', r.versions ->> 'python', its_versions ->> 'ansible_core', its_versions ->> 'python')
        WHERE id = r.id RETURNING * INTO r;
    END IF;
    IF r.parent_id IS NOT NULL THEN
        UPDATE run SET status = 'running', started = coalesce(started, now()) WHERE id = r.parent_id AND status = 'waiting';
    END IF;
    SELECT * INTO p FROM run WHERE id = coalesce(r.parent_id, r.id);
    PERFORM tell(r.id, p.id, p.counter, 'running');
    RETURN to_jsonb(r) - 'sealed' || jsonb_build_object('sealed', encode(r.sealed, 'base64'), 'sliced', r.parent_id IS NOT NULL);
END;
$$;

-- Go on with an attempt over a new connection. Returns how many of the attempt's events are here; NULL if the attempt is another worker's.
-- After a failover, this server may lack what the one before it confirmed last: events, which the worker sends again, or the claim itself,
-- which is made again unless another worker was first.
CREATE OR REPLACE FUNCTION resume(which bigint, of_attempt int, job bigint, by_worker bigint, by_name text, its_versions jsonb,
    seconds double precision) RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER SET search_path = forkless, pg_temp AS $$
DECLARE
    r run;
BEGIN
    SELECT * INTO r FROM run WHERE id = which FOR UPDATE;
    IF r.attempt = of_attempt AND r.worker_id = by_worker AND r.worker_name = by_name THEN
        RETURN r.attempt_counter;
    END IF;
    -- An attempt that was given up never looks like this: it keeps its number, and the run has another job.
    IF r.attempt = of_attempt - 1 AND r.queue_job = job AND claim(which, job, by_worker, by_name, its_versions, seconds) IS NOT NULL THEN
        RETURN 0;
    END IF;
    RETURN NULL;
END;
$$;

-- Renew an attempt and store a batch of its events, if there is one. 'refused' means that the attempt is over for the database.
-- The row lock of the UPDATE is what fences: a check without it lets a batch in after the attempt was given up.
CREATE OR REPLACE FUNCTION append_events(which bigint, of_attempt int, from_counter bigint, to_counter bigint, lines bytea, raw_size int,
    at_place text, new_progress jsonb) RETURNS text LANGUAGE plpgsql SECURITY DEFINER SET search_path = forkless, pg_temp AS $$
DECLARE
    r run;
    root bigint;
    at_counter bigint;
BEGIN
    UPDATE run SET renewals = renewals + 1, renewed = now(), place = at_place, progress = coalesce(new_progress, progress)
    WHERE id = which AND attempt = of_attempt AND status = 'running' RETURNING * INTO r;
    IF NOT FOUND THEN
        RETURN 'refused';
    END IF;
    -- The same batch again, after an answer that was lost, is there already.
    IF lines IS NOT NULL AND r.attempt_counter <> to_counter THEN
        IF r.attempt_counter <> from_counter - 1 THEN
            RAISE data_exception USING MESSAGE =
                format('events %s to %s of run %s do not follow event %s', from_counter, to_counter, which, r.attempt_counter);
        END IF;
        root := coalesce(r.parent_id, r.id);
        UPDATE run SET attempt_counter = to_counter WHERE id = r.id;
        UPDATE run SET counter = counter + (to_counter - from_counter + 1) WHERE id = root RETURNING counter INTO at_counter;
        INSERT INTO event_batch (run_id, attempt, first, last, root_id, root_last, size, events)
        VALUES (which, of_attempt, from_counter, to_counter, root, at_counter, raw_size, lines);
        PERFORM tell(which, root, at_counter, 'running');
    END IF;
    RETURN CASE WHEN r.cancel_requested IS NULL THEN 'ok' ELSE 'cancel' END;
END;
$$;

-- What follows from the end of a run: the parent's state, the lock, messages. The caller holds the dispatch lock.
CREATE OR REPLACE FUNCTION after_end(r run) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    root run;
    open_slices bigint;
BEGIN
    IF r.parent_id IS NULL THEN
        root := r;
    ELSE
        SELECT count(*) INTO open_slices FROM run WHERE parent_id = r.parent_id AND status IN ('waiting', 'running');
        IF open_slices = 0 THEN
            UPDATE run SET ended = now(),
                status = (SELECT s FROM unnest(ARRAY['lost', 'failed', 'canceled', 'successful']) WITH ORDINALITY AS t(s, n)
                          WHERE EXISTS (SELECT 1 FROM run c WHERE c.parent_id = r.parent_id AND c.status = s) ORDER BY n LIMIT 1),
                rc = (SELECT max(c.rc) FROM run c WHERE c.parent_id = r.parent_id),
                sentence = (SELECT string_agg('slice ' || c.slice || ': ' || c.sentence, '; ' ORDER BY c.slice)
                            FROM run c WHERE c.parent_id = r.parent_id AND c.sentence <> '')
            WHERE id = r.parent_id AND status IN ('waiting', 'running') RETURNING * INTO root;
        ELSE
            SELECT * INTO root FROM run WHERE id = r.parent_id;
        END IF;
        PERFORM tell(r.id, root.id, root.counter, r.status);
    END IF;
    IF root.status NOT IN ('waiting', 'running') THEN
        IF root.webhook IS NOT NULL THEN
            INSERT INTO webhook (run_id, url, secret) VALUES (root.id, root.webhook ->> 'url', root.webhook ->> 'secret');
        END IF;
        IF root.holds_lock THEN
            UPDATE run SET holds_lock = false WHERE id = root.id;
            PERFORM dispatch_lock(root.lock);
        END IF;
    END IF;
    PERFORM tell(root.id, root.id, root.counter, root.status);
END;
$$;

-- Write the result of an attempt. Saying the same twice is accepted; an attempt that was given up is refused.
CREATE OR REPLACE FUNCTION finish(which bigint, of_attempt int, with_status text, with_rc int, with_sentence text, recap jsonb)
RETURNS text LANGUAGE plpgsql SECURITY DEFINER SET search_path = forkless, pg_temp AS $$
DECLARE
    r run;
BEGIN
    PERFORM take_dispatch_lock();
    UPDATE run SET status = with_status, rc = with_rc, sentence = with_sentence, ended = now(), renewed = now(), place = NULL
    WHERE id = which AND attempt = of_attempt AND status = 'running' RETURNING * INTO r;
    IF NOT FOUND THEN
        RETURN CASE WHEN EXISTS (SELECT 1 FROM run WHERE id = which AND attempt = of_attempt AND status = with_status
                                 AND ended IS NOT NULL AND rc IS NOT DISTINCT FROM with_rc) THEN 'ok' ELSE 'refused' END;
    END IF;
    INSERT INTO host (run_id, host, ok, changed, unreachable, failed, skipped, rescued, ignored)
    SELECT which, key, (value ->> 'ok')::int, (value ->> 'changed')::int, (value ->> 'dark')::int, (value ->> 'failures')::int,
           (value ->> 'skipped')::int, (value ->> 'rescued')::int, (value ->> 'ignored')::int
    FROM jsonb_each(coalesce(recap, '{}')) ON CONFLICT DO NOTHING;
    PERFORM after_end(r);
    RETURN 'ok';
END;
$$;

-- Give an attempt up: because its worker gave no sign of life for too long (`seen_renewals`: what was seen then, and must still be so),
-- or because its worker hands it back. It begins again only if it was launched with retries.
CREATE OR REPLACE FUNCTION give_up(which bigint, of_attempt int, seen_renewals bigint, why text) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = forkless, pg_temp AS $$
DECLARE
    r run;
    told text;
BEGIN
    PERFORM take_dispatch_lock();
    SELECT * INTO r FROM run WHERE id = which AND attempt = of_attempt AND status = 'running'
        AND (seen_renewals IS NULL OR renewals = seen_renewals) FOR UPDATE;
    IF NOT FOUND THEN
        RETURN 'refused';
    END IF;
    PERFORM drop_job(r.queue_job);
    told := why || coalesce('; it was at ' || r.place, '');
    IF r.cancel_requested IS NULL AND r.attempt <= r.retries THEN
        UPDATE run SET status = 'waiting', queue_job = put_job(id, labels, priority), note = 'attempt ' || r.attempt || ': ' || told
        WHERE id = which RETURNING * INTO r;
        PERFORM tell(r.id, coalesce(r.parent_id, r.id), (SELECT counter FROM run WHERE id = coalesce(r.parent_id, r.id)), 'waiting');
        RETURN 'waiting';
    END IF;
    UPDATE run SET status = CASE WHEN r.cancel_requested IS NULL THEN 'lost' ELSE 'canceled' END, sentence = told, ended = now(),
        rc = CASE WHEN r.cancel_requested IS NULL THEN 250 ELSE 254 END
    WHERE id = which RETURNING * INTO r;
    PERFORM after_end(r);
    RETURN r.status;
END;
$$;

-- A new job for a run whose job was fetched by a worker that died before it claimed the run. A late claim is refused.
CREATE OR REPLACE FUNCTION requeue(which bigint, old_job bigint) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = forkless, pg_temp AS $$
DECLARE
    r run;
BEGIN
    SELECT * INTO r FROM run WHERE id = which AND status = 'waiting' AND queue_job = old_job FOR UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM drop_job(old_job);
    UPDATE run SET queue_job = put_job(id, labels, priority) WHERE id = which;
    RETURN true;
END;
$$;

-- Jobs that procrastinate still has, although no run waits for them or is carried out by them: a worker died before it could say so.
CREATE OR REPLACE FUNCTION drop_leftover_job(job bigint) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = forkless, pg_temp AS $$
BEGIN
    DELETE FROM procrastinate_jobs j WHERE j.id = job AND j.task_name = 'forkless.run' AND NOT EXISTS (
        SELECT 1 FROM run r WHERE r.queue_job = j.id AND r.status IN ('waiting', 'running'));
    RETURN FOUND;
END;
$$;

-- Ask for the end of a run. One that waits is over at once; one that runs is told, and ends when its worker heard it or was given up.
CREATE OR REPLACE FUNCTION cancel(which bigint, by_whom text) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = forkless, pg_temp AS $$
DECLARE
    r run;
    one run;
BEGIN
    PERFORM take_dispatch_lock();
    IF NOT EXISTS (SELECT 1 FROM run WHERE id = which) THEN
        RETURN NULL;
    END IF;
    FOR one IN SELECT * FROM run WHERE (id = which OR parent_id = which) AND slices = 0 AND status IN ('waiting', 'running')
               ORDER BY id FOR UPDATE LOOP
        IF one.status = 'waiting' THEN
            PERFORM drop_job(one.queue_job);
            UPDATE run SET status = 'canceled', ended = now(), rc = 254, canceled_by = by_whom, cancel_requested = now(),
                sentence = 'canceled by ' || by_whom || ' before it began' WHERE id = one.id RETURNING * INTO r;
            PERFORM after_end(r);
        ELSE
            UPDATE run SET cancel_requested = coalesce(cancel_requested, now()), canceled_by = coalesce(canceled_by, by_whom)
            WHERE id = one.id;
            PERFORM pg_notify('forkless_cancel', one.id::text);
        END IF;
    END LOOP;
    UPDATE run SET cancel_requested = coalesce(cancel_requested, now()), canceled_by = coalesce(canceled_by, by_whom)
    WHERE id = which AND slices > 0 AND status IN ('waiting', 'running');
    RETURN (SELECT status FROM run WHERE id = which);
END;
$$;

CREATE OR REPLACE FUNCTION put_bundle(its_sha256 text, its_content bytea) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = forkless, pg_temp AS $$
BEGIN
    IF encode(sha256(its_content), 'hex') <> its_sha256 THEN
        RAISE data_exception USING MESSAGE = 'the content of the bundle does not have the hash ' || its_sha256;
    END IF;
    INSERT INTO bundle (sha256, content) VALUES (its_sha256, its_content) ON CONFLICT (sha256) DO UPDATE SET used = now();
END;
$$;

-- Whether a bundle is there already; it is kept for this launch then.
CREATE OR REPLACE FUNCTION keep_bundle(its_sha256 text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = forkless, pg_temp AS $$
BEGIN
    UPDATE bundle SET used = now() WHERE sha256 = its_sha256;
    RETURN FOUND;
END;
$$;

CREATE OR REPLACE FUNCTION register_worker(its_name text, its_host text, its_pid int, its_labels text[], its_versions jsonb) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = forkless, pg_temp AS $$
DECLARE
    new_id bigint;
BEGIN
    DELETE FROM worker WHERE seen < now() - interval '1 day';
    INSERT INTO worker (name, host, pid, labels, versions)
    VALUES (its_name, its_host, its_pid, ARRAY(SELECT unnest(its_labels) ORDER BY 1), its_versions) RETURNING id INTO new_id;
    RETURN new_id;
END;
$$;

-- For workers before version 2, which are not put back if they were forgotten.
CREATE OR REPLACE FUNCTION worker_seen(which bigint, is_stopping boolean) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = forkless, pg_temp AS $$
    UPDATE worker SET seen = now(), stopping = is_stopping WHERE id = which
$$;

-- A worker says that it is there. One that was forgotten meanwhile, after a day of sleep, is put back under its number.
CREATE OR REPLACE FUNCTION worker_here(which bigint, its_name text, its_host text, its_pid int, its_labels text[], its_versions jsonb,
    is_stopping boolean) RETURNS void LANGUAGE sql SECURITY DEFINER SET search_path = forkless, pg_temp AS $$
    INSERT INTO worker (id, name, host, pid, labels, versions, stopping) OVERRIDING SYSTEM VALUE
    VALUES (which, its_name, its_host, its_pid, ARRAY(SELECT unnest(its_labels) ORDER BY 1), its_versions, is_stopping)
    ON CONFLICT (id) DO UPDATE SET seen = now(), stopping = is_stopping
$$;

CREATE OR REPLACE FUNCTION remove_worker(which bigint) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = forkless, pg_temp AS $$
    DELETE FROM worker WHERE id = which
$$;

CREATE OR REPLACE FUNCTION drop_unused_bundles(before timestamptz) RETURNS void LANGUAGE sql AS $$
    DELETE FROM bundle b WHERE b.used < least(before, now() - interval '1 hour') AND NOT EXISTS (SELECT 1 FROM run r WHERE r.bundle = b.sha256)
        AND NOT EXISTS (SELECT 1 FROM schedule s WHERE s.request ->> 'bundle' = b.sha256)
$$;

-- Delete runs, with their events, that ended before a time, and bundles that no run uses. Returns how many runs.
CREATE OR REPLACE FUNCTION prune(before timestamptz) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = forkless, pg_temp AS $$
DECLARE
    many bigint;
BEGIN
    DELETE FROM run WHERE parent_id IS NULL AND ended < before;
    GET DIAGNOSTICS many = ROW_COUNT;
    PERFORM drop_unused_bundles(before);
    RETURN many;
END;
$$;

-- How many days events, and runs with all that belongs to them, are kept after the end of their run. NULL: as before; 0: for ever.
CREATE OR REPLACE FUNCTION set_retention(event_days double precision, run_days double precision) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = forkless, pg_temp AS $$
DECLARE
    one record;
BEGIN
    FOR one IN SELECT * FROM (VALUES ('keep_events', event_days), ('keep_runs', run_days)) AS v(name, days) WHERE days IS NOT NULL LOOP
        DELETE FROM setting WHERE name = one.name;
        IF one.days > 0 THEN
            INSERT INTO setting (name, value) VALUES (one.name, one.days::text);
        END IF;
    END LOOP;
END;
$$;

-- Delete what was kept long enough, a part at a time: workers call this again and again. Returns whether there may be more.
CREATE OR REPLACE FUNCTION apply_retention() RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = forkless, pg_temp AS $$
DECLARE
    days double precision;
    many bigint := 0;
    more boolean := false;
BEGIN
    IF NOT pg_try_advisory_xact_lock(718281828, 4) THEN
        RETURN false;
    END IF;
    SELECT value::double precision INTO days FROM setting WHERE name = 'keep_events';
    IF FOUND THEN
        DELETE FROM event_batch WHERE ctid = ANY (ARRAY(SELECT b.ctid FROM run r JOIN event_batch b ON b.root_id = r.id
            WHERE r.parent_id IS NULL AND r.ended < now() - make_interval(secs => days * 86400) LIMIT 2000));
        GET DIAGNOSTICS many = ROW_COUNT;
        more := many = 2000;
    END IF;
    SELECT value::double precision INTO days FROM setting WHERE name = 'keep_runs';
    IF FOUND THEN
        DELETE FROM run WHERE id = ANY (ARRAY(SELECT id FROM run WHERE parent_id IS NULL AND ended < now() - make_interval(secs => days * 86400)
            ORDER BY ended LIMIT 100));
        GET DIAGNOSTICS many = ROW_COUNT;
        more := more OR many = 100;
        IF many > 0 THEN
            PERFORM drop_unused_bundles(now() - make_interval(secs => days * 86400));
        END IF;
    END IF;
    RETURN more;
END;
$$;

-- What a reader may see of runs: no sealed value, no reference to a secret.
CREATE OR REPLACE VIEW run_view AS
    SELECT id, parent_id, slice, slices, status, spec, project, bundle, hosts, lock, holds_lock, labels, priority, not_before, retries,
           queue_job, attempt, worker_id, worker_name, worker_versions, renewed, lost_after, counter, place, progress, note,
           cancel_requested, canceled_by, created, created_by, database_user, versions, started, ended, rc, sentence, relaunch_of,
           schedule_id, schedule_due, secrets <> '{}'::jsonb OR sealed IS NOT NULL AS has_secrets
    FROM run;

CREATE OR REPLACE FUNCTION waits_for(which bigint) RETURNS text
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = forkless, pg_temp AS $$
DECLARE
    r run;
    holder bigint;
BEGIN
    SELECT * INTO r FROM run WHERE id = which AND status = 'waiting';
    IF NOT FOUND OR r.queue_job IS NOT NULL THEN
        RETURN NULL;
    END IF;
    IF r.parent_id IS NOT NULL THEN
        RETURN coalesce(waits_for(r.parent_id), obstacle(r));
    END IF;
    RETURN obstacle(r);
END;
$$;

-- The workers' public key: what launchers seal for. The first one that is offered stays.
CREATE OR REPLACE FUNCTION worker_key() RETURNS text LANGUAGE sql STABLE SECURITY DEFINER SET search_path = forkless, pg_temp AS $$
    SELECT value FROM setting WHERE name = 'worker_key'
$$;

CREATE OR REPLACE FUNCTION offer_worker_key(public_key text) RETURNS text
LANGUAGE sql SECURITY DEFINER SET search_path = forkless, pg_temp AS $$
    INSERT INTO setting (name, value) VALUES ('worker_key', public_key) ON CONFLICT (name) DO NOTHING;
    SELECT value FROM setting WHERE name = 'worker_key'
$$;

CREATE OR REPLACE VIEW schedule_view AS
    SELECT id, name, cron, time_zone, enabled, due, if_running, request - 'secrets' - 'webhook' AS request, created, created_by, last_due, last_run, note
    FROM schedule;

CREATE OR REPLACE FUNCTION limit_label(which text, new_most int) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = forkless, pg_temp AS $$
BEGIN
    DELETE FROM label_limit WHERE label = which;
    IF new_most > 0 THEN
        INSERT INTO label_limit (label, most) VALUES (which, new_most);
    END IF;
END;
$$;

-- -- schedules --------------------------------------------------------------------------------------------------

CREATE OR REPLACE FUNCTION put_schedule(its_name text, its_cron text, its_zone text, next_due timestamptz, its_if_running text,
    its_request jsonb, sealed_values bytea, sealed_origin uuid, by_whom text) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = forkless, pg_temp AS $$
DECLARE
    new_id bigint;
BEGIN
    INSERT INTO schedule (name, cron, time_zone, due, if_running, request, sealed, origin, created_by)
    VALUES (its_name, its_cron, its_zone, next_due, its_if_running, its_request, sealed_values, sealed_origin, by_whom)
    ON CONFLICT (name) DO NOTHING RETURNING id INTO new_id;
    RETURN new_id;
END;
$$;

CREATE OR REPLACE FUNCTION remove_schedule(its_name text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = forkless, pg_temp AS $$
BEGIN
    DELETE FROM schedule WHERE name = its_name;
    RETURN FOUND;
END;
$$;

-- Pause (no next time) or go on from the next time.
CREATE OR REPLACE FUNCTION enable_schedule(its_name text, is_enabled boolean, next_due timestamptz) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = forkless, pg_temp AS $$
BEGIN
    UPDATE schedule SET enabled = is_enabled, due = next_due, note = NULL WHERE name = its_name;
    RETURN FOUND;
END;
$$;

-- Launch what a schedule is for, once for each due time, however many workers ask, and set the next one.
-- Returns the run, or NULL if another worker was first, or the time was left out.
CREATE OR REPLACE FUNCTION fire_schedule(which bigint, at_due timestamptz, next_due timestamptz) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = forkless, pg_temp AS $$
DECLARE
    s schedule;
    new_run bigint;
BEGIN
    PERFORM take_dispatch_lock();
    SELECT * INTO s FROM schedule WHERE id = which AND enabled AND due = at_due FOR UPDATE;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    IF s.due > clock_timestamp() THEN
        -- The clock was ahead when this due time was set, and is right again.
        UPDATE schedule SET due = least(due, next_due) WHERE id = which AND next_due > clock_timestamp();
        RETURN NULL;
    END IF;
    IF EXISTS (SELECT 1 FROM run WHERE schedule_id = which AND schedule_due = s.due) THEN
        -- The clock went back after this time was launched, and the due time was set back to it.
        UPDATE schedule SET due = next_due WHERE id = which;
        RETURN NULL;
    END IF;
    IF s.due < clock_timestamp() - interval '10 minutes' THEN
        UPDATE schedule SET due = next_due, note = 'left out at ' || to_char(s.due AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI') ||
            ' UTC: it was more than 10 minutes late' WHERE id = which;
        RETURN NULL;
    END IF;
    IF s.if_running = 'skip' AND EXISTS (SELECT 1 FROM run WHERE schedule_id = which AND status IN ('waiting', 'running')) THEN
        UPDATE schedule SET due = next_due, note = 'left out at ' || to_char(s.due AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI') ||
            ' UTC: the run before it had not ended' WHERE id = which;
        RETURN NULL;
    END IF;
    new_run := launch(s.request || jsonb_build_object('schedule_id', s.id, 'schedule_due', s.due, 'created_by', 'schedule ' || s.name),
                      s.sealed, s.origin);
    UPDATE schedule SET due = next_due, last_due = s.due, last_run = new_run, note = NULL WHERE id = which;
    RETURN new_run;
END;
$$;

-- -- messages at the end of a run -------------------------------------------------------------------------------

-- How long a message waits after so many tries.
CREATE OR REPLACE FUNCTION webhook_pause(after_tries int) RETURNS interval LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN after_tries > 0 THEN least(interval '1 hour', interval '15 seconds' * power(2, after_tries - 1)) ELSE interval '0' END
$$;

-- Take the next message that is due. Whoever takes it has it for a while; if it is not delivered by then, it is due again.
-- One that would wait longer than any pause was put off before the database's clock was set back.
CREATE OR REPLACE FUNCTION take_webhook() RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER SET search_path = forkless, pg_temp AS $$
DECLARE
    w webhook;
    r run;
BEGIN
    UPDATE webhook SET tries = tries + 1, next_try = now() + webhook_pause(tries + 1)
    WHERE id = (SELECT id FROM webhook WHERE delivered IS NULL AND NOT given_up
                AND (next_try <= now() OR next_try > now() + webhook_pause(tries)) ORDER BY next_try LIMIT 1 FOR UPDATE SKIP LOCKED)
    RETURNING * INTO w;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    SELECT * INTO r FROM run WHERE id = w.run_id;
    RETURN jsonb_build_object('id', w.id, 'url', w.url, 'secret', w.secret, 'tries', w.tries, 'run', jsonb_build_object(
        'id', r.id, 'status', r.status, 'rc', r.rc, 'sentence', r.sentence, 'playbook', r.spec -> 'playbook', 'limit', r.spec -> 'limit',
        'created', r.created, 'created_by', r.created_by, 'started', r.started, 'ended', r.ended, 'slices', r.slices, 'attempt', r.attempt));
END;
$$;

CREATE OR REPLACE FUNCTION webhook_done(which bigint, trouble text, most_tries int) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = forkless, pg_temp AS $$
    UPDATE webhook SET delivered = CASE WHEN trouble IS NULL THEN now() END, problem = trouble,
        given_up = trouble IS NOT NULL AND tries >= most_tries WHERE id = which
$$;
