"""The tuple activities: what they give, what they refuse, what stops them."""

import datetime
import decimal
import os
from contextlib import ExitStack

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from dai.drivers.duckdb import over
from dai.drivers.memory import Memory, Script
from dai.errors import CancelledError, DataError, LimitError, ParameterError
from dai.perform.activities.tuples.expressions import MOST_CHARACTERS, MOST_JOINED, expressions
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Stream
from tests.documents import query, running
from tests.pipelines import begun

BOOKS = pa.table(
    {
        "id": pa.array([3, 1, 2, None], pa.int32()),
        "Title": ["c", "a", "b", "b"],
        "price": pa.array([decimal.Decimal(each) for each in ("1.50", "20.00", "3.25", "0.10")], pa.decimal128(9, 2)),
        "sold": pa.array([datetime.date(2024, 1, day) for day in (1, 2, 3, 4)], pa.date32()),
    }
)
LOANS = pa.table({"book": pa.array([2, 3, 3, 9, None], pa.int64()), "title": ["v", "w", "x", "y", "z"]})


def outcome(body: str, **scripts: Script) -> list[pa.Table]:
    """The end points of activities over the tuples ``t`` and ``u``."""
    driver = Memory({"t": Script(BOOKS, batch_rows=3), "u": Script(LOANS, batch_rows=2), **scripts})
    needed = "".join(query(f"query {name}", name, name) for name in driver.scripts if f'from="{name}"' in body)
    with running(needed + body, driver) as work:
        tables = [source.table() for _, source in work.end_points() if isinstance(source, Stream)]
        work.raise_cause()
    assert driver.open_streams == 0
    return tables


def activity(name: str, inside: str, result: str = '<result name="e"/>', source: str = '<data from="t"/>') -> str:
    element = name.split()[0]
    return f'<{name} name="a">{source}{inside}{result}</{element}>'


def select(condition: str) -> str:
    return activity("TupleSelect", f"<condition>{condition}</condition>")


def column_ids(*names: str) -> str:
    return "".join(f"<columnIds>{name}</columnIds>" for name in names)


AGGREGATES = (
    '<aggregates resultColumnName="n">count(*)</aggregates><aggregates resultColumnName="s">sum(id)</aggregates>'
)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (
            activity("TupleProjection", column_ids("title", "id")),
            {"Title": ["c", "a", "b", "b"], "id": [3, 1, 2, None]},
        ),
        (activity("TupleProjection", column_ids("id", "ID")), None),
        (activity("TupleProjection", column_ids("id")), {"id": [3, 1, 2, None]}),
        (select("id &gt; 1 AND Title &lt;&gt; 'b'"), {"id": [3], "Title": ["c"]}),
        (select("price BETWEEN 1 AND 5 OR \"Title\" = 'zz'"), {"id": [3, 2]}),
        (select("sold &gt;= DATE '2024-01-03'"), {"id": [2, None]}),
        (select("id IS NULL"), {"Title": ["b"]}),
        (select("false"), {"id": []}),
        (
            activity(
                "TupleArithmeticProjection",
                '<expressions resultColumnName="twice">id * 2</expressions>'
                "<expressions resultColumnName='T'>upper(title) || CASE WHEN id = 1 THEN '!' ELSE '' END</expressions>",
            ),
            {"twice": [6, 2, 4, None], "T": ["C", "A!", "B", "B"]},
        ),
        (activity("TupleUnionAll", "", source='<data from="t"/><data from="t"/>'), {"id": [3, 1, 2, None] * 2}),
        (activity("TupleSort", column_ids("id")), {"id": [1, 2, 3, None]}),
        (
            activity("TupleSort", '<columnIds order="descending">title</columnIds><columnIds>price</columnIds>'),
            {"Title": ["c", "b", "b", "a"], "id": [3, None, 2, 1]},
        ),
        (
            activity("TupleGroupBy", column_ids("title") + AGGREGATES) + "",
            {"Title": {"a", "b", "c"}},
        ),
        (activity("TupleGroupBy", AGGREGATES), {"n": [4], "s": [6]}),
        (activity('Head rows="2"', ""), {"id": [3, 1]}),
        (activity('Head rows="0"', ""), {"id": []}),
        (activity('Head rows="99"', ""), {"id": [3, 1, 2, None]}),
        (activity(f'Head rows="{2**63 - 1}"', ""), {"id": [3, 1, 2, None]}),
        (
            activity(
                "TupleMergeJoin",
                "<columnIds1>ID</columnIds1><columnIds2>book</columnIds2>",
                source='<data1 from="t"/><data2 from="u"/>',
            ),
            {"id": [2, 3, 3], "book": [2, 3, 3], "title_2": {"v", "w", "x"}},
        ),
    ],
)
def test_result(body, expected):
    if expected is None:
        (table,) = outcome(body)
        assert table.schema.names == ["id", "id"]
        return
    (table,) = outcome(body)
    for name, values in expected.items():
        have = table[name].to_pylist()
        assert (set(have) if isinstance(values, set) else have) == values


