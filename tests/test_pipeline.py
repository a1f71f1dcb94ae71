import threading
from collections.abc import Iterator

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dai.cancellation import Cancellation
from dai.demo.load import load
from dai.drivers import Driver, driver_for
from dai.drivers.memory import Memory, Script
from dai.errors import (
    CancelledError,
    ClosedError,
    DaiError,
    DataError,
    InternalError,
    LimitError,
    RequestError,
    StatementError,
)
from dai.perform import DocumentLimits, parse
from dai.pipeline import Running
from tests.documents import Ends, answer, environment, query, results, running, statuses, table, to_csv, written

FAILS = DataError("half-way")


def memory(rows: int = 4, **scripts: Script) -> Memory:
    fixed = {
        "all": Script(table(rows), batch_rows=1),
        "fails": Script(table(2), batch_rows=1, fails=FAILS),
        "refused": Script(refused=StatementError("no such table")),
        "blocks": Script(table(1), blocks=True),
        "change": Script(count=2),
        "broken": Script(table(1), fails=KeyError("secret /path")),
    }
    return Memory({**fixed, **scripts})


def reports(work: Running) -> dict[str, tuple[str, str]]:
    return {each.activity: (each.status, str(each.error or "")) for each in work.reports()}


def chain(sql: str, of: str = "") -> str:
    """Query, CSV, blocks of two: an independent pipeline ``of`` that name."""
    return (
        query(f"query{of}", sql, f"tuples{of}")
        + to_csv(f"csv{of}", f"tuples{of}", f"text{of}")
        + f'<blockAggregator name="blocks{of}"><input from="text{of}"/><blocksize size="2"/><output name="end{of}"/>'
        "</blockAggregator>"
    )


def test_completed_with_counts():
    with running(chain("all"), memory()) as work:
        ((end, text),) = [(end, source.read()) for end, source in work.end_points()]
    assert end.name == "end"
    assert end.tabular
    assert text.split()[1:] == [b"0,name", b"0", b"1,name", b"1", b"2,name", b"2", b"3,name", b"3"]
    assert {each.status for each in work.reports()} == {"COMPLETED"}
    by_name = {each.activity: each for each in work.reports()}
    assert (by_name["query"].rows, by_name["query"].blocks) == (4, 4)
    assert (by_name["csv"].rows, by_name["csv"].blocks) == (4, 2)
    assert by_name["blocks"].bytes == len(text)


@pytest.mark.parametrize("read", ["pulled", "finished"])
def test_first_cause(read):
    with running(chain("fails"), memory()) as work:
        if read == "finished":
            with pytest.raises(DataError, match="half-way"):
                work.finish()
        else:
            for _, source in work.end_points():
                with pytest.raises(DataError, match="half-way"):
                    source.read()
        assert work.cause is FAILS
        found = reports(work)
    assert found == {
        "query": ("ERROR", "half-way"),
        "csv": ("TERMINATED", "Closed by its producer 'query', because 'query' failed."),
        "blocks": ("TERMINATED", "Closed by its producer 'csv', because 'query' failed."),
    }
    assert all(isinstance(each.error, ClosedError) for each in work.reports() if each.status == "TERMINATED")


def test_closed_by_its_consumer():
    """The load fails (its table takes no second batch): the query above it was closed by its consumer."""

    class Full(Memory):
        def load(self, table, stream, **_):
            next(stream)
            raise DataError("the table is full")

    driver = Full(memory().scripts)
    body = (
        query("query", "all", "tuples")
        + to_csv("csv", "tuples", "text")
        + '<sqlBulkLoadRowSet name="load"><webRowSetStream from="tuples"/><loadIntoTable tableName="t"/>'
        '<resultStream name="count"/></sqlBulkLoadRowSet>'
    )
    response = answer(body, driver)
    assert statuses(response)["request"] == "ERROR"
    assert statuses(response)["load"] == "ERROR"
    assert driver.open_streams == 0
    body = query("query", "all", "tuples") + body[body.index("<sqlBulkLoad") :]
    with running(body, driver) as work:
        with pytest.raises(DataError, match="full"):
            work.finish()
        assert reports(work)["query"] == ("TERMINATED", "Closed by its consumer 'load', because 'load' failed.")
    assert driver.open_streams == 0


