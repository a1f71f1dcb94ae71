"""Tables of one's own in a federation of a service are of its lab alone: others neither read nor replace them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest

import dai
import dqp
from dai.api.server.serve import Background, background
from dai.config import parse
from dai.drivers import driver_for
from dai.errors import DaiError, DataError, LimitError, NotAQueryError, ParameterError, RequestError, StatementError
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Stream
from dqp.interfaces.driver import Federation
from dqp.interfaces.lab import Lab
from dqp.settings import load


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Background]:
    directory = tmp_path_factory.mktemp("service")
    book = driver_for(f"sqlite:///{directory}/book.db")
    book.load("people", Stream.of(pa.table({"id": [1, 2, 3]})), cancellation=Cancellation(), create=True)
    book.close()
    document: dict[str, Any] = {
        "service": {"port": 0, "state": "sqlite:///state.db", "results_directory": "results", "grace": 0.2},
        "resources": {"book": {"url": f"sqlite:///{directory}/book.db"}},
        "federations": {"lab": {"sources": [{"alias": "book", "resource": "book"}], "upload_bytes": 100_000}},
    }
    with background(parse(document, directory, {})) as running:
        yield running


@pytest.fixture
def two(service: Background) -> Iterator[tuple[Lab, Lab]]:
    with dqp.connect(f"{service.url}/lab") as one, dqp.connect(f"{service.url}/lab") as other:
        yield one, other


def rows(lab: Lab, sql: str, **parameters: Any) -> list[tuple[Any, ...]]:
    return [tuple(each.values()) for each in lab.sql(sql, **parameters).arrow().to_pylist()]


@pytest.mark.parametrize("name", ["Übersicht", "Straße", "ÉTÉ", "Mine"])
@pytest.mark.parametrize("here", [True, False])
def test_names_have_letters_of_every_alphabet(name: str, here: bool, service: Background, tmp_path: Path) -> None:
    where: Any = {"sources": {"book": f"sqlite:///{tmp_path}/x.db"}} if here else f"{service.url}/lab"
    with dqp.connect(where) as lab:
        lab.upload(name, {"a": [1]})
        lab.upload(name, {"a": [2]})
        assert rows(lab, f"select {name}.a from {name}") == [(2,)]
        assert rows(lab, f'with recursive r as (select a from "{name}" union select 5) from r order by 1') == [
            (2,),
            (5,),
        ]


def test_uploads_of_two_people_do_not_meet(two: tuple[Lab, Lab], service: Background) -> None:
    one, other = two
    one.upload("mine", {"a": [1]})
    other.upload("mine", {"a": [2], "b": ["x"]})
    assert rows(one, "from mine") == [(1,)]
    assert rows(other, "select mine.b, a from Mine") == [("x", 2)]
    one.upload("mine", {"a": [3]})
    assert rows(one, "from mine") == [(3,)]
    assert rows(other, "select a from mine") == [(2,)]
    third = dai.connect(f"{service.url}/lab")
    with third.session() as session:
        for asked in (None, session.id):
            with pytest.raises(StatementError, match="There is no table 'mine'"):
                third.query("from mine", session=asked).table()
    assert not [each for each in third.schema(fresh=True) if each["name"].startswith("mine")]
    assert ("mine", 1) in [(each["table"], each["rows"]) for each in one.tables().to_pylist()]


@pytest.mark.parametrize(
    ("sql", "answer"),
    [
        ("with x as (select id from book.people) select count(*) from x join mine on mine.a = x.id", [(2,)]),
        (
            "with recursive r as (select 1 n union all select n + 1 from r where n < 3) select max(a + n) from r, mine",
            [(5,)],
        ),
        ("with mine as (select 7 as a) from mine", [(7,)]),
        ("select count(*) from book.people where id in (select a from mine where a < $most)", [(1,)]),
        ("values ((select max(a) from mine))", [(2,)]),
        ("(select a from mine) union all select 9 order by 1 desc limit 1", [(9,)]),
        ("from mine a positional join mine b select count(*)", [(2,)]),
        ("select 'mine' as mine", [("mine",)]),
    ],
)
def test_a_query_of_any_form_reads_them(two: tuple[Lab, Lab], sql: str, answer: list[Any]) -> None:
    lab = two[0]
    lab.upload("mine", {"a": [1, 2]})
    parameters = {"most": 2} if "$most" in sql else {}
    assert rows(lab, sql, **parameters) == answer
    assert lab.explain(sql, **parameters).text


@pytest.mark.parametrize("sql", ["select nope from mine", "with x as (select 1) select nope from mine, x"])
def test_mistakes_stand_where_they_were_made(two: tuple[Lab, Lab], sql: str) -> None:
    lab = two[0]
    lab.upload("mine", {"a": [1, 2]})
    with pytest.raises(StatementError, match="nope") as caught:
        lab.sql(sql).arrow()
    assert caught.value.position == sql.index("nope") + 1


def ended(service: Background) -> None:
    """Ends every session, as their time-out would."""
    sessions = service.service.sessions
    for each in sessions.all():
        sessions.end(each, "The session was not used and has ended.")


def test_tables_of_a_session_that_ended_are_sent_again(two: tuple[Lab, Lab], service: Background) -> None:
    lab = two[0]
    lab.upload("mine", {"a": [1, 2]})
    federation: Any = service.service.resources["lab"].driver
    ended(service)
    assert not any(each.tables for each in federation._uploads)
    assert rows(lab, "select sum(a) from mine") == [(3,)]
    ended(service)
    lab.upload("other", {"b": [5]})
    assert rows(lab, "select a, b from mine, other order by a") == [(1, 5), (2, 5)]


def test_a_lab_that_uploads_often_takes_a_new_session(
    two: tuple[Lab, Lab], service: Background, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dqp.interfaces.uploads._STREAMS", 3)
    lab = two[0]
    lab.upload("first", {"a": [0]})
    before = len(service.service.sessions.all())
    for number in range(5):
        lab.upload("mine", {"a": [number]})
        assert rows(lab, "select first.a, mine.a as b from first, mine") == [(0, number)]
    assert len(service.service.sessions.all()) == before


def test_a_service_keeps_so_much(two: tuple[Lab, Lab]) -> None:
    lab, other = two
    lab.upload("kept", {"a": list(range(1_000))})
    with pytest.raises(LimitError, match="at most 100,000 bytes"):
        other.upload("large", {"a": list(range(1_000_000))})
    for name in ("shop.orders", "book", " "):
        with pytest.raises(ParameterError):
            lab.upload(name, {"a": [1]})
    assert rows(lab, "select count(*) from kept") == [(1_000,)]
    other.upload("half", {"a": list(range(8_000))})
    with pytest.raises(LimitError):
        lab.upload("half", {"a": list(range(8_000))})
    other.close()
    lab.upload("half", {"a": list(range(8_000))})


@dataclass
class Kept:
    """A session as drivers see it."""

    explicit: bool = True
    kept: dict[object, Any] = field(default_factory=dict)

    def keep(self, key: object, create: Callable[[], Any]) -> Any:
        return self.kept.setdefault(key, create())


def test_a_table_needs_a_session_that_outlives_the_request() -> None:
    federation = Federation(load({"sources": {}}))
    for driver in (federation, federation.within(Kept(explicit=False), lambda parts: None)):
        with pytest.raises(RequestError, match="would be lost at the end of this request"):
            driver.load("mine", Stream.of(pa.table({"a": [1]})), cancellation=Cancellation())
    session = federation.within(Kept(), lambda parts: None)
    assert session.load("mine", Stream.of(pa.table({"a": [1]})), cancellation=Cancellation()) == 1
    assert session.query("from mine", cancellation=Cancellation()).table().to_pydict() == {"a": [1]}
    assert federation.tables() == session.tables() == ()
    federation.close()


def test_tables_that_are_loaded_at_the_same_time_have_one_limit() -> None:
    federation = Federation(load({"upload_bytes": 100_000}))
    one, other = (federation.within(Kept(), lambda parts: None) for _ in range(2))
    batch = pa.record_batch({"a": pa.array(range(9_000), pa.int64())})

    def loaded(session: Federation, *batches: pa.RecordBatch) -> int:
        return session.load("mine", Stream(batch.schema, iter(batches)), cancellation=Cancellation())

    def meanwhile() -> Iterator[pa.RecordBatch]:
        yield batch
        with pytest.raises(LimitError, match="100,000 bytes"):
            loaded(other, batch)
        yield batch.slice(0, 1_000)

    stream = Stream(batch.schema, meanwhile())
    assert one.load("mine", stream, cancellation=Cancellation()) == 10_000
    with pytest.raises(LimitError, match="100,000 bytes"):
        loaded(other, batch)
    assert loaded(one) == 0
    assert loaded(other, batch) == 9_000
    federation.close()


def test_so_many_tables_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dqp.interfaces.driver._MOST_LOADED", 2)
    federation = Federation(load({}))
    sessions = [federation.within(Kept(), lambda parts: None) for _ in range(3)]
    nothing = pa.table({"a": pa.array([], pa.int64())})
    for number, room in ((0, True), (1, True), (2, False), (1, True)):
        with nullcontext() if room else pytest.raises(LimitError, match="2 tables"):
            sessions[number].load("mine", Stream(nothing.schema, []), cancellation=Cancellation())
    federation.close()


def test_more_sessions_than_have_plans_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dqp.interfaces.driver._COORDINATORS", 2)
    federation = Federation(load({}))
    sessions = [federation.within(Kept(), lambda parts: None) for _ in range(4)]
    for number, each in enumerate(sessions):
        each.load("mine", Stream.of(pa.table({"a": [number]})), cancellation=Cancellation())
    for number, each in [*enumerate(sessions)] * 2:
        assert each.query("from mine", cancellation=Cancellation()).table().to_pydict() == {"a": [number]}
    assert len(federation._coordinators) == 2
    federation.close()


@pytest.mark.parametrize("name", ["my table", "1a", "a" * 129, "naïve-", "select"])
@pytest.mark.parametrize("here", [True, False])
def test_a_name_may_need_quotes(name: str, here: bool, service: Background) -> None:
    with dqp.connect({"sources": {}} if here else f"{service.url}/lab") as lab:
        lab.upload(name, {"a": [1]})
        assert rows(lab, f'from "{name}"') == [(1,)]


READING = "select p.id, sum(m.a) from book.people p join mine m on p.id = m.a group by 1"


@pytest.mark.parametrize("sql", [READING, "from mine a positional join mine b", "values ((select max(a) from mine))"])
@pytest.mark.parametrize("analyze", [False, True])
def test_explanations_show_what_was_written(two: tuple[Lab, Lab], sql: str, analyze: bool) -> None:
    lab = two[0]
    lab.upload("mine", {"a": [1, 2]})
    explanation = lab.sql(sql).explain(analyze=analyze)
    assert explanation.sql == sql
    word = "explain analyze" if analyze else "explain"
    for form in ("", "(format text) ", "(format json) ", "(format svg) "):
        lines = lab.sql(f"{word} {form}{sql}").arrow().column(0).to_pylist()
        if "json" in form:
            assert json.loads("\n".join(lines))["sql"] == f"{word} (format json) {sql}"
    if sql is READING:
        assert "Tuples mine" in explanation.text


def test_nobody_learns_the_session_of_a_lab(
    two: tuple[Lab, Lab], service: Background, caplog: pytest.LogCaptureFixture
) -> None:
    lab, other = two
    caplog.set_level("DEBUG")
    lab.upload("mine", {"a": [1, 2]})
    rows(lab, READING)
    with pytest.raises(DaiError) as caught:
        rows(lab, "select nope from mine")
    session = lab._uploads._session.id
    jobs = httpx.get(f"{service.url}/jobs", timeout=60).text
    logged = [caplog.handler.format(each) + str(vars(each)) for each in caplog.records if each.name.startswith("d")]
    assert logged
    for text in (jobs, str(caught.value), repr(caught.value.extra), *logged):
        assert session not in text
    assert not [each for each in other.tables().to_pylist() if "mine" in each["table"]]


def test_the_nearest_name_may_be_that_of_an_upload(two: tuple[Lab, Lab]) -> None:
    one, other = two
    one.upload("Trusted", {"a": [1]})
    for lab, sql, told in (
        (one, "from trustd", "Did you mean 'Trusted'?"),
        (one, "select a from Trustd t", "Did you mean 'Trusted'?"),
        (one, "from peple", "Did you mean 'book.people'?"),
        (one, "from nothing_like_it", "Known: Trusted, book.people."),
        (other, "from trustd", "Known: book.people."),
    ):
        with pytest.raises(StatementError) as caught:
            lab.sql(sql).arrow()
        assert told in str(caught.value).splitlines()


def test_a_value_of_an_upload_that_does_not_fit_is_pointed_at_in_what_was_written(two: tuple[Lab, Lab]) -> None:
    lab = two[0]
    lab.upload("mine", {"a": ["x"]})
    with pytest.raises(DataError) as caught:
        lab.sql("select a::int from mine").arrow()
    assert caught.value.extra["excerpt"] == "line 1: select a::int from mine\n               ^"


@pytest.mark.parametrize("sql", ["describe mine", "summarize mine", "show mine", "DESC mine"])
def test_a_table_of_a_session_is_described(two: tuple[Lab, Lab], sql: str) -> None:
    lab, other = two
    lab.upload("mine", {"a": [1, 2]})
    assert rows(lab, sql)[0][:2] == ("a", "BIGINT")
    with pytest.raises(StatementError, match="There is no table 'mine'"):
        rows(other, sql)


def test_what_is_described_has_no_plan(two: tuple[Lab, Lab]) -> None:
    with pytest.raises(NotAQueryError, match="DESCRIBE cannot stand here"):
        two[0].sql("explain describe book.people").arrow()


@pytest.mark.parametrize(
    ("sql", "part"),
    [
        ("select count(*) from book.people p join mine m on p.id = m.a", '"name":"book"'),
        ("explain analyze from mine", '"name":"here"'),
        ("select nope from mine", "select nope from mine"),
    ],
)
def test_a_job_of_a_session_reads_its_tables(two: tuple[Lab, Lab], service: Background, sql: str, part: str) -> None:
    lab = two[0]
    lab.upload("mine", {"a": [1, 2]})
    job = dai.connect(f"{service.url}/lab").submit(sql, session=lab._uploads._session.id)
    job.wait()
    assert part in httpx.get(f"{service.url}/jobs/{job.id}", timeout=60).text


def failing() -> Iterator[pa.RecordBatch]:
    yield pa.record_batch({"a": [1]})
    raise OSError("lost")


def test_a_table_that_cannot_be_sent_leaves_the_others(two: tuple[Lab, Lab]) -> None:
    lab = two[0]
    lab.upload("mine", {"a": [1, 2]})
    batches = pa.RecordBatchReader.from_batches(pa.schema([("a", pa.int64())]), failing())
    with pytest.raises(OSError, match="lost"):
        lab._uploads.upload("wrong", batches)
    assert rows(lab, "select sum(a) from mine") == [(3,)]