def test_columns_keep_their_types():
    for body in (select("true"), activity("TupleSort", column_ids("sold"))):
        (table,) = outcome(body)
        assert table.equals(BOOKS)


def test_split_gives_a_column_to_each_output_whoever_reads_first():
    results = "".join(f'<result name="e{at}"/>' for at in range(4))
    tables = outcome(activity("TupleSplit", "", results))
    assert [each.schema.names for each in tables] == [["id"], ["Title"], ["price"], ["sold"]]
    assert [each.column(0) for each in tables] == BOOKS.columns


@pytest.mark.parametrize("count", [1, 3])
def test_tee_gives_all_to_each(count):
    body = activity("Tee", "", "".join(f'<output name="e{at}"/>' for at in range(count)), '<input from="t"/>')
    body += "".join(
        f'<TupleProjection name="p{at}"><data from="e{at}"/><columnIds>id</columnIds><result name="r{at}"/>'
        "</TupleProjection>"
        for at in range(count)
    )
    assert [each["id"].to_pylist() for each in outcome(body)] == [[3, 1, 2, None]] * count


@pytest.mark.parametrize(
    "condition",
    [
        "(select 1) = 1",
        "exists(select 1)",
        "id in (select 1)",
        "read_text('/etc/passwd') = ''",
        "current_setting('temp_directory') = ''",
        "getenv('HOME') = ''",
        "true; drop table data",
        "select true",
        "count(*) &gt; 1",
        "count(*) over () &gt; 1",
        "data.id = 1",
        "id = ?",
        "id = $1",
        "*",
        "columns('*')",
        "repeat('x', 1000000000) = ''",
        "lpad('x', 1000000000, 'y') = ''",
        "[x for x in range(1000000000)] = []",
        "unnest([1,2]) = 1",
        "nobody = 1",
        "id = ",
        "",
        "'",
        "id = 1 --",
        "(" * 5000 + "id = 1" + ")" * 4999,
        "not " * 2400 + "true" + " )",
        "x" * (MOST_CHARACTERS + 1),
        "title + 1 > 'x' + title",
        "attach 'x'",
        "pragma version",
        "set x = 1",
        "copy data to '/tmp/x'",
    ],
)
def test_expressions_are_bounded(condition):
    escaped = condition.replace("&gt;", ">").replace(">", "&gt;")
    if escaped == "id = 1 --":
        assert outcome(select(escaped))[0].num_rows == 1
        return
    with pytest.raises(ParameterError):
        outcome(select(escaped))


def test_what_is_run_is_what_was_checked():
    assert expressions(["ID = 1 /* ; drop */ -- x"], ["id"]) == ['"id" = 1']
    assert expressions(["A"], ['we"ird', "a"]) == ['"a"']


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (activity("TupleProjection", column_ids("nobody")), "no column 'nobody'"),
        (activity("TupleSplit", "", '<result name="x"/>'), "4 columns, but there are 1"),
        (activity('Head rows="-1"', ""), "0 or more, not -1"),
        (activity("TupleUnionAll", "", source='<data from="t"/><data from="u"/>'), "4 columns, another 2"),
        (activity("TupleGroupBy", '<aggregates resultColumnName="x">id</aggregates>'), "not an aggregate"),
        (
            activity("TupleGroupBy", column_ids("id") + '<aggregates resultColumnName="ID">count(*)</aggregates>'),
            "Two columns have the name",
        ),
        (
            activity("TupleMergeJoin", "<columnIds1>id</columnIds1>"
                     "<columnIds2>book</columnIds2><columnIds2>title</columnIds2>",
                     source='<data1 from="t"/><data2 from="u"/>'),
            "1 join columns on one side and 2",
        ),
    ],
)  # fmt: skip
def test_refused(body, says):
    with pytest.raises(ParameterError, match=says):
        outcome(body)


def test_a_value_that_does_not_fit_is_an_error_of_data():
    cast = '<expressions resultColumnName="n">CAST(title AS INTEGER)</expressions>'
    with pytest.raises(DataError, match="Could not convert"):
        outcome(activity("TupleArithmeticProjection", cast))


