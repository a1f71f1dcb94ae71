"""Aggregates and window functions of the grammar."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tests.dqp.generated.expressions import KINDS, LIMITS, Expr, Scope
from tests.dqp.generated.predicates import Predicates


class Aggregates(Predicates):
    def aggregate(self, scope: Scope, kind: str = "") -> Expr:
        """Of the wanted kind if one is wanted."""
        # An aggregate over columns of an outer query alone would belong to that query.
        scope = replace(scope, outer=(), subqueries=False)
        kind = kind or self.rng.choice(("int", "int", "int", "dec", "dbl", "str", "date", "ts", "bool"))
        expression = self.pick(self._aggregates(kind, scope))
        if self.chance(0.12) and expression.sql.endswith(")") and not expression.sql.startswith(("(", "CAST", "ROUND")):
            expression = replace(expression, sql=f"{expression.sql} FILTER (WHERE {self.predicate(scope, 1).sql})")
        return expression

    def _aggregates(self, kind: str, scope: Scope) -> list[Callable[[], Expr]]:
        one = self.of(kind, scope, 1)
        if not one.steady:
            one = self.literal(kind)
        distinct = self.rng.choice(("", "", "DISTINCT "))
        order = self.rng.choice(("", " DESC"))
        extremes: list[Callable[[], Expr]] = [
            lambda: replace(one, sql=f"MIN({one.sql})", plain=False),
            lambda: replace(one, sql=f"MAX({one.sql})", plain=False),
        ]
        if any(leaf.sql in one.sql for leaf in scope.leaves):  # nothing is ordered by a constant
            extremes.append(lambda: replace(one, sql=f"FIRST({one.sql} ORDER BY {one.sql}{order})", plain=False))
        match kind:
            case "int":
                other = self.any(scope, 1)
                counted = other if other.steady else one
                small = one if one.bound < LIMITS["HUGEINT"] // 10**6 else self.literal("int")
                total = 10**5 * max(small.bound, 1)
                return [
                    *extremes,
                    lambda: Expr("COUNT(*)", "int", "BIGINT", 10**6),
                    lambda: Expr(f"COUNT({distinct}{counted.sql})", "int", "BIGINT", 10**6),
                    lambda: Expr(f"COUNT(DISTINCT {counted.sql})", "int", "BIGINT", 10**6),
                    lambda: Expr(f"SUM({distinct}{small.sql})", "int", "HUGEINT", total),
                    lambda: Expr(f"SUM({small.sql})", "int", "HUGEINT", total),
                    lambda: replace(one, sql=f"QUANTILE_DISC({one.sql}, 0.25)", plain=False),
                    lambda: Expr(f"COUNT_IF({self.predicate(scope, 0).sql})", "int", "HUGEINT", 10**6),
                    lambda: replace(one, sql=f"BIT_XOR({one.sql})", plain=False, bound=LIMITS[one.type]),
                    lambda: replace(one, sql=f"BIT_AND({one.sql})", plain=False),
                    lambda: replace(one, sql=f"BIT_OR({one.sql})", plain=False, bound=LIMITS[one.type]),
                ]
            case "dec":
                if one.digits > 30:  # sums of these overflow
                    return extremes
                return [
                    *extremes,
                    lambda: Expr(f"SUM({distinct}{one.sql})", "dec", digits=38, scale=one.scale),
                    lambda: Expr(f"SUM({one.sql})", "dec", digits=38, scale=one.scale),
                ]
            case "dbl":
                whole, money = self.of("int", scope, 1), self.of("dec", scope, 1)
                money = money if money.digits <= 30 else self.literal("dec")
                exact = one if one.exact else self.literal("dbl")
                return [
                    *extremes,
                    lambda: Expr(f"SUM({distinct}{exact.sql})", "dbl"),
                    lambda: Expr(f"AVG({distinct}{exact.sql})", "dbl", exact=False),
                    lambda: Expr(f"AVG({whole.sql})", "dbl", exact=False),
                    lambda: Expr(f"AVG({money.sql})", "dbl", exact=False, steady=False),
                    lambda: Expr(f"STDDEV_SAMP({exact.sql})", "dbl", exact=False, steady=False),
                    lambda: Expr(f"VAR_POP({exact.sql})", "dbl", exact=False, steady=False),
                    lambda: Expr(f"MEDIAN({exact.sql})", "dbl", exact=False),
                    lambda: Expr(f"QUANTILE_CONT({exact.sql}, 0.75)", "dbl", exact=False),
                    lambda: Expr(f"CORR({exact.sql}, {exact.sql})", "dbl", exact=False, steady=False),
                ]
            case "str":
                texts = [leaf for leaf in scope.leaves if leaf.kind == "str"]
                if not any(leaf.sql in one.sql for leaf in texts):
                    return extremes
                return [
                    *extremes,
                    lambda: Expr(f"STRING_AGG({one.sql}, '|' ORDER BY {one.sql}{order})", "str"),
                    lambda: Expr(f"CAST(LIST({one.sql} ORDER BY {one.sql}{order}) AS VARCHAR)", "str"),
                    lambda: Expr(f"STRING_AGG(DISTINCT {one.sql}, '|' ORDER BY {one.sql}{order})", "str"),
                ]
            case "bool":
                return [
                    lambda: Expr(f"BOOL_AND({one.sql})", "bool"),
                    lambda: Expr(f"BOOL_OR({one.sql})", "bool"),
                ]
            case _:
                return extremes

    def window(self, keys: str, scope: Scope) -> Expr:
        """``keys``: what orders all rows; functions that depend on the order of rows get it last. Without it there are
        none of them."""
        scope = replace(scope, subqueries=False)
        partition = ""
        if self.chance(0.6):
            actual = [leaf.sql for leaf in scope.leaves if leaf.kind in KINDS and leaf.steady]
            partition = f"PARTITION BY {self.rng.choice(actual)} " if actual else ""
        term = self.any(scope, 1)
        if not term.steady:
            term = self.literal("int")
        direction = self.rng.choice(("", " DESC", " NULLS FIRST", " DESC NULLS LAST"))
        loose = f"ORDER BY {term.sql}{direction}"
        total = f"ORDER BY {f'{term.sql}{direction}, ' if self.chance(0.5) else ''}{keys}"
        frame = self.rng.choice(
            (
                "",
                "",
                " ROWS BETWEEN 1 PRECEDING AND CURRENT ROW",
                " ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING",
                " ROWS BETWEEN 2 PRECEDING AND 1 FOLLOWING",
                " ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING",
                " ROWS 2 PRECEDING",
                " ROWS BETWEEN 2 FOLLOWING AND 3 FOLLOWING",
                " ROWS BETWEEN UNBOUNDED PRECEDING AND 1 FOLLOWING EXCLUDE CURRENT ROW",
            )
        )
        nulls = self.rng.choice(("", "", " IGNORE NULLS"))
        value = self.any(scope, 1)
        form = self.rng.randrange(5) if keys else self.rng.choice((1, 4, 5))
        if form == 4 and self.chance(0.35):
            form = 5
        if form == 0:
            name = self.rng.choice(("ROW_NUMBER()", "NTILE(3)"))
            return Expr(f"{name} OVER ({partition}{total})", "int", "BIGINT", 10**6)
        if form == 1:
            name = self.rng.choice(
                ("RANK()", "DENSE_RANK()", "RANK()", "DENSE_RANK()", "CUME_DIST()", "PERCENT_RANK()")
            )
            if name in ("CUME_DIST()", "PERCENT_RANK()"):
                return Expr(f"{name} OVER ({partition}{loose})", "dbl", exact=False)
            return Expr(f"{name} OVER ({partition}{loose})", "int", "BIGINT", 10**6)
        if form == 2:
            name = self.rng.choice(("LAG({}{})", "LEAD({}{})", "LAG({}, 2{})"))
            return replace(value, sql=f"{name.format(value.sql, nulls)} OVER ({partition}{total})", plain=False)
        if form == 3:
            name = self.rng.choice(("FIRST_VALUE({}{})", "LAST_VALUE({}{})", "NTH_VALUE({}, 2{})"))
            return replace(value, sql=f"{name.format(value.sql, nulls)} OVER ({partition}{total}{frame})", plain=False)
        expression = self.aggregate(scope, self.rng.choice(("int", "int", "dec", "str", "date")))
        if "DISTINCT" in expression.sql or "ORDER BY" in expression.sql:
            expression = Expr("COUNT(*)", "int", "BIGINT", 10**6)
        if form == 5:
            return replace(
                expression, sql=f"{expression.sql} OVER ({partition}{self._peers(scope, loose)})", plain=False
            )
        order = self.rng.choice(("", loose, total + frame) if keys else ("", loose))
        return replace(expression, sql=f"{expression.sql} OVER ({partition}{order})", plain=False)

    def _peers(self, scope: Scope, loose: str) -> str:
        """An order and a frame that takes or leaves rows of the same value together."""
        exclude = self.rng.choice(("", "", " EXCLUDE GROUP", " EXCLUDE TIES", " EXCLUDE CURRENT ROW"))
        near = [
            leaf
            for leaf in scope.leaves
            if leaf.kind in ("date", "ts") or (leaf.kind == "int" and leaf.type != "TINYINT" and 0 < leaf.bound <= 100)
        ]
        if not near or self.chance(0.4):
            low, high = self.rng.choice((("1 PRECEDING", "CURRENT ROW"), ("1 PRECEDING", "2 FOLLOWING")))
            return f"{loose} GROUPS BETWEEN {low} AND {high}{exclude}"
        leaf = self.rng.choice(near)
        step = "3" if leaf.kind == "int" else self.rng.choice(("INTERVAL 40 DAY", "INTERVAL 2 YEAR"))
        direction = self.rng.choice(("", " DESC", " NULLS FIRST"))
        low, high = self.rng.choice(
            (
                (f"{step} PRECEDING", "CURRENT ROW"),
                (f"{step} PRECEDING", f"{step} FOLLOWING"),
                ("CURRENT ROW", f"{step} FOLLOWING"),
            )
        )
        return f"ORDER BY {leaf.sql}{direction} RANGE BETWEEN {low} AND {high}{exclude}"
