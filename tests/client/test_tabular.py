"""The same names on every kind of result: of a resource, a document, a job and a lab, here and in a service."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import dai
import dqp
from dai.api.server.serve import Background
from dai.client import activity, document, element
from dai.client.results.tabular import Tabular
from dai.errors import ParameterError
from tests.client.databases import served

SQL = "select n, cast(n as decimal(5,2)) / 2 as half from (values (1), (2), (3)) as t(n) order by n"
DOCUMENT = document(
    activity("sqlQueryStatement", element("expression", SQL), element("webRowSetStream", name="rows"), name="query")
)
FEDERATED = "select n, cast(n / 2 as decimal(5,2)) as half from range(1, 4) t(n) order by n"
Made = Callable[[ExitStack], Tabular]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Background]:
    directory: Path = tmp_path_factory.mktemp("tabular")
    urls = {"duck": f"duckdb:///{directory}/data.duckdb"}
    sources = {"lab": {"sources": [{"alias": "duck", "resource": "duck"}]}}
    with served(directory, urls, federations=sources) as running:
        yield running


def _response(url: str, stack: ExitStack) -> Tabular:
    response = stack.enter_context(dai.connect(url).perform(DOCUMENT))
    return response.results["rows"]


KINDS: dict[str, Callable[[str, ExitStack], Tabular]] = {
    "query": lambda url, _: dai.connect(f"{url}/duck").query(SQL),
    "end point": lambda url, _: dai.connect(f"{url}/duck").perform(DOCUMENT, "rows"),
    "response": lambda url, stack: _response(f"{url}/duck", stack),
    "job": lambda url, _: dai.connect(f"{url}/duck").submit(SQL),
    "result of a job": lambda url, _: dai.connect(f"{url}/duck").submit(SQL).result(),
    "lab there": lambda url, stack: stack.enter_context(dqp.connect(f"{url}/lab")).sql(FEDERATED),
    "lab here": lambda url, stack: stack.enter_context(dqp.connect({"sources": {"duck": f"{url}/duck"}})).sql(
        FEDERATED
    ),
}
EXPECTED = [(1, 0.5), (2, 1.0), (3, 1.5)]


@pytest.fixture(params=KINDS)
def made(request: pytest.FixtureRequest, service: Background) -> Iterator[Callable[[], Tabular]]:
    with ExitStack() as stack:
        yield lambda: KINDS[request.param](service.url, stack)


def plain(rows: Any) -> list[tuple[int, float]]:
    return [(int(n), float(half)) for n, half in rows]


def test_tables_and_frames(made: Callable[[], Tabular]) -> None:
    result = made()
    with pytest.raises(TypeError, match="is known when they were read"):
        len(result)
    assert result
    assert plain(result.head(2).to_pylist() and [each.values() for each in result.head(2).to_pylist()]) == EXPECTED[:2]
    table = result.arrow()
    assert table.num_rows == len(result) == 3
    assert result.arrow() is table
    assert isinstance(result.df(), pd.DataFrame)
    assert isinstance(result.pl(), pl.DataFrame)
    assert plain(result.to_pandas().itertuples(index=False)) == plain(result.to_polars().rows()) == EXPECTED
    rows = result.rows()
    assert plain(rows) == plain(result.rows()) == EXPECTED
    assert all(type(each) is tuple for each in rows)
    with duckdb.connect() as connection:
        assert plain(result.to_duckdb(connection).fetchall()) == EXPECTED


def test_rows_one_after_the_other(made: Callable[[], Tabular], capsys: pytest.CaptureFixture[str]) -> None:
    result = made()
    result.show(2)
    assert capsys.readouterr().out.split()[:2] == ["n", "half"]
    assert result.fetchone() is not None
    assert plain(result.fetchmany(1)) == [EXPECTED[1]]
    assert plain(result.fetchall()) == [EXPECTED[2]]
    assert result.fetchone() is None


def test_whatever_takes_arrow_takes_it(made: Callable[[], Tabular]) -> None:
    assert plain([each.values() for each in pa.table(made()).to_pylist()]) == EXPECTED
    assert plain(pl.DataFrame(made()).rows()) == EXPECTED
    with pytest.raises(ParameterError, match="At least 0 rows"):
        made().head(-1)


def test_decimals_in_rows(service: Background) -> None:
    job = dai.connect(f"{service.url}/duck").submit("select 1.50::decimal(5,2) as d")
    assert job.rows() == job.rows() == [(Decimal("1.50"),)]
    assert job.head(0).num_rows == 0


def test_files(made: Callable[[], Tabular], tmp_path: Path) -> None:
    size = made().save(tmp_path / "rows.parquet")
    assert (tmp_path / "rows.parquet").stat().st_size == size
    assert plain(duckdb.sql(f"select * from '{tmp_path}/rows.parquet'").fetchall()) == EXPECTED
    made().save(tmp_path / "rows.csv.gz")
    assert plain(duckdb.sql(f"select * from '{tmp_path}/rows.csv.gz'").fetchall()) == EXPECTED
