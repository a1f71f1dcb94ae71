"""Values of every type, from one fragment to another."""

import contextlib
import sqlite3
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest

from dai.errors import DataError, StatementError
from dai.streams.cancellation import Cancellation
from dqp.coordinator import Coordinator
from dqp.execution.engine import Engine
from dqp.execution.leaves import restored
from dqp.planning.distribution.spreading import Thresholds
from dqp.settings import load
from tests.dqp.doubles import execution
from tests.dqp.in_process import InProcess

VALUES = (
    r"'\x00\xFF\x41\x22\x5Cx41'::BLOB",
    "''::BLOB",
    "'0101'::BIT",
    "'12345678901234567890123456789012345678901234567890'::BIGNUM",
    '\'{"a": 1.0, "a":2 }\'::JSON',
    "'null'::JSON",
    "'\"text\"'::JSON",
    "'nan'::DOUBLE",
    "'-inf'::FLOAT",
    "5e-324::DOUBLE",
    "'-9223372036854775808'::BIGINT",
    "18446744073709551615::UBIGINT",
    "12345678901234567890123::HUGEINT",
    "9999999999999999999999999999.1234567891::DECIMAL(38,10)",
    "'-0.123456789012345678'::DECIMAL(18,18)",
    "'0.00000000000000000000000000000000000001'::DECIMAL(38,38)",
    "''",
    "'NULL'",
    "'a\"b\\c'',''[{'",
    "chr(0) || chr(10) || 'é\U0001f600'",
    "repeat('x', 100000)",
    "DATE '-44-03-15'",
    "'infinity'::DATE",
    "'-infinity'::TIMESTAMP",
    "TIME '24:00:00'",
    "TIMETZ '23:59:59.999999+05:30'",
    "TIMESTAMP_NS '2024-01-01 00:00:00.123456789'",
    "TIMESTAMPTZ '2024-01-01 00:00:00.000001+02'",
    "INTERVAL '-13 months 400 days 3.000001 seconds'",
    "'00000000-0000-0000-0000-00000000ffff'::UUID",
    "'STRUCT(\"'::ENUM('STRUCT(\"', 'b')",
    "row('a'::BLOB, {'b': 1})",
    "{'a b': 1, '\"q\"': {'c': [NULL]}}",
    "MAP{'\"': 2}",
    "MAP{[{'a': '\\x00'::BLOB}]: 2}",
    "MAP{}",
    "[]",
    "NULL",
    "union_value(a := 1)::UNION(a INTEGER, b VARCHAR)",
    "union_value(b := '1')::UNION(a INTEGER, b VARCHAR)",
)
SHAPES = (
    "{}",
    "[{}, NULL]",
    "{{'a': {}}}",
    "[{{'a': {}}}]",
    "MAP([1], [{}])",
    "union_value(a := {})",
    "array_value({})",
    "[array_value({})]",
    "[[{}]]",
    "[row({}, 1)]",
)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    engine = Engine(threads=1)
    yield engine
    engine.close()


@pytest.mark.parametrize("value", VALUES)
def test_a_value_comes_back_as_it_was(engine: Engine, value: str) -> None:
    for shape in (*SHAPES, *(("MAP([{}], [1])",) if "UNION" not in value and value != "NULL" else ())):
        expression = shape.format(value)
        with execution() as running:
            travelling = engine.run(f"SELECT {expression} AS x", {}, running).table()
            there = restored("t", travelling.schema)
            same = "x IS NOT DISTINCT FROM v, typeof(x) = typeof(v), x::VARCHAR IS NOT DISTINCT FROM v::VARCHAR"
            sql = f"SELECT {same} FROM ({there}), (SELECT {expression} AS v)"
            table = engine.run(sql, {"t": travelling}, running).table()
        assert [each[0].as_py() for each in table.columns] == [True, True, True], expression


@pytest.mark.parametrize(
    ("value", "what"),
    [
        ("1::VARIANT", "A VARIANT"),
        ("{'a': [1::VARIANT]}", "A VARIANT"),
        ("MAP([[union_value(a := 1)]], [1])", "A MAP with a UNION"),
    ],
)
def test_what_would_come_back_as_something_else_is_refused(engine: Engine, value: str, what: str) -> None:
    with execution() as running, pytest.raises(StatementError, match=what):
        engine.run(f"SELECT {value} AS x", {}, running)


def test_evaluators_group_by_structures_with_bytes_in_them(tmp_path: Path) -> None:
    sources = {}
    for alias in ("a", "b"):
        with contextlib.closing(sqlite3.connect(tmp_path / alias)) as connection:
            connection.execute("CREATE TABLE t (id integer)")
            connection.executemany("INSERT INTO t VALUES (?)", [(each,) for each in range(20)])
            connection.commit()
        sources[alias] = f"sqlite:///{tmp_path / alias}"
    lab = Coordinator(load({"sources": sources}))
    lab.runtime.close()
    runtime = InProcess(lab.catalog)
    lab.use(lab.catalog, runtime)
    runtime._thresholds = Thresholds(split_rows=0.0, broadcast_bytes=0.0, spread_seconds=0.0)
    try:
        sql = (
            "SELECT s.b, s.d, count(*) AS n FROM (SELECT DISTINCT id, {'b': CASE WHEN id < 7 THEN '\\xFF'::BLOB END, "
            "'d': '0.5'::DECIMAL(18, 18)} AS s FROM a.t) x JOIN b.t y ON x.id = y.id "
            "GROUP BY s ORDER BY n"
        )
        assert "Exchange hash" in lab.explain(sql, analyze=True).text
        assert lab.query(sql, cancellation=Cancellation()).table().to_pylist() == [
            {"b": b"\xff", "d": Decimal("0.5"), "n": 7},
            {"b": None, "d": Decimal("0.5"), "n": 13},
        ]
        sql = "SELECT x.id, DATE 'infinity' AS far, 1 AS id FROM a.t x JOIN b.t y ON x.id = y.id"
        with pytest.raises(DataError, match="Column 'far': infinity"):
            lab.query(sql, cancellation=Cancellation()).table()
    finally:
        lab.close()


def test_structures_with_bytes_in_them_pass_an_operation_call(tmp_path: Path) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / "a")) as connection:
        connection.execute("CREATE TABLE t (id integer)")
        connection.execute("INSERT INTO t VALUES (5)")
        connection.commit()
    function = {"python": "operator:neg", "arguments": ["BIGINT"], "returns": "BIGINT"}
    lab = Coordinator(load({"sources": {"a": f"sqlite:///{tmp_path / 'a'}"}, "functions": {"opposite": function}}))
    try:
        inner = "SELECT DISTINCT id, {'b': CASE WHEN id > 0 THEN '\\xFF'::BLOB END} AS s FROM a.t"
        sql = f"SELECT opposite(id) AS n, s.b FROM ({inner})"
        assert lab.query(sql, cancellation=Cancellation()).table().to_pylist() == [{"n": -5, "b": b"\xff"}]
    finally:
        lab.close()
