"""Tables of one's own in a federation of a service are private: neither read, nor replaced, nor listed by others."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import nullcontext
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
from dai.errors import DaiError, DataError, LimitError, NotAQueryError, ParameterError, StatementError
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Stream
from dqp.algebra.private import Plain
from dqp.binding.parameters import Statement
from dqp.interfaces import uploads
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
    with pytest.raises(StatementError) as caught:
        third.query("from mine").table()
    assert "mine_" not in str(caught.value)
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
    assert "mine_" not in str(caught.value)


def test_what_the_service_forgot_is_sent_again(two: tuple[Lab, Lab], service: Background) -> None:
    lab = two[0]
    lab.upload("mine", {"a": [1, 2]})
    federation: Any = service.service.resources["lab"].driver
    federation.catalog.forget(0)
    assert not federation.catalog.uploads
    assert rows(lab, "select sum(a) from mine") == [(3,)]


def test_a_service_keeps_so_much(two: tuple[Lab, Lab]) -> None:
    lab, other = two
    lab.upload("kept", {"a": list(range(1_000))})
    with pytest.raises(LimitError, match="at most 100,000 bytes"):
        other.upload("large", {"a": list(range(1_000_000))})
    for name in ("shop.orders", "book", ""):
        with pytest.raises(ParameterError) as caught:
            lab.upload(name, {"a": [1]})
        assert lab._uploads._token not in str(caught.value)
    other.upload("half", {"a": list(range(8_000))})
    with pytest.raises(LimitError):
        lab.upload("half", {"a": list(range(8_000))})
    other.close()
    lab.upload("half", {"a": list(range(8_000))})


def test_a_name_that_could_be_guessed_is_refused(tmp_path: Path) -> None:
    federation = Federation(load({"sources": {}}))
    for name in ("mine", "mine_1234", "mine_" + "G" * 32):
        with pytest.raises(ParameterError, match="cannot be the name"):
            federation.load(name, Stream.of(pa.table({"a": [1]})), cancellation=Cancellation())
    private = "mine_" + "0" * 32
    federation.load(private, Stream.of(pa.table({"a": [1]})), cancellation=Cancellation())
    assert federation.tables() == ()
    with pytest.raises(DaiError) as caught:
        federation.query("from mine_0", cancellation=Cancellation())
    assert private not in str(caught.value)
    federation.close()


def test_tables_that_are_loaded_at_the_same_time_have_one_limit() -> None:
    federation = Federation(load({"upload_bytes": 100_000}))
    batch = pa.record_batch({"a": pa.array(range(9_000), pa.int64())})

    def loaded(number: int, *batches: pa.RecordBatch) -> int:
        stream = Stream(batch.schema, iter(batches))
        return federation.load(f"mine_{number:032x}", stream, cancellation=Cancellation())

    def meanwhile() -> Iterator[pa.RecordBatch]:
        yield batch
        with pytest.raises(LimitError, match="100,000 bytes"):
            loaded(2, batch)
        yield batch.slice(0, 1_000)

    stream = Stream(batch.schema, meanwhile())
    assert federation.load(f"mine_{1:032x}", stream, cancellation=Cancellation()) == 10_000
    assert [each.num_rows for each in federation.catalog.uploads.values()] == [10_000]
    assert loaded(1) == 0
    assert loaded(2, batch) == 9_000
    federation.close()


def test_so_many_tables_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dqp.interfaces.driver._MOST_LOADED", 2)
    federation = Federation(load({}))
    nothing = pa.table({"a": pa.array([], pa.int64())})
    for number, room in ((1, True), (2, True), (3, False), (2, True)):
        with nullcontext() if room else pytest.raises(LimitError, match="2 tables"):
            federation.load(f"mine_{number:032x}", Stream(nothing.schema, []), cancellation=Cancellation())
    federation.close()


@pytest.mark.parametrize("name", ["my table", "a.b", "1a", 'a"b', "a" * 129])
def test_a_name_that_needs_quotes_is_refused(two: tuple[Lab, Lab], name: str) -> None:
    with pytest.raises(ParameterError, match="letters, digits or '_'"):
        two[0].upload(name, {"a": [1]})


READING = "select p.id, sum(m.a) from book.people p join mine m on p.id = m.a group by 1"


def hidden(lab: Lab, *texts: str) -> None:
    digits = lab._uploads._token
    for each in texts:
        assert digits not in each
        assert not re.search("[0-9a-f]{24}", each)


@pytest.mark.parametrize("sql", [READING, "from mine a positional join mine b", "values ((select max(a) from mine))"])
@pytest.mark.parametrize("analyze", [False, True])
def test_no_explanation_tells_the_private_name(two: tuple[Lab, Lab], sql: str, analyze: bool) -> None:
    lab = two[0]
    lab.upload("mine", {"a": [1, 2]})
    explanation = lab.sql(sql).explain(analyze=analyze)
    hidden(lab, explanation.text, explanation.json, explanation.svg, explanation._repr_html_(), *explanation.remarks)
    assert explanation.sql == sql
    word = "explain analyze" if analyze else "explain"
    for form in ("", "(format text) ", "(format json) ", "(format svg) "):
        lines = lab.sql(f"{word} {form}{sql}").arrow().column(0).to_pylist()
        hidden(lab, *lines)
        if "json" in form:
            assert json.loads("\n".join(lines))["sql"] == f"{word} (format json) {sql}"
    if sql is READING:
        assert "Tuples mine" in explanation.text


def test_nothing_else_of_a_service_tells_it(
    two: tuple[Lab, Lab], service: Background, caplog: pytest.LogCaptureFixture
) -> None:
    lab, other = two
    caplog.set_level("DEBUG")
    lab.upload("mine", {"a": [1, 2]})
    rows(lab, READING)
    private = lab._uploads._private("mine")
    raw = dai.connect(f"{service.url}/lab")
    padding = " " * 60
    for sql in (
        f"select {padding} nope from {private}",
        f'with "mine" as (from "{private}") select nope from mine',
        f"select nope, '{'x' * 40}' from {private} where {private}.a = 1",
        f"select a + from {private}",
        f"select nope.a from {private}",
        f"select 'x'::date from {private}",
        f'with mine as (from "nothing_{private[-32:]}") from mine',
    ):
        for head in ("", "explain analyze "):
            with pytest.raises(DaiError) as caught:
                raw.query(head + sql).stream().table()
            hidden(lab, str(caught.value), repr(caught.value.extra))
    jobs = httpx.get(f"{service.url}/jobs", timeout=60).text
    hidden(
        lab,
        jobs,
        *(httpx.get(f"{service.url}/jobs/{each}", timeout=60).text for each in re.findall(r"[0-9a-f-]{36}", jobs)),
    )
    digits = lab._uploads._token
    for record in caplog.records:
        assert digits not in caplog.handler.format(record)
    assert not [each for each in other.tables().to_pylist() if "mine" in each["table"]]


def test_carets_of_plain_errors_stand_below_the_mistake() -> None:
    sql = f"select a from mine_{'a1' * 16} where nope = 1"
    place = sql.index("nope") + 1
    with pytest.raises(StatementError) as caught, Plain(sql, [f"mine_{'a1' * 16}"]).errors():
        raise StatementError("There is no column 'nope'.", sql=sql, position=place)
    shown, below = caught.value.extra["excerpt"].split("\n")
    assert shown == "line 1: select a from mine where nope = 1"
    assert below.index("^") == shown.index("nope")
    assert caught.value.position == place


def test_the_nearest_name_may_be_that_of_an_upload(two: tuple[Lab, Lab]) -> None:
    one, other = two
    one.upload("Trusted", {"a": [1]})
    for lab, sql, told in (
        (one, "from trustd", "Did you mean 'Trusted'?"),
        (one, "select a from Trustd t", "Did you mean 'Trusted'?"),
        (one, "from peple", "Did you mean 'book.people'?"),
        (one, "from nothing_like_it", "Known: book.people."),
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
    hidden(lab, str(caught.value), repr(caught.value.extra))


@pytest.mark.parametrize("sql", ["describe mine", "summarize mine", "show mine", "DESC mine", "explain describe mine"])
def test_what_is_not_known_here_is_said_of_what_was_written(two: tuple[Lab, Lab], sql: str) -> None:
    lab = two[0]
    lab.upload("mine", {"a": [1, 2]})
    with pytest.raises(NotAQueryError, match="A federation does not run") as caught:
        lab.sql(sql).arrow()
    assert "LIMIT 0" in str(caught.value)
    assert "CTE" not in str(caught.value)
    assert lab.sql("from mine limit 0").arrow().column_names == ["a"]


def test_no_job_tells_the_private_name(two: tuple[Lab, Lab], service: Background) -> None:
    lab = two[0]
    lab.upload("mine", {"a": [1, 2]})
    private = lab._uploads._private("mine")
    raw = dai.connect(f"{service.url}/lab")
    for sql, part in (
        (f"select count(*) from book.people p join {private} m on p.id = m.a", '"name":"book"'),
        (f"explain analyze from {private}", '"name":"here"'),
        (f"select nope from {private}", "select nope from mine"),
    ):
        with raw.session() as session:
            job = raw.submit(sql, session=session.id)
            job.wait()
            told = httpx.get(f"{service.url}/jobs/{job.id}", timeout=60).text
        assert part in told
        hidden(lab, told)


def test_an_upload_beside_a_query(two: tuple[Lab, Lab], monkeypatch: pytest.MonkeyPatch) -> None:
    one, _ = two
    one.upload("beside", {"a": [1]})
    defined = uploads._defined

    def meanwhile(statement: Statement) -> set[str]:
        one._uploads._tables.setdefault(f"other{len(one._uploads._tables)}", ("other", pa.table({"a": [2]})))
        return defined(statement)

    monkeypatch.setattr(uploads, "_defined", meanwhile)
    assert rows(one, "from beside") == [(1,)]
