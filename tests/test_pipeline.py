"""Running a document: what is completed, fails, is cancelled or left."""

import threading

import pyarrow as pa
import pytest

from dai.drivers.memory import Memory, Script
from dai.errors import (
    CancelledError,
    ClosedError,
    DataError,
    InternalError,
    LimitError,
    RequestError,
    StatementError,
)
from dai.perform.parser import DocumentLimits, parse
from dai.perform.pipeline import Running
from dai.streams.cancellation import Cancellation
from tests.documents import answer, environment, query, results, running, statuses, table, to_csv, written
from tests.pipelines import FAILS, begun, chain, memory, reports


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
        report_list = reports(work)
    assert report_list == {
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
    states = statuses(response)
    assert states["request"] == "COMPLETED_WITH_ERROR"
    assert states["query1"] == "ERROR"
    assert states["csv1"] == states["blocks1"] == "TERMINATED"
    assert states["query2"] == states["csv2"] == states["blocks2"] == "COMPLETED"
    assert results(response)["end2"].text.count("\r\n") == 5
    assert driver.open_streams == 0


def test_one_failed_pipeline_is_an_error_even_where_one_of_its_activities_was_completed():
    """The query has given all it has when the encoder meets what it cannot carry."""
    bad = pa.table({"x": ["a", "b\0"]})
    driver = memory(bad=Script(bad))
    body = query("query", "bad", "tuples") + (
        '<sqlResultsToXML name="xml"><resultSet from="tuples"/><webRowSet name="end"/></sqlResultsToXML>'
    )
    states = statuses(answer(body, driver))
    assert states["xml"] == "ERROR"
    assert states["request"] == "ERROR"


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
    work = Running(parse(written(chain("blocks"))), environment(driver, cancellation=cancellation))
    thread, raised = begun(work)
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


# --- what else a document may be ------------------------------------------------------------------------------------


def test_only_a_session():
    with running('<session timeout="60"/>', memory()) as work:
        work.finish()
        assert work.reports() == ()


def test_no_database():
    with pytest.raises(RequestError, match="not a relational database"), running(chain("all"), None):
        pass