BODIES = {
    "sort": activity("TupleSort", column_ids("id")),
    "group": activity("TupleGroupBy", column_ids("id") + AGGREGATES),
    "select": select("id &gt; 0"),
    "join": activity(
        "TupleMergeJoin",
        "<columnIds1>id</columnIds1><columnIds2>id</columnIds2>",
        source='<data1 from="t"/><data2 from="t"/>',
    ),
    "union": activity("TupleUnionAll", "", source='<data from="t"/><data from="t"/>'),
    "split": activity("TupleSplit", "", "".join(f'<result name="e{at}"/>' for at in range(4))),
    "head": activity('Head rows="1000"', ""),
}


@pytest.mark.parametrize("body", list(BODIES.values()), ids=list(BODIES))
def test_a_failure_of_the_query_is_the_cause(body):
    with pytest.raises(DataError, match="half-way"):
        outcome(body, t=Script(BOOKS, batch_rows=1, fails=DataError("half-way")))


@pytest.mark.parametrize("body", list(BODIES.values()), ids=list(BODIES))
def test_cancelled(body):
    driver = Memory({"t": Script(BOOKS, batch_rows=1, blocks=True)})
    cancellation = Cancellation()
    with running(query("q", "t", "t") + body, driver, cancellation=cancellation) as work:
        thread, raised = begun(work)
        assert driver.blocked.wait(60)
        cancellation.cancel(CancelledError("Enough."))
        thread.join(60)
        assert not thread.is_alive()
    assert [type(error) for error in raised] == [CancelledError]
    assert driver.open_streams == 0


def test_head_reads_no_further_than_it_must():
    batches: list[int] = []

    class Counting(Memory):
        def _batches(self, script, cancellation, rows):
            for batch in super()._batches(script, cancellation, rows):
                batches.append(batch.num_rows)
                yield batch

    driver = Counting({"t": Script(pa.table({"id": range(1000)}), batch_rows=10)})
    with running(query("q", "t", "t") + activity('Head rows="15"', ""), driver) as work:
        ((_, source),) = [(end, source.table()) for end, source in work.end_points()]
        assert source["id"].to_pylist() == list(range(15))
        assert {each.status for each in work.reports()} == {"COMPLETED"}
    assert batches == [10, 10]
    assert driver.open_streams == 0


def test_head_ends_the_statement_when_it_has_its_rows():
    """Not only when the request ends."""
    driver = Memory({"t": Script(pa.table({"id": range(1000)}), batch_rows=10)})
    with running(query("q", "t", "t") + activity('Head rows="15"', ""), driver) as work:
        ((_, source),) = work.end_points()
        assert sum(batch.num_rows for batch in source) == 15
        assert driver.open_streams == 0


def test_a_sort_spills(monkeypatch):
    """Twice the memory that DuckDB may use."""
    monkeypatch.setattr(over, "MEMORY_BYTES", 32 << 20)
    rows = 2 * over.MEMORY_BYTES // 128
    random = np.random.default_rng(1)
    keys = random.permutation(rows)
    texts = pa.py_buffer(random.bytes(120 * rows))
    values = pa.FixedSizeBinaryArray.from_buffers(pa.binary(120), rows, [None, texts])
    table = pa.table({"key": keys, "text": values})
    driver = Memory({"t": Script(table, batch_rows=10_000)})
    with running(query("q", "t", "t") + activity("TupleSort", column_ids("key")), driver) as work:
        at = 0
        for _, source in work.end_points():
            for batch in source:
                assert batch["key"].to_numpy().tolist() == list(range(at, at + batch.num_rows))
                at += batch.num_rows
        work.raise_cause()
    assert at == rows


SPILLING = {
    "sort": activity("TupleSort", column_ids("key")),
    "group": activity("TupleGroupBy", column_ids("text") + '<aggregates resultColumnName="n">count(*)</aggregates>'),
    "join": activity(
        "TupleMergeJoin",
        "<columnIds1>text</columnIds1><columnIds2>text</columnIds2>",
        source='<data1 from="t"/><data2 from="u"/>',
    ),
}


@pytest.mark.parametrize("body", list(SPILLING.values()), ids=list(SPILLING))
def test_what_spills_has_a_bound(body, tmp_path, monkeypatch):
    monkeypatch.setattr(over, "MEMORY_BYTES", 16 << 20)
    monkeypatch.setattr(over, "DISK_BYTES", 8 << 20)
    rows = 400_000
    texts = pa.FixedSizeBinaryArray.from_buffers(pa.binary(32), rows, [None, pa.py_buffer(os.urandom(32 * rows))])
    text = pc.binary_join_element_wise(*(pc.cast(pa.array(range(rows)), pa.string()) for _ in range(6)), "-")
    table = pa.table({"key": np.random.default_rng(1).permutation(rows), "text": text, "more": texts})
    driver = Memory({"t": Script(table, batch_rows=10_000), "u": Script(table, batch_rows=10_000)})
    queries = query("q", "t", "t") + (query("p", "u", "u") if "data2" in body else "")
    with running(queries + body, driver, scratch=tmp_path) as work:
        ((_, source),) = work.end_points()
        with pytest.raises(LimitError, match="temporary disk space"):
            source.table()
        used = sum(each.stat().st_size for each in tmp_path.rglob("*") if each.is_file())
        assert used <= 9 << 20
    assert not list(tmp_path.iterdir())
    assert driver.open_streams == 0


