"""Documents of many activities: updates, fan-out, sequences, sinks, and any graph."""

import threading

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dai.drivers.memory import Memory, Script
from dai.errors import (
    CancelledError,
    ClosedError,
    DataError,
)
from dai.perform.activities.delivery.streams import OutputStream
from dai.perform.parser import parse
from dai.perform.pipeline import Running
from dai.streams.cancellation import Cancellation
from tests.documents import Ends, answer, environment, query, results, running, statuses, table, to_csv, written
from tests.pipelines import chain, memory, reports

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
        report_list = reports(work)
    assert report_list["xml"][0] == "ERROR"
    assert report_list["csv"] == ("TERMINATED", "Closed by its producer 'q', because 'xml' failed.")


# --- sequences ------------------------------------------------------------------------------------------------------


def test_a_sequence_runs_one_after_the_other(tmp_path):
    driver = memory()
    body = f"<sequence>{query('q', 'all', 'tuples')}{UPDATE.format('u')}{to_csv('c', 'tuples', 'end')}</sequence>"
    with running(body, driver, scratch=tmp_path) as work:
        actual = [(end.name, source.read()) for end, source in work.end_points()]
    assert [name for name, _ in actual] == ["nu", "end"]
    assert actual[1][1].count(b"\r\n") == 5
    assert driver.open_streams == 0


def test_what_follows_a_failure_in_a_sequence_does_not_run():
    driver = memory()
    body = (
        f"<flow><sequence>{query('q', 'fails', 'e', 'webRowSetStream')}{UPDATE.format('u')}</sequence>"
        f"<sequence>{query('r', 'all', 'f', 'webRowSetStream')}{query('s', 'all', 'g', 'webRowSetStream')}</sequence>"
        "</flow>"
    )
    response = answer(body, driver)
    states = statuses(response)
    assert "change" not in [sql for sql, _ in driver.executed]
    assert {name: states[name] for name in states if name not in "efg"} == {
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
    states = statuses(response)
    assert states["u"] == "COMPLETED"
    assert states["q"] == states["e"] == "ERROR"
    assert states["blocks"] == "COMPLETED"
    assert states["request"] == "COMPLETED_WITH_ERROR"
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


@pytest.mark.parametrize("beside", [False, True])
def test_a_sink_that_has_nothing_beside_it_runs_in_its_callers_thread(beside, monkeypatch):
    threads, run = [], OutputStream.run

    def noted(activity, context):
        threads.append(threading.current_thread())
        run(activity, context)

    monkeypatch.setattr(OutputStream, "run", noted)
    body = sink("all") + (chain("all", "1") if beside else "")
    with Running(parse(written(body)), environment(memory(rows=20), session=Ends(capacity=99))) as work:
        work.open(here=True).finish()
    assert (threads == [threading.current_thread()]) is not beside
    assert {status for status, _ in reports(work).values()} == {"COMPLETED"}


def test_the_reader_is_gone():
    driver, session = memory(rows=20), Ends(capacity=1)
    with running(sink("all"), driver, session=session, blocksize=1) as work:
        session.output("out").get(0, Cancellation())
        session.output("out").discard(CancelledError("gone"))
        with pytest.raises(ClosedError, match="reader of this stream is gone"):
            work.finish()
        report_list = reports(work)
    assert report_list["out"] == ("TERMINATED", "The reader of this stream is gone.")
    assert report_list["query"] == ("TERMINATED", "Closed by its consumer 'csv', because 'out' failed.")
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
        actual = {end.name: sum(batch.num_rows for batch in source) for end, source in work.end_points()}
        consumed = {source.link for each in work.perform.activities for source in each.inputs}
        assert {each.activity: each.rows for each in work.reports()} == {f"a{n}": rows[n] for n in range(len(graph))}
        assert {each.status for each in work.reports()} == {"COMPLETED"}
        placed = [each.name for step in work.perform.steps for each in step]
        for each in work.perform.activities:
            for source in each.inputs:
                assert placed.index(f"a{source.link[1:]}") < placed.index(each.name)
    assert actual == {f"t{n}": rows[n] for n in range(len(graph)) if f"t{n}" not in consumed}
    assert driver.open_streams == 0
