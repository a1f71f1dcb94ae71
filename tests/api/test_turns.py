"""Small answers get their turn beside large ones: places, turns of encoders, and which statements are small."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import httpx
import pytest

from dai.api.scheduling.admission import SMALL_IN_A_ROW, Admission
from dai.api.scheduling.turns import KNOWN, OLDEST_EVERY, Small, Turns
from dai.formats import FORMATS
from tests.api.conftest import ENDLESS, FAILS_LATE, Serve
from tests.processes import until


def test_small_requests_go_first_but_not_for_ever() -> None:
    async def order() -> list[bool]:
        admission, went = Admission(1, 100, 30), list[bool]()

        async def ask(small: bool) -> None:
            await admission.acquire(small=small)
            went.append(small)
            await asyncio.sleep(0)
            admission.release(small=small)

        await admission.acquire()
        asked = [asyncio.create_task(ask(small)) for small in (False, *[True] * 2 * SMALL_IN_A_ROW)]
        await asyncio.sleep(0)
        admission.release()
        await asyncio.gather(*asked)
        assert (admission.running, admission.waiting) == (0, 0)
        return went

    assert asyncio.run(order()) == [*[True] * SMALL_IN_A_ROW, False, *[True] * SMALL_IN_A_ROW]


@pytest.mark.parametrize(("reserved", "large"), [(0.0, 8), (600.0, 6)])
def test_a_quarter_is_kept_while_small_requests_come(
    reserved: float, large: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dai.api.scheduling.admission.RESERVED_SECONDS", reserved)

    async def run() -> int:
        admission = Admission(8, 100, 30)
        await admission.acquire(small=True)
        admission.release(small=True)
        asked = [asyncio.create_task(admission.acquire()) for _ in range(20)]
        await asyncio.sleep(0)
        running = admission.running
        for each in asked:
            each.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
        return running

    assert asyncio.run(run()) == large


@pytest.mark.parametrize("gather", [0.02, -1.0])
def test_a_known_small_statement_does_not_wait_for_large_answers(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, gather: float
) -> None:
    monkeypatch.setattr("dai.api.work.GATHER_SECONDS", gather)  # also where it takes longer to begin than that
    monkeypatch.setattr("dai.api.scheduling.admission.RESERVED_SECONDS", 600.0)
    monkeypatch.setattr("dai.api.work.SMALL_SECONDS", 600.0)  # on a busy machine too
    running = serve(limits={"concurrent": 4, "queue_seconds": 600})
    with httpx.Client(base_url=running.url, timeout=100) as client, ExitStack() as stack:

        def ask(number: int) -> int:
            sql = f"select s from numbers where i = {number}"
            return client.post("/resources/book/query", json={"sql": sql}).status_code

        assert [ask(1), ask(2)] == [200, 200]  # the second is known to be small
        threads = stack.enter_context(ThreadPoolExecutor(8))
        stop = threading.Event()
        stack.callback(stop.set)

        def unread() -> None:
            with httpx.stream("POST", f"{running.url}/resources/book/query", json={"sql": ENDLESS}, timeout=60):
                stop.wait()

        asked = [threads.submit(unread) for _ in range(4)]
        admission = running.service.admission
        until(lambda: admission.running == 3 and admission.waiting == 1)
        for number in range(3):
            assert ask(number) == 200
        assert not any(each.done() for each in asked)


def test_turns_go_to_who_had_least_and_sometimes_to_who_waits_longest() -> None:
    turns, went = Turns(1), list[float]()
    turns.take(0)

    def wait(had: float) -> None:
        turns.take(had)
        went.append(had)
        turns.leave()

    threads = []
    for had in (9.0, 8.0, 7.0, 6.0, 5.0, 4.0):
        threads.append(threading.Thread(target=wait, args=(had,)))
        threads[-1].start()
        until(lambda: turns.waiting == len(threads))
    turns.leave()  # as somebody who waits for the database
    for each in threads:
        each.join(60)
    turns.take(10.0)
    expected = [4.0, 5.0, 6.0, 7.0, 8.0, 9.0]
    expected.insert(OLDEST_EVERY - 1, expected.pop())
    assert went == expected
    assert turns.free == 0
    turns.leave()
    assert turns.free == 1


@pytest.mark.parametrize("form", FORMATS)
def test_every_turn_is_given_back(serve: Serve, form: str) -> None:
    running = serve()
    places = running.service.turns.free
    with httpx.Client(base_url=running.url, timeout=60) as client:
        path = f"/resources/book/query?format={form}"
        assert client.post(path, json={"sql": "select * from numbers"}).status_code == 200
        with pytest.raises(httpx.RemoteProtocolError):
            client.post(path, json={"sql": FAILS_LATE, "blocksize": 100})
        with client.stream("POST", path, json={"sql": ENDLESS}) as answer:
            next(answer.iter_raw())
    until(lambda: running.service.admission.running == 0)
    assert running.service.turns.free == places


def test_statements_are_known_by_their_form() -> None:
    small = Small()
    key = Small.key("a", b"select * from t where i = 17 and s = 'x'")
    assert key not in small
    small.note(key, True)
    assert Small.key("a", b"select * from t where i = 4 and s = 'a text'") in small
    assert Small.key("b", b"select * from t where i = 17 and s = 'x'") not in small
    assert Small.key("a", b"select * from t where j = 17 and s = 'x'") not in small
    assert Small.key("a", b"x" * 100_000) is None
    small.note(key, False)
    assert key not in small
    small.note(None, True)
    assert None not in small
    for number in range(KNOWN + 10):
        small.note(number, True)
    assert len(small) == KNOWN