def test_independent_pipelines_go_on():
    driver = memory()
    response = answer(chain("fails", "1") + chain("all", "2"), driver)
    found = statuses(response)
    assert found["request"] == "COMPLETED_WITH_ERROR"
    assert found["query1"] == "ERROR"
    assert found["csv1"] == found["blocks1"] == "TERMINATED"
    assert found["query2"] == found["csv2"] == found["blocks2"] == "COMPLETED"
    assert results(response)["end2"].text.count("\r\n") == 5
    assert driver.open_streams == 0


def test_one_failed_pipeline_is_an_error_even_where_one_of_its_activities_was_completed():
    """The query has given all it has when the encoder meets what it cannot carry."""
    bad = pa.table({"x": ["a", "b\0"]})
    driver = memory(bad=Script(bad))
    body = query("query", "bad", "tuples") + (
        '<sqlResultsToXML name="xml"><resultSet from="tuples"/><webRowSet name="end"/></sqlResultsToXML>'
    )
    found = statuses(answer(body, driver))
    assert found["xml"] == "ERROR"
    assert found["request"] == "ERROR"


def test_early_failure_closes_everything():
    driver = memory()
    body = chain("all", "1") + chain("refused", "2")
    work = Running(parse(written(body)), environment(driver))
    with pytest.raises(StatementError, match="no such table"):
        work.open()
    assert driver.open_streams == 0
    assert reports(work)["query2"][0] == "ERROR"
    assert reports(work)["query1"][0] == "TERMINATED"
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("sink")]


def test_foreign_errors_are_translated_and_tell_nothing(caplog):
    with running(chain("broken"), memory()) as work, pytest.raises(InternalError) as raised:
        work.finish()
    assert "secret" not in str(raised.value)
    assert isinstance(raised.value.__cause__, KeyError)
    assert "secret" in caplog.text
    work = Running(parse(written(chain("odd"))), environment(memory(odd=Script(refused=KeyError("secret")))))
    with pytest.raises(InternalError):
        work.open()


@pytest.mark.parametrize("cause", [None, LimitError("60 seconds are allowed")])
def test_cancelled_from_outside_while_the_driver_blocks(cause):
    driver, cancellation = memory(), Cancellation()
    raised: list[BaseException] = []
    work = Running(parse(written(chain("blocks"))), environment(driver, cancellation=cancellation))

    def run() -> None:
        with work:
            try:
                work.open().finish()
            except DaiError as error:
                raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert driver.blocked.wait(30)
    assert reports(work)["query"][0] == "PROCESSING"
    cancellation.cancel(cause)
    thread.join(30)
    assert not thread.is_alive()
    assert isinstance(raised[0], LimitError if cause else CancelledError)
    assert raised[0] is cancellation.cause
    assert {(status, error) for status, error in reports(work).values()} == {("TERMINATED", str(cancellation.cause))}
    assert driver.open_streams == 0


def test_cancelled_before_it_is_opened():
    driver, cancellation = memory(), Cancellation()
    cancellation.cancel()
    with pytest.raises(CancelledError):
        Running(parse(written(chain("all"))), environment(driver, cancellation=cancellation)).open()
    assert driver.executed == []


def test_cancelled_between_batches_even_where_the_driver_does_not_look():
    class Deaf(Memory):
        def query(self, sql, parameters=(), *, cancellation, batch_rows=None):
            return super().query(sql, parameters, cancellation=Cancellation(), batch_rows=batch_rows)

    cancellation = Cancellation()
    with running(
        query("q", "all", "end", "webRowSetStream"), Deaf(memory().scripts), cancellation=cancellation
    ) as work:
        ((_, source),) = [next(work.end_points())]
        next(source)
        cancellation.cancel()
        with pytest.raises(CancelledError):
            next(source)