@pytest.mark.parametrize("database", ["sqlite", "postgres", "mariadb"])
def test_on_a_database(database, request):
    """Select, group and sort say what one SQL statement says."""
    from dai.drivers import driver_for
    from examples.demo.load import load

    url = request.getfixturevalue(f"{database}_url")
    load(url, ["littleblackbook"], rows=1000)
    driver = driver_for(url)
    try:
        body = query("q", "select id, address from littleblackbook", "t")
        body += (
            '<TupleSelect name="s"><data from="t"/><condition>mod(id, 3) = 0</condition><result name="u"/>'
            "</TupleSelect>"
            '<TupleGroupBy name="g"><data from="u"/><columnIds>address</columnIds>'
            '<aggregates resultColumnName="n">count(*)</aggregates><result name="v"/></TupleGroupBy>'
            '<TupleSort name="o"><data from="v"/><columnIds order="descending">n</columnIds>'
            '<columnIds>address</columnIds><result name="w"/></TupleSort>'
        )
        with running(body, driver) as work:
            (table,) = [source.table().to_pydict() for _, source in work.end_points()]
        sql = "select address, count(*) as n from littleblackbook where mod(id, 3) = 0 group by address"
        if database == "sqlite":
            sql = sql.replace("mod(id, 3)", "id % 3")
        expected = driver.query(sql, cancellation=Cancellation()).table().to_pydict()
    finally:
        driver.close()
    pairs = sorted(zip(expected["address"], expected["n"], strict=True), key=lambda each: (-each[1], each[0].encode()))
    assert list(zip(table["address"], table["n"], strict=True)) == pairs


@pytest.mark.parametrize("text", ['CAST(id AS "foo, bar")', 'extract("year from date 0), id, extract(year" from id)'])
def test_what_is_written_as_it_stands_is_one_word(text):
    with pytest.raises(ParameterError, match="neither a unit nor a type"):
        expressions([text], ["id"])


@pytest.mark.parametrize(("text", "near"), [("id=1 and", "and"), ("lower(", "("), ("id = 1 +", "+")])
def test_what_is_missing_is_told_without_classes(text, near):
    with pytest.raises(ParameterError) as caught:
        expressions([text], ["id"])
    assert str(caught.value) == f"This is not an SQL expression: {text!r} (something is missing near {near!r})."


def test_texts_do_not_grow_without_a_bound():
    half = " || ".join(["name"] * (MOST_JOINED // 2))
    assert len(expressions([half, f"concat(upper({half}), 'x')"], ["name"])) == 2
    for more in ("name || 'x'", "concat('x', lower(name))"):
        with pytest.raises(ParameterError, match="64 are allowed"):
            expressions([half, half, more], ["name"])


def test_long_texts_come_in_small_batches():
    table = pa.table({"text": ["x" * 100_000] * 1500})
    driver = Memory({"t": Script(table, batch_rows=1500)})
    shout = '<expressions resultColumnName="u">upper(text)</expressions>'
    with running(query("q", "t", "t") + activity("TupleArithmeticProjection", shout), driver) as work:
        sizes = [batch.nbytes for _, source in work.end_points() for batch in source]
        work.raise_cause()
    assert sum(sizes) >= 150_000_000
    assert max(sizes) < 5_000_000


def test_queries_over_streams_have_no_threads_of_their_own() -> None:
    """A document may have hundreds of them, and DuckDB ends a process without memory for another thread."""
    threads = []
    with ExitStack() as held:
        for _ in range(2):
            held.enter_context(over.over("SELECT * FROM t", {"t": Stream.of(BOOKS)}, cancellation=Cancellation()))
            threads.append(psutil.Process().num_threads())
    assert threads[1] <= threads[0]


def test_an_error_advises_no_change_of_a_setting() -> None:
    column = BOOKS.schema.names[0]
    query = f'SELECT length("{column}"::VARCHAR) // 0 FROM t'
    with (
        pytest.raises(DataError, match="Division by zero") as caught,
        over.over(query, {"t": Stream.of(BOOKS)}, cancellation=Cancellation()) as stream,
    ):
        list(stream)
    assert "SET " not in caught.value.detail
