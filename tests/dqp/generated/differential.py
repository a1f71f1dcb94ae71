"""Ask the oracle and a federation the same, and say how their answers differ."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Protocol, Self

import duckdb
import pyarrow as pa

import dqp
from dai.drivers import driver_for
from dai.errors import DaiError
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Stream
from dai.streams.waiting import Condition
from dqp.planning.distribution.spreading import Thresholds
from dqp.runtimes.distributed import Distributed
from tests.dqp.generated.oracle import fill
from tests.dqp.generated.schema import TABLES, create, data
from tests.processes import ServiceProcess

RELATIVE = 1e-9
SMALLEST = 1e-12
"""Below this a difference of doubles is none: what is left of a variance of equal values."""
_ANALYSE = {"mariadb": "ANALYZE TABLE {} PERSISTENT FOR ALL", "mysql": "ANALYZE TABLE {}"}
"""By the scheme of a URL; otherwise without the word TABLE."""


class Federation(Protocol):
    """What answers: ``dqp.connect(…)``, an oracle, or anything else that takes DuckDB's SQL."""

    def answer(self, sql: str) -> pa.Table: ...


@dataclass(frozen=True)
class Difference:
    """``kind`` is what stays the same while the query is made smaller."""

    kind: str
    detail: str


def load(urls: Mapping[str, str]) -> None:
    """Makes and fills the tables of the sources that have a URL, and has their statistics taken."""
    for source, url in urls.items():
        driver = driver_for(url)
        try:
            for table in TABLES:
                if table.source != source:
                    continue
                driver.update(create(table), cancellation=Cancellation())
                if table.rows:
                    driver.load(table.name, Stream.of(data(table)), cancellation=Cancellation())
                analyse = _ANALYSE.get(url.partition(":")[0], "ANALYZE {}")
                driver.update(analyse.format(table.name), cancellation=Cancellation())
        finally:
            driver.close()


ALWAYS = Thresholds(split_rows=0.0, broadcast_bytes=0.0, spread_seconds=0.0)
"""Whatever can be spread over evaluators is: by hash, as nothing is small enough to be sent to all."""

EAGER = {
    ("dqp.coordinator.running", "LEAST_SECONDS"): 0.0,
    ("dqp.planning.learning", "FACTOR"): 1.0,
    ("dqp.planning.learning", "LEAST_ROWS"): 0,
    ("dqp.planning.learning", "LEAST_SECONDS"): 0.0,
    ("dqp.planning.top_n", "ROWS"): 0.0,
    ("dqp.planning.top_n", "GAIN"): 0.0,
    ("dqp.planning.top_n", "SHARE"): 1e9,
    ("dqp.planning.rules.aggregates", "FEWER"): 1e9,
    ("dqp.planning.rules.build_sides", "TIMES"): 0.0,
    ("dqp.planning.rules.extremes", "FEWER"): 1e9,
    ("dqp.planning.rules.extremes", "ROWS"): 0,
    ("dqp.planning.rules.narrow", "GAIN"): 0.0,
    ("dqp.planning.rules.repeated", "FEWER"): 1e9,
    ("dqp.planning.semijoins.forms", "LARGEST_PART"): 1e9,
    ("dqp.planning.semijoins.forms", "ROUND_TRIP"): -1e9,
    ("dqp.planning.semijoins.grouping", "BETTER"): 1e9,
    ("dqp.planning.semijoins.grouping", "WORTHWHILE"): 0.0,
    ("dqp.planning.semijoins.program", "LARGEST_PART"): 1e9,
    ("dqp.planning.semijoins.program", "NUMBER"): 0.0,
    ("dqp.planning.semijoins.program", "ROUND_TRIP"): 0.0,
    ("dqp.planning.semijoins.program", "WAITING"): 1e12,
    ("dqp.planning.semijoins.reduction", "LARGEST_PART"): 1e9,
    ("dqp.planning.rules.semijoins", "FEWER"): 1e9,
    ("dqp.planning.rules.semijoins", "ROWS"): 0,
    ("dqp.planning.rules.subtrees", "WORTHWHILE"): 0.0,
    ("dqp.planning.rules.subtrees", "LONG"): 0.0,
    ("dqp.planning.rules.subtrees", "BETTER"): 1.5,
}
"""What decides whether a step pays, set so that it always does: the tables here are too small for most."""


OVERTAKING = {"second_chance": 1e-9, "second_chance_after": 0.0}
MOMENT = 0.01
"""Seconds that a source waits at most before it takes a statement, and before it gives the rows."""
_RUNNING = {
    "pg": "SELECT query FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() "
    "AND backend_type = 'client backend' AND state <> 'idle'",
    "maria": "SELECT info FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID() "
    "AND command <> 'Sleep'",
}


