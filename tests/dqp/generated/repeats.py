"""Queries that ask for the same rows several times with different filters: aggregates side by side, and groups that
are used more than once."""

from __future__ import annotations

import random
from collections.abc import Callable

from tests.dqp.generated.forms import ANY, WHOLE, WIDE

JOINED = 0.3
"""Of the queries, those over a join of two tables."""


def repeated(rng: random.Random) -> str:
    """One of these queries, its answer determined."""
    rows = _rows(rng)
    return rng.choice((_side_by_side, _in_expressions, _groups))(rng, rows)


def _rows(rng: random.Random) -> str:
    one, other = rng.choice(WIDE), rng.choice(WIDE)
    return f"{one} p JOIN {other} q ON p.{rng.choice(WHOLE)} = q.id" if rng.random() < JOINED else f"{one} p"


def _condition(rng: random.Random, joined: bool) -> str:
    """Of one table, at times of two, or none."""
    number = rng.randint(-2, 9)
    each = f"{rng.choice('pq') if joined else 'p'}.{rng.choice(WHOLE)}"
    choices = (
        f"{each} = {number}",
        f"{each} > {number}",
        f"{each} BETWEEN {number} AND {number + rng.randint(0, 5)}",
        f"({each} < {number} OR p.amt > 1.5)",
        f"{each} IN ({number}, {number + 3})",
        f"{each} IS NULL",
        "p.code = 'a'",
        f"{each} + 1 > {number}",
        f"10 // (p.id - {rng.randint(100, 200)}) < {number}",
    )
    return " AND ".join(rng.sample(choices, rng.choice((1, 1, 2))))


def _where(rng: random.Random, rows: str, shared: str) -> str:
    own = [] if rng.random() < 0.15 else [_condition(rng, "JOIN" in rows)]
    conditions = [*([shared] if shared else []), *own]
    rng.shuffle(conditions)
    return f" WHERE {' AND '.join(conditions)}" if conditions else ""


def _aggregate(rng: random.Random) -> str:
    whole, any_of = f"p.{rng.choice(WHOLE)}", f"p.{rng.choice(ANY)}"
    return rng.choice(
        (
            "COUNT(*)",
            f"COUNT({any_of})",
            f"COUNT(DISTINCT {any_of})",
            f"SUM({whole})",
            f"AVG({whole})",
            f"SUM(DISTINCT {whole})",
            f"MIN({any_of})",
            f"MAX({any_of})",
            "SUM(p.amt) + 1",
            f"SUM(CAST({whole} AS BIGINT) * 2)",
            f"COUNT(*) FILTER (WHERE {whole} > 1)",
        )
    )


def _shared(rng: random.Random, rows: str) -> str:
    return _condition(rng, "JOIN" in rows) if rng.random() < 0.5 else ""


def _side_by_side(rng: random.Random, rows: str) -> str:
    shared = _shared(rng, rows)
    parts = []
    for at in range(rng.randint(2, 4)):
        columns = ", ".join(f"{_aggregate(rng)} AS a{number}" for number in range(rng.randint(1, 2)))
        parts.append(f"(SELECT {columns} FROM {rows}{_where(rng, rows, shared)}) t{at}")
    condition = rng.choice(("", "", " WHERE t0.a0 IS NOT NULL", " WHERE t0.a0 IS DISTINCT FROM t1.a0"))
    return f"SELECT * FROM {', '.join(parts)}{condition}"


def _in_expressions(rng: random.Random, rows: str) -> str:
    shared = _shared(rng, rows)

    def scalar(aggregate: Callable[[random.Random], str] = _aggregate) -> str:
        return f"(SELECT {aggregate(rng)} FROM {rows}{_where(rng, rows, shared)})"

    def count(_: random.Random) -> str:
        return "COUNT(*)"

    first = f"CASE WHEN {scalar(count)} > {rng.randint(1, 40)} THEN {scalar(count)} ELSE {scalar(count)} END"
    return f"SELECT {first} AS a, {scalar()} AS b, o.id FROM {rng.choice(WIDE)} o WHERE o.id < 5"


def _groups(rng: random.Random, rows: str) -> str:
    keys = rng.sample(("p.k", "p.s", "p.code", "p.ok", "p.d"), 2)
    columns = ", ".join(f"{key} AS g{at}" for at, key in enumerate(keys))
    shared = _shared(rng, rows)
    where = f" WHERE {shared}" if shared else ""
    groups = (
        f"SELECT {columns}, {_aggregate(rng)} AS v, {_aggregate(rng)} AS u FROM {rows}{where} "
        f"GROUP BY {', '.join(keys)}"
    )
    values = {
        "p.k": ("= 1", "> 3", "IN (2, 3)", "IS NULL"),
        "p.s": ("= 3", "< 2", "BETWEEN -1 AND 5"),
        "p.code": ("= 'a'", "<> 'b'", "> 'a'"),
        "p.ok": ("IS NOT NULL", "IS NULL"),
        "p.d": ("= DATE '2024-02-29'", "> DATE '2000-01-01'"),
    }[keys[1]]

    def used() -> str:
        return "" if rng.random() < 0.2 else f"{rng.choice(values)}"

    conditions = [f"{name}.g1 {each}" for name in ("x", "y") if (each := used())]
    kind = rng.choice(("JOIN", "JOIN", "LEFT JOIN", "FULL JOIN"))
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    more = " JOIN t z ON z.g0 = x.g0 AND z.g1 IS NOT DISTINCT FROM x.g1" if rng.random() < 0.3 else ""
    return f"WITH t AS ({groups}) SELECT x.*, y.v AS w FROM t x {kind} t y ON x.g0 = y.g0{more}{where}"
