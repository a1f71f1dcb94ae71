"""Forms of a whole query that the grammar does not build from parts: they are filled with tables, columns, numbers.

``id`` is a key of every table, so that an order by it is one; ``{a}`` and ``{b}`` are wide tables, perhaps the same.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

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
    "FROM {a} p JOIN {b} q ON p.{w} = q.id LEFT JOIN {a} r ON r.id = q.{w} SELECT p.id, q.{c}, r.{c} AS e ORDER BY ALL",
    "FROM {a} p FULL JOIN {b} q USING ({w}) SELECT {w}, COUNT(p.id), COUNT(q.id) AS n GROUP BY {w} HAVING COUNT(*) > 1",
    "FROM {a} p RIGHT JOIN {b} q USING (id, {w}) WHERE p.{c} IS NULL",
    # VALUES
    (
        "SELECT * FROM (VALUES ((SELECT COUNT(*) FROM {a} WHERE {w} > {n}), 'a'), ((SELECT MIN(id) FROM {b}),"
        " NULL)) v(n, t)"
    ),
    "SELECT p.id, (VALUES (p.{w})) AS v FROM {a} p WHERE p.id IN (VALUES ({n}), ((SELECT MAX(id) FROM {b})), (NULL))",
    "VALUES ((SELECT MAX(id) FROM {a}), {n}), ({n}, (SELECT COUNT(*) FROM {b} WHERE {w} = {n}))",
    "SELECT v.x, t.{c} FROM (VALUES (1), ({n}), ((SELECT MIN(id) + 1 FROM {b}))) v(x) JOIN {a} t ON t.id = v.x",
    # joins
    "SELECT p.id, q.{c} FROM (SELECT * FROM {a} ORDER BY id) p POSITIONAL JOIN (SELECT * FROM {b} ORDER BY id) q",
    "SELECT p.id, q.id AS other FROM {a} p ASOF JOIN {b} q ON p.id >= q.id",
    "SELECT p.id, q.id AS other, q.{c} FROM {a} p ASOF LEFT JOIN {b} q ON p.code = q.code AND p.id > q.id",
    "SELECT p.id, x.m FROM {a} p, LATERAL (SELECT MAX({w}) AS m FROM {b} q WHERE q.id <= p.id) x",
    "SELECT p.id, x.{c} FROM {a} p LEFT JOIN LATERAL (SELECT {c} FROM {b} q WHERE q.id = p.{w}) x ON TRUE",
    (
        "SELECT p.id, x.* FROM {a} p, LATERAL (SELECT q.{w}, COUNT(*) AS n, MAX(q.id) AS m FROM {b} q WHERE"
        " q.{c} = p.{c}"
        " AND q.id > {m} GROUP BY q.{w} HAVING COUNT(*) >= 1) x WHERE x.m < {n}"
    ),
    (
        "SELECT p.id, x.id AS other FROM {a} p LEFT JOIN LATERAL (SELECT q.id FROM {b} q WHERE q.{w} = p.{w} ORDER BY"
        " q.{c}, q.id LIMIT {m} OFFSET 1) x ON x.id > {n}"
    ),
    (
        "SELECT p.id, x.v, y.n FROM {a} p, LATERAL (SELECT p.{w} // 2 AS v) x LEFT JOIN LATERAL (SELECT COUNT(*) AS n,"
        " SUM(q.id) FILTER (WHERE q.ok) FROM {b} q WHERE q.id = p.{w} AND q.{c} IS NOT NULL) y ON TRUE"
    ),
    "SELECT p.id, x.r FROM {a} p, (SELECT q.id, RANK() OVER (ORDER BY q.id) AS r FROM {b} q WHERE q.{c} = p.{c}) x",
    "SELECT p.id, x.{w} FROM {a} p, LATERAL (SELECT DISTINCT q.{w} FROM {b} q JOIN {a} r USING (id) WHERE r.k = p.k) x",
    "SELECT id, p.{c} FROM {a} p FULL JOIN {b} q USING (id)",
    "SELECT p.id, q.id AS other FROM {a} p JOIN {b} q ON p.{w} = q.id OR p.{w} = q.{w}",
    "SELECT p.id, q.id AS other FROM {a} p LEFT JOIN {b} q ON p.id = q.id AND p.{c} IS NOT DISTINCT FROM q.{c}",
    "SELECT p.id FROM {a} p SEMI JOIN {b} q ON p.{w} IS NOT DISTINCT FROM q.{w} AND p.{c} = q.{c}",
    "SELECT p.id FROM {a} p ANTI JOIN {b} q USING ({w}, code)",
    "SELECT id, q.{c}, r.{c} AS e FROM {a} p JOIN {b} q USING (id) LEFT JOIN {a} r USING (id)",
    "SELECT p.id, q.id AS other, r.id AS third FROM {a} p, {b} q, {a} r WHERE p.{w} = q.big AND q.big = r.amt",
    "SELECT p.id, q.id AS other FROM {a} p JOIN {b} q ON p.amt = q.{w} AND q.{w} IN (1.5, 2, 3.0, '5')",
    "SELECT p.id, q.id AS other FROM {a} p JOIN {b} q ON p.d = q.ts WHERE q.ts >= '2000-02-29'",
    "SELECT p.id, q.id AS other FROM {a} p FULL JOIN {b} q ON p.x = q.{w} AND p.y > q.{w}",
    "SELECT p.id, q.id AS other FROM {a} p ASOF LEFT JOIN {b} q ON p.code = q.code AND p.id >= q.id AND p.id > {n}",
    "SELECT * FROM (SELECT id, {c} FROM {a}) p NATURAL LEFT JOIN (SELECT id, {c}, {w} AS z FROM {b}) q",
    (
        "SELECT p.id, q.{c} FROM {a} p LEFT JOIN {b} q ON p.id = q.id AND q.{w} > (SELECT MIN({w}) FROM {a}"
        " WHERE id > {n})"
    ),
    "SELECT p.id, q.id AS o FROM {a} p LEFT JOIN {b} q ON p.id = q.id AND EXISTS (FROM {b} r WHERE r.{w} = p.id)",
    (
        "SELECT p.id, q.id AS o FROM {a} p FULL JOIN {b} q ON p.id = q.{w} WHERE p.id IN (SELECT {w} FROM"
        " {b}) OR p.id IS NULL"
    ),
    "SELECT COUNT(p), COUNT(DISTINCT p.{c}) FROM {a} p LEFT JOIN {b} q ON p.id = q.{w} WHERE q.id IS NULL",
    # pivots
    "PIVOT (SELECT id % 3 AS g, ok, {w} AS v FROM {a}) ON g IN (0, 1, 2) USING SUM(v) GROUP BY ok",
    "SELECT * FROM (SELECT id % 2 AS g, ok, id FROM {a}) PIVOT (COUNT(id) FOR g IN (0, 1))",
    (
        "SELECT id, col, v FROM (SELECT id, CAST(k AS BIGINT) AS k, CAST(s AS BIGINT) AS s FROM {a}) UNPIVOT"
        " (v FOR col IN (k, s))"
    ),
    # what DuckDB runs as it is written, and what stands in it
    (
        "WITH RECURSIVE u AS (SELECT id, {w} FROM {a} WHERE id > {m}), r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r"
        " WHERE n < {m} + 9), v AS (SELECT {w}, COUNT(*) AS c FROM u GROUP BY {w}) SELECT r.n, v.c, u.id"
        " FROM r JOIN u ON"
        " u.id = r.n LEFT JOIN v ON v.{w} = u.{w}"
    ),
    (
        "SELECT id, UNNEST([k, s]) AS v FROM (SELECT p.id, p.k, q.s FROM {a} p JOIN {b} q USING (id) WHERE p.{w} > {n})"
        " WHERE id > {m} AND k IN (SELECT k FROM {b} WHERE ok)"
    ),
    (
        "WITH u AS (SELECT {c}, id, ok FROM {a} WHERE id > {m}) SELECT p.id, q.id AS o, UNNEST([p.id, {n}])"
        " AS v FROM u p"
        " LEFT JOIN u q ON p.{c} = q.{c} AND q.ok WHERE p.ok AND q.id IS NULL"
    ),
    # windows
    (
        "SELECT DISTINCT ON (p.{c}, q.ok) p.{c}, q.ok, q.{w}, q.id FROM {a} p JOIN {b} q ON p.{w} = q.id"
        " ORDER BY p.{c},"
        " q.ok, q.{w} DESC, q.id, p.id"
    ),
    (
        "SELECT q.{c}, p.id FROM {a} p JOIN {b} q USING (id) QUALIFY ROW_NUMBER() OVER (PARTITION BY p.ok"
        " ORDER BY p.k, id) = 1"
    ),
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
    (
        "SELECT p.id, q.{c}, ROW_NUMBER() OVER (PARTITION BY q.{w} ORDER BY p.id, q.id) AS r FROM {a} p JOIN {b} q"
        " USING ({w})"
    ),
    (
        "SELECT p.id, SUM(q.id) OVER (PARTITION BY p.{w} ORDER BY p.id, q.id ROWS {m} PRECEDING) AS t FROM"
        " {a} p LEFT JOIN"
        " {b} q ON q.{w} = p.id QUALIFY COUNT(*) OVER (PARTITION BY p.{w}) > 1"
    ),
    (
        "SELECT {c}, SUM(COUNT(*)) OVER (ORDER BY {c} NULLS FIRST) AS t, RANK() OVER (ORDER BY MIN(id)) AS r FROM"
        " {a} GROUP BY {c}"
    ),
    (
        "SELECT id FROM {a} p WHERE EXISTS (FROM {b} q WHERE q.id = p.{w} QUALIFY ROW_NUMBER() OVER (ORDER BY"
        " q.id) <= {m})"
    ),
    "SELECT MAX(r), COUNT(*) FROM (SELECT RANK() OVER (PARTITION BY {c} ORDER BY {w}) AS r FROM {a}) WHERE r <= {n}",
    "SELECT DISTINCT {c}, COUNT(*) OVER (PARTITION BY {c}) AS n, MAX({w}) OVER () AS m FROM {a}",
    (
        "SELECT id, AVG({w}) OVER (ORDER BY d RANGE BETWEEN INTERVAL {m} YEAR PRECEDING AND INTERVAL 10 DAY"
        " FOLLOWING) FROM {a}"
    ),
    (
        "SELECT id, SUM(amt) OVER (PARTITION BY ok ORDER BY x RANGE BETWEEN 1.5 PRECEDING AND {m} FOLLOWING"
        " EXCLUDE TIES) FROM {a}"
    ),
    (
        "SELECT id FROM (SELECT id, {w}, SUM({w}) OVER (PARTITION BY {c} ORDER BY id) AS t FROM {a}) WHERE"
        " {w} > {n} AND t > {m}"
    ),
    # groups
    "SELECT {c} FROM {a} GROUP BY {c} ORDER BY COUNT(*) DESC, {c} LIMIT {n}",
    (
        "SELECT p.{c}, COUNT(*) AS n FROM {a} p JOIN {b} q ON p.{w} = q.id GROUP BY p.{c} ORDER BY n DESC, 1"
        " NULLS FIRST LIMIT {m}"
    ),
    "SELECT {c}, COUNT(*) FROM (SELECT {c} FROM {a} ORDER BY {c} NULLS FIRST LIMIT {n} OFFSET {m}) GROUP BY {c}",
    "SELECT COUNT(*), SUM({w}) FROM {a} WHERE FALSE GROUP BY {c}",
    "SELECT COUNT(*), SUM({w}), MAX({c}) FROM {a} WHERE id > 1000 AND {w} = NULL",
    "SELECT MAX(id) FROM {a} HAVING COUNT(*) > {n} AND MIN({w}) IS NOT NULL",
    "SELECT SUM((SELECT COUNT(*) FROM {b} q WHERE q.id = p.{w})) AS n FROM {a} p GROUP BY ok",
    "SELECT {c}, (SELECT COUNT(*) FROM {b} q WHERE q.{w} = MAX(p.{w})) AS n FROM {a} p GROUP BY {c}",
    (
        "SELECT p.{c}, COUNT(*) FROM {a} p GROUP BY p.{c} HAVING EXISTS (SELECT 1 FROM {b} q WHERE q.{c} ="
        " p.{c} AND q.id > {n})"
    ),
    "SELECT {c}, LIST(id ORDER BY id) AS l, LIST(DISTINCT {w} ORDER BY {w}) AS u FROM {a} GROUP BY {c}",
    "SELECT SUM(amt * 1.5) AS a, SUM(amt) / NULLIF(SUM({w}), 0) AS b, SUM({w} * 0.001) AS e FROM {a} GROUP BY id % {m}",
    (
        "SELECT p.ok, SUM(p.amt * q.amt) AS t, SUM(p.{w} - q.amt) AS u FROM {a} p JOIN {b} q ON p.id = q.id"
        " WHERE ABS(p.amt) < 1e6 GROUP BY 1"
    ),
    (
        "SELECT x.{c}, SUM(x.n) AS n FROM (SELECT {c}, ok, COUNT(*) AS n FROM {a} GROUP BY ALL) x GROUP BY"
        " x.{c} HAVING SUM(x.n) > {m}"
    ),
    (
        "SELECT p.ok, q.{c}, SUM(p.id) FILTER (WHERE q.{w} > {n}) AS t, COUNT(DISTINCT p.{w}) FILTER (WHERE q.ok) AS n"
        " FROM {a} p JOIN {b} q ON p.{w} = q.id GROUP BY GROUPING SETS ((p.ok), (q.{c}), ())"
    ),
    (
        "SELECT ok, {c}, GROUPING_ID(ok, {c}) AS g, COUNT(*) FILTER (WHERE id IN (SELECT {w} FROM {b})) FROM {a}"
        " GROUP BY GROUPING SETS (ROLLUP (ok, {c}), ({c})) HAVING GROUPING_ID(ok, {c}) < 3 OR COUNT(*) > {n}"
    ),
    "SELECT ok, id % 2 AS g, COUNT(*) FROM {a} WHERE id > 1000 GROUP BY GROUPING SETS ((ok), (id % 2), ())",
    "SELECT COUNT(DISTINCT (id % 3, ok)), COUNT(DISTINCT {c}) FROM {a} WHERE {w} IN (SELECT {w} FROM {b})",
    "SELECT ok, {c}, COUNT(*), GROUPING(ok, {c}) FROM {a} GROUP BY GROUPING SETS ((ok), ({c}), (ok, {c}), ())",
    "SELECT ok, id % 2 AS g, SUM({w}) FILTER (WHERE id > {n}) FROM {a} GROUP BY CUBE (ok, id % 2)",
    "SELECT ok, id % 3 AS g, COUNT(DISTINCT {c}) FROM {a} GROUP BY ROLLUP (ok, id % 3) HAVING COUNT(*) > 1",
    "SELECT {c}, COUNT(*) FROM {a} GROUP BY ALL HAVING COUNT(*) >= {m}",
    "SELECT DISTINCT ON ({c}) {c}, id FROM {a} ORDER BY {c}, id",
    (
        "SELECT ok, PERCENTILE_CONT(0.25) WITHIN GROUP (ORDER BY x) AS p, QUANTILE_DISC({w}, [0.25, 0.5]) AS l,"
        " ARG_MAX(id, id, {m}) AS t FROM {a} GROUP BY ok"
    ),
    "SELECT {c}, STRING_AGG(code, '|' ORDER BY x DESC NULLS LAST, id) AS s, MAX(id, {m}) AS m FROM {a} GROUP BY {c}",
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
    "SELECT id, name[:{m}] AS a, name[{m}:] AS b, [id, k, s][:{m}] AS l, [k, s][:-:{m}] AS e, code[:id] AS f FROM {a}",
    "SELECT id, {w} IN [{n}, 2.0000000001, 0.5::DECIMAL(38, 2)] AS v, amt = ANY([{m}, 1.50]) AS u FROM {a}",
    "SELECT id, UNNEST([k, s]) AS v FROM {a}",
    "SELECT id, v FROM {a}, UNNEST([k, {n}]) u(v)",
    "SELECT id, {{'a': {c}, 'b': id}}.b AS v FROM {a}",
    # dates
    "SELECT id, d + INTERVAL {m} MONTH AS v, d - INTERVAL (id % 5) DAY AS u FROM {a}",
    "SELECT id, DATE_TRUNC('month', d) AS v, DATE_DIFF('day', d, DATE '2024-02-29') AS n, LAST_DAY(d) AS l FROM {a}",
    "SELECT id, ts + INTERVAL '{m} hours' AS v, EXTRACT(dow FROM d) AS w, STRFTIME(d, '%Y-%m') AS t FROM {a}",
    "SELECT id, ts - TIMESTAMP '2024-01-01' AS v FROM {a} WHERE ts - TIMESTAMP '2000-01-01' > INTERVAL {m} YEAR",
    "SELECT id, AGE(ts, TIMESTAMP '2000-01-01') AS v, d - DATE '2024-01-01' AS n FROM {a}",
    "SELECT id, CAST(ts AS TIME) AS v FROM {a} WHERE CAST(ts AS TIME) < TIME '12:00:00.5'",
    "SELECT d, COUNT(*) FROM {a} WHERE d BETWEEN '2000-01-01' AND DATE '2024-01-01' + INTERVAL {m} MONTH GROUP BY d",
    "SELECT p.id, q.id AS o FROM {a} p JOIN {b} q ON p.d BETWEEN q.d - {m} AND q.d + INTERVAL {n} DAY",
    "SELECT YEAR(d) AS y, QUARTER(d) AS q, COUNT(*), MAX(ts) FROM {a} WHERE MONTH(d) > {m} GROUP BY ALL",
    "SELECT id FROM {a} WHERE d > ts - INTERVAL {m} DAY OR d IS NOT DISTINCT FROM CAST(ts AS DATE)",
    "SELECT id, ts - INTERVAL '{m} days {n}:30:00' AS v, d + INTERVAL '{m} mon -{n} days' AS u FROM {a} WHERE id > {m}",
    "SELECT id FROM {a} WHERE d > DATE '2024-03-01' - INTERVAL '{n} days {m}:00' AND d <= ts + INTERVAL '{n} days ago'",
    "SELECT id FROM {a} WHERE d BETWEEN '2024-02-29 12:00' AND ts OR {w} BETWEEN '{m}' AND amt",
    "SELECT id, '2024-02-29 12:00' BETWEEN d AND ts AS v, '{n}' BETWEEN id AND {w} AS u FROM {a}",
    (
        "SELECT id, ts::TIMESTAMPTZ AT TIME ZONE 'Asia/Tokyo' AS v FROM {a} WHERE ts::TIMESTAMPTZ > TIMESTAMPTZ"
        " '2000-02-29 06:00:00-06'"
    ),
    (
        "SELECT g.v, COUNT(p.id) AS n FROM GENERATE_SERIES(DATE '2024-01-01', DATE '2024-03-31', INTERVAL {n} DAY) g(v)"
        " LEFT JOIN {a} p ON p.d >= g.v AND p.d < g.v + INTERVAL {n} DAY GROUP BY ALL"
    ),
    (
        "SELECT p.id, q.id AS o FROM {a} p JOIN {b} q ON DATE_TRUNC('month', p.d) = DATE_TRUNC('month', q.ts) AND"
        " p.name LIKE q.code || '%'"
    ),
    # limits
    "SELECT id, {c} FROM {a} ORDER BY code COLLATE NOCASE NULLS FIRST, id LIMIT {n}",
    "SELECT id, {w} FROM {a} ORDER BY {w} IS NULL, -k, id FETCH FIRST {n} ROWS ONLY",
    "SELECT * FROM (SELECT id, {w} FROM {a} ORDER BY id LIMIT {n}) WHERE {w} > {m}",
    "SELECT id FROM {a} ORDER BY id LIMIT 30 PERCENT",
    "SELECT id FROM {a} ORDER BY id LIMIT (SELECT COUNT(*) // 2 FROM {b}) OFFSET {m}",
    "SELECT id, {c} FROM {a} p ORDER BY (SELECT COUNT(*) FROM {b} q WHERE q.{w} = p.id), id LIMIT {n}",
    # subqueries
    "SELECT id FROM {a} p WHERE (p.{w}, p.{c}) IN (SELECT q.{w}, q.{c} FROM {b} q WHERE q.id > {m})",
    "SELECT id, (p.{w}, p.ok) IN (SELECT q.{w}, BOOL_OR(q.ok) FROM {b} q GROUP BY q.{w}) AS v FROM {a} p",
    "SELECT id FROM {a} p WHERE (p.id, p.{w}) NOT IN (SELECT q.id, q.{w} FROM {b} q WHERE q.id > {n})",
    "SELECT id FROM {a} p WHERE (SELECT COUNT(*) FROM {b} q WHERE q.{w} = p.id) = 0",
    (
        "SELECT id, (SELECT COALESCE(SUM(q.{w}), 0) + COUNT(*) FROM {b} q WHERE q.{w} = p.id AND q.id > {n})"
        " AS v FROM {a} p"
    ),
    "SELECT id, (SELECT COUNT(*) FROM {b} q WHERE q.id = p.{w} GROUP BY q.id) AS v FROM {a} p",
    (
        "SELECT id, (SELECT x.n FROM (SELECT COUNT(*) AS n, MAX(q.{c}) FROM {b} q WHERE q.id < p.id) x WHERE"
        " x.n > {n}) AS v FROM {a} p"
    ),
    "SELECT id, (SELECT q.{c} FROM {b} q WHERE q.{w} = p.{w} ORDER BY q.id DESC LIMIT 1 OFFSET 1) AS v FROM {a} p",
    "SELECT id FROM {a} WHERE {w} BETWEEN (SELECT MIN({w}) FROM {b}) AND (SELECT MAX(id) FROM {b} WHERE id < {n})",
    "SELECT id FROM {a} p WHERE {w} >= ALL (SELECT q.{w} FROM {b} q WHERE q.id > p.id AND q.{w} IS NOT NULL)",
    (
        "SELECT id FROM {a} p WHERE p.{w} IN (SELECT q.{w} FROM {b} q WHERE q.id > p.id GROUP BY q.{w}"
        " HAVING COUNT(*) < {n})"
    ),
    (
        "SELECT id FROM {a} p WHERE NOT EXISTS (FROM {b} q WHERE q.{w} = p.id) AND p.{w} NOT IN (SELECT q.id"
        " FROM {b} q WHERE id > {n})"
    ),
    "SELECT id FROM {a} p WHERE EXISTS (FROM {b} q WHERE q.id = p.{w} UNION ALL FROM {b} q WHERE q.id = p.id)",
    "SELECT id FROM {a} WHERE id IN (SELECT UNNEST([1, {n}, NULL])) OR LIST_CONTAINS([{m}, {n}], {w})",
    "SELECT id FROM {a} WHERE {c} IN (SELECT {c} FROM {b} ORDER BY {c} LIMIT {m})",
    (
        "WITH p AS (SELECT id, {w} AS v FROM {a}) SELECT * FROM p WHERE id IN (WITH p AS (SELECT v FROM p)"
        " SELECT v FROM p)"
    ),
    (
        "WITH item AS (SELECT id, {c} FROM {a} WHERE id < {n}) SELECT * FROM item i JOIN pg.item t USING"
        " (id) WHERE t.{w} > 0"
    ),
    "WITH p AS MATERIALIZED (SELECT id, {w} AS v FROM {a}) SELECT x.id, y.id AS o FROM p x LEFT JOIN p y ON x.v = y.id",
    (
        "WITH RECURSIVE r AS (SELECT id, k FROM {a} WHERE id = {m} UNION SELECT t.id, t.k FROM {b} t JOIN r"
        " ON t.id = r.k) SELECT COUNT(*), MAX(id) FROM r"
    ),
    "SELECT id, k + 1 AS v, v * 2 AS u FROM {a} WHERE v > {n} ORDER BY u, id",
    "SELECT id FROM {a} WHERE (id, {w}) IN (SELECT id, {w} FROM {b})",
    "SELECT id FROM {a} WHERE (id, id) NOT IN (SELECT id, {m} FROM {b} WHERE id > {n})",
    "SELECT id, CASE WHEN EXISTS (SELECT 1 FROM {b} q WHERE q.id = p.{w}) THEN {c} END AS v FROM {a} p",
    (
        "SELECT p.id FROM {a} p WHERE EXISTS (SELECT 1 FROM {b} q WHERE q.{w} = p.{w} AND NOT EXISTS (SELECT"
        " 1 FROM {a} r"
        " WHERE r.id = q.id AND r.{c} = p.{c}))"
    ),
    (
        "SELECT p.id, (SELECT MAX(q.id) FROM {b} q WHERE q.{w} <= p.{w} AND q.id > (SELECT COUNT(*) FROM {a}"
        " r WHERE r.{w} ="
        " q.{w} AND r.id < p.id)) AS v FROM {a} p"
    ),
    (
        "SELECT p.id FROM {a} p WHERE p.{w} = (SELECT MIN(q.{w}) FROM {b} q WHERE q.id IN (SELECT r.id FROM {a} r"
        " WHERE r.{c} = p.{c}))"
    ),
    (
        "SELECT p.id FROM {a} p WHERE (p.{w}, p.{c}) NOT IN (SELECT q.{w}, q.{c} FROM {b} q WHERE q.{w} IS NOT"
        " NULL AND q.{c} IS NOT NULL)"
    ),
    "SELECT p.id, (p.{w}, p.{c}) IN (SELECT q.{w}, q.{c} FROM {b} q) AS v FROM {a} p",
    (
        "SELECT p.id FROM {a} p WHERE p.{w} NOT IN (SELECT q.{w} FROM {b} q WHERE q.id > {n} UNION ALL SELECT NULL"
        " FROM {b} WHERE id > 1000)"
    ),
    (
        "SELECT p.id, p.{w} = ALL (SELECT q.{w} FROM {b} q WHERE q.id = p.id) AS v, p.{w} <> ANY (SELECT {w} FROM"
        " {b} WHERE id < {n}) AS u FROM {a} p"
    ),
    (
        "SELECT (SELECT COUNT(*) FROM (SELECT q.{w} FROM {b} q WHERE q.id < p.id INTERSECT ALL SELECT r.{w} FROM"
        " {a} r) x) AS n, id FROM {a} p"
    ),
    # set operations
    "SELECT {w} FROM {a} INTERSECT ALL SELECT {w} FROM (SELECT {w} FROM {b} UNION ALL SELECT {w} FROM {b})",
    "(SELECT {c} FROM {a} UNION ALL SELECT {c} FROM {a}) EXCEPT ALL SELECT {c} FROM {b}",
    (
        "SELECT {c}, COUNT(*) FROM (SELECT {c} FROM {a} UNION ALL SELECT {c} FROM {b} UNION SELECT {c} FROM {a})"
        " GROUP BY {c}"
    ),
    "SELECT {w} FROM {a} EXCEPT SELECT {w} FROM {b} UNION SELECT NULL",
    (
        "(SELECT id, {c} FROM {a} ORDER BY id LIMIT {n}) UNION ALL (SELECT id, {c} FROM {b} ORDER BY id DESC"
        " LIMIT {m}) ORDER BY 1, 2"
    ),
    "SELECT id, {w} AS v FROM {a} UNION ALL BY NAME SELECT id, name AS u FROM {b}",
    "SELECT {w}, d FROM {a} UNION SELECT amt, ts FROM {b} EXCEPT SELECT x, d FROM {a}",
    "SELECT p.id, p.{w}, q.id FROM {a} p JOIN {b} q ON p.id = q.id WHERE q.id < {n} UNION ALL SELECT id, k, 0 FROM {a}",
    (
        "SELECT p.{w}, p.n, q.id FROM (SELECT {w}, COUNT(*) AS n FROM {a} GROUP BY {w}) p JOIN {b} q ON p.{w} = q.id"
        " EXCEPT SELECT {w}, id, 0 FROM {b}"
    ),
    (
        "SELECT COUNT(*), SUM(v) FROM (SELECT {w} AS v FROM {a} WHERE id > {n} UNION ALL SELECT id FROM {b})"
        " WHERE v BETWEEN {m} AND 20"
    ),
    # odd values
    (
        "SELECT id, TRY_CAST(name AS DECIMAL(6,3)) AS a, TRY_CAST(name AS BOOLEAN) AS b, TRY_CAST(y AS"
        " BIGINT) AS e FROM {a}"
    ),
    "SELECT id, TRY({w} // ({w} - {n})) AS v, TRY_CAST(amt AS DECIMAL(4,2)) AS u FROM {a}",
    (
        "SELECT id, CASE WHEN NULL THEN 1 WHEN {c} IS NULL THEN NULL ELSE {n} END AS v, CASE {c} WHEN NULL"
        " THEN 1 ELSE 2 END AS u FROM {a}"
    ),
    (
        "SELECT id, CAST(amt AS DECIMAL(18,1)) AS a, CAST(amt AS INTEGER) AS b, ROUND(amt, -1) AS e FROM {a}"
        " WHERE ABS(amt) < 1e6"
    ),
    "SELECT id, amt = x AS a, amt > {w} AS b, x IN ({n}, 1.25, amt) AS e FROM {a} WHERE (amt, x) >= (0.01, {m})",
    (
        "SELECT name, COUNT(*) FROM {a} WHERE name NOT ILIKE '%A%' AND name SIMILAR TO '.*[a-z].*' OR name"
        " COLLATE NOCASE = 'AB' GROUP BY name"
    ),
    (
        "SELECT t.huge, COUNT(*), MAX(s.huge) FROM pg.tag t LEFT JOIN maria.sort s ON t.huge = s.huge GROUP BY ALL"
        " ORDER BY 1"
    ),
    "SELECT y, COUNT(*), COUNT(DISTINCT {w}) FROM (SELECT y, {w} FROM {a} UNION ALL SELECT y, {w} FROM {b}) GROUP BY y",
    "SELECT p.id, q.id AS other FROM {a} p JOIN {b} q ON p.y = q.y",
    "SELECT p.id, q.id AS other FROM {a} p JOIN {b} q ON p.ts = q.ts OR p.d = CAST(q.ts AS DATE)",
    "SELECT id, y, RANK() OVER (ORDER BY y DESC) AS r FROM {a} WHERE y > -1e300 OR y IS NULL",
    "SELECT MIN(y), MAX(y), MIN(name), MAX(name), MIN(ts), MAX(ts) FROM {a} WHERE id > {n}",
    (
        "SELECT id, ts - INTERVAL 1 MICROSECOND AS v, EXTRACT(microsecond FROM ts) AS m, EPOCH_US(ts) AS e FROM"
        " {a} WHERE ts < TIMESTAMP '2024-02-29 00:00:00.000002'"
    ),
    (
        "SELECT id, d - INTERVAL 2100 YEAR AS v, ERA(d - INTERVAL 2100 YEAR) AS e FROM {a} WHERE d > DATE"
        " '0044-03-15 (BC)'"
    ),
    (
        "SELECT name, CHR(0) || name AS z, name || '𝄞' AS m, LENGTH(name) AS l, UNICODE(name) AS u FROM {a} WHERE"
        " name >= ''"
    ),
    "SELECT p.id FROM {a} p JOIN {b} q ON p.name = q.name OR LOWER(p.name) = UPPER(q.name)",
    "SELECT name FROM {a} INTERSECT SELECT name FROM {b} ORDER BY name DESC",
    "SELECT p.id, q.{c} FROM {a} p JOIN {b} q ON p.id = q.id AND p.{w} <> q.{w} ORDER BY p.id DESC, q.id LIMIT {n}",
    "SELECT p.id FROM {a} p JOIN {b} q ON p.id = q.id AND q.id < (SELECT MAX({w}) FROM {b})",
    "SELECT id, ARRAY(SELECT q.id FROM {b} q WHERE q.id < p.id AND q.id < {m} ORDER BY q.id)::VARCHAR AS l FROM {a} p",
    "SELECT (SELECT {c} FROM {b} q WHERE q.id = p.id) AS v, COUNT(*) FROM {a} p GROUP BY ALL",
    (
        "WITH RECURSIVE r(id, n) AS (SELECT id, 0 FROM {a} WHERE id < {m} UNION ALL SELECT id + {m}, n + 1"
        " FROM r WHERE n < 4) SELECT r.id, n, t.{c} FROM r LEFT JOIN {b} t USING (id)"
    ),
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


def filled(text: str, rng: random.Random, wide: Sequence[str] = WIDE) -> str:
    names = {"a": rng.choice(wide), "b": rng.choice(wide), "w": rng.choice(WHOLE), "c": rng.choice(ANY)}
    return text.format(**names, n=rng.randint(2, 9), m=rng.randint(1, 3))