def test_left_before_the_end():
    driver = memory()
    with running(chain("all"), driver) as work:
        _, source = next(work.end_points())
        next(source)
    assert driver.open_streams == 0
    assert {status for status, _ in reports(work).values()} == {"TERMINATED"}


def test_the_longest_chain_that_is_allowed_runs():
    length = DocumentLimits().chain
    body = query("q0", "one", "t0") + "".join(
        f'<sqlQueryStatement name="q{n}"><sqlParameter position="1" from="t{n - 1}"/><expression>one</expression>'
        f'<webRowSetStream name="t{n}"/></sqlQueryStatement>'
        for n in range(1, length)
    )
    with running(body, memory(one=Script(table(1)))) as work:
        work.finish()


def test_end_points_asked_for_again_go_on():
    with running(chain("all", "1") + chain("all", "2"), memory()) as work:
        end, source = next(work.end_points())
        source.read()
        assert end.name == "end1"
        assert [end.name for end, _ in work.end_points()] == ["end2"]


def test_end_points_come_in_document_order():
    body = (
        to_csv("late", "tuples", "a") + query("alone", "all", "b", "webRowSetStream") + query("query", "all", "tuples")
    )
    with running(body, memory()) as work:
        assert [end.name for end, _ in work.end_points()] == ["a", "b"]


# --- updates --------------------------------------------------------------------------------------------------------

UPDATE = (
    '<sqlUpdateStatement name="{0}"><expression>change</expression><resultStream name="n{0}"/></sqlUpdateStatement>'
)


def test_an_update_runs_once_and_only_when_it_is_pulled():
    driver = memory()
    with running(UPDATE.format("u"), driver) as work:
        assert driver.executed == []
        work.finish()
    assert driver.executed == [("change", ())]
    assert driver.committed == ["change"]
    with running(UPDATE.format("u"), driver) as work:
        pass
    assert len(driver.executed) == 1
    assert reports(work)["u"][0] == "TERMINATED"


def test_an_update_between_steps_runs_once_for_two_readers():
    driver = memory()
    body = (
        f"<sequence>{UPDATE.format('u')}"
        '<blockAggregator name="x"><input from="nu"/><blocksize size="1"/><output name="ex"/></blockAggregator>'
        '<blockAggregator name="y"><input from="nu"/><blocksize size="1"/><output name="ey"/></blockAggregator>'
        "</sequence>"
    )
    response = answer(body, driver)
    assert driver.executed == [("change", ())]
    assert statuses(response)["request"] == "COMPLETED"


# --- fan-out --------------------------------------------------------------------------------------------------------


def test_fan_out_and_fan_in():
    driver = memory(pairs=Script(table(1)))
    body = (
        query("query", "all", "tuples")
        + to_csv("one", "tuples", "text")
        + '<sqlQueryStatement name="join"><sqlParameter position="1" from="tuples"/>'
        '<sqlParameter position="2" from="tuples"/><expression>pairs</expression><webRowSetStream name="joined"/>'
        "</sqlQueryStatement>"
    )
    response = answer(body, driver)
    assert driver.executed[1:] == [("pairs", (n, f"name {n}")) for n in range(4)]
    assert results(response)["joined"].text.count("<currentRow>") == 4
    assert results(response)["text"].text.count("\r\n") == 5
    assert statuses(response)["request"] == "COMPLETED"
    assert driver.open_streams == 0


def test_an_abandoned_branch_does_not_hold_the_others():
    with running(
        query("q", "all", "tuples") + to_csv("a", "tuples", "ea") + to_csv("b", "tuples", "eb"), memory()
    ) as work:
        ends = work.end_points()
        _, first = next(ends)
        first.close()
        _, second = next(ends)
        assert second.read().count(b"\r\n") == 5
        assert next(ends, None) is None
        assert {status for status, _ in reports(work).values()} == {"COMPLETED"}


