"""The generated queries are worth asking: they run, find rows, are determined, and no construct is missing.

A difference is seen, and a failing query becomes a small one.
"""

import random
import re
from collections import Counter
from collections.abc import Iterator

import duckdb
import pyarrow as pa
import pytest

from tests.dqp.generated.differential import compared, difference, order
from tests.dqp.generated.forms import FORMS, filled
from tests.dqp.generated.grammar import query
from tests.dqp.generated.oracle import Oracle
from tests.dqp.generated.report import determined, report
from tests.dqp.generated.shrink import shrunk

SEEDS = range(2000)
ASKED = range(150)
CONSTRUCTS = {
    "inner join": r" (INNER )?JOIN \S+( AS)? \w+ ON",
    "left join": r" LEFT (OUTER )?JOIN ",
    "right join": r" RIGHT JOIN ",
    "full join": r" FULL JOIN ",
    "cross join": r" CROSS JOIN ",
    "comma join": r"FROM \S+( AS)? t\d+, \S+\.",
    "semi join": r" SEMI JOIN ",
    "anti join": r" ANTI JOIN ",
    "using": r" USING \(",
    "using two": r" USING \(\w+, \w+\)",
    "full join using": r"FULL JOIN \S+( AS)? \w+ USING",
    "lateral": r", LATERAL \(",
    "lateral outer join": r" LEFT JOIN LATERAL \(",
    "first rows for each row": r"LATERAL \(SELECT .* LIMIT \d+( OFFSET 1)?\) AS l",
    "asof": r" ASOF JOIN ",
    "asof outer join": r" ASOF LEFT JOIN ",
    "self join": r"(pg\.item|maria\.event|lite\.note|duck\.gauge)( AS)? t\d+ [A-Z ]*JOIN \1",
    "non-equi join": r"JOIN \S+( AS)? \w+ ON \S+ (<|>=|<>) \S+",
    "mixed join": r"JOIN \S+( AS)? \w+ ON \S+ = \S+ AND ",
    "null-safe join": r"ON \S+ IS NOT DISTINCT FROM",
    "join on expression": r"ON \S+ \+ 1 = ",
    "and": r" AND ",
    "or": r" OR ",
    "not": r"\(NOT ",
    "comparison of truths": r"\.ok (=|<>|<|>=) t\d+\.ok",
    "comparison of rows": r"\(\S+, \S+\) (=|<>|<|>=|IS DISTINCT FROM) \(",
    "rows in a list": r"\(\S+, \S+\) IN \(\(",
    "list": r" IN \[",
    "text as a number": r" (=|<>|<|<=|>|>=) '5'",
    "between": r" BETWEEN \S+ AND ",
    "not between": r" NOT BETWEEN ",
    "in list": r" IN \([\d'(D]",
    "not in list": r" NOT IN \([\d'(D]",
    "in list with NULL": r"IN \([^()]*, NULL\)",
    "like": r" LIKE ",
    "not like": r" NOT LIKE ",
    "ilike": r" ILIKE ",
    "escape": r" ESCAPE ",
    "not ilike": r" NOT ILIKE ",
    "similar": r" SIMILAR TO ",
    "glob": r" GLOB ",
    "collate": r" COLLATE NOCASE = ",
    "is null": r" IS NULL",
    "is not null": r" IS NOT NULL",
    "is distinct from": r" IS DISTINCT FROM",
    "is true": r" IS TRUE",
    "case": r"CASE WHEN",
    "simple case": r"CASE [^W]\S* WHEN",
    "coalesce": r"COALESCE\(",
    "nullif": r"NULLIF\(",
    "greatest": r"GREATEST\(",
    "cast": r"(?<!_)CAST\(",
    "double colon": r"::DOUBLE",
    "try_cast": r"TRY_CAST\(\S+ AS INTEGER",
    "try_cast to decimal": r"TRY_CAST\(\S+ AS DECIMAL",
    "try_cast to double": r"TRY_CAST\(\S+ AS DOUBLE",
    "try_cast to date": r"TRY_CAST\(.* AS DATE",
    "rounding cast": r"CAST\(\S+ AS DECIMAL\(\d+,[013]\)",
    "bits": r" [&|] \S+\)",
    "integer division": r" // ",
    "modulo": r" % NULLIF",
    "division": r" / ",
    "product": r" \* ",
    "concatenation": r" \|\| ",
    "substr": r"SUBSTR\(",
    "upper": r"UPPER\(",
    "trim": r" ?[LR]?TRIM\(",
    "regexp": r"REGEXP_MATCHES",
    "regexp_replace": r"REGEXP_REPLACE",
    "slice": r"\)\[\d:\d\]",
    "extract": r"EXTRACT\(",
    "date_trunc": r"DATE_TRUNC\(",
    "date_diff": r"DATE_DIFF\(",
    "interval": r"INTERVAL ",
    "days": r"\S+ \+ \d+\) AS",
    "round": r"ROUND\(",
    "group by": r" GROUP BY ",
    "group by all": r" GROUP BY ALL",
    "group by position": r" GROUP BY 1",
    "order by all": r" ORDER BY ALL",
    "upper case name": r"\bT\d+\.\w",
    "having": r" HAVING ",
    "rollup": r"ROLLUP \(",
    "cube": r"CUBE \(",
    "grouping sets": r"GROUPING SETS \(",
    "grouping": r"GROUPING\(",
    "count": r"COUNT\(\*\)",
    "count distinct": r"COUNT\(DISTINCT ",
    "sum": r"SUM\(",
    "sum distinct": r"SUM\(DISTINCT ",
    "avg": r"AVG\(",
    "min": r"MIN\(",
    "max": r"MAX\(",
    "stddev": r"STDDEV_SAMP\(",
    "variance": r"VAR_POP\(",
    "median": r"MEDIAN\(",
    "string_agg": r"STRING_AGG\(",
    "quantile": r"QUANTILE_DISC\(",
    "first by order": r"FIRST\(\S+ ORDER BY",
    "list aggregate": r"LIST\(\S+ ORDER BY",
    "bool_and": r"BOOL_AND\(",
    "bit_or": r"BIT_OR\(",
    "filter": r"\) FILTER \(WHERE",
    "row_number": r"ROW_NUMBER\(\)",
    "rank": r" RANK\(\)",
    "lag": r"LAG\(",
    "first_value": r"FIRST_VALUE\(",
    "window aggregate": r"SUM\([^()]*\) OVER",
    "frame": r"ROWS BETWEEN",
    "frame of groups": r"GROUPS BETWEEN",
    "frame of numbers": r"RANGE BETWEEN 3 PRECEDING",
    "frame of intervals": r"RANGE BETWEEN INTERVAL",
    "exclude from a frame": r" EXCLUDE (TIES|GROUP|CURRENT ROW)",
    "ignore nulls": r" IGNORE NULLS\)",
    "nth_value": r"NTH_VALUE\(",
    "percent_rank": r"PERCENT_RANK\(\)",
    "partition": r"OVER \(PARTITION BY",
    "qualify": r" QUALIFY ",
    "distinct": r"SELECT DISTINCT ",
    "distinct on": r"SELECT DISTINCT ON \(\w+\.",
    "name of the list in WHERE": r" AS a\d+,.*WHERE .*\(a\d+ ",
    "name of the list in GROUP BY": r" GROUP BY a\d+",
    "scalar subquery in SELECT": r"^SELECT [^F]*\(SELECT ",
    "scalar subquery": r"[=<>] \(SELECT |\(\(SELECT ",
    "subquery in FROM": r"(FROM|JOIN) \(SELECT ",
    "in subquery": r" IN \(SELECT ",
    "not in subquery": r" NOT IN \(SELECT ",
    "exists": r"\(EXISTS \(SELECT",
    "not exists": r"NOT EXISTS \(SELECT",
    "subquery in HAVING": r" HAVING .*\(SELECT ",
    "row in subquery": r"\(\S+, \S+\) (NOT )?IN \(SELECT",
    "any": r" ANY \(SELECT",
    "all": r" ALL \(SELECT",
    "two levels": r"\(SELECT [^()]*\([^()]*\([^()]*SELECT ",
    "limit in a subquery": r"LIMIT \d+( OFFSET 2)?\)",
    "first row of a subquery": r"ORDER BY .* DESC, .* LIMIT 1\)",
    "exists with an offset": r"EXISTS \(SELECT .* OFFSET 1\)",
    "order by what is not in the list": r"^SELECT .* ORDER BY \S+\.\S+( DESC)?( NULLS FIRST)?, .*LIMIT \d",
    "names of a derived table": r"\) AS q\d+\(z0",
    "cte within": r"\(WITH c\d+ AS",
    "cte of the same name": r"WITH (c\d+) AS .*\(WITH \1 AS",
    "cte": r"^WITH ",
    "cte twice": r"\bc1 AS q.*\bc1 AS q",
    "two ctes": r"^WITH .*\bc2 AS ",
    "recursive": r"WITH RECURSIVE",
    "recursive union": r"UNION SELECT CAST\(t\.k",
    "materialized": r"AS MATERIALIZED",
    "union": r" UNION \(?S",
    "union all": r" UNION ALL ",
    "intersect": r" INTERSECT \(?S",
    "intersect all": r" INTERSECT ALL ",
    "except": r" EXCEPT \(?S",
    "except all": r" EXCEPT ALL ",
    "limit": r" LIMIT \d+$",
    "offset": r" OFFSET 2$",
    "nulls first": r"NULLS FIRST",
    "nulls last": r"NULLS LAST",
    "order by name": r"ORDER BY o0",
    "values": r"\(VALUES ",
    "range": r" range\(",
    "star": r"SELECT \*",
    "alias star": r"SELECT \w+\.\*",
    "exclude": r"\* EXCLUDE",
    "replace": r"\* REPLACE",
    "classic name": r"(FROM|JOIN) (pg|maria|lite|duck)_",
    "no alias": r"^SELECT [^ ]*\) FROM",
    "empty table": r"duck\.nothing",
    "one row": r"lite\.single",
    "unqualified by alias": r"FROM (pg\.item|duck\.gauge)( |$)",
}


