"""FROM: tables, derived tables, CTEs, VALUES, and joins of every kind."""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tests.dqp.generated.aggregates import Aggregates
from tests.dqp.generated.expressions import KINDS, Expr, Scope
from tests.dqp.generated.schema import TABLES, Table

_KIND_OF = {
    "TINYINT": "int", "SMALLINT": "int", "INTEGER": "int", "BIGINT": "int", "DOUBLE": "dbl", "DECIMAL(12,2)": "dec",
    "DECIMAL(38,6)": "dec",     "VARCHAR": "str", "DATE": "date", "TIMESTAMP": "ts", "BOOLEAN": "bool",
}  # fmt: skip
_BOUND = {"id": 100, "k": 100, "s": 32768, "big": 2**63, "ok": 1}
MOST_ROWS = 12_000
"""About how many rows a join may give at most."""
WEIGHTS = (5, 3, 5, 2, 5, 1, 5, 0.6)
"""How often the tables are read."""


@dataclass(frozen=True)
class Relation:
    """One member of FROM. ``key``: columns that order its rows totally (but for rows that are the same)."""

    sql: str
    alias: str
    columns: tuple[Expr, ...]
    names: tuple[str, ...]
    key: tuple[str, ...]
    rows: int
    base: str = ""

    def column(self, name: str) -> Expr | None:
        return self.columns[self.names.index(name)] if name in self.names else None


@dataclass(frozen=True)
class Output:
    """A query and what its columns are; ``rows`` is a guess of how many it gives at most."""

    sql: str
    columns: tuple[Expr, ...]
    names: tuple[str, ...]
    rows: int


@dataclass(frozen=True)
class From:
    sql: str
    relations: tuple[Relation, ...]
    rows: int
    leaves: tuple[Expr, ...]

    @property
    def total(self) -> str:
        return ", ".join(key for relation in self.relations for key in relation.key) or "1"


