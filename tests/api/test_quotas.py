"""What each caller may have: jobs, results, bytes a day; and answers to those who guess wait."""

import asyncio
import datetime
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from dai.config import QuotasConfig, parse
from dai.errors import ConfigurationError, QuotaError, UnauthenticatedError
from dai.security import attempts as attempts_module
from dai.security.attempts import ADDRESSES, FREE, WAITING, Attempts, origin_of
from dai.security.identity import Head
from dai.security.identity.tokens import new
from dai.service import quotas as quotas_module
from dai.service.quotas import Quotas
from dai.service.state.store import Store
from tests.api.conftest import DOCUMENT, ENDLESS, XML, Serve, statement, streamed
from tests.processes import until

ASYNC = {"Prefer": "respond-async"}


@contextmanager
def callers(serve: Serve, quotas: dict[str, object]) -> Iterator[tuple[httpx.Client, httpx.Client]]:
    """Alice and bob."""
    running = serve(identity={"methods": ["token"]}, quotas=quotas)
    clients = []
    for name in ("alice", "bob"):
        token, stored = new(name, 3600)
        running.service.store.add_token(stored)
        clients.append(httpx.Client(base_url=running.url, headers={"Authorization": f"Bearer {token}"}, timeout=60))
    with clients[0], clients[1]:
        yield clients[0], clients[1]


def refused(answer: httpx.Response, quota: str) -> None:
    assert (answer.status_code, answer.json().get("quota")) == (429, quota), answer.text
    assert int(answer.headers["retry-after"]) > 0
    assert answer.json()["hint"]


def test_jobs_that_have_not_ended(serve: Serve) -> None:
    with callers(serve, {"jobs": 2, "callers": {"bob": {"jobs": 1}}}) as (alice, bob):
        endless = {"sql": ENDLESS}
        assert bob.post("/resources/book/query?phase=PENDING", json=endless).status_code == 202
        refused(bob.post("/resources/book/query", json=endless, headers=ASYNC), "jobs")
        jobs = [alice.post("/resources/book/query", json=endless, headers=ASYNC).headers["location"] for _ in range(2)]
        before = alice.get("/jobs").json()
        refused(alice.post("/resources/book/query", json=endless, headers=ASYNC), "jobs")
        refused(alice.post("/resources/book/query?phase=PENDING", json=endless), "jobs")
        assert [each["id"] for each in alice.get("/jobs").json()["jobs"]] == [each["id"] for each in before["jobs"]]
        assert alice.post("/resources/book/query", json={"sql": "select 1 as a"}).status_code == 200
        assert alice.post(f"{jobs[0]}/phase", data={"PHASE": "ABORT"}).is_success
        until(lambda: alice.get(jobs[0]).json()["phase"] == "ABORTED")
        last = alice.post("/resources/book/query", json=endless, headers=ASYNC)
        assert last.status_code == 202
        for each in (jobs[1], last.headers["location"]):
            alice.delete(each)


def test_without_a_word_jobs_have_a_bound_all_the_same(serve: Serve) -> None:
    assert QuotasConfig().every.jobs == 250
    with callers(serve, {}) as (alice, bob):
        for _ in range(250):
            made = alice.post("/resources/book/query?phase=PENDING", json={"sql": "select 1 as a"})
            assert made.status_code == 202
        refused(alice.post("/resources/book/query?phase=PENDING", json={"sql": "select 1 as a"}), "jobs")
        assert bob.post("/resources/book/query?phase=PENDING", json={"sql": "select 1 as a"}).status_code == 202
        assert alice.delete(made.headers["location"]).is_success
        assert alice.post("/resources/book/query?phase=PENDING", json={"sql": "select 1 as a"}).status_code == 202


def test_the_longest_life_of_a_job(serve: Serve) -> None:
    with callers(serve, {}) as (alice, _):
        job = alice.post("/resources/book/query?phase=PENDING", json={"sql": "select 1 as a"}).headers["location"]
        before = alice.get(job).json()["destruction"]
        for far in ("9999-12-31T00:00:00Z", "inf"):
            answer = alice.post(f"{job}/destruction", data={"DESTRUCTION": far})
            assert answer.status_code in (400, 422), answer.text
        assert alice.get(job).json()["destruction"] == before
        when = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=31)
        answer = alice.post(f"{job}/destruction", data={"DESTRUCTION": when.isoformat()})
        assert (answer.status_code, "limits.job_seconds_most" in answer.json()["detail"]) == (400, True)
        near = when - datetime.timedelta(days=2)
        assert alice.post(f"{job}/destruction", data={"DESTRUCTION": near.isoformat()}).is_success