@pytest.fixture(scope="module")
def oracles() -> Iterator[tuple[Oracle, Oracle]]:
    with Oracle() as forwards, Oracle(backwards=True) as backwards:
        yield forwards, backwards


def test_a_seed_is_a_query() -> None:
    assert [query(seed) for seed in range(50)] == [query(seed) for seed in range(50)]


def test_queries_run_and_find_rows(oracles: tuple[Oracle, Oracle]) -> None:
    ran = total = 0
    for seed in ASKED:
        try:
            rows = oracles[0].answer(query(seed)).num_rows
        except duckdb.Error:
            continue
        ran += 1
        total += rows > 0
    assert ran > 0.94 * len(ASKED)
    assert ran < len(ASKED)  # some fail on purpose
    assert total > 0.6 * ran


def test_every_construct_is_generated() -> None:
    counts: Counter[str] = Counter()
    for seed in SEEDS:
        text = query(seed)
        counts.update(name for name, pattern in CONSTRUCTS.items() if re.search(pattern, text))
    missing = [name for name in CONSTRUCTS if counts[name] < 2]
    assert not missing


def test_every_form_runs(oracles: tuple[Oracle, Oracle]) -> None:
    for number, each in enumerate(FORMS):
        sql = filled(each, random.Random(number))
        assert oracles[0].answer(sql).column_names
        assert determined(sql, oracles)