def test_one_branch_fails_and_stops_its_siblings():
    bad = pa.table({"x": ["a", "b\0"]})
    body = (
        query("q", "bad", "tuples")
        + '<sqlResultsToXML name="xml"><resultSet from="tuples"/><webRowSet name="ex"/></sqlResultsToXML>'
        + to_csv("csv", "tuples", "ec")
    )
    with running(body, memory(bad=Script(bad, batch_rows=1))) as work:
        with pytest.raises(DataError):
            work.finish()
        found = reports(work)
    assert found["xml"][0] == "ERROR"
    assert found["csv"] == ("TERMINATED", "Closed by its producer 'q', because 'xml' failed.")


# --- sequences ------------------------------------------------------------------------------------------------------


def test_a_sequence_runs_one_after_the_other(tmp_path):
    driver = memory()
    body = f"<sequence>{query('q', 'all', 'tuples')}{UPDATE.format('u')}{to_csv('c', 'tuples', 'end')}</sequence>"
    with running(body, driver, scratch=tmp_path) as work:
        found = [(end.name, source.read()) for end, source in work.end_points()]
    assert [name for name, _ in found] == ["nu", "end"]
    assert found[1][1].count(b"\r\n") == 5
    assert driver.open_streams == 0


def test_what_follows_a_failure_in_a_sequence_does_not_run():
    driver = memory()
    body = (
        f"<flow><sequence>{query('q', 'fails', 'e', 'webRowSetStream')}{UPDATE.format('u')}</sequence>"
        f"<sequence>{query('r', 'all', 'f', 'webRowSetStream')}{query('s', 'all', 'g', 'webRowSetStream')}</sequence>"
        "</flow>"
    )
    response = answer(body, driver)
    found = statuses(response)
    assert "change" not in [sql for sql, _ in driver.executed]
    assert {name: found[name] for name in found if name not in "efg"} == {
        "nu": "TERMINATED",
        "q": "ERROR",
        "u": "TERMINATED",
        "r": "COMPLETED",
        "s": "COMPLETED",
        "request": "COMPLETED_WITH_ERROR",
    }
    assert "not started, because 'q' failed" in "".join(results(response)["u"].itertext())


def test_a_later_step_that_cannot_be_opened():
    driver = memory()
    body = f"<sequence>{UPDATE.format('u')}{query('q', 'refused', 'e', 'webRowSetStream')}</sequence>" + chain("all")
    response = answer(body, driver)
    found = statuses(response)
    assert found["u"] == "COMPLETED"
    assert found["q"] == found["e"] == "ERROR"
    assert found["blocks"] == "COMPLETED"
    assert found["request"] == "COMPLETED_WITH_ERROR"
    assert driver.open_streams == 0


# --- sinks ----------------------------------------------------------------------------------------------------------

SINK = '<outputStream name="out"><fromLocal from="text"/></outputStream>'


def sink(sql: str) -> str:
    return query("query", sql, "tuples") + to_csv("csv", "tuples", "text") + SINK


def test_a_slow_reader_holds_the_producer():
    driver, session = memory(rows=20), Ends(capacity=2)
    with running(sink("all"), driver, session=session, blocksize=1) as work:
        box = session.output("out")
        first = box.get(0, Cancellation())
        assert bytes(first.data).startswith(b"id,name")
        assert box.held[0] <= 2
        text = b"".join(bytes(memoryview(block.data)) for block in box.blocks(Cancellation()))
        work.finish()
    assert text.count(b"\r\n") == 21
    assert {status for status, _ in reports(work).values()} == {"COMPLETED"}
    assert driver.open_streams == 0


