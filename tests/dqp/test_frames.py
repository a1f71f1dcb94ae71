"""Whatever holds a table, as an upload."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import duckdb
import numpy as np
import pandas
import polars
import pyarrow as pa
import pytest

import dqp
from dai.errors import ParameterError
from dqp.interfaces.frames import table_of

READ: dict[str, tuple[Callable[[], Any], str, list[Any]]] = {
    "beyond 64 bits": (lambda: {"a": [1, None, 2**70]}, "DECIMAL(38,0)", [1, None, 2**70]),
    "objects beyond 64 bits": (lambda: pandas.DataFrame({"a": [2**70, 1]}), "DECIMAL(38,0)", [2**70, 1]),
    "Int128": (lambda: polars.DataFrame({"a": polars.Series([2**70], dtype=polars.Int128)}), "DECIMAL(38,0)", [2**70]),
    "categories": (lambda: pandas.DataFrame({"a": pandas.Categorical(["x", None])}), "VARCHAR", ["x", None]),
    "categories of numbers": (lambda: pandas.DataFrame({"a": pandas.Categorical([2, 1])}), "BIGINT", [2, 1]),
    "polars' categories": (
        lambda: polars.DataFrame({"a": polars.Series(["x"], dtype=polars.Categorical)}),
        "VARCHAR",
        ["x"],
    ),
    "numbers or nothing": (lambda: pandas.DataFrame({"a": pandas.array([1, None], "Int64")}), "BIGINT", [1, None]),
    "texts or nothing": (lambda: pandas.DataFrame({"a": pandas.array(["x", None], "string")}), "VARCHAR", ["x", None]),
    "moments of a zone": (
        lambda: pandas.DataFrame({"a": pandas.to_datetime(["2024-07-01 12:00"]).tz_localize("Europe/Berlin")}),
        "TIMESTAMP WITH TIME ZONE",
        [datetime.datetime(2024, 7, 1, 10, tzinfo=datetime.UTC)],
    ),
    "lists": (lambda: pandas.DataFrame({"a": [[1, 2], None]}), "BIGINT[]", [[1, 2], None]),
    "polars' lists": (lambda: polars.DataFrame({"a": [["x"]]}), "VARCHAR[]", [["x"]]),
    "structs": (lambda: {"a": [{"x": 1}]}, "STRUCT(x BIGINT)", ['{"x":1}']),
    "half floats": (lambda: {"a": np.array([1.5], np.float16)}, "FLOAT", [1.5]),
    "wide decimals": (lambda: pa.table({"a": pa.array([Decimal(7)], pa.decimal256(50))}), "DECIMAL(38,0)", [7]),
    "run ends": (lambda: pa.table({"a": pa.RunEndEncodedArray.from_arrays([2], [5])}), "BIGINT", [5, 5]),
    "sparse": (lambda: pandas.DataFrame({"a": pandas.arrays.SparseArray([0, 1])}), "BIGINT", [0, 1]),
    "an index": (lambda: pandas.DataFrame({"a": [1]}, index=["row"]), "BIGINT", [1]),
    "no rows": (lambda: pandas.DataFrame({"a": pandas.Series([], dtype="int32")}), "INTEGER", []),
    "a record batch": (lambda: pa.record_batch({"a": [1]}), "BIGINT", [1]),
}


@pytest.mark.parametrize("form", READ)
def test_frames_become_tables(form: str) -> None:
    make, type, values = READ[form]
    with dqp.connect({"sources": {}}) as lab:
        lab.upload("mine", make())
        assert lab.sql("from mine").arrow().to_pylist() == [{"a": each} for each in values]
        assert lab.sql(
            "select any_value(typeof(a)) as t from (from mine union all select null) x where a is not null or $n",
            n=not values,
        ).arrow().to_pylist() == [{"t": type}]


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "more than 38 digits": (lambda: {"a": [1, 10**38]}, "'a' has a number of more than 38 digits in row 2"),
    "mixed": (lambda: {"a": [None, 1, "x"]}, "'a' holds int values, and a str in row 3"),
    "mixed objects": (lambda: pandas.DataFrame({"a": ["x", 1]}), "'a' holds str values, and a int in row 2"),
    "objects": (lambda: {"a": [object()]}, "'a' cannot be read"),
    "polars' objects": (
        lambda: polars.DataFrame({"a": polars.Series([object()], dtype=polars.Object)}),
        "'a' is of the type Object",
    ),
    "periods": (
        lambda: pandas.DataFrame({"a": pandas.period_range("2024", periods=1, freq="M")}),
        r"'a' is of the type period\[M\]",
    ),
    "complex": (lambda: {"a": np.array([1j])}, "'a' is of the type complex128"),
    "a name twice": (lambda: pandas.DataFrame([[1, 2]], columns=["a", "a"]), "the same name: a"),
    "lengths": (lambda: {"a": [1, 2], "b": [1]}, "numbers of rows: a 2, b 1"),
    "a scalar": (lambda: {"a": 1}, "'a' is a int"),
    "wide decimals": (lambda: pa.table({"a": pa.array([Decimal(10) ** 45], pa.decimal256(50))}), "more than 38 digits"),
    "a union": (
        lambda: pa.table({"a": pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([1])])}),
        "which SQL does not have",
    ),
    "a lazy frame": (lambda: polars.DataFrame({"a": [1]}).lazy(), "cannot be made from a LazyFrame"),
    "a text": (lambda: "text", "cannot be made from a str"),
}


@pytest.mark.parametrize("form", REFUSED)
def test_what_is_no_table_says_where(form: str) -> None:
    make, says = REFUSED[form]
    with pytest.raises(ParameterError, match=says):
        table_of(make())


def test_no_columns_and_names_that_differ_in_case_alone() -> None:
    with dqp.connect({"sources": {}}) as lab:
        for data in (pandas.DataFrame(), {"a": [1], "A": [2]}, {"": [1]}):
            with pytest.raises(ParameterError):
                lab.upload("mine", data)


def test_many_columns_are_not_all_listed() -> None:
    with dqp.connect({"sources": {}}) as lab:
        lab.upload("wide", {f"c{number}": [1] for number in range(400)})
        assert repr(lab.tables()).splitlines()[-1].endswith("c18, c19, … (380 more)")
        assert len(lab.tables().to_pylist()[0]["columns"]) == 400


def test_intervals_are_shown_as_duckdb_writes_them(capsys: pytest.CaptureFixture[str]) -> None:
    texts = ["1 year 2 months", "-1 days", "1 day 03:00:00.5", "-03:00:01", "00:00:00", "1 month 2 days 100:00:00"]
    with dqp.connect({"sources": {}}) as lab:
        for text in texts:
            lab.sql(f"select interval '{text}' as i").show()
            ((shown,),) = duckdb.sql(f"select (interval '{text}')::varchar").fetchall()
            months = shown.replace("1 year 2 months", "14 months")
            assert capsys.readouterr().out.splitlines()[2].strip() == months


def test_a_lazy_frame_is_to_be_collected() -> None:
    with dqp.connect({"sources": {}}) as lab, pytest.raises(ParameterError, match=r"\.collect\(\)"):
        lab.upload("lazy", polars.DataFrame({"a": [1]}).lazy())