def test_requests_that_have_not_ended(serve: Serve) -> None:
    """Whoever reads slowly keeps a place, and some such callers all of them."""
    with callers(serve, {"concurrent": 2}) as (alice, bob):
        endless, small = {"sql": ENDLESS}, {"sql": "select 1 as a"}
        with ExitStack() as slow:
            for _ in range(2):
                slow.enter_context(alice.stream("POST", "/resources/book/query", json=endless))
            refused(alice.post("/resources/book/query", json=small), "concurrent")
            refused(
                alice.post("/resources/book/perform", content=DOCUMENT.format(statement("select 1 as a")), headers=XML),
                "concurrent",
            )
            assert alice.get("/jobs").status_code == 200
            assert bob.post("/resources/book/query", json=small).status_code == 200
        until(lambda: alice.post("/resources/book/query", json=small).status_code == 200)


def test_sessions(serve: Serve) -> None:
    with callers(serve, {"sessions": 2}) as (alice, bob):
        sessions = [alice.post("/sessions").headers["location"] for _ in range(2)]
        refused(alice.post("/sessions"), "sessions")
        refused(alice.post("/resources/book/perform", content=streamed(ENDLESS), headers=XML), "sessions")
        assert bob.post("/sessions").status_code == 201
        assert alice.delete(sessions[0]).status_code == 204
        assert alice.post("/sessions").status_code == 201


def test_bytes_of_results_in_other_forms(serve: Serve) -> None:
    """A result of a few kilobytes may be hundreds of megabytes as CSV."""
    sql = (
        "with recursive c(i) as (select 1 union all select i + 1 from c where i < {}) select hex(zeroblob(500)) from c"
    )
    with callers(serve, {"result_bytes": 100_000}) as (alice, _):

        def outputs(rows: int) -> str:
            job = alice.post("/resources/book/query", json={"sql": sql.format(rows)}, headers=ASYNC).headers["location"]
            until(lambda: alice.get(job).json()["phase"] == "COMPLETED")
            return f"{job}/outputs/result"

        many, few = outputs(500), outputs(40)
        refused(alice.get(f"{many}?format=csv"), "result_bytes")
        for form, status in (("csv", 200), ("json", 200), ("webrowset", 429), ("csv", 200)):
            assert alice.get(f"{few}?format={form}").status_code == status
        assert alice.get(f"{many}?format=arrow").status_code == 200


def test_a_form_of_other_blocks_takes_the_place_of_the_last(serve: Serve) -> None:
    """The quota has room for one of them."""
    count = "with recursive c(i) as (select 1 union all select i + 1 from c where i < 60)"
    sql = f"{count} select hex(zeroblob(500)) from c"
    with callers(serve, {"result_bytes": 100_000}) as (alice, _):
        job = alice.post("/resources/book/query", json={"sql": sql}, headers=ASYNC).headers["location"]
        until(lambda: alice.get(job).json()["phase"] == "COMPLETED")
        for blocksize in (20, 10, 20):
            answer = alice.get(f"{job}/outputs/result?format=arrow&blocksize={blocksize}")
            assert answer.status_code == 200, (blocksize, answer.text)
            assert len(answer.content) > 50_000


def test_bytes_of_results(serve: Serve) -> None:
    with callers(serve, {"result_bytes": 100_000}) as (alice, bob):
        many = {"sql": "select i, s, hex(randomblob(16)) as r from numbers limit 10000"}
        large = alice.post("/resources/book/query", json=many, headers=ASYNC).headers["location"]
        until(lambda: alice.get(large).json()["phase"] == "ERROR")
        assert alice.get(large).json()["error"]["type"] == "quota-exceeded"
        kept: dict[str, int] = {}
        for rows in (1000, 1):
            asked = {"sql": f"select i, hex(randomblob(16)) as r from numbers limit {rows}"}
            while (answer := alice.post("/resources/book/query", json=asked, headers=ASYNC)).status_code == 202:
                job = answer.headers["location"]
                until(lambda job=job: alice.get(job).json()["phase"] in ("COMPLETED", "ERROR"))  # type: ignore[misc]
                if alice.get(job).json()["phase"] == "ERROR":
                    break
                kept[job] = alice.get(job).json()["outputs"][0]["bytes"]
                assert sum(kept.values()) <= 100_000
        refused(answer, "result_bytes")
        assert bob.post("/resources/book/query", json=asked, headers=ASYNC).status_code == 202
        assert alice.delete(next(iter(kept))).is_success
        assert alice.post("/resources/book/query", json=asked, headers=ASYNC).status_code == 202