class Relations(Aggregates):
    """Writes FROM. The queries inside come from the query grammar."""

    def __init__(
        self,
        rng: random.Random,
        tables: Sequence[Table] = TABLES,
        weights: Sequence[float] = WEIGHTS,
        views: Sequence[Relation] = (),
    ) -> None:
        super().__init__(rng)
        self.aliases = 0
        self.tables, self.weights = tables, weights
        self.ctes: list[Relation] = list(views)

    @abstractmethod
    def body(self, depth: int, outer: Sequence[Expr]) -> Output:
        """A query without ORDER BY and WITH."""

    @abstractmethod
    def select(
        self, depth: int, outer: Sequence[Expr], kinds: Sequence[str] | None = None, aggregate: bool | None = None
    ) -> Output:
        """One SELECT, with columns of these kinds if they are given."""

    @abstractmethod
    def topped(self, depth: int, outer: Sequence[Expr]) -> Output:
        """The first rows by an order of the rows that the query reads, for each group or of all."""

    @abstractmethod
    def ordered(self, output: Output, limit: float) -> str:
        """With ORDER BY, and LIMIT with this probability."""

    def alias(self, prefix: str) -> str:
        self.aliases += 1
        return f"{prefix}{self.aliases}"

    def base(self, table: Table, alias: str = "") -> Relation:
        name = alias or table.where
        columns = tuple(self.column(f"{name}.{column}", column, table.type(column)) for column in table.columns)
        sql = table.where
        if self.chance(0.04):
            sql = table.classic if alias else sql
        sql += {True: "", False: f" {self.rng.choice(('', 'AS '))}{alias}"}[not alias]
        return Relation(sql, name, columns, table.columns, (f"{name}.id",), table.rows, table.where)

    @staticmethod
    def column(sql: str, name: str, type: str) -> Expr:
        kind = _KIND_OF[type]
        return Expr(
            sql,
            kind,
            type if kind == "int" else "",
            _BOUND.get(name, 0),
            *((38, 6) if name == "huge" else (12, 2) if kind == "dec" else (0, 0)),
            exact=name != "y",
            plain=True,
        )

    def derived(self, alias: str, output: Output, sql: str) -> Relation:
        columns = tuple(
            replace(column, sql=f"{alias}.{name}", plain=True)
            for column, name in zip(output.columns, output.names, strict=True)
        )
        return Relation(sql, alias, columns, output.names, tuple(column.sql for column in columns), output.rows)

    def relation(self, depth: int, outer: Sequence[Expr], alone: bool) -> Relation:
        draw = self.rng.random()
        if self.ctes and self.chance(0.4):
            cte = self.rng.choice(self.ctes)
            alias = self.alias("q")
            return self.derived(alias, Output("", cte.columns, cte.names, cte.rows), f"{cte.sql} AS {alias}")
        if draw < (0.13, 0.08, 0)[min(depth, 2)]:
            return self.subquery(depth)
        if draw > 0.97:
            return self.values(depth)
        if draw > 0.955:
            alias = self.alias("g")
            upper = self.rng.randint(1, 8)
            column = Expr(f"{alias}.n", "int", "BIGINT", 100, plain=True)
            return Relation(
                f"{self.rng.choice(('range', 'generate_series'))}(0, {upper}) AS {alias}(n)",
                alias,
                (column,),
                ("n",),
                (column.sql,),
                upper,
            )
        table = self.rng.choices(self.tables, self.weights)[0]
        return self.base(table, "" if alone and self.chance(0.3) else self.alias("t"))

    def subquery(self, depth: int) -> Relation:
        alias, before, definition = self.alias("q"), list(self.ctes), ""
        if self.chance(0.08):
            # It may have the name of one around it, and read that.
            name = self.rng.choice([cte.alias for cte in before if cte.alias[0] == "c"] or [self.alias("c")])
            inner = self.body(depth + 1, ())
            definition = f"WITH {name} AS ({inner.sql}) "
            self.ctes = [*(cte for cte in before if cte.alias != name), self.derived(name, inner, name)]
        if self.chance(0.2):
            output = self.topped(depth + 1, ())
        else:
            output = self.body(depth + 1, ())
            output = replace(output, sql=self.ordered(output, 1.0)) if self.chance(0.2) else output
        self.ctes = before
        if self.chance(0.1):
            output = replace(output, names=tuple(f"z{at}" for at in range(len(output.names))))
            return self.derived(alias, output, f"({definition}{output.sql}) AS {alias}({', '.join(output.names)})")
        return self.derived(alias, output, f"({definition}{output.sql}) AS {alias}")

    def values(self, depth: int) -> Relation:
        alias = self.alias("v")
        kinds = [self.rng.choice(("int", "str", "date", "dec")) for _ in range(self.rng.randint(1, 2))]
        rows = []
        for at in range(self.rng.randint(1, 4)):
            row = [self.literal(kind).sql for kind in kinds]
            if at and self.chance(0.2):
                row[0] = "NULL"
            if depth < 2 and kinds[0] in ("str", "date") and self.chance(0.25):
                row[0] = (self.subquery_scalar(kinds[0], Scope((), (), depth)) or self.literal(kinds[0])).sql
            rows.append(f"({', '.join(row)})")
        names = tuple(f"w{at}" for at in range(len(kinds)))
        columns = tuple(
            Expr(f"{alias}.{name}", kind, "INTEGER" if kind == "int" else "", 100, 8, 3, plain=True)
            for name, kind in zip(names, kinds, strict=True)
        )
        return Relation(
            f"(VALUES {', '.join(rows)}) AS {alias}({', '.join(names)})",
            alias,
            columns,
            names,
            tuple(column.sql for column in columns),
            len(rows),
        )

    def source(self, depth: int, outer: Sequence[Expr]) -> From:
        count = self.rng.choices((1, 2, 3, 4), (35, 40, 18, 5) if depth == 0 else (60, 32, 8, 0))[0]
        first = self.relation(depth, outer, count == 1)
        output = From(first.sql, (first,), first.rows, first.columns)
        for _ in range(count - 1):
            output = self.joined(output, self.relation(depth, outer, False), depth, outer)
        return output

    def joined(self, left: From, right: Relation, depth: int, outer: Sequence[Expr]) -> From:
        if right.base and self.chance(0.12):
            right = self.again(left, right)
        forms: list[Callable[[From, Relation, int, Sequence[Expr]], From | None]] = [
            self._on, self._using, self._cross, self._filtering, self._lateral, self._nearest,
        ]  # fmt: skip
        for form in self.rng.choices(forms, (10, 1.5, 1, 1.3, 0.7, 0.4), k=4):
            output = form(left, right, depth, outer)
            if output is not None:
                return output
        return left

    def again(self, left: From, right: Relation) -> Relation:
        """A self join: the table of a relation that is there already."""
        actual = [relation for relation in left.relations if relation.base]
        if not actual:
            return right
        name = self.rng.choice(actual).base
        table = next(table for table in self.tables if table.where == name)
        return self.base(table, self.alias("t"))

    def _on(self, left: From, right: Relation, depth: int, outer: Sequence[Expr]) -> From | None:
        kind = self.rng.choices(
            ("JOIN", "INNER JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "LEFT OUTER JOIN"), (6, 2, 5, 2, 2, 1)
        )[0]
        condition, equal = self.condition(left, right)
        if condition is None:
            return None
        rows = max(left.rows, right.rows) * 3 if equal else left.rows * right.rows
        if rows > MOST_ROWS:
            return None
        return self._grown(left, right, f"{left.sql} {kind} {right.sql} ON {condition}", rows)

    @staticmethod
    def _grown(left: From, right: Relation, sql: str, rows: int) -> From:
        return From(sql, (*left.relations, right), rows, left.leaves + right.columns)

    def condition(self, left: From, right: Relation) -> tuple[str | None, bool]:
        """A join condition, and whether it holds an equality of keys."""
        pairs = [
            (one, other)
            for one in left.leaves
            for other in right.columns
            if one.kind == other.kind and one.kind != "bool" and one.steady and other.steady
        ]
        if not pairs:
            return None, False
        common = (".k", ".id", ".code", ".d", ".n", ".w0")
        keys = [pair for pair in pairs if pair[0].sql.endswith(common) and pair[1].sql.endswith(common)]
        scope = Scope(left.leaves + right.columns, subqueries=False)
        one, other = self.rng.choice(keys or pairs)
        draw = self.rng.random()
        if draw < 0.72:
            text = f"{one.sql} = {other.sql}"
        elif draw < 0.78:
            text = f"{one.sql} IS NOT DISTINCT FROM {other.sql}"
        elif draw < 0.84 and one.kind == "int" and max(one.bound, other.bound) < 10_000:
            text = f"{one.sql} + 1 = {other.sql}"
        elif draw < 0.95:
            one, other = self.rng.choice(pairs)
            return f"{one.sql} {self.rng.choice(('<', '>=', '<>', '='))} {other.sql}", False
        else:
            return self.predicate(scope, 1).sql, False
        if self.chance(0.2):
            extra = self.rng.choice(pairs)
            text += f" AND {extra[0].sql} {self.rng.choice(('=', '<', '<=', '<>'))} {extra[1].sql}"
        if self.chance(0.15):
            text += f" AND {self.predicate(scope, 1).sql}"
        elif self.chance(0.04):
            return f"({text} OR {self.predicate(scope, 0).sql})", False
        return text, True

    def _using(self, left: From, right: Relation, depth: int, outer: Sequence[Expr]) -> From | None:
        if len(left.relations) > 1:
            return None
        (first,) = left.relations
        names = [
            name
            for name in ("k", "code", "id", "d")
            if first.names.count(name) == 1 and right.names.count(name) == 1
            and first.column(name).kind == right.column(name).kind  # type: ignore[union-attr]
        ]  # fmt: skip
        if not names:
            return None
        using = self.rng.sample(names, self.rng.choice((1, 1, 2)) if len(names) > 1 else 1)
        kind = self.rng.choice(("JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"))
        output = self._grown(
            left, right, f"{left.sql} {kind} {right.sql} USING ({', '.join(using)})", max(left.rows, right.rows) * 4
        )
        merged = []
        for name in using:
            one, other = first.column(name), right.column(name)
            assert one is not None
            assert other is not None
            merged.append(replace(self._either(name, one, other), plain=False))
        return replace(output, leaves=output.leaves + tuple(merged))

    def _cross(self, left: From, right: Relation, depth: int, outer: Sequence[Expr]) -> From | None:
        rows = left.rows * max(right.rows, 1)
        if rows > MOST_ROWS // 8:
            return None
        return self._grown(left, right, f"{left.sql}{self.rng.choice((' CROSS JOIN ', ', '))}{right.sql}", rows)

    def _filtering(self, left: From, right: Relation, depth: int, outer: Sequence[Expr]) -> From | None:
        condition, _ = self.condition(left, right)
        if condition is None:
            return None
        return replace(left, sql=f"{left.sql} {self.rng.choice(('SEMI', 'ANTI'))} JOIN {right.sql} ON {condition}")

    def _lateral(self, left: From, right: Relation, depth: int, outer: Sequence[Expr]) -> From | None:
        if depth:
            return None
        alias, around = self.alias("l"), [leaf for leaf in left.leaves if leaf.plain and leaf.kind in KINDS]
        output = self.topped(2, around) if self.chance(0.4) else self.select(2, around, aggregate=True)
        join, condition = self.rng.choice(((",", ""), (" CROSS JOIN", ""), (" LEFT JOIN", " ON TRUE")))
        sql = f"{left.sql}{join} LATERAL ({output.sql}) AS {alias}{condition}"
        return self._grown(left, self.derived(alias, output, ""), sql, left.rows * 3)

    def _nearest(self, left: From, right: Relation, depth: int, outer: Sequence[Expr]) -> From | None:
        """One row of the right side, whose numbers are keys of it."""
        numbers = [leaf for leaf in left.leaves if leaf.kind == "int" and leaf.plain]
        pairs = [
            (one, other)
            for one in left.leaves
            for other in right.columns
            if one.kind == other.kind and one.plain and one.kind in ("str", "date")
        ]
        if not (right.base and numbers):
            return None
        equal = "{.sql} = {.sql} AND ".format(*self.rng.choice(pairs)) if pairs and self.chance(0.6) else ""
        near = f"{self.rng.choice(numbers).sql} {self.rng.choice(('>=', '>', '<=', '<'))} {right.alias}.id"
        join = self.rng.choice(("ASOF JOIN", "ASOF LEFT JOIN"))
        return self._grown(left, right, f"{left.sql} {join} {right.sql} ON {equal}{near}", left.rows)
