"""The query grammar: one integer seed, one query whose answer is determined.

What keeps an answer determined: LIMIT only under an order over every column, ROWS frames and row numbers only over an
order by the keys of all relations, aggregates that depend on order only with one, sums of doubles only over multiples
of a quarter.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import replace

from tests.dqp.generated.expressions import KINDS, Expr, Scope
from tests.dqp.generated.forms import form
from tests.dqp.generated.relations import From, Output, Relation, Relations
from tests.dqp.generated.repeats import repeated
from tests.dqp.generated.schema import TABLES


def query(seed: int) -> str:
    """The query of a seed; every fifth is one of the forms, or asks for the same rows several times."""
    if seed % 25 == 7:
        return repeated(random.Random(seed))
    if seed % 5 == 2:
        return form(random.Random(seed))
    return Grammar(random.Random(seed)).top()


class Grammar(Relations):
    def top(self) -> str:
        if self.chance(0.03):
            return self.faulty()
        if self.chance(0.05):
            return self.topped(0, ()).sql
        output = self.with_ctes()
        sql = self.ordered(output, limit=0.5) if self.chance(0.45) else output.sql
        # Names have no case.
        return re.sub(r"\bt(\d+)\.([a-z]+)\b", r"T\1.\2", sql) if self.chance(0.03) else sql

    def with_ctes(self) -> Output:
        if not self.chance(0.22):
            return self.body(0, ())
        definitions = [self.cte() for _ in range(self.rng.choice((1, 1, 2)))]
        recursive = "RECURSIVE " if any("UNION" in text and text.startswith("r") for text in definitions) else ""
        output = self.body(0, ())
        return replace(output, sql=f"WITH {recursive}{', '.join(definitions)} {output.sql}")

    def view(self) -> Output:
        """The query of a view: its columns are of known kinds, and it may be ordered."""
        definitions = [self.cte()] if self.chance(0.25) else []
        if not definitions and self.chance(0.2):
            return self.topped(1, ())
        output = self.body(1, ())
        recursive = "RECURSIVE " if any(text.startswith("r") for text in definitions) else ""
        sql = f"WITH {recursive}{', '.join(definitions)} {output.sql}" if definitions else output.sql
        return replace(output, sql=self.ordered(replace(output, sql=sql), 0.5) if self.chance(0.2) else sql)

    def cte(self) -> str:
        if self.chance(0.25):
            return self.recursive()
        name = self.alias("c")
        output = self.body(1, ())
        hint = self.rng.choice(("", "", "", "MATERIALIZED ", "NOT MATERIALIZED "))
        self.ctes.append(self.derived(name, output, name))
        return f"{name} AS {hint}({output.sql})"

    def recursive(self) -> str:
        name = self.alias("r")
        table = self.rng.choice([table for table in self.tables if "k" in table.columns and table.rows > 1])
        self.ctes.append(
            Relation(name, name, self._walk_columns(name), ("id", "depth"), (f"{name}.id", f"{name}.depth"), 60)
        )
        if self.chance(0.4):
            steps = self.rng.randint(2, 8)
            start = f"{name}(id, depth) AS (SELECT 1, 1 UNION ALL SELECT id + {self.rng.randint(1, 3)}, depth + 1"
            return f"{start} FROM {name} WHERE depth < {steps})"
        seeds = self.rng.choice(("id <= 3", "k IS NOT NULL AND id > 5", "code = 'a'"))
        where = table.where
        return (
            f"{name}(id, depth) AS (SELECT id, 1 FROM {where} WHERE {seeds} UNION"
            f" SELECT CAST(t.k AS INTEGER), r.depth + 1 FROM {name} r JOIN {where} t ON t.id = r.id WHERE r.depth < 4)"
        )

    @staticmethod
    def _walk_columns(name: str) -> tuple[Expr, ...]:
        return tuple(Expr(f"{name}.{column}", "int", "INTEGER", 100, plain=True) for column in ("id", "depth"))

    def faulty(self) -> str:
        """Queries that fail in DuckDB whatever the plan: a federation must fail too."""
        return self.rng.choice(
            (
                "SELECT CAST(name AS INTEGER) AS v FROM {}",
                "SELECT big + 9223372036854775807 AS v FROM {}",
                "SELECT big * big AS v FROM {}",
                "SELECT SUM(CAST(name AS DECIMAL(12,2))) AS v FROM {}",
                "SELECT CAST(big AS SMALLINT) AS v, id FROM {} ORDER BY id",
                "SELECT (SELECT id FROM {}) AS v",
                "SELECT CAST(name AS DATE) AS v FROM {}",
                "SELECT CAST(SUM(big) AS INTEGER) AS v FROM (SELECT big // 2 AS big FROM {} WHERE big > 9999)",
                "SELECT nam FROM {}",
                "SELECT id FROM {} WHERE name > DATE '2024-01-01' + k + name",
                "SELECT CAST(y AS INTEGER) AS v FROM {}",
                "SELECT s + CAST(32767 AS SMALLINT) AS v FROM {}",
                "SELECT id // (id - 5) AS v FROM {}",
                "SELECT COUNT(*), MAX(10 % (id - 7)) AS v FROM {}",
            )
        ).format(self.rng.choice([f"{table.source}.{table.name}" for table in TABLES if "y" in table.columns]))

    # Bodies

    def body(self, depth: int, outer: Sequence[Expr]) -> Output:
        """A query without ORDER BY and WITH."""
        if self.chance(0.12 if depth < 2 else 0.04):
            return self.set_operation(depth, outer)
        return self.select(depth, outer)

    def ordered(self, output: Output, limit: float) -> str:
        """With ORDER BY over every column, so that LIMIT is determined; without LIMIT sometimes over fewer."""
        positions = list(range(1, len(output.names) + 1))
        self.rng.shuffle(positions)
        steady = all(column.steady and column.kind in KINDS for column in output.columns)
        end = ""
        if steady and self.chance(limit):
            end = f" LIMIT {self.rng.choice((1, 3, 5, 10, 0, 1000))}" + self.rng.choice(("", "", " OFFSET 2"))
        else:
            positions = [
                at for at in positions if output.columns[at - 1].steady and output.columns[at - 1].kind in KINDS
            ]
            positions = positions[: self.rng.randint(1, len(positions))] if positions else []
        if not positions:
            return output.sql
        if len(positions) == len(output.names) and self.chance(0.06):
            return f"{output.sql} ORDER BY ALL{self.rng.choice(('', ' DESC', ' NULLS FIRST'))}{end}"
        by_name = self.chance(0.3) and all(
            output.names.count(name) == 1 and name.isidentifier() for name in output.names
        )
        terms = [
            f"{output.names[at - 1] if by_name else at}{self.rng.choice(('', ' ASC', ' DESC'))}"
            f"{self.rng.choice(('', '', ' NULLS FIRST', ' NULLS LAST'))}"
            for at in positions
        ]
        return f"{output.sql} ORDER BY {', '.join(terms)}{end}"

    def set_operation(self, depth: int, outer: Sequence[Expr]) -> Output:
        kinds = [self.rng.choice(KINDS) for _ in range(self.rng.randint(1, 3))]
        wide = [{"int": "dbl", "date": "ts"}.get(kind, kind) for kind in kinds] if self.chance(0.12) else kinds
        sides = [self.select(depth + 1, outer, each) for each in (kinds, wide, kinds)[: self.rng.choice((2, 2, 3))]]
        operator = self.rng.choice(("UNION", "UNION ALL", "INTERSECT", "INTERSECT ALL", "EXCEPT", "EXCEPT ALL"))
        others = f" {self.rng.choice(('UNION ALL', operator))} "
        texts = [
            side.sql if self.chance(0.6) else f"({self.ordered(side, 1.0) if self.chance(0.2) else side.sql})"
            for side in sides
        ]
        sql = f" {operator} ".join(texts[:2])
        if len(texts) > 2:
            sql = f"({sql}){others}{texts[2]}"
        columns = []
        for position in zip(*(side.columns for side in sides), strict=True):
            column = position[0]
            for other in position[1:]:
                if column.kind == other.kind:
                    column = self._either(column.sql, column, other)
                elif other.kind in ("dbl", "ts"):
                    column = replace(other, sql=column.sql, exact=False)
            columns.append(column)
        return Output(sql, tuple(columns), sides[0].names, sum(side.rows for side in sides))

    # SELECT

    def select(
        self, depth: int, outer: Sequence[Expr], kinds: Sequence[str] | None = None, aggregate: bool | None = None
    ) -> Output:
        source = self.source(depth, outer)
        scope = Scope(source.leaves, tuple(outer), depth)
        where = ""
        if self.chance(0.55 if depth == 0 else 0.7):
            where = f" WHERE {self.predicate(scope, self.rng.choice((0, 1, 1, 2))).sql}"
            if outer and self.chance(0.7):
                where += f" AND {self.correlation(source.leaves, outer)}"
        if aggregate is None:
            aggregate = self.chance(0.35)
        if kinds is None and self.chance(0.04):
            return self.reused(source, scope, where, aggregate)
        if aggregate:
            return self.grouped(source, scope, where, kinds)
        return self.plain(source, scope, where, kinds)

    def correlation(self, leaves: Sequence[Expr], outer: Sequence[Expr]) -> str:
        pairs = [(one, other) for one in leaves for other in outer if one.kind == other.kind and one.kind != "bool"]
        if not pairs:
            return "TRUE"
        one, other = self.rng.choice([pair for pair in pairs if pair[0].kind in ("int", "str")] or pairs)
        operator = self.rng.choices(("=", "<", ">=", "<>", "IS NOT DISTINCT FROM"), (8, 1, 1, 1, 0.7))[0]
        return f"{one.sql} {operator} {other.sql}"

    def plain(self, source: From, scope: Scope, where: str, kinds: Sequence[str] | None) -> Output:
        if kinds is None and scope.depth == 0 and self.chance(0.07):
            return self.star(source, where)
        leaves = scope
        windows: list[Expr] = []
        if kinds is None and self.chance(0.18):
            windows = [self.window(source.total, scope)]
            if self.chance(0.3):
                # Rows that are the same may take different places in two windows, and together that shows.
                unique = all(relation.base for relation in source.relations)
                windows.append(self.window(source.total if unique else "", scope))
        wanted = kinds or [leaf.kind for leaf in self.rng.choices(scope.leaves, k=self.rng.randint(1, 4))]
        items = [self.of(kind if kind in KINDS else "int", leaves, 2) for kind in wanted] + windows
        qualify = ""
        if windows and self.chance(0.25):
            qualify = f" QUALIFY {self.atom(replace(scope, leaves=tuple(windows), subqueries=False), 1).sql}"
        elif kinds is None and self.chance(0.04):
            ranked = self.window(source.total, scope)
            test = self.atom(replace(scope, leaves=(ranked,), subqueries=False), 1).sql
            qualify = f" QUALIFY {test if ' OVER (' in test else f'{ranked.sql} IS NOT NULL'}"
        distinct = "DISTINCT " if not qualify and self.chance(0.15) else ""
        bare = kinds is None and scope.depth == 0 and self.chance(0.12)
        return self.finish(distinct, items, source, f"{where}{qualify}", source.rows, bare)

    def reused(self, source: From, scope: Scope, where: str, aggregate: bool) -> Output:
        """The name of a column of the list in other columns, in WHERE, in HAVING."""
        name, other = self.alias("a"), self.alias("a")
        one = self.any(scope, 2)
        seen = replace(one, sql=name, plain=True)
        if not one.steady or not one.kind or one.kind not in KINDS:
            one, seen = self.literal("int"), replace(self.literal("int"), sql=name, plain=True)
        own = Scope((seen,), subqueries=False)
        if aggregate and any(leaf.sql in one.sql for leaf in source.leaves):
            sql = f"SELECT {one.sql} AS {name}, COUNT(*) AS {other} FROM {source.sql}{where} GROUP BY {name}"
            sql += f" HAVING {self.atom(own, 0).sql}" if self.chance(0.5) else ""
            return Output(sql, (seen, Expr(other, "int", "BIGINT", 10**6)), (name, other), source.rows)
        two = self.of(one.kind, own, 2)
        where += f"{' AND' if where else ' WHERE'} {self.atom(own, 1).sql}" if self.chance(0.5) else ""
        sql = f"SELECT {one.sql} AS {name}, {two.sql} AS {other} FROM {source.sql}{where}"
        return Output(sql, (seen, two), (name, other), source.rows)

    def topped(self, depth: int, outer: Sequence[Expr]) -> Output:
        source = self.source(depth, ())
        scope = Scope(source.leaves, (), depth)
        where = f" WHERE {self.predicate(scope, 1).sql}" if self.chance(0.6) else " WHERE TRUE"
        if outer:
            where += f" AND {self.correlation(source.leaves, outer)}"
        items = [self.any(scope, 1) for _ in range(self.rng.randint(1, 3))]
        first = self.key(replace(scope, subqueries=depth == 0))
        term = f"{first.sql}{self.rng.choice(('', ' DESC', ' NULLS FIRST', ' DESC NULLS LAST'))}"
        if not self.steady_keys(source):
            return self.finish("", items, source, where, source.rows)
        if self.chance(0.3):
            output = self.finish(f"DISTINCT ON ({first.sql}) ", items, source, where, source.rows)
            return replace(output, sql=f"{output.sql} ORDER BY {term}, {source.total}")
        output = self.finish("", items, source, where, source.rows)
        end = f"LIMIT {self.rng.choice((1, 2, 3, 7))}{self.rng.choice(('', '', ' OFFSET 1'))}"
        return replace(output, sql=f"{output.sql} ORDER BY {term}, {source.total} {end}")

    @staticmethod
    def steady_keys(source: From) -> bool:
        """Whether the keys of all relations order the rows in every run."""
        return all(leaf.steady and leaf.kind in KINDS for leaf in source.leaves if leaf.sql in source.total)

    def star(self, source: From, where: str) -> Output:
        form = self.rng.choice(("*", "{}.*", "* EXCLUDE ({})", "* REPLACE (1 AS {})"))
        relation = self.rng.choice(source.relations)
        if "." in relation.alias and form.startswith("{}"):
            form = "*"
        name = self.rng.choice(relation.names)
        if "REPLACE" in form or "EXCLUDE" in form:
            form = form.format(name) if len(source.relations) == 1 and len(relation.names) > 1 else "*"
        sql = f"SELECT {form.format(relation.alias)} FROM {source.sql}{where}"
        return Output(sql, (Expr("", "unknown"),), ("*",), source.rows)

    def finish(
        self, distinct: str, items: Sequence[Expr], source: From, tail: str, rows: int, bare: bool = False
    ) -> Output:
        """``bare``: expressions keep the names that DuckDB gives them."""
        texts: list[str] = []
        names: list[str] = []
        for item in items:
            short = item.sql.rpartition(".")[2]
            if bare:
                texts.append(item.sql)
                names.append("")
            elif item.plain and short not in names and not short[-1].isdigit() and self.chance(0.5):
                texts.append(item.sql)
                names.append(short)
            else:
                name = f"o{len(names)}"
                texts.append(f"{item.sql} AS {name}")
                names.append(name)
        output, read = f"SELECT {distinct}{', '.join(texts)}", f"FROM {source.sql}"
        # sqlglot takes VALUES first for the whole FROM.
        first = self.chance(0.03) and "(VALUES" not in source.sql
        sql = f"{read} {output}{tail}" if first else f"{output} {read}{tail}"
        return Output(sql, tuple(items), tuple(names), rows)

    def grouped(self, source: From, scope: Scope, where: str, kinds: Sequence[str] | None) -> Output:
        keys: list[Expr] = []
        if self.chance(0.75):
            count = self.rng.choice((1, 1, 2, 2, 3))
            keys = [self.key(scope) for _ in range(count)]
            keys = [key for at, key in enumerate(keys) if key.sql not in [other.sql for other in keys[:at]]]
        aggregates = [self.aggregate(scope, kind) for kind in kinds or [""] * self.rng.randint(1, 3)]
        items = [*keys, *aggregates] if kinds is None and self.chance(0.8) else aggregates
        grouping, more = self.grouping(keys)
        if keys and not more and items[: len(keys)] == keys and self.chance(0.08):
            positions = ", ".join(str(at + 1) for at in range(len(keys)))
            grouping = self.rng.choice((" GROUP BY ALL", f" GROUP BY {positions}"))
        if kinds is None:
            items = [*items, *more]
        having = ""
        if self.chance(0.25):
            inner = [leaf for leaf in (*keys, *aggregates) if leaf.kind in KINDS and leaf.steady]
            if inner:
                nested = bool(keys) and not more
                having = f" HAVING {self.predicate(Scope(tuple(inner), (), scope.depth, subqueries=nested), 1).sql}"
        bare = kinds is None and scope.depth == 0 and self.chance(0.12)
        return self.finish("", items, source, f"{where}{grouping}{having}", source.rows if keys else 1, bare)

    def key(self, scope: Scope) -> Expr:
        actual = [leaf for leaf in scope.leaves if leaf.kind in KINDS and leaf.steady]
        if not actual:  # a bare number would be a position
            return Expr("CAST(NULL AS INTEGER)", "int", "INTEGER")
        leaf = self.rng.choice(actual)
        if self.chance(0.75):
            return leaf
        output = self.of(leaf.kind, replace(scope, outer=(), subqueries=False), 1)
        return output if any(leaf.sql in output.sql for leaf in actual) else leaf

    def grouping(self, keys: Sequence[Expr]) -> tuple[str, list[Expr]]:
        if not keys:
            return "", []
        texts = [key.sql for key in keys]
        listed = ", ".join(texts)
        if not self.chance(0.15):
            return f" GROUP BY {listed}", []
        form = self.rng.choice(("ROLLUP", "CUBE", "SETS"))
        if form == "SETS":
            sets = self.rng.choice(
                (
                    f"({listed}), ()",
                    ", ".join(f"({text})" for text in texts),
                    f"({listed}), ({texts[0]})",
                    f"ROLLUP ({listed}), ({texts[-1]})",
                    f"({listed}), ({listed})",
                )
            )
            grouping = f" GROUP BY GROUPING SETS ({sets})"
        else:
            first, rest = (texts[0], texts[1:]) if len(texts) > 1 and self.chance(0.2) else ("", texts)
            grouping = f" GROUP BY {f'{first}, ' if first else ''}{form} ({', '.join(rest)})"
        return grouping, [Expr(f"GROUPING({listed})", "int", "BIGINT", 8)] if self.chance(0.5) else []

    # Subqueries

    def inner(self, scope: Scope) -> tuple[int, list[Expr]]:
        """Depth of a subquery and what it may name of the queries around it."""
        around = [leaf for leaf in (*scope.leaves, *scope.outer) if leaf.plain and leaf.kind in KINDS and leaf.steady]
        return scope.depth + 1, around if self.chance(0.6) else []

    def subquery_predicate(self, scope: Scope) -> Expr | None:
        depth, around = self.inner(scope)
        form = self.rng.choices(("in", "exists", "quantified", "row"), (4, 4, 0.8, 0.6))[0]
        if form == "exists":
            select = self.select(depth, around)
            end = self.rng.choice((" LIMIT 1", " OFFSET 1", " LIMIT 0")) if self.chance(0.12) else ""
            return Expr(f"({self.rng.choice(('', 'NOT '))}EXISTS ({select.sql}{end}))", "bool")
        leaves = [leaf for leaf in scope.leaves if leaf.kind in KINDS and leaf.steady and leaf.kind != "bool"]
        if not leaves:
            return None
        leaf = self.rng.choice(leaves)
        if form == "row":
            other = self.rng.choice(leaves)
            select = self.select(depth, [], [leaf.kind, other.kind])
            if not all(column.steady for column in select.columns):
                return None
            return Expr(f"(({leaf.sql}, {other.sql}) {self.rng.choice(('', 'NOT '))}IN ({select.sql}))", "bool")
        select = self.select(depth, around, [leaf.kind])
        if not select.columns[0].steady:
            return None
        if form == "quantified":
            operator = f"{self.rng.choice(('=', '<', '>=', '<>'))} {self.rng.choice(('ANY', 'ALL'))}"
            return Expr(f"({leaf.sql} {operator} ({select.sql}))", "bool")
        sql = self.ordered(select, 1.0) if not around and self.chance(0.12) else select.sql
        return Expr(f"({leaf.sql} {self.rng.choice(('', 'NOT '))}IN ({sql}))", "bool")

    def subquery_scalar(self, kind: str, scope: Scope) -> Expr | None:
        depth, around = self.inner(scope)
        source = self.source(depth, ())
        inside = Scope(source.leaves, tuple(around), depth)
        where = f" WHERE {self.predicate(inside, 1).sql}" if self.chance(0.6) else " WHERE TRUE"
        if around:
            where += f" AND {self.correlation(source.leaves, around)}"
        if self.chance(0.2) and self.steady_keys(source):
            output = self.of(kind, Scope(source.leaves, (), depth, subqueries=False), 1)
            end = f" ORDER BY {self.key(inside).sql} DESC, {source.total} LIMIT 1"
            return replace(output, sql=f"(SELECT {output.sql} FROM {source.sql}{where}{end})", plain=False)
        output = self.aggregate(Scope(source.leaves, (), depth), kind)
        return replace(output, sql=f"(SELECT {output.sql} FROM {source.sql}{where})", plain=False)