def test_answers_are_determined(oracles: tuple[Oracle, Oracle]) -> None:
    assert [seed for seed in ASKED if not determined(query(seed), oracles)] == []


TABLE = pa.table({"a": [1, 2, 2], "x": [0.1, None, 2.0], "t": ["a", "", None]})


@pytest.mark.parametrize(
    ("kind", "other"),
    [
        ("rows", TABLE.slice(1)),
        ("rows", pa.concat_tables([TABLE, TABLE.slice(2)])),
        ("rows", pa.concat_tables([TABLE.slice(0, 2), TABLE.slice(1, 1)])),
        ("rows", TABLE.set_column(1, "x", pa.array([0.1000001, None, 2.0]))),
        ("rows", TABLE.set_column(1, "x", pa.array([float("nan"), None, 2.0]))),
        ("rows", TABLE.set_column(2, "t", pa.array(["a", None, None]))),
        ("names", TABLE.rename_columns(["a", "y", "t"])),
        ("types", TABLE.set_column(0, "a", pa.array([1, 2, 2], pa.int32()))),
        ("order", TABLE.take([1, 0, 2])),
    ],
)
def test_a_difference_is_seen(kind: str, other: pa.Table) -> None:
    difference = compared(TABLE, other, order("SELECT … ORDER BY a", TABLE.column_names))
    assert difference is not None
    assert difference.kind == kind