def _at_random(
    query: Callable[..., Stream], random: Random, *args: Any, cancellation: Cancellation, **more: Any
) -> Stream:
    """The statement's rows at a moment of chance."""

    def wait() -> None:
        moment = Condition()
        with moment:
            moment.wait(cancellation, random.uniform(0.0, MOMENT))
        cancellation.check()

    def rows(stream: Stream) -> Iterator[pa.RecordBatch]:
        wait()
        yield from stream

    wait()
    stream = query(*args, cancellation=cancellation, **more)
    return Stream(stream.schema, rows(stream), stream.close)


class Connected:
    """A federation in this process over the databases at these URLs (alias to URL), on evaluators where there are
    some: then everything has several fragments that can have. ``pushdown``: of its settings. ``overtaking``: every
    statement that does more than read a table is overtaken at once, and sources answer at random moments; None: no
    statement is overtaken, however busy the machine is."""

    def __init__(
        self,
        urls: Mapping[str, str],
        evaluators: Sequence[str] = (),
        views: Mapping[str, str] | None = None,
        pushdown: str = "cost",
        overtaking: bool | None = False,
    ) -> None:
        self.urls, self.evaluators = urls, evaluators
        self.lab = dqp.connect(
            {
                "sources": dict(urls),
                "evaluators": [*evaluators] or ["local"],
                "views": dict(views or {}),
                "pushdown": pushdown,
                **(OVERTAKING if overtaking else {} if overtaking is False else {"second_chance": 0.0}),
            }
        )
        coordinator = self.lab._coordinator
        if overtaking:
            assert coordinator is not None
            for source in coordinator.catalog.sources.values():
                source.query = partial(_at_random, source.query, Random(1))  # type: ignore[method-assign]
        if evaluators:
            assert coordinator is not None
            assert isinstance(coordinator.runtime, Distributed)
            coordinator.runtime._thresholds = ALWAYS

    def answer(self, sql: str) -> pa.Table:
        return self.lab.sql(sql).arrow()

    def running(self) -> list[str]:
        """Statements that run in PostgreSQL and MariaDB."""
        statements: list[str] = []
        for source, sql in _RUNNING.items():
            if not self.urls.get(source, "").startswith(("postgresql", "mariadb")):
                continue
            with closing(driver_for(self.urls[source])) as driver:
                statements += driver.query(sql, cancellation=Cancellation()).table().column(0).to_pylist()
        return statements

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self.lab.close()


def filed(directory: Path) -> dict[str, str]:
    """All the tables without a server: the URLs of a file for each source, of the types that a federation sees. Only
    what SQLite has is not in DuckDB."""
    urls = files(directory)
    urls |= {source: f"duckdb:///{directory / source}.duckdb" for source in ("pg", "maria")}
    load({"lite": urls["lite"]})
    for source in ("pg", "maria", "duck"):
        with duckdb.connect(urls[source].removeprefix("duckdb:///")) as connection:
            for table in TABLES:
                if table.source == source:
                    fill(connection, table.name, table)
    return urls


@contextmanager
def served(directory: Path, urls: Mapping[str, str]) -> Iterator[tuple[dict[str, str], list[str]]]:
    """A data service in front of the databases and two evaluators: the URLs of its resources, and theirs."""
    with ExitStack() as stack:
        made = []
        for name, resources in (("data", urls), ("one", {}), ("two", {})):
            place = directory / name
            place.mkdir()
            roles = {} if resources else {"evaluator": f'directory = "{place / "spill"}"'}
            service = ServiceProcess(place, resources, {"concurrent": 64}, pool_size=24, roles=roles)
            stack.callback(service.stop)
            made.append(service.start())
        data, *evaluators = made
        yield {alias: f"{data.url}/resources/{alias}" for alias in urls}, [each.url for each in evaluators]


def files(directory: Path) -> dict[str, str]:
    """The URLs of the two sources that are files."""
    return {"lite": f"sqlite:///{directory / 'lite.db'}", "duck": f"duckdb:///{directory / 'duck.duckdb'}"}


