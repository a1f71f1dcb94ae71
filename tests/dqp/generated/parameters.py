"""Queries with parameters, and values for them.

The name of a parameter says what its values are: ``$int3`` is a small whole number, ``$dates1`` a list of dates. So a
query is its text alone, also when it is made smaller, and the same text is asked with other values again and again.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import duckdb
import pyarrow as pa

from tests.dqp.generated.differential import Connected
from tests.dqp.generated.expressions import Expr, Scope
from tests.dqp.generated.forms import FORMS, filled
from tests.dqp.generated.grammar import Grammar
from tests.dqp.generated.oracle import Oracle
from tests.dqp.generated.relations import From, Output
from tests.dqp.generated.schema import CODES, DATES, MOMENTS, TEXTS
from tests.dqp.generated.worlds import World

VALUES: dict[str, tuple[Any, ...]] = {
    "int": (0, 1, -1, 2, 3, 5, 7, 10, 24, 100),
    "dec": tuple(map(Decimal, ("0.00", "1.50", "2.5", "99.99", "0.001", "-0.5"))),
    "dbl": (0.25, 1.5, -2.75, 10.0, 0.0),
    "str": TEXTS + CODES,
    "date": DATES,
    "ts": MOMENTS,
    "bool": (True, False),
    "farint": (2**31, 2**63 - 1, -(2**63), 2**63, 2**127 - 1, -(2**127), 5.0, Decimal("5"), "5", True),
    "fardec": (*map(Decimal, ("99999999999999999999999999999999.999999", "9999999999.995", "1E+2")), 1.5, 2, "1.50"),
    "fardbl": (float("inf"), float("-inf"), float("nan"), -0.0, 5e-324, 1.7976931348623157e308, 3, Decimal("0.1")),
    "farstr": ("", "\U0010ffff", "a\0", "\0", "$int1 ? :a", "--'", "'; --", "ẞ", "\\'", "e\u0301"),
    "fardate": (date.min, date.max, datetime(2024, 2, 29, 12), "2024-02-29"),
    "farts": (datetime.min, datetime.max, date(2024, 2, 29), "2024-02-29 00:00:00.000001"),
    "many": (2, 3, 4, 5, 9),
    "few": (1, 2, 3),
    "limit": (0, 1, 3, 5, 1000, None),
    "offset": (0, 1, 2, 50),
    "blob": (b"", b"a", b"a\0\xff'\\x41", "é".encode(), bytearray(b"10")),
    "time": (time(), time(12, 0, 0, 500_000), time(23, 59, 59, 999_999)),
    "span": (timedelta(), timedelta(days=-1, microseconds=1), timedelta(400, 3600), timedelta(hours=36)),
    "moment": (datetime(2024, 2, 29, tzinfo=UTC), datetime(1970, 1, 1, 1, tzinfo=UTC)),
    "uuid": (UUID(int=0), UUID("123e4567-e89b-12d3-a456-426614174000")),
    "pattern": ("a%", "%b%", "_", "", "%\\%%", "A%", "%é%"),
    "unit": ("year", "month", "week", "day", "hour"),
}
_NULL = ("int", "dec", "dbl", "str", "date", "ts", "bool", "blob", "time", "moment", "pattern")
"""What may be NULL now and then."""
_LISTED = ("int", "dec", "dbl", "str", "date", "ts")
LONG = 600
"""More values than are written as literals."""
FORMS_OF_VALUES = (
    "SELECT id, {c} FROM {a} ORDER BY id LIMIT $limit OFFSET $offset",
    "SELECT id FROM {a} WHERE ENCODE(name) = $blob OR ENCODE(code) > $blob",
    "SELECT id, $blob AS v, OCTET_LENGTH($blob) AS n FROM {a} WHERE id < $int",
    "SELECT id FROM {a} WHERE CAST(ts AS TIME) < $time",
    "SELECT id, d + $span AS v FROM {a} WHERE ts - $span > $ts",
    "SELECT id, $moment AS v FROM {a} WHERE ts < CAST($moment AS TIMESTAMP)",
    "SELECT id, $uuid AS v FROM {a} WHERE CAST($uuid AS VARCHAR) > name",
    "SELECT $str AS v, $dec AS u, $date AS e, COUNT(*) AS n FROM {a} GROUP BY ALL",
    "SELECT $int1 AS a, $farint1 > 0 AS b, $fardbl1 AS c, $farstr1 AS g, $farts1 AS e, $fardec1 AS f",
    "SELECT {c}, $int + 1 AS v FROM {a} WHERE {w} = ANY($ints) OR id = $int",
    "SELECT v.x, t.{c} FROM (VALUES ($int1), ($int2), (NULL)) v(x) LEFT JOIN {a} t ON t.id = v.x",
    "SELECT v.x, v.s, t.id FROM (VALUES ($int1, $str1), ($int2, $str2)) v(x, s) JOIN {a} t ON t.code = v.s",
    "VALUES ($int1, $str1), ((SELECT COUNT(*) FROM {a} WHERE {w} > $int2), $str2)",
    "SELECT id, UNNEST($ints) AS v FROM {a} WHERE id < $int",
    "SELECT p.id, q.id AS o FROM {a} p JOIN {b} q ON p.id = q.id AND q.{w} > $int WHERE p.code || $str > q.code",
    "SELECT p.id, q.{c} FROM {a} p LEFT JOIN {b} q ON p.{w} = q.id AND q.d > $date WHERE p.id IN $ints",
    "SELECT id FROM {a} WHERE name LIKE $pattern OR code ILIKE $pattern",
    "SELECT id, CASE WHEN $bool THEN {c} END AS v FROM {a} WHERE $bool OR id > $int",
    "SELECT id, COALESCE($int, {w}) AS v, NULLIF({w}, $int) AS u FROM {a}",
    "SELECT id FROM {a} WHERE x < $dbl AND amt >= $dec AND big <> $farint AND d < $date AND ts > $ts AND code <> $str",
    "SELECT ok, SUM({w}) FILTER (WHERE id > $int) AS t, STRING_AGG(code, $str ORDER BY code) AS l FROM {a} GROUP BY ok",
    "SELECT id, {w} IN $ints AS a, code NOT IN $strs AS b, d IN ($dates) AS e FROM {a}",
    "SELECT COUNT(*) FROM {a} p WHERE EXISTS (FROM {b} q WHERE q.{w} = p.id AND q.code IN $strs) AND p.k > $int",
    "SELECT id, LAG({w}, $few) OVER (ORDER BY id) AS v FROM {a} QUALIFY RANK() OVER (ORDER BY id) <= $many",
    "SELECT {w} + $int AS g, COUNT(*) FROM {a} GROUP BY {w} + $int HAVING COUNT(*) > $few",
    "SELECT id + $int AS v FROM {a} UNION SELECT $int FROM {b} EXCEPT SELECT id FROM {b} WHERE {w} < $many",
    "WITH p AS (SELECT id, {w} AS v FROM {a} WHERE id > $int) SELECT * FROM p WHERE v = (SELECT MAX(v) FROM p) - $few",
    "SELECT id, DATE_TRUNC($unit, ts) AS v, d - $date AS n FROM {a} WHERE d BETWEEN $date AND $date2",
    "SELECT id, SUBSTR(name, $few, $many) AS v, ROUND(x, $few) AS r, LPAD(code, $many, $str) AS l FROM {a}",
    "SELECT id FROM {a} WHERE (id, code) IN (($int1, $str1), ($int2, $str2)) OR (id, {w}) = ($many, $int1)",
    "SELECT (SELECT COUNT(*) FROM {b} q WHERE q.{w} < p.id + $int) AS n, id FROM {a} p ORDER BY id DESC LIMIT $limit",
)
_PARAMETER = re.compile(r"\$([a-z]+)\d*\b")
_IN_LIST = re.compile(r"\bIN \(\$([a-z]+\d*)\)|\bIN \$([a-z]+\d*)")


class Parametrised(Grammar):
    """Has parameters in the place of most constants."""

    def literal(self, kind: str) -> Expr:
        made = super().literal(kind)
        if not self.chance(0.6):
            return made
        # As wide as the widest of the values.
        wide = (
            replace(made, bound=100) if kind == "int" else replace(made, digits=5, scale=3) if kind == "dec" else made
        )
        return replace(wide, sql=self._placed(kind))

    def _placed(self, role: str) -> str:
        self.aliases += 1
        return f"${role}{self.aliases}"

    def _comparable(self, one: Expr, scope: Scope, depth: int) -> Expr:
        if one.kind != "bool" and self.chance(0.1):
            return Expr(self._placed(f"far{one.kind}"), one.kind)
        return super()._comparable(one, scope, depth)

    def _tested(self, one: Expr, scope: Scope, depth: int) -> str:
        if one.kind not in _LISTED or not self.chance(0.12):
            return super()._tested(one, scope, depth)
        listed = self._placed(f"{one.kind}s")
        form = self.rng.choice(
            ("{} IN {}", "{} NOT IN {}", "{} IN ({})", "{} = ANY({})", "{} <> ALL({})", "LIST_CONTAINS({1}, {0})")
        )
        return form.format(one.sql, listed)

    def finish(
        self, distinct: str, items: Sequence[Expr], source: From, tail: str, rows: int, bare: bool = False
    ) -> Output:
        # DuckDB names a column after its parameter, the federation after its value.
        return super().finish(distinct, items, source, tail, rows)

    def top(self) -> str:
        def placed(found: re.Match[str]) -> str:
            return f"{found[1]} {self._placed(found[1].lower())}" if self.chance(0.5) else found[0]

        # One row of a subquery for one value stays one.
        return re.sub(r"\b(LIMIT(?! 1\b)|OFFSET) \d+\b", placed, super().top())


def question(seed: int, world: World) -> str:
    """A query with parameters over the tables, views and uploaded tables of a world."""
    rng = random.Random(f"question {seed}")
    if rng.random() < 0.25:
        return filled(rng.choice(FORMS_OF_VALUES), rng, world.wide)
    if rng.random() < 0.25:
        text = rng.choice(FORMS)
        if not re.search(r"INTERVAL '?\{", text):  # no parameter stands there
            text = text.replace("{n}", "$many").replace("{m}", "$few")
        return filled(text, rng, world.wide)
    return Parametrised(rng, world.tables, world.weights, world.views).top()


def named(sql: str) -> list[str]:
    """The parameters of a query, each once."""
    return list(dict.fromkeys(actual[0][1:] for actual in _PARAMETER.finditer(sql)))


def values(sql: str, rng: random.Random) -> dict[str, Any]:
    """Values for the parameters of a query."""
    return {name: _drawn(name.rstrip("0123456789"), rng) for name in named(sql)}


def _drawn(role: str, rng: random.Random) -> Any:
    if role not in VALUES:
        one = VALUES[role.removesuffix("s")]
        count = LONG if rng.random() < 0.06 else rng.choice((0, 1, 1, 2, 3, 5))
        listed = [rng.choice(one) for _ in range(count)]
        return [*listed, None] if rng.random() < 0.15 else listed
    return None if role in _NULL and rng.random() < 0.06 else rng.choice(VALUES[role])


# Those who answer


@dataclass(frozen=True)
class Bound:
    """The oracle, with values bound. Where DuckDB gives a parameter another type than a constant in its place (a small
    whole number is INTEGER then), or takes none there, the constant counts."""

    oracle: Oracle
    values: Mapping[str, Any]

    def answer(self, sql: str) -> pa.Table:
        """Raises duckdb.Error."""

        def listed(found: re.Match[str]) -> str:
            value = self.values[found[1] or found[2]]
            if not isinstance(value, list):
                return found[0]
            items = ", ".join(map(constant, value))
            # DuckDB takes IN $list as a list. IN ($list) is the federation's own, and an empty one the same.
            return f"IN ({items})" if found[1] and items else f"IN [{items}]"

        if not self.values.keys() >= {*named(sql)}:  # a smaller query may have made a parameter of ``[:id]``
            raise duckdb.BinderException("There is a parameter without a value.")
        text = _IN_LIST.sub(listed, sql)
        expected = self.oracle.answer(_PARAMETER.sub(lambda found: constant(self.values[found[0][1:]]), text))
        known = {name: self.values[name] for name in named(text)}
        try:
            rows = self.oracle.answer(text, known)
        except duckdb.Error:
            return expected
        return rows.rename_columns(expected.schema.names) if rows.schema.types == expected.schema.types else expected


def constant(value: Any) -> str:
    """DuckDB's constant of a value."""
    match value:
        case None:
            return "NULL"
        case bool() | int():
            return f"({value})"
        case float():
            return f"'{value}'::DOUBLE"
        case Decimal():
            point = "" if "." in f"{value:f}" else "."
            return f"({value:f}{point})"
        case str():
            return "(" + " || chr(0) || ".join("'" + part.replace("'", "''") + "'" for part in value.split("\0")) + ")"
        case bytes() | bytearray():
            return f"FROM_HEX('{value.hex()}')"
        case datetime():
            return f"'{value.isoformat()}'::{'TIMESTAMP' if value.tzinfo is None else 'TIMESTAMPTZ'}"
        case date():
            return f"'{value.isoformat()}'::DATE"
        case time():
            return f"'{value.isoformat()}'::TIME"
        case timedelta():
            return (
                f"(TO_DAYS({value.days}) + TO_MICROSECONDS({(value - timedelta(value.days)) // timedelta.resolution}))"
            )
        case UUID():
            return f"'{value}'::UUID"
        case _:
            return f"[{', '.join(map(constant, value))}]"


STYLES: tuple[Callable[[str], str], ...] = (lambda name: f"${name}", lambda name: f":{name}", lambda name: "?")


@dataclass(frozen=True)
class Given:
    """A federation, with values bound to ``$name``, to ``:name``, or to ``?`` by place."""

    federation: Connected
    values: Mapping[str, Any]
    style: int = 0

    def answer(self, sql: str) -> pa.Table:
        """Raises what the federation does."""
        # Behind a parenthesis a colon begins no parameter.
        style = 0 if self.style == 1 and "DISTINCT ON (" in sql else self.style
        apart = sql.replace(":$", ": $")  # two colons are a cast
        text = _PARAMETER.sub(lambda found: STYLES[style](found[0][1:]), apart)
        if style == 2:
            return self.federation.lab.sql(
                text, *(self.values[each[0][1:]] for each in _PARAMETER.finditer(sql))
            ).arrow()
        return self.federation.lab.sql(text, **{name: self.values[name] for name in named(sql)}).arrow()
