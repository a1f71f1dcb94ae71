"""One more of each kind is its module and a line in a table: nothing else has to know of it.

``tests/extensions`` is a package from elsewhere with a toy driver, format, dialect and runtime, joined by entry points:
a service, the command line and a federation in processes of their own use them. A rule of the planner joins by the
tuple ``RULES``.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import httpx
import pytest
from sqlglot import exp

import dqp
from dqp.algebra.operators import Aggregate, Distinct, Operator, Project
from dqp.planning import rules
from dqp.planning.context import Context
from tests.processes import ServiceProcess

EXTENSIONS = Path(__file__).parent / "extensions"
ROWS = [(1, "a", 10), (2, "b", 20), (3, "a", 30)]
TSV = "text/tab-separated-values"
WRITTEN = '#tsv\n"id"\t"name"\t"size"\n1\ta\t10\n2\tb\t20\n3\ta\t30\n'
QUERY = "select id, name, size from t order by id"


def database(directory: Path) -> Path:
    """With a table ``t``."""
    path = directory / "toy.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute("create table t (id integer, name varchar, size integer)")
        connection.executemany("insert into t values (?, ?, ?)", ROWS)
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return database(tmp_path)


@pytest.fixture(scope="module")
def environment() -> Iterator[dict[str, str]]:
    """In which the toy package can be imported."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(EXTENSIONS))
        yield dict(os.environ)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, environment: dict[str, str]) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("extensions")
    process = ServiceProcess(directory, {"data": f"toy:///{database(directory)}"}, anew=True).start()
    yield process.url
    process.stop()


def ran(arguments: list[str], environment: dict[str, str], status: int = 0) -> str:
    ended = subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert ended.returncode == status, ended.stderr
    return ended.stdout if status == 0 else ended.stderr


def said(script: str, environment: dict[str, str]) -> Any:
    """What a program prints, which is JSON."""
    return json.loads(ran(["-c", script], environment))


@pytest.mark.parametrize("accept", [TSV, "text/x-tsv", f"application/pdf, {TSV};q=0.5"])
def test_a_format_in_accept(service: str, accept: str) -> None:
    answer = httpx.post(f"{service}/resources/data/query", json={"sql": QUERY}, headers={"Accept": accept})
    assert (answer.status_code, answer.text) == (200, WRITTEN)
    assert answer.headers["content-type"].startswith(TSV)


def test_a_format_by_name_and_in_the_description(service: str) -> None:
    answer = httpx.post(f"{service}/resources/data/query?format=tsv", json={"sql": QUERY})
    assert (answer.status_code, answer.text) == (200, WRITTEN)
    description = httpx.get(f"{service}/openapi.json").json()
    assert TSV in description["paths"]["/resources/{resource}/query"]["post"]["responses"]["200"]["content"]


def test_a_format_on_the_command_line(service: str, environment: dict[str, str], tmp_path: Path) -> None:
    query = ["-m", "dai", "query", f"{service}/data", QUERY]
    assert ran([*query, "--format", "tsv"], environment) == WRITTEN
    ran([*query, "--output", str(tmp_path / "t.tab")], environment)
    assert (tmp_path / "t.tab").read_text() == WRITTEN
    assert "tsv" in ran([*query, "--format", "tvs"], environment, status=2)


def test_a_format_in_the_client(service: str, environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "t").write_text(WRITTEN)
    script = f"""
import json, dai
from dai.client.results.result import Result
data = dai.connect("{service}/data")
rows = data.query("{QUERY}", format="tsv").arrow().to_pylist()
nameless = Result(open("{tmp_path / "t"}", "rb"), None, progress=False)
print(json.dumps([[list(each.values()) for each in rows], nameless.form]))
"""
    assert said(script, environment) == [[list(row) for row in ROWS], "tsv"]