def difference(sql: str, oracle: Federation, federation: Federation) -> Difference | None:
    """How the federation's answer differs from the oracle's; None where it does not."""
    try:
        expected = oracle.answer(sql)
    except (duckdb.NotImplementedException, duckdb.InternalException):
        return None
    except duckdb.Error as error:
        try:
            rows = federation.answer(sql)
        except DaiError:
            return None
        except Exception as foreign:  # noqa: BLE001 - whatever it is, it is the finding
            return Difference(f"foreign error {type(foreign).__name__}", f"{foreign}\n(DuckDB: {error})")
        return Difference("no error", f"DuckDB fails:\n{error}\nThe federation answers:\n{_shown(rows)}")
    try:
        rows = federation.answer(sql)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the finding
        words = " ".join(re.findall(r"[A-Za-z]+", str(error))[:4])
        return Difference(
            f"error {type(error).__name__} {words}", f"{type(error).__name__}: {error}\nDuckDB:\n{_shown(expected)}"
        )
    return compared(expected, rows, order(sql, expected.schema.names))


def order(sql: str, names: Sequence[str]) -> tuple[int, ...]:
    """Positions of the columns by which the whole query is ordered."""
    *before, tail = re.split(r"\sORDER BY\s", sql, flags=re.IGNORECASE)
    open_at_end = 0
    for character in tail:
        open_at_end += (character == "(") - (character == ")")
        if open_at_end < 0:  # the order of a subquery or a window
            return ()
    tail = re.split(r"\s(?:LIMIT|OFFSET)\s", tail, flags=re.IGNORECASE)[0]
    positions = []
    for text in tail.split(",") if before else ():
        term = re.fullmatch(r"(\w+)(?: ASC| DESC)?(?: NULLS (?:FIRST|LAST))?", text.strip(), re.IGNORECASE)
        if term is None or not (term[1].isdigit() or term[1] in names):
            break  # what follows orders within a value that the answer does not show
        positions.append(int(term[1]) - 1 if term[1].isdigit() else names.index(term[1]))
    return tuple(at for at in positions if at < len(names))


def compared(expected: pa.Table, found: pa.Table, order: Sequence[int] = ()) -> Difference | None:
    """Names, types, rows as a multiset, and the order of the columns that ``order`` names."""
    if expected.schema.names != found.schema.names:
        return Difference("names", f"DuckDB: {expected.schema.names}\nfederation: {found.schema.names}")
    if expected.schema.types != found.schema.types:
        return Difference(
            "types",
            f"DuckDB: {list(map(str, expected.schema.types))}\nfederation: {list(map(str, found.schema.types))}",
        )
    right, made = _rows(expected), _rows(found)
    missing, extra = _unmatched(Counter(right), Counter(made))
    if missing or extra:
        return Difference(
            "rows",
            f"DuckDB:\n{_shown(expected)}\nfederation:\n{_shown(found)}\nmissing: {missing[:5]}\ntoo many: {extra[:5]}",
        )
    for at in order:
        if not all(_same(one[at], other[at]) for one, other in zip(right, made, strict=True)):
            return Difference("order", f"by column {at + 1}; DuckDB:\n{_shown(expected)}\nfederation:\n{_shown(found)}")
    return None


def _rows(table: pa.Table) -> list[tuple[Any, ...]]:
    columns = []
    for column in table.columns:
        if pa.types.is_date32(column.type):
            column = column.cast(pa.int32())  # Python's years end at 9999
        elif pa.types.is_timestamp(column.type):
            column = column.cast(pa.int64())
        values = column.to_pylist()
        if pa.types.is_floating(column.type):
            values = ["NaN" if value is not None and math.isnan(value) else value for value in values]
        elif pa.types.is_list(column.type):
            values = [value if value is None else tuple(value) for value in values]
        columns.append(values)
    return list(zip(*columns, strict=True))


def _unmatched(right: Counter[tuple[Any, ...]], made: Counter[tuple[Any, ...]]) -> tuple[list[Any], list[Any]]:
    """Rows of one side without a partner on the other: equal, or doubles that are nearly so."""
    missing, extra = list((right - made).elements()), list((made - right).elements())
    if len(missing) != len(extra):
        return missing, extra
    groups: dict[tuple[Any, ...], list[tuple[Any, ...]]] = defaultdict(list)
    for row in extra:
        groups[_rigid(row)].append(row)
    lost = []
    for row in missing:
        group = groups[_rigid(row)]
        partner = next((other for other in group if all(map(_same, row, other))), None)
        if partner is None:
            lost.append(row)
        else:
            group.remove(partner)
    return lost, [row for group in groups.values() for row in group]


def _rigid(row: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple("" if isinstance(value, float) else value for value in row)


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=RELATIVE, abs_tol=SMALLEST)
    return bool(one == other)


def _shown(table: pa.Table) -> str:
    rows = [repr(row)[:300] for row in _rows(table)[:12]]
    return "\n".join([f"  {table.num_rows} rows of {', '.join(table.schema.names)}", *(f"  {row}" for row in rows)])