def test_the_reader_is_gone():
    driver, session = memory(rows=20), Ends(capacity=1)
    with running(sink("all"), driver, session=session, blocksize=1) as work:
        session.output("out").get(0, Cancellation())
        session.output("out").discard(CancelledError("gone"))
        with pytest.raises(ClosedError, match="reader of this stream is gone"):
            work.finish()
        found = reports(work)
    assert found["out"] == ("TERMINATED", "The reader of this stream is gone.")
    assert found["query"] == ("TERMINATED", "Closed by its consumer 'csv', because 'out' failed.")
    assert driver.open_streams == 0


def test_the_reader_sees_a_failure_half_way():
    session = Ends(capacity=10)
    with running(sink("fails"), memory(), session=session, blocksize=1) as work:
        box = session.output("out")
        with pytest.raises(DataError, match="half-way"):
            list(box.blocks(Cancellation()))
        with pytest.raises(DataError, match="half-way"):
            work.finish()
        assert reports(work)["out"][0] == "TERMINATED"


def test_leaving_stops_a_sink_that_waits_for_its_reader():
    driver, session = memory(rows=20), Ends(capacity=1)
    with running(sink("all"), driver, session=session, blocksize=1):
        session.output("out").get(0, Cancellation())
    assert driver.open_streams == 0
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("sink")]


def test_a_sink_and_an_end_point_share_an_output():
    driver, session = memory(rows=20), Ends(capacity=100)
    body = sink("all") + to_csv("other", "tuples", "end")
    with running(body, driver, session=session) as work:
        work.finish()
        text = b"".join(bytes(memoryview(block.data)) for block in session.output("out").blocks(Cancellation()))
    assert text.count(b"\r\n") == 21
    assert {status for status, _ in reports(work).values()} == {"COMPLETED"}


# --- what else a document may be ------------------------------------------------------------------------------------


def test_only_a_session():
    with running('<session timeout="60"/>', memory()) as work:
        work.finish()
        assert work.reports() == ()


def test_no_database():
    with pytest.raises(RequestError, match="not a relational database"), running(chain("all"), None):
        pass


# --- real databases --------------------------------------------------------------------------------------------------


@pytest.fixture(params=["sqlite", "duckdb", "postgres", "mariadb"])
def driver(request: pytest.FixtureRequest) -> Iterator[Driver]:
    url = request.getfixturevalue(f"{request.param}_url")
    load(url, ["littleblackbook"], rows=20_000)
    driver = driver_for(url)
    yield driver
    driver.close()


def free(driver: Driver) -> bool:
    state = driver.pool_state()
    return state["open"] == state["idle"]


BOOK_UPDATE = (
    "<sqlUpdateStatement name=\"u\">{}<expression>update littleblackbook set phone = 'x' where id = {}</expression>"
    '<resultStream name="n"/></sqlUpdateStatement>'
)


def test_documents_that_read_and_change_the_same_table(driver):
    """In either order, side by side, and one feeding the other."""
    alone, fed = BOOK_UPDATE.format("", "1"), BOOK_UPDATE.format('<sqlParameter position="1" from="t"/>', "?")
    every = query("q", "select * from littleblackbook order by id", "e", "webRowSetStream")
    few = query("few", "select id from littleblackbook where id between 10 and 19", "t")
    for body, count in ((every + alone, "1"), (alone + every, "1"), (few + fed, "10"), (fed + every + few, "10")):
        response = answer(body, driver)
        assert statuses(response)["request"] == "COMPLETED", response[-2000:]
        assert results(response)["n"][0].get("updateCount") == count
        assert free(driver)


def test_a_query_for_each_tuple_of_another(driver):
    body = query("few", "select id, name from littleblackbook where id between 10 and 19 order by id", "t") + (
        '<sqlQueryStatement name="q"><sqlParameter position="1" from="t"/><sqlParameter position="2" from="t"/>'
        "<expression>select id from littleblackbook where id = ? and name = ?</expression>"
        '<webRowSetStream name="e"/></sqlQueryStatement>'
    )
    with running(body, driver) as work:
        ((_, found),) = [(end, source.table()) for end, source in work.end_points()]
    assert found.column("id").to_pylist() == list(range(10, 20))
    assert free(driver)