@pytest.mark.parametrize(
    "other", [TABLE, TABLE.take([0, 2, 1]), TABLE.set_column(1, "x", pa.array([0.1 + 1e-15, None, 2.0]))]
)
def test_what_is_the_same_is_no_difference(other: pa.Table) -> None:
    assert compared(TABLE, other, order("SELECT … ORDER BY a", TABLE.column_names)) is None


@pytest.mark.parametrize(
    ("sql", "positions"),
    [
        ("SELECT a, x, t FROM s ORDER BY 2 DESC, a NULLS LAST LIMIT 3 OFFSET 2", (1, 0)),
        ("SELECT a, x, t FROM s ORDER BY a || t, x", ()),
        ("SELECT a FROM (SELECT a FROM s ORDER BY a LIMIT 5) q WHERE (a IN (1, 2))", ()),
        ("SELECT SUM(a) OVER (ORDER BY x) FROM s", ()),
        ("SELECT a FROM s", ()),
    ],
)
def test_the_columns_that_order_the_answer(sql: str, positions: tuple[int, ...]) -> None:
    assert order(sql, TABLE.column_names) == positions


def test_a_failing_query_becomes_small(oracles: tuple[Oracle, Oracle]) -> None:
    class WithoutNulls:
        """A federation that loses the rows of LEFT JOIN without a partner."""

        def answer(self, sql: str) -> pa.Table:
            return oracles[0].answer(sql.replace("LEFT JOIN", "JOIN"))

    sql = (
        "WITH c AS (SELECT id, k FROM pg.item WHERE k > 3) SELECT t.code, COUNT(*) AS n, MAX(UPPER(t.name)) AS m "
        "FROM c LEFT JOIN maria.event AS t ON t.id = c.k AND t.code <> 'x' WHERE c.id < 30 "
        "GROUP BY t.code ORDER BY 1, 2, 3 LIMIT 40"
    )
    actual = difference(sql, oracles[0], WithoutNulls())
    assert actual is not None
    assert actual.kind == "rows"
    text = report(7, sql, actual, oracles, WithoutNulls())
    small = text.split("-- smaller:\n")[1].splitlines()[0]
    assert "LEFT JOIN" in small
    assert len(small) < len(sql) / 2
    assert text.startswith("== seed 7: rows\n")


def test_a_query_that_does_not_fail_stays(oracles: tuple[Oracle, Oracle]) -> None:
    assert shrunk("SELECT 1", lambda text: False) == "SELECT 1"
    assert difference("SELECT 1 AS one", *oracles) is None


def test_what_cannot_be_written_is_no_smaller_query() -> None:
    assert shrunk("SELECT CASE WHEN TRUE THEN a END FROM t", lambda text: "WHEN TRUE" in text).startswith("SELECT CASE")


def test_an_error_must_be_an_error(oracles: tuple[Oracle, Oracle]) -> None:
    class Careless:
        def answer(self, sql: str) -> pa.Table:
            return TABLE

    class Failing:
        def answer(self, sql: str) -> pa.Table:
            raise RuntimeError("no")

    assert difference("SELECT 1 // 0", oracles[0], Careless()).kind == "no error"  # type: ignore[union-attr]
    assert difference("SELECT 1 // 0", oracles[0], Failing()).kind == "foreign error RuntimeError"  # type: ignore[union-attr]
    assert difference("SELECT 1", oracles[0], Failing()).kind == "error RuntimeError no"  # type: ignore[union-attr]