def test_jobs_that_write_at_the_same_time_share_the_room(tmp_path: Path) -> None:
    config = parse({"quotas": {"result_bytes": 100}}, tmp_path, {}).quotas
    quotas = Quotas(config, Store(f"sqlite:///{tmp_path / 'state.db'}", "dai"))
    with quotas.storing("a") as one, quotas.storing("a") as two, quotas.storing("b") as other:
        one(60)
        other(100)
        with pytest.raises(QuotaError):
            two(41)
        two(40)
    with quotas.storing("a") as next:
        next(100)
        with pytest.raises(QuotaError):
            next(101)


def test_nobody_who_is_known_has_all_the_room(tmp_path: Path) -> None:
    limits = {"result_bytes": 1000, "contexts_bytes": 400}
    known = parse({"limits": limits, "identity": {"methods": ["token"]}}, tmp_path, {}).quotas
    assert (known.every.result_bytes, known.every.context_bytes) == (250, 100)
    said = {"context_bytes": 0, "callers": {"a": {"result_bytes": 0}}}
    other = parse({"limits": limits, "identity": {"methods": ["token"]}, "quotas": said}, tmp_path, {}).quotas
    assert (other.every.result_bytes, other.every.context_bytes, other.callers["a"].result_bytes) == (250, 0, 0)
    nobody = parse({"limits": limits}, tmp_path, {}).quotas
    assert (nobody.every.result_bytes, nobody.every.context_bytes) == (0, 0)


def test_bytes_of_a_day(serve: Serve) -> None:
    with callers(serve, {"day_bytes": 50_000}) as (alice, bob):
        many = {"sql": "select * from numbers"}
        assert alice.post("/resources/book/query", json=many).status_code == 200
        until(lambda: alice.post("/resources/book/query", json={"sql": "select 1 as a"}).status_code == 429)
        refused(alice.get("/jobs"), "day_bytes")
        assert alice.delete("/jobs/nothing").status_code == 404
        assert bob.post("/resources/book/query", json={"sql": "select 1 as a"}).status_code == 200
        assert httpx.get(str(alice.base_url.join("/health/ready"))).status_code == 200


def test_what_other_processes_sent_counts_and_a_new_day_begins_with_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = parse({"quotas": {"callers": {"a": {"day_bytes": 100}}}}, tmp_path, {}).quotas
    store = Store(f"sqlite:///{tmp_path / 'state.db'}", "dai")
    one, two = Quotas(config, store), Quotas(config, store)
    for each, size in ((one, 40), (two, 30), (one, 20), (two, 10)):
        each.sent("a", size)
        each.sent("b", 10_000)
        each.share()
    one.share()
    for each in (one, two, Quotas(config, store)):
        with pytest.raises(QuotaError):
            each.check_day("a")
        each.check_day("b")
    monkeypatch.setattr(quotas_module, "_today", lambda: "9999-12-31")
    for each in (one, two):
        each.check_day("a")
        each.sent("a", 99)
        each.share()
    with pytest.raises(QuotaError):
        two.check_day("a")
    assert store.sent("9999-12-31", {}) == {"a": 198}
    store.close()


def test_the_state_that_cannot_be_written_forgets_no_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(f"sqlite:///{tmp_path / 'state.db'}", "dai")
    quotas = Quotas(parse({"quotas": {"day_bytes": 10}}, tmp_path, {}).quotas, store)
    quotas.sent("a", 10)
    with monkeypatch.context() as patched:
        patched.setattr(store, "sent", lambda day, told: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            quotas.share()
    with pytest.raises(QuotaError):
        quotas.check_day("a")
    quotas.share()
    assert store.sent(quotas_module._today(), {}) == {"a": 10}
    store.close()


def test_a_caller_inherits_what_is_not_said_of_them(tmp_path: Path) -> None:
    config: QuotasConfig = parse({"quotas": {"jobs": 3, "callers": {"a": {"day_bytes": 5}}}}, tmp_path, {}).quotas
    assert (config.callers["a"].jobs, config.callers["a"].day_bytes, config.every.day_bytes) == (3, 5, 0)
    for wrong in ({"callers": 3}, {"callers": {"a": 3}}, {"job": 3}, {"jobs": -1}):
        with pytest.raises(ConfigurationError, match="quotas"):
            parse({"quotas": wrong}, tmp_path, {})


def test_answers_to_those_who_guess_wait_longer_and_longer() -> None:
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    async def run() -> None:
        attempts = Attempts(5.0, sleep)
        for _ in range(FREE + 8):
            await attempts.failed("203.0.113.1")
        await attempts.failed("203.0.113.2")

    asyncio.run(run())
    assert waited == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]


