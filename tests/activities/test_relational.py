import datetime
import decimal
import re
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from dai.drivers.memory import Memory, Script
from dai.errors import DaiError, DataError, LimitError, NotAQueryError, ParameterError
from dai.perform.activities.sql.statements import QueryTable, SqlParameter, in_order
from dai.perform.activity import Input
from dai.streams.stream import Stream
from tests.documents import answer, error_of, query, results, running, statuses, table

ONE = Script(pa.table({"x": [1]}))


def statement(parameters: str, sql: str = "q", kind: str = "query") -> str:
    element, port = (
        ("sqlQueryStatement", "webRowSetStream") if kind == "query" else ("sqlUpdateStatement", "resultStream")
    )
    return f'<{element} name="s">{parameters}<expression>{sql}</expression><{port} name="e"/></{element}>'


@pytest.mark.parametrize(
    ("type", "text", "value"),
    [
        (None, " as it is\n", " as it is\n"),
        ("string", "12", "12"),
        ("string", "", ""),
        ("integer", " -12 ", -12),
        ("double", "1e3", 1000.0),
        ("decimal", "1.10", decimal.Decimal("1.10")),
        ("boolean", "true", True),
        ("boolean", "0", False),
        ("date", "2003-07-01", datetime.date(2003, 7, 1)),
        ("time", "12:30:00.5", datetime.time(12, 30, 0, 500000)),
        ("timestamp", "2003-07-01T12:30:00Z", datetime.datetime(2003, 7, 1, 12, 30, tzinfo=datetime.UTC)),
        ("binary", "AAE=", b"\x00\x01"),
        ("null", "", None),
        ("null", "whatever", None),
    ],
)
def test_constants(type, text, value):
    actual = SqlParameter(position=1, type=type, content=text).constant()
    assert actual == value
    assert isinstance(actual, value.__class__)


@pytest.mark.parametrize(
    ("type", "text"),
    [("integer", "1.5"), ("double", "x"), ("decimal", ""), ("boolean", "yes"), ("date", "1.7.2003"), ("binary", "*"),
     ("time", "noon"), ("timestamp", "now")],
)  # fmt: skip
def test_constants_that_are_none(type, text):
    with pytest.raises(ParameterError, match=f"Parameter 3 must be of the type {type}, not ") as caught:
        SqlParameter(position=3, type=type, content=text).constant()
    assert (caught.value.hint is None) == (type in ("integer", "double"))
    if caught.value.hint is not None:
        example = caught.value.hint.removeprefix("Write it like this: ").removesuffix(".").removesuffix(" (base64)")
        SqlParameter(position=3, type=type, content=example).constant()


@pytest.mark.parametrize(
    ("positions", "good"), [([], True), ([2, 1], True), ([1, 1], False), ([2], False), ([0, 1], False)]
)
def test_positions(positions, good):
    parameters = [SqlParameter(position=position) for position in positions]
    if good:
        assert [each.position for each in in_order(parameters)] == sorted(positions)
    else:
        with pytest.raises(ParameterError, match="run from 1"):
            in_order(parameters)


def fed(parameters: str, kind: str = "query", **scripts: Script) -> tuple[Memory, bytes]:
    driver = Memory({"q": ONE, "u": Script(count=1), "src": Script(table(3), batch_rows=2), **scripts})
    sql = "q" if kind == "query" else "u"
    return driver, answer(query("src", "src", "t") + statement(parameters, sql, kind), driver)


FROM = '<sqlParameter position="{}" from="t"/>'


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        (FROM.format(1), [(0,), (1,), (2,)]),
        (FROM.format(1) + FROM.format(2), [(0, "name 0"), (1, "name 1"), (2, "name 2")]),
        (FROM.format(2) + FROM.format(1), [(0, "name 0"), (1, "name 1"), (2, "name 2")]),
        ('<sqlParameter position="1" from="t" column="name"/>', [("name 0",), ("name 1",), ("name 2",)]),
        ('<sqlParameter position="1">c</sqlParameter>' + FROM.format(2), [("c", 0), ("c", 1), ("c", 2)]),
    ],
)
@pytest.mark.parametrize("kind", ["query", "update"])
def test_stream_fed(kind, parameters, expected):
    driver, response = fed(parameters, kind)
    assert [values for sql, values in driver.executed if sql in "qu"] == expected
    assert statuses(response)["request"] == "COMPLETED"
    if kind == "update":
        assert results(response)["e"][0].get("updateCount") == "3"
        assert driver.committed == ["u"]
    assert driver.open_streams == 0


@pytest.mark.parametrize("kind", ["query", "update"])
def test_no_tuples_at_all(kind):
    driver, response = fed(FROM.format(1), kind, src=Script(table(0)))
    assert statuses(response)["request"] == "COMPLETED"
    if kind == "query":
        assert results(response)["e"].text.count("<currentRow>") == 0
        assert "<column-name>x</column-name>" in results(response)["e"].text
    else:
        assert results(response)["e"][0].get("updateCount") == "0"
    assert driver.open_streams == 0


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (
            FROM.format(1) + FROM.format(2) + FROM.format(3),
            "Parameter 3: there is no column for it; the columns are id, name",
        ),
        ('<sqlParameter position="1" from="t" column="nme"/>', "Parameter 1: there is no column 'nme'"),
    ],
)
def test_columns_that_are_not_there(parameters, message):
    with pytest.raises(ParameterError, match=re.escape(message)):
        fed(parameters)
    driver, response = fed(parameters, "update")
    assert message in error_of(results(response)["s"])[2]
    assert driver.committed == []


