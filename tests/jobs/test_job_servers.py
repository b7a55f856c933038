# SPDX-License-Identifier: GPL-3.0-or-later
"""What only a real server can show: conditions that are ignored, a wrong password, a server that dies in mid-write."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import json
import signal
import threading
import urllib.request

import pytest

from forkless import ConflictError, StoreError, UnsupportedError, jobs
from forkless.jobs import Key

pytestmark = [pytest.mark.xdist_group("jobs-servers"), pytest.mark.timeout(240)]
KEY = Key("h", "j")


@contextlib.contextmanager
def book_on(url):
    store = jobs.open_store(url)
    try:
        yield jobs.JobRegistry(store)
    finally:
        store.close()


def s3(server, bucket="jobs", prefix="x"):
    return f"s3://{bucket}/{prefix}?endpoint={server.url}&region=us-east-1"


def test_a_server_that_ignores_conditions_is_refused_in_one_sentence(rclone):
    with book_on(s3(rclone)) as registry:
        with pytest.raises(UnsupportedError, match="ignores `If-None-Match") as caught:
            registry.claim(KEY)
        assert "\n" not in str(caught.value)
        with pytest.raises(UnsupportedError):
            registry.save(KEY, "j1.1")


def test_a_server_that_does_not_know_conditions_is_refused_in_one_sentence(weed, monkeypatch):
    import botocore.exceptions

    with book_on(s3(weed, prefix="swift")) as registry:
        client = registry.store._client()

        def not_implemented(**ignored):
            answer = {"Error": {"Code": "NotImplemented"}, "ResponseMetadata": {"HTTPStatusCode": 501}}
            raise botocore.exceptions.ClientError(answer, "PutObject")

        monkeypatch.setattr(client, "put_object", not_implemented)
        with pytest.raises(UnsupportedError, match="does not know `If-None-Match"):
            registry.claim(KEY)


def test_a_server_that_checks_conditions_and_nothing_else_keeps_claims_apart(moto, monkeypatch):
    """moto lets everyone in; that is the server's business, as long as it says who was first."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with book_on(s3(moto)) as registry, book_on(s3(moto)) as other:
        token = registry.claim(KEY).claim["token"]
        with pytest.raises(ConflictError, match="being started by another controller"):
            other.claim(KEY, wait=0)
        registry.save(KEY, "j1.1", slot=jobs.slot_of("/x", KEY, token))
        assert other.find(KEY).ansible_job_id == "j1.1"


class Gateway(http.server.BaseHTTPRequestHandler):
    """Passes requests on and loses conditions on the way, as a proxy in front of a good server may."""

    protocol_version = "HTTP/1.1"
    server_behind = ""

    def pass_on(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        kept = {name: value for name, value in self.headers.items() if name.lower() not in ("if-none-match", "host")}
        behind = http.client.HTTPConnection(self.server_behind, timeout=60)
        behind.request(self.command, self.path, body, kept)
        answer = behind.getresponse()
        content = answer.read()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("content-length", "transfer-encoding", "connection", "server", "date"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(b"" if self.command == "HEAD" else content)
        behind.close()

    do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = pass_on

    def log_message(self, *ignored):
        pass


@pytest.fixture
def forgetful(moto):
    """moto behind a gateway that drops conditions: it does not check them, and cannot know that it should."""
    of_moto = type("OfMoto", (Gateway,), {"server_behind": moto.url.removeprefix("http://")})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), of_moto)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_server_behind_a_gateway_that_drops_conditions_is_refused(forgetful):
    with book_on(f"s3://jobs/unlooked?endpoint={forgetful}&region=us-east-1") as registry:
        with pytest.raises(UnsupportedError, match="ignores `If-None-Match") as caught:
            registry.claim(KEY)
        assert "\n" not in str(caught.value)
        assert registry.find(KEY) is None


def test_a_bucket_that_is_not_there_is_an_error(weed):
    with book_on(s3(weed, bucket="nowhere")) as registry:
        with pytest.raises(StoreError, match="NoSuchBucket"):
            registry.save(KEY, "j1.1")
        with pytest.raises(StoreError):
            registry.find(KEY)