@pytest.mark.parametrize(
    ("addresses", "origin"),
    [
        (("192.0.2.1", "::ffff:192.0.2.1", "::FFFF:c000:201"), "192.0.2.1"),
        (("2001:db8::1", "2001:DB8:0:0:ffff::2"), "2001:db8::/64"),
        (("unix", ""), None),
    ],
)
def test_all_addresses_of_a_network_are_one(addresses: tuple[str, ...], origin: str | None) -> None:
    """Whoever has a network of IPv6 has an address for each guess."""
    for each in addresses:
        assert origin_of(each) == (each if origin is None else origin)
    attempts = Attempts(5.0)
    for each in addresses:
        asyncio.run(attempts.failed(each))
    assert len(attempts._failed) == (1 if origin else 2)


def test_of_many_who_guess_few_wait_and_few_are_kept() -> None:
    async def run() -> None:
        open_again = asyncio.Event()

        async def sleep(seconds: float) -> None:
            await open_again.wait()

        attempts = Attempts(5.0, sleep)
        for _ in range(FREE):
            await attempts.failed("203.0.113.1")
        waiting = [asyncio.ensure_future(attempts.failed("203.0.113.1")) for _ in range(WAITING)]
        await asyncio.sleep(0)
        with pytest.raises(QuotaError) as refusal:
            await attempts.failed("203.0.113.1")
        assert refusal.value.status == 429
        assert refusal.value.retry_after > 0
        waiting[0].cancel()
        open_again.set()
        await asyncio.gather(*waiting, return_exceptions=True)
        await attempts.failed("203.0.113.1")
        for number in range(ADDRESSES + 10):
            await attempts.failed(f"2001:db8:{number:x}::1")
        assert len(attempts._failed) == ADDRESSES

    asyncio.run(run())


def test_an_address_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    now = 1000.0
    monkeypatch.setattr(attempts_module.time, "monotonic", lambda: now)

    async def run() -> None:
        nonlocal now
        attempts = Attempts(5.0, sleep)
        for _ in range(2):
            for _ in range(FREE + 1):
                await attempts.failed("203.0.113.1")
            now += attempts_module.FORGOTTEN_SECONDS + 1

    asyncio.run(run())
    assert waited == [0.1, 0.1]


def test_credentials_that_hold_never_wait(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wrong ones wait for ever here, those that hold are answered beside them."""
    monkeypatch.setattr(attempts_module, "FREE", 0)
    monkeypatch.setattr(attempts_module, "FIRST_SECONDS", 1e9)
    running = serve(identity={"methods": ["token"], "wrong_seconds": 60.0})
    token, stored = new("alice", 3600)
    running.service.store.add_token(stored)
    with httpx.Client(base_url=running.url, timeout=httpx.Timeout(60, read=0.5)) as client:
        for wrong in (token[:-1] + "_", "dai_x_y", "nonsense"):
            with pytest.raises(httpx.ReadTimeout):
                client.get("/jobs", headers={"Authorization": f"Bearer {wrong}"})
    with httpx.Client(base_url=running.url, timeout=60) as client:
        assert client.get("/jobs").status_code == 401, "who sends no credentials does not guess"
        assert client.get("/jobs", headers={"Authorization": f"Bearer {token}"}).status_code == 200


def test_each_refusal_of_credentials_counts(serve: Serve) -> None:
    running = serve(identity={"methods": ["token"]})
    identification = running.service.identification
    failed: list[str] = []

    async def noted(address: str) -> None:
        failed.append(address)

    identification._attempts.failed = noted  # type: ignore[method-assign]
    headers = [b"Bearer dai_a_b", b"Basic eDp5", b"Bearer x"]
    for value in headers:
        with pytest.raises(UnauthenticatedError):
            asyncio.run(identification.caller(Head([(b"authorization", value)], address="203.0.113.9")))
    with pytest.raises(UnauthenticatedError):
        asyncio.run(identification.caller(Head([], address="203.0.113.9")))
    assert failed == ["203.0.113.9"] * len(headers)
