"""Forms of a whole query that the grammar does not build from parts: they are filled with tables, columns, numbers.

``id`` is a key of every table, so that an order by it is one; ``{a}`` and ``{b}`` are wide tables, perhaps the same.
"""

from __future__ import annotations

import random

from tests.dqp.generated.schema import TABLES

WIDE = [f"{each.source}.{each.name}" for each in TABLES if "y" in each.columns]
WHOLE, ANY = ("id", "k", "s"), ("k", "s", "code", "d", "amt", "name")

FORMS = (
    # FROM first
    "FROM {a} p JOIN {b} q USING (id) SELECT COUNT(*), MAX(q.{c}) WHERE p.{w} < {n}",
    "FROM {a} p, {b} q SELECT p.id, q.{c} WHERE p.id = q.id AND q.{w} IS NOT NULL",
    "FROM {a} p LEFT JOIN {b} q ON p.{w} = q.id SELECT p.{c}, COUNT(q.id) AS n GROUP BY ALL",
    "FROM {a} WHERE {w} > {n} ORDER BY id LIMIT {n}",
    "FROM (FROM {a} SELECT id, {c} AS v) NATURAL JOIN (SELECT id, {w} AS other FROM {b})",
    "SELECT COUNT(*) FROM (FROM {a} p SEMI JOIN {b} q USING ({w}))",
    # VALUES
    "VALUES ((SELECT MAX(id) FROM {a}), {n}), ({n}, (SELECT COUNT(*) FROM {b} WHERE {w} = {n}))",
    "SELECT v.x, t.{c} FROM (VALUES (1), ({n}), ((SELECT MIN(id) + 1 FROM {b}))) v(x) JOIN {a} t ON t.id = v.x",
    # joins
    "SELECT p.id, q.{c} FROM (SELECT * FROM {a} ORDER BY id) p POSITIONAL JOIN (SELECT * FROM {b} ORDER BY id) q",
    "SELECT p.id, q.id AS other FROM {a} p ASOF JOIN {b} q ON p.id >= q.id",
    "SELECT p.id, q.id AS other, q.{c} FROM {a} p ASOF LEFT JOIN {b} q ON p.code = q.code AND p.id > q.id",
    "SELECT p.id, x.m FROM {a} p, LATERAL (SELECT MAX({w}) AS m FROM {b} q WHERE q.id <= p.id) x",
    "SELECT p.id, x.{c} FROM {a} p LEFT JOIN LATERAL (SELECT {c} FROM {b} q WHERE q.id = p.{w}) x ON TRUE",
    "SELECT id, p.{c} FROM {a} p FULL JOIN {b} q USING (id)",
    # pivots
    "PIVOT (SELECT id % 3 AS g, ok, {w} AS v FROM {a}) ON g IN (0, 1, 2) USING SUM(v) GROUP BY ok",
    "SELECT * FROM (SELECT id % 2 AS g, ok, id FROM {a}) PIVOT (COUNT(id) FOR g IN (0, 1))",
    (
        "SELECT id, col, v FROM (SELECT id, CAST(k AS BIGINT) AS k, CAST(s AS BIGINT) AS s FROM {a}) UNPIVOT"
        " (v FOR col IN (k, s))"
    ),
    # windows
    "SELECT id, {c} FROM {a} QUALIFY ROW_NUMBER() OVER (PARTITION BY {c} ORDER BY id) <= {m}",
    (
        "SELECT id, SUM({w}) OVER w AS t FROM {a} WINDOW w AS (PARTITION BY ok ORDER BY id ROWS BETWEEN {m}"
        " PRECEDING AND 1 FOLLOWING)"
    ),
    (
        "SELECT id, COUNT(*) OVER (ORDER BY id RANGE BETWEEN {m} PRECEDING AND CURRENT ROW EXCLUDE CURRENT"
        " ROW) AS n FROM {a}"
    ),
    "SELECT id, LAG({c}, {m}) OVER (ORDER BY id) AS v, NTILE(3) OVER (ORDER BY id) AS t FROM {a}",
    (
        "SELECT id, FIRST_VALUE({c} IGNORE NULLS) OVER (ORDER BY id GROUPS BETWEEN {m} PRECEDING AND 0"
        " FOLLOWING) AS v FROM {a}"
    ),
    "SELECT id, SUM({w}) FILTER (WHERE ok) OVER (ORDER BY id) AS v FROM {a}",
    "SELECT id, RANK() OVER (ORDER BY (SELECT COUNT(*) FROM {b} q WHERE q.id < p.id)) AS r FROM {a} p",
    # groups
    "SELECT ok, {c}, COUNT(*), GROUPING(ok, {c}) FROM {a} GROUP BY GROUPING SETS ((ok), ({c}), (ok, {c}), ())",
    "SELECT ok, id % 2 AS g, SUM({w}) FILTER (WHERE id > {n}) FROM {a} GROUP BY CUBE (ok, id % 2)",
    "SELECT ok, id % 3 AS g, COUNT(DISTINCT {c}) FROM {a} GROUP BY ROLLUP (ok, id % 3) HAVING COUNT(*) > 1",
    "SELECT {c}, COUNT(*) FROM {a} GROUP BY ALL HAVING COUNT(*) >= {m}",
    "SELECT DISTINCT ON ({c}) {c}, id FROM {a} ORDER BY {c}, id",
    "SELECT ARG_MAX({c}, id), ARG_MIN(id, id), LIST(id ORDER BY id DESC)::VARCHAR FROM {a} WHERE {c} IS NOT NULL",
    # stars
    "SELECT * EXCLUDE (x, y, {c}) FROM {a} WHERE id < {n}",
    "SELECT * REPLACE (id + {n} AS id) RENAME (code AS letters) FROM {a} WHERE id < {n}",
    "SELECT id, MAX(COLUMNS(['k', 's'])) FROM {a} GROUP BY id",
    "SELECT COLUMNS('^[ks]$') FROM {a}",
    "SELECT q.*, p.id AS mine FROM {a} p JOIN {b} q ON p.id = q.id",
    # lists
    "SELECT id, LIST_TRANSFORM([k, s, {n}], lambda v: v + 1)::VARCHAR AS l FROM {a}",
    "SELECT id, [v * 2 FOR v IN [k, {n}] IF v > {m}]::VARCHAR AS l, LIST_SUM([{m}, {n}]) AS t FROM {a}",
    "SELECT id, UNNEST([k, s]) AS v FROM {a}",
    "SELECT id, v FROM {a}, UNNEST([k, {n}]) u(v)",
    "SELECT id, {{'a': {c}, 'b': id}}.b AS v FROM {a}",
    # dates
    "SELECT id, d + INTERVAL {m} MONTH AS v, d - INTERVAL (id % 5) DAY AS u FROM {a}",
    "SELECT id, DATE_TRUNC('month', d) AS v, DATE_DIFF('day', d, DATE '2024-02-29') AS n, LAST_DAY(d) AS l FROM {a}",
    "SELECT id, ts + INTERVAL '{m} hours' AS v, EXTRACT(dow FROM d) AS w, STRFTIME(d, '%Y-%m') AS t FROM {a}",
    # limits
    "SELECT id FROM {a} ORDER BY id LIMIT 30 PERCENT",
    "SELECT id FROM {a} ORDER BY id LIMIT (SELECT COUNT(*) // 2 FROM {b}) OFFSET {m}",
    "SELECT id, {c} FROM {a} p ORDER BY (SELECT COUNT(*) FROM {b} q WHERE q.{w} = p.id), id LIMIT {n}",
    # subqueries
    "SELECT id FROM {a} WHERE (id, {w}) IN (SELECT id, {w} FROM {b})",
    "SELECT id FROM {a} WHERE (id, id) NOT IN (SELECT id, {m} FROM {b} WHERE id > {n})",
    "SELECT id, CASE WHEN EXISTS (SELECT 1 FROM {b} q WHERE q.id = p.{w}) THEN {c} END AS v FROM {a} p",
    "SELECT p.id FROM {a} p JOIN {b} q ON p.id = q.id AND q.id < (SELECT MAX({w}) FROM {b})",
    "SELECT id, ARRAY(SELECT q.id FROM {b} q WHERE q.id < p.id AND q.id < {m} ORDER BY q.id)::VARCHAR AS l FROM {a} p",
    "SELECT (SELECT {c} FROM {b} q WHERE q.id = p.id) AS v, COUNT(*) FROM {a} p GROUP BY ALL",
    (
        "WITH RECURSIVE r(id, n) AS (SELECT id, 0 FROM {a} WHERE id < {m} UNION ALL SELECT id + {m}, n + 1"
        " FROM r WHERE n < 4"
    ),
    " SELECT r.id, n, t.{c} FROM r LEFT JOIN {b} t USING (id)",
    "WITH p AS (SELECT id, {c} FROM {a}), q AS (SELECT * FROM p WHERE id > {n}) FROM p ANTI JOIN q USING (id)",
    (
        "SELECT CASE id % 3 WHEN 0 THEN {c} WHEN {m} THEN NULL ELSE {c} END AS v, IF(ok, 1, 2) AS i,"
        " IFNULL({w}, 0) FROM {a}"
    ),
    "SELECT id, k FROM {a} UNION BY NAME SELECT k, id FROM {b}",
)


def form(rng: random.Random) -> str:
    """One of the forms, filled."""
    return filled(rng.choice(FORMS), rng)


def filled(text: str, rng: random.Random) -> str:
    names = {"a": rng.choice(WIDE), "b": rng.choice(WIDE), "w": rng.choice(WHOLE), "c": rng.choice(ANY)}
    return text.format(**names, n=rng.randint(2, 9), m=rng.randint(1, 3))
