"""Conditions of the grammar: comparisons of every kind, and what is made of them."""

from __future__ import annotations

from abc import abstractmethod

from tests.dqp.generated.expressions import KINDS, Expr, Expressions, Scope, quoted
from tests.dqp.generated.schema import CODES

FAR = {
    "int": ("9223372036854775808", "(-9223372036854775809)", "170141183460469231731687303715884105727", "2147483648"),
    "dec": ("99999999999999999999999999999999.999999", "9999999999.995", "1e2"),
    "dbl": ("'inf'::DOUBLE", "'-inf'::DOUBLE", "'nan'::DOUBLE", "(-0.0)::DOUBLE", "5e-324", "1e309"),
    "str": ("''", "'􏿿'", "'a' || chr(0)", "'ẞ'"),
    "date": (
        "DATE '0044-03-15 (BC)'", "DATE 'infinity'", "DATE '-infinity'", "DATE '12000-01-01'", "DATE '0001-01-01'",
    ),
    "ts": (
        "TIMESTAMP '0044-03-15 (BC) 12:00:00'", "TIMESTAMP 'infinity'", "TIMESTAMP '-infinity'",
        "TIMESTAMP '12000-01-01 00:00:00'", "TIMESTAMP '2024-02-29 00:00:00.000001'",
    ),
}  # fmt: skip
"""What is compared with, and nothing else is done with it: sums of them would fail here and there."""
TYPED = {"int": "'5'", "dec": "'1.50'", "date": "'2024-02-29'", "ts": "'2024-02-29 12:00:00'"}
"""Texts that take the type of the other side."""