@pytest.mark.parametrize(("left", "right", "short"), [(3, 2, 2), (2, 3, 1), (0, 1, 1), (1, 0, 2)])
def test_streams_of_unequal_length(left, right, short):
    driver = Memory({"u": Script(count=1), "l": Script(table(left)), "r": Script(table(right))})
    body = query("l", "l", "tl") + query("r", "r", "tr")
    body += statement('<sqlParameter position="1" from="tl"/><sqlParameter position="2" from="tr"/>', "u", "update")
    response = answer(body, driver)
    assert error_of(results(response)["s"])[2] == f"The values of parameter {short} ended before those of the others."
    assert driver.committed == []
    assert driver.open_streams == 0


def test_a_failure_while_values_are_fed_changes_nothing():
    driver, response = fed(FROM.format(1), "update", src=Script(table(2), fails=DataError("half-way")))
    assert statuses(response)["src"] == "ERROR"
    assert error_of(results(response)["s"])[0] == "stream-closed"
    assert driver.committed == []


def test_later_executions_keep_the_types_of_the_first():
    class Changes(Memory):
        def query(self, sql, parameters=(), **more):
            if sql == "q":
                self.scripts["q"] = Script(pa.table({"x": [self.values.pop(0)]}))
            return super().query(sql, parameters, **more)

    driver = Changes({"q": ONE, "src": Script(table(2))})
    driver.values = [1.5, 2]
    with running(query("src", "src", "t") + statement(FROM.format(1)), driver) as work:
        ((_, actual),) = [(end, source.table()) for end, source in work.end_points()]
    assert actual.column("x").to_pylist() == [1.5, 2.0]
    driver.values = [1, "text"]
    body = query("src", "src", "t") + statement(FROM.format(1))
    with running(body, driver) as work, pytest.raises(DataError, match="other column types"):
        work.finish()


def test_not_a_query():
    with pytest.raises(NotAQueryError), running(statement("", "u"), Memory({"u": Script(count=1)})):
        pass


CALL = '<sqlStoredProcedure name="s"><storedProcedure name="p"/>{}<resultStream name="e"/></sqlStoredProcedure>'


def test_a_procedure_with_one_result():
    driver = Memory({"p": Script(table(3))})
    response = answer(CALL.format('<sqlParameter position="1" type="integer">5</sqlParameter>'), driver)
    assert results(response)["e"].text.count("<currentRow>") == 3
    assert driver.executed == [("p", (("in", 5),))]
    assert driver.committed == ["p"]
    assert driver.open_streams == 0


def test_a_procedure_with_out_parameters():
    out = {2: "a <b>\r", 3: None, 4: b"\x00", 5: 7}
    driver = Memory({"p": Script(table(2), out=out)})
    parameters = '<sqlParameter position="1" mode="inout">x</sqlParameter>' + "".join(
        f'<sqlParameter position="{n}" mode="out"/>' for n in (2, 3, 4, 5)
    )
    elements = results(answer(CALL.format(parameters), driver))["e"][0]
    texts = [each.text for each in elements if each.get("position")]
    assert texts == ["a <b>\r", None, "AA==", "7"]
    assert elements[1][0].tag.endswith("null")
    assert elements[-1].tag.endswith("webRowSet")
    assert driver.executed[0][1] == (("inout", "x"), ("out", None), ("out", None), ("out", None), ("out", None))
    assert driver.committed == ["p"]


def test_an_out_parameter_that_xml_cannot_carry():
    driver = Memory({"p": Script(out={1: "a\x00"})})
    response = answer(CALL.format('<sqlParameter position="1" mode="out"/>'), driver)
    assert "out parameter 1" in error_of(results(response)["s"])[2]
    assert driver.committed == []


@pytest.mark.parametrize("taken", [0, 1])
def test_a_procedure_that_is_not_read_to_its_end_is_rolled_back(taken):
    driver = Memory({"p": Script(table(3), batch_rows=1)})
    with running(CALL.format(""), driver) as work:
        _, source = next(work.end_points())
        for _ in range(taken):
            next(source)
    assert driver.committed == []
    assert driver.open_streams == 0


def test_a_procedure_that_fails_half_way_is_rolled_back():
    driver = Memory({"p": Script(table(3), batch_rows=1, fails=DataError("x"))})
    with running(CALL.format(""), driver) as work, pytest.raises(DaiError):
        work.finish()
    assert driver.committed == []
    assert driver.open_streams == 0


def test_a_table_that_a_query_brings_along_is_counted_as_it_comes() -> None:
    pulled: list[int] = []

    def batches() -> Any:
        for at in range(100):
            pulled.append(at)
            yield pa.record_batch([pa.nulls(10_000_000)], names=["a"])

    context: Any = SimpleNamespace(tuples=lambda _: Stream(pa.schema([("a", pa.null())]), batches()))
    with pytest.raises(LimitError, match="has more than"):
        QueryTable(name="given", source=Input("few")).read(context)
    assert pulled == [0, 1]