def test_a_driver_has_its_own_sql(service: str) -> None:
    properties = httpx.get(f"{service}/resources/data").json()
    assert (properties["dialect"], properties["product"]) == ("toy", "Toy 1.0")
    refused = httpx.post(f"{service}/resources/data/query", json={"sql": "summarize t"})
    assert "SUMMARIZE is not a query" in refused.text


def test_a_driver_makes_tables_with_its_own_types(environment: dict[str, str]) -> None:
    script = """
import json, pyarrow as pa
from dai.drivers import driver_for
from dai.drivers.sql.ddl import create_table
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Stream
driver, table = driver_for("toy://"), pa.table({"a b": pa.array([7], pa.int16())})
rows = driver.load("made", Stream.of(table), create=True, cancellation=Cancellation())
sql = create_table("made", table.schema, driver.syntax)
print(json.dumps([rows, sql, [each.type for each in driver.tables("made")[0].columns]]))
"""
    assert said(script, environment) == [1, "CREATE TABLE `made` (`a b` bigint)", ["bigint"]]


def test_a_dialect_and_a_runtime(path: Path, environment: dict[str, str]) -> None:
    script = f"""
import json, dqp
with dqp.connect({{"sources": {{"s": "toy:///{path}"}}, "evaluators": ["toy:here"]}}) as lab:
    runtime = lab.coordinator.runtime
    pushed = lab.sql("select name, sum(size) as n from s.t group by name order by name")
    kept = lab.sql("select name from s.t where upper(name) = 'A'")
    answers = [[list(each.values()) for each in query.arrow().to_pylist()] for query in (pushed, kept)]
    plans = [query.explain().text for query in (pushed, kept)]
    print(json.dumps([answers, plans, runtime.address, runtime.runs], default=int))
"""
    answers, (pushed, kept), address, runs = said(script, environment)
    assert answers == [[["a", 40], ["b", 20]], [["a"], ["a"]]]
    assert "Remote s (toy)" in pushed
    assert "SUM(" in pushed
    assert "Toy: upper" in kept
    assert (address, runs) == ("toy:here", 2)


def test_an_unknown_runtime_is_told_from_the_toy(environment: dict[str, str]) -> None:
    script = """
import json, dqp
from dai.errors import ConfigurationError
try:
    dqp.connect({"sources": {}, "evaluators": ["tpy:here"]})
except ConfigurationError as error:
    print(json.dumps(str(error)))
"""
    assert "Did you mean 'toy'?" in said(script, environment)


def distinct_groups(tree: Operator, context: Context) -> Operator:
    """Rule: groups are distinct already, where all their keys are kept."""
    tree = tree.with_inputs(*(distinct_groups(each, context) for each in tree.inputs))
    if not isinstance(tree, Distinct):
        return tree
    groups, kept = tree.input, set(tree.input.columns)
    while isinstance(groups, Project):
        kept = {each.name for name, each in groups.items if name in kept and isinstance(each, exp.Column)}
        groups = groups.input
    is_distinct = isinstance(groups, Aggregate) and groups.keys and kept.issuperset(name for name, _ in groups.keys)
    return tree.input if is_distinct else tree


@pytest.mark.parametrize(
    "sql",
    [
        "select distinct k, n from (select size as k, count(*) as n from s.t group by size) order by 1",
        "select name from s.t where size in (select distinct size from s.t group by size) order by 1, name",
    ],
)
def test_a_rule(sql: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nested plans included."""
    with dqp.connect({"sources": {"s": f"duckdb:///{path}"}}) as lab:
        before = lab.sql(sql).arrow(), lab.explain(sql).text
    monkeypatch.setattr(rules, "RULES", (distinct_groups, *rules.RULES))
    with dqp.connect({"sources": {"s": f"duckdb:///{path}"}}) as lab:
        after = lab.sql(sql).arrow(), lab.explain(sql).text
    assert after[0] == before[0]
    assert "DISTINCT" in before[1]
    assert "DISTINCT" not in after[1]