class Predicates(Expressions):
    """Writes conditions. Subqueries come from the query grammar."""

    @abstractmethod
    def subquery_predicate(self, scope: Scope) -> Expr | None:
        """A condition with a subquery: IN, EXISTS, ANY …"""

    def predicate(self, scope: Scope, depth: int = 2) -> Expr:
        if scope.subqueries and scope.depth < 3 and self.chance(0.07):
            actual = self.subquery_predicate(scope)
            if actual is not None:
                return actual
        if depth > 0 and self.chance(0.35):
            one, other = self.predicate(scope, depth - 1), self.predicate(scope, depth - 1)
            operator = self.rng.choice(("AND", "AND", "OR", "OR", "OR"))
            sql = f"({one.sql} {operator} {other.sql})"
            return Expr(f"(NOT {sql})" if self.chance(0.12) else sql, "bool")
        return self.atom(scope, depth)

    def atom(self, scope: Scope, depth: int) -> Expr:
        leaf = self.rng.choice([leaf for leaf in scope.leaves if leaf.kind in KINDS] or [self.literal("int")])
        one = leaf if self.chance(0.6) else self.of(leaf.kind, scope, depth - 1)
        if not one.steady:
            return Expr(f"({one.sql} IS NOT NULL)", "bool")
        return Expr(f"({self._tested(one, scope, depth)})", "bool")

    def _tested(self, one: Expr, scope: Scope, depth: int) -> str:
        if self.chance(0.1):
            return f"{one.sql} IS {self.rng.choice(('NULL', 'NOT NULL'))}"
        if one.kind == "bool":
            other = self.of("bool", scope, depth - 1)
            return self.rng.choice(
                (
                    one.sql,
                    f"NOT {one.sql}",
                    f"{one.sql} = TRUE",
                    f"{one.sql} IS TRUE",
                    f"{one.sql} IS NOT FALSE",
                    f"{one.sql} {self.rng.choice(('=', '<>', '<', '>=', 'IS DISTINCT FROM'))} {other.sql}",
                    f"{one.sql} IN (FALSE, NULL)",
                )
            )
        form = self.rng.choices(
            ("compare", "distinct", "between", "in", "like", "row"),
            (6, 0.8, 1, 1.5, 2 if one.kind == "str" else 0, 0.4),
        )[0]
        other = self._comparable(one, scope, depth)
        match form:
            case "compare":
                narrow = ("=", "<", ">") if other.plain else ()
                operator = self.rng.choice(("=", "<>", "<>", "<", "<=", "<=", ">", ">=", ">=", *narrow))
                return f"{one.sql} {operator} {other.sql}"
            case "distinct":
                return f"{one.sql} IS {self.rng.choice(('', 'NOT '))}DISTINCT FROM {other.sql}"
            case "between":
                low, high = self.literal(one.kind), self._comparable(one, scope, depth)
                if one.kind in TYPED and self.chance(0.15):
                    low = Expr(TYPED[one.kind], one.kind)
                return f"{one.sql} {self.rng.choice(('', 'NOT '))}BETWEEN {low.sql} AND {high.sql}"
            case "in":
                values = [self.literal(one.kind).sql for _ in range(self.rng.randint(1, 5))]
                if self.chance(0.15):
                    values.append("NULL")
                listed = ", ".join(values)
                enclosed = f"[{listed}]" if self.chance(0.1) else f"({listed})"
                return f"{one.sql} {self.rng.choice(('', '', 'NOT '))}IN {enclosed}"
            case "row":
                return self._rows(one, scope)
            case _:
                return self._matched(one)

    def _rows(self, one: Expr, scope: Scope) -> str:
        """Two columns at once."""
        kind = self.rng.choice([leaf.kind for leaf in scope.leaves if leaf.kind in KINDS and leaf.steady] or ["int"])
        other, left, right = self.leaf(one.kind, scope), self.leaf(kind, scope), self.leaf(kind, scope)
        if not (other.steady and left.steady and right.steady):
            other, left, right = one, self.literal(kind), self.literal(kind)
        operator = self.rng.choice(("=", "<>", "<", ">=", "IS DISTINCT FROM", "IN"))
        pair = f"({other.sql}, {right.sql})"
        return f"({one.sql}, {left.sql}) {operator} {f'({pair}, {pair})' if operator == 'IN' else pair}"

    def _comparable(self, one: Expr, scope: Scope, depth: int) -> Expr:
        kind = one.kind
        if kind in FAR and self.chance(0.06):
            return Expr(self.rng.choice(FAR[kind]), kind)
        if self.chance(0.12):
            kind = {"int": "dec", "dec": "int", "date": "ts", "ts": "date", "dbl": "int"}.get(kind, kind)
        if kind in TYPED and self.chance(0.04):
            return Expr(TYPED[kind], kind)
        if self.chance(0.5):
            return self.literal(kind)
        other = self.of(kind, scope, depth - 1)
        return other if other.steady else self.literal(kind)

    def _matched(self, one: Expr) -> str:
        pattern = self.rng.choice(
            ("a%", "%a", "%b%", "_", "a_", "%", "", "A%", "%\\%%", "%é%", "a_b", "%1%", "__%", "日%")
        )
        return self.rng.choice(
            (
                f"{one.sql} LIKE {quoted(pattern)}",
                f"{one.sql} NOT LIKE {quoted(pattern)}",
                f"{one.sql} ILIKE {quoted(pattern)}",
                f"{one.sql} LIKE 'a!_%' ESCAPE '!'",
                f"STARTS_WITH({one.sql}, {quoted(pattern)})",
                f"CONTAINS({one.sql}, {quoted(self.rng.choice(CODES))})",
                f"REGEXP_MATCHES({one.sql}, '^[a-z]+$')",
                f"{one.sql} NOT ILIKE {quoted(pattern)}",
                f"{one.sql} SIMILAR TO '[a-c]+.?'",
                f"{one.sql} GLOB '[a-c]*'",
                f"ENDS_WITH({one.sql}, {quoted(self.rng.choice(CODES))})",
                f"{one.sql} COLLATE NOCASE = {quoted(self.rng.choice(CODES))}",
            )
        )