def test_cancelling_stops_the_statement(driver):
    endless = "select count(*) from littleblackbook a, littleblackbook b, littleblackbook c where a.id + b.id &lt; c.id"
    cancellation = Cancellation()
    work = Running(parse(written(query("q", endless, "e", "webRowSetStream"))), environment(driver, None, cancellation))
    raised: list[DaiError] = []

    def run() -> None:
        with work:
            try:
                work.open().finish()
            except DaiError as error:
                raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    while free(driver) and thread.is_alive():
        pass  # until the statement has its connection
    cancellation.cancel()
    thread.join(60)
    assert not thread.is_alive()
    assert raised == [cancellation.cause]
    assert {status for status, _ in reports(work).values()} == {"TERMINATED"}
    assert free(driver)


def test_what_fails_in_the_database_half_way_changes_nothing(driver):
    """The second of three tuples breaks the key."""
    taken = query("t", "select 30000 as id, 'a' as name union all select 1, 'b' union all select 30001, 'c'", "t")
    body = taken + (
        '<sqlUpdateStatement name="u"><sqlParameter position="1" from="t"/><sqlParameter position="2" from="t"/>'
        "<expression>insert into littleblackbook (id, name, address, phone) values (?, ?, '', '')</expression>"
        '<resultStream name="n"/></sqlUpdateStatement>'
    )
    response = answer(body, driver)
    assert statuses(response)["u"] == statuses(response)["request"] == "ERROR"
    counted = driver.query("select count(*) from littleblackbook", cancellation=Cancellation()).table()
    assert counted.column(0).to_pylist() == [20_000]
    assert free(driver)


# --- random documents -----------------------------------------------------------------------------------------------


@st.composite
def graphs(draw):
    """For each activity the places of the earlier ones it reads: none is a query, one a CSV or blocks, two or more a
    query fed by them."""
    size = draw(st.integers(1, 8))
    return [
        draw(st.lists(st.integers(0, place - 1), max_size=3, unique=True)) if place else [] for place in range(size)
    ]


@given(graph=graphs(), shuffle=st.randoms(use_true_random=False))
def test_any_graph_of_activities_gives_what_its_parts_say(graph, shuffle):
    """Node n with inputs gives the rows of its first input once for each row of it: evaluated naively beside."""
    scripts = {f"q{n}": Script(table(n % 3 + 1), batch_rows=1) for n in range(len(graph))}
    rows: list[int] = []
    activities = []
    for n, inputs in enumerate(graph):
        parameters = "".join(f'<sqlParameter position="{p}" from="t{i}"/>' for p, i in enumerate(inputs, 1))
        same = {rows[i] for i in inputs}
        if len(same) > 1:  # streams of unequal length would be refused: take the first input alone
            inputs, parameters = inputs[:1], f'<sqlParameter position="1" from="t{inputs[0]}"/>'
        times = rows[inputs[0]] if inputs else 1
        rows.append(times * (n % 3 + 1))
        activities.append(
            f'<sqlQueryStatement name="a{n}">{parameters}<expression>q{n}</expression><webRowSetStream name="t{n}"/>'
            "</sqlQueryStatement>"
        )
    shuffle.shuffle(activities)
    driver = Memory(scripts)
    with running("".join(activities), driver) as work:
        found = {end.name: sum(batch.num_rows for batch in source) for end, source in work.end_points()}
        consumed = {source.link for each in work.perform.activities for source in each.inputs()}
        assert {each.activity: each.rows for each in work.reports()} == {f"a{n}": rows[n] for n in range(len(graph))}
        assert {each.status for each in work.reports()} == {"COMPLETED"}
        placed = [each.name for step in work.perform.steps for each in step]
        for each in work.perform.activities:
            for source in each.inputs():
                assert placed.index(f"a{source.link[1:]}") < placed.index(each.name)
    assert found == {f"t{n}": rows[n] for n in range(len(graph)) if f"t{n}" not in consumed}
    assert driver.open_streams == 0