def test_a_wrong_secret_is_an_error_and_never_not_found(weed, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with book_on(s3(weed)) as registry, pytest.raises(StoreError, match="SignatureDoesNotMatch|AccessDenied"):
        registry.find(KEY)


def test_two_jobs_in_one_bucket_are_listed_and_the_trial_object_is_not(weed):
    with book_on(s3(weed, prefix="listing")) as registry:
        registry.save(KEY, "j1.1")
        registry.save(Key("h", "k", "p"), "j2.2")
        assert [record.key for record in registry.jobs()] == [KEY, Key("h", "k", "p")]
        assert [name for name in registry.store._names("") if "trial" in name] == [".forkless-trial"]


def test_a_lost_answer_to_the_trial_is_not_taken_for_a_server_that_ignores_conditions(moto, monkeypatch):
    with book_on(s3(moto, prefix="lost-answer")) as registry:
        client = registry.store._client()
        put = client.put_object
        lost = []

        def put_and_lose_the_first_answer(**arguments):
            if not lost:
                lost.append(put(**arguments))  # it got there, and the client asks again by itself
            return put(**arguments)

        monkeypatch.setattr(client, "put_object", put_and_lose_the_first_answer)
        assert registry.claim(KEY).state == jobs.CLAIMED


def test_a_server_that_forbids_to_delete_keeps_what_was_written(moto, monkeypatch):
    import botocore.exceptions

    with book_on(s3(moto, prefix="no-delete")) as registry:

        def forbidden(**ignored):
            answer = {"Error": {"Code": "AccessDenied"}, "ResponseMetadata": {"HTTPStatusCode": 403}}
            raise botocore.exceptions.ClientError(answer, "DeleteObject")

        monkeypatch.setattr(registry.store._client(), "delete_object", forbidden)
        claim = registry.claim(KEY)
        slot = jobs.slot_of("/x", KEY, claim.claim["token"])
        for number in range(6):
            registry.save(KEY, "j1.1", slot=slot, metadata={"n": number})
        assert registry.find(KEY).metadata == {"n": 5}
        registry.forget(registry.find(KEY))
        assert registry.find(KEY) is None


def test_a_lookup_among_five_hundred_jobs_asks_a_server_for_one_of_them(moto):
    with book_on(s3(moto, prefix="many")) as registry:
        store = registry.store
        for number in range(500):
            store._put_once(store._name(f"h/job{number}", 1), jobs.Record(Key("h", f"job{number}"), "j1.1").body(1))
        asked = []
        store._client().meta.events.register("before-send.s3", lambda request, **ignored: asked.append(request.method))
        assert [record.key.job_name for record in registry.jobs("h", job_name="job77")] == ["job77"]
        assert len(asked) == 2
        del asked[:]
        assert registry.find(Key("h", "job78")).ansible_job_id == "j1.1"
        assert len(asked) == 2
        del asked[:]
        assert len(registry.jobs()) == 500
        assert len(asked) == 501


def test_records_in_ara_can_be_read_by_anyone_who_reads_ara(ara):
    server = ara.url.removesuffix("/api/v1/")
    with book_on(f"ara+{server}") as registry:
        registry.save(Key("web1", "shown"), "j1.1", metadata={"n": 1})
        assert registry.find(Key("web1", "shown")).metadata == {"n": 1}
    with urllib.request.urlopen(f"{server}/api/v1/playbooks?label=forkless-jobs", timeout=60) as answer:
        found = json.loads(answer.read())["results"]
    assert [playbook["path"] for playbook in found] == ["forkless://jobs"]


def test_a_playbook_that_ara_does_not_have_is_an_error(ara):
    server = ara.url.removesuffix("/api/v1/")
    with book_on(f"ara+{server}?playbook=999999") as registry, pytest.raises(StoreError):
        registry.save(KEY, "j1.1")


def killed_in_mid_write(server, url, writes):
    """Writers at work while the server is killed and started again; what each was told must be what is there."""
    told, stop = {}, threading.Event()

    def write(number):
        key = Key("h", f"job {number}")
        for revision in range(1, writes + 1):
            if stop.is_set():
                return
            try:
                with book_on(url) as registry:
                    registry.save(key, f"j{revision}.{number}")
            except ConflictError:
                raise
            except StoreError:
                told.setdefault(number, {})[revision] = "error"
                return
            told.setdefault(number, {})[revision] = "ok"

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    while not any("ok" in answers.values() for answers in list(told.values())):
        assert any(thread.is_alive() for thread in threads), told
        stop.wait(0.05)
    server.stop(signal.SIGKILL)
    for thread in threads:
        thread.join(120)
    stop.set()
    with book_on(url) as registry, pytest.raises(StoreError):
        registry.find(Key("h", "job 0"))
    server.start()
    return told


@pytest.mark.spawns
@pytest.mark.leaves("children")  # the server that took the killed one's place
@pytest.mark.parametrize("which", ["weed", "ara"])
def test_what_a_killed_server_had_confirmed_is_there_and_what_it_had_not_is_whole_or_absent(
    which, weed, ara, tmp_path, make_url
):
    server = {"weed": weed, "ara": ara}[which]
    url = make_url("s3" if which == "weed" else "ara", server, tmp_path)
    told = killed_in_mid_write(server, url, writes=200)
    from jobs_controller import until

    def answers():
        with contextlib.suppress(StoreError), book_on(url) as registry:
            return [registry.find(Key("h", f"job {number}")) for number in range(4)] or True
        return None

    records = until(answers, 240, "the server's return")
    for number, record in enumerate(records):
        confirmed = [revision for revision, answer in told.get(number, {}).items() if answer == "ok"]
        tried = list(told.get(number, {}))
        there = int(record.ansible_job_id[1:].split(".")[0]) if record else 0
        assert max(confirmed, default=0) <= there <= max(tried, default=0), (told[number], record)
        with book_on(url) as registry:
            registry.save(Key("h", f"job {number}"), "j999.9")
            assert registry.find(Key("h", f"job {number}")).ansible_job_id == "j999.9"
