"""Binds FROM: tables, views, uploaded tables, common table expressions, derived tables, VALUES, and their joins."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
from sqlglot import exp

from dai.errors import NotFoundError, StatementError
from dqp.algebra.chains import conjuncts
from dqp.algebra.constants import value
from dqp.algebra.operators import ASOF, Inline, Join, JoinKind, Operator, Scan, subqueries
from dqp.algebra.trees import free, used
from dqp.binding.expressions import Expressions
from dqp.binding.lateral import lateral_join
from dqp.binding.scope import Merged, Output, Relation, Scope, Unmodelled, folded, only
from dqp.binding.statement import Binder, Ctes
from dqp.binding.verbatim import described, recursive_rows, table_of, verbatim

Member = tuple[Operator, Scope]
_TABLE = frozenset(("this", "db", "catalog", "alias", "joins"))
_DERIVED = frozenset(("this", "alias", "joins"))
_JOIN = frozenset(("this", "on", "using", "side", "kind", "method"))
_FIELDS = ("STRUCT", "MAP", "UNION", "JSON", "VARIANT", "GEOMETRY")
_SIDES: dict[str, JoinKind] = {"LEFT": "left", "RIGHT": "right", "FULL": "full"}
_ASOF: dict[JoinKind, JoinKind] = {"inner": "asof", "left": "asof left"}
_ARROW: dict[str, tuple[pa.DataType, type]] = {
    "INTEGER": (pa.int32(), int),
    "BIGINT": (pa.int64(), int),
    "DOUBLE": (pa.float64(), float),
    "VARCHAR": (pa.string(), str),
    "BOOLEAN": (pa.bool_(), bool),
    "DATE": (pa.date32(), date),
    "TIMESTAMP": (pa.timestamp("us"), datetime),
}


def from_clause(binder: Binder, node: exp.Select, outer: Scope | None, ctes: Ctes) -> Member:
    """The tree and the scope of a SELECT's FROM; one row without columns where there is none."""
    clause = node.args.get("from_")
    if clause is None:
        return Inline(binder.names.new("one_row"), (), pa.table({"one": [1]})), Scope()
    # In FROM … JOIN … without a SELECT, sqlglot puts the joins into the first table.
    return _From(binder, outer, ctes).chain(clause.this, [*_joins(clause.this), *_joins(node)], [])


def values(binder: Binder, node: exp.Values, ctes: Ctes) -> Output:
    """A VALUES list in the types that DuckDB gives it."""
    only(node, frozenset(("expressions", "alias", "joins", "with_")))
    query = node.copy()
    query.set("with_", None)
    query.set("alias", None)
    query.set("joins", None)
    shape = described(binder.catalog, query)
    data = _data(node, shape)
    if data is None:
        return verbatim(binder, query, ctes, shape)
    names = [(name, binder.names.new(name)) for name, _ in shape]
    items = tuple((identifier, name) for name, identifier in names)
    return Output(Inline(binder.names.new("values"), items, data), tuple(names))


def _data(node: exp.Values, shape: tuple[tuple[str, str], ...]) -> pa.Table | None:
    """The literals as a table, None where a cell is not a literal of its column's type."""
    rows = [each.expressions if isinstance(each, exp.Tuple) else [each] for each in node.expressions]
    columns = []
    for index, (_, kind) in enumerate(shape):
        cells: list[Any] = []
        arrow, python = _ARROW.get(kind, (None, Decimal))
        if kind.startswith("DECIMAL("):
            precision, scale = map(int, kind[8:-1].split(","))
            arrow = pa.decimal128(precision, scale)
        if arrow is None:
            return None
        for row in rows:
            cell = value(row[index])
            if cell is None and not isinstance(row[index], exp.Null):
                return None
            if cell is not None and type(cell) is not python and not (python is Decimal and type(cell) is int):
                return None
            cells.append(Decimal(cell) if python is Decimal and isinstance(cell, int) else cell)
        columns.append(pa.array(cells, arrow))
    return pa.table(columns, names=[name for name, _ in shape])


def _has_fields(tree: Operator) -> bool:
    """Whether a column may have fields; True where only DuckDB knows."""
    return not isinstance(tree, Scan) or any(each.type.startswith(_FIELDS) for each in tree.table.columns)


class _From:
    def __init__(self, binder: Binder, outer: Scope | None, ctes: Ctes) -> None:
        self.binder, self.outer, self.ctes, self.names = binder, outer, ctes, binder.names

    def chain(self, first: exp.Expression, joins: Iterable[exp.Expression], left: list[Scope]) -> Member:
        """Joins the members one after the other. A comma binds less tightly than JOIN. ``left``: the scopes of the
        members to the left of the first one."""
        done: list[Member] = []
        current, widened = self.member(first, left), False
        for join in joins:
            only(join, _JOIN)
            around = [*left, *(scope for _, scope in done)]
            right = self.chain(join.this, join.this.args.get("joins") or (), [*around, current[1]])
            lateral = self.is_lateral(join.this, right, [*around, current[1]])
            comma = not any(join.args.get(name) for name in _JOIN - {"this"})
            if lateral and (comma or self.is_lateral(join.this, right, around)):
                # It uses members before a comma, so these are joined first.
                done, current, around, widened = [], self.crossed([*done, current]), left, True
            if comma and not lateral:
                done.append(current)
                current, widened = right, False
                continue
            method, side = ((join.args.get(each) or "").upper() for each in ("method", "side"))
            if widened and (method == "NATURAL" or side in ("RIGHT", "FULL")):
                raise Unmodelled("a join of less than what is joined already")
            current = self.joined(current, right, join, around, lateral)
        return self.crossed([*done, current])

    def crossed(self, members: list[Member]) -> Member:
        (tree, scope), *others = members
        for other, theirs in others:
            tree, scope = Join(tree, other), _both(scope, theirs)
        return tree, scope

    def is_lateral(self, node: exp.Expression, member: Member, before: list[Scope]) -> bool:
        """Whether a member of FROM uses columns of the members ``before`` it."""
        if not isinstance(node, exp.Subquery | exp.Lateral):
            return False
        return any(each.identifiers() & free(member[0]) for each in before)

    def member(self, node: exp.Expression, left: list[Scope]) -> Member:
        if isinstance(node, exp.Table):
            only(node, _TABLE)
            if isinstance(node.this, exp.Func):
                return self.rows_of_function(node, node.this)
            output, path = self.table(node)
        elif isinstance(node, exp.Subquery):
            inner = _unwrapped(node.this)
            if isinstance(inner, exp.Table) or (isinstance(inner, exp.Subquery) and (inner.alias or _joins(inner))):
                if node.alias or isinstance(node.args.get("alias"), exp.TableAlias):
                    raise Unmodelled("alias of a join")
                only(node, _DERIVED)
                return self.chain(inner, _joins(inner), left)
            only(node, _DERIVED | {"with_"})
            output, path = self.derived(inner, left), ()
        elif isinstance(node, exp.Lateral) and isinstance(node.this, exp.Subquery):
            only(node, _DERIVED)
            output, path = self.derived(_unwrapped(node.this.this), left), ()
        elif isinstance(node, exp.Values):
            only(node, frozenset(("expressions", "alias", "joins")))
            output, path = values(self.binder, node, self.ctes), ()
        elif isinstance(node, exp.Unnest):
            return self.rows_of_function(node, node)
        else:
            raise Unmodelled(type(node).__name__)
        alias = node.args.get("alias")
        name = node.alias or (node.name if isinstance(node, exp.Table) else None)
        relation = Relation(name, renamed(output.columns, alias), () if node.alias else path, _has_fields(output.tree))
        return output.tree, Scope([relation])

    def derived(self, query: exp.Expression, left: list[Scope]) -> Output:
        """A derived table; it may use the columns of the members to its left."""
        return self.binder.query(query, self.siblings(left), self.ctes)

    def siblings(self, left: list[Scope]) -> Scope | None:
        """The scope around a derived table."""
        if not left:
            return self.outer
        merged = {name: each for scope in left for name, each in scope.merged.items()}
        return Scope([each for scope in left for each in scope.relations], merged, parent=self.outer)

    def table(self, node: exp.Table) -> tuple[Output, tuple[str, ...]]:
        """What a name in FROM stands for, and its full name in lower case."""
        self.binder.reads()
        name = folded(node.name)
        cte = self.ctes.get(name) if not node.db else None
        if cte is not None and cte.recursive:
            return recursive_rows(self.binder, cte), ()
        if cte is not None:
            output = self.binder.query(cte.node.this, None, cte.ctes)
            return Output(output.tree, tuple(renamed(output.columns, cte.node.args.get("alias")))), ()
        try:
            output = table_of(self.binder, node)
        except NotFoundError as error:
            raise StatementError(error.detail, hint=error.hint) from error
        path = tuple(folded(part.name) for part in node.parts)
        return output, path

    def rows_of_function(self, node: exp.Expression, function: exp.Expr) -> Member:
        """The rows of a table function whose arguments are constants."""
        bare = node.copy()
        bare.set("joins", None)
        query = exp.Select(expressions=[exp.Star()], from_=exp.From(this=bare))
        output = verbatim(self.binder, query, self.ctes)
        name = _function_name(function)
        relation = Relation(node.alias or name, output.columns)
        if len(relation.columns) == 1:
            # An alias also names the only column; the function's name stays valid for it.
            relation.index.setdefault(name, relation.columns[0][1])
        return output.tree, Scope([relation])

    # --- joins ---

    def joined(
        self, left: Member, right: Member, join: exp.Expression, around: list[Scope], lateral: bool = False
    ) -> Member:
        method, side, kind = ((join.args.get(each) or "").upper() for each in ("method", "side", "kind"))
        if method not in ("", "NATURAL", "ASOF") or kind not in ("", "INNER", "CROSS", "OUTER", "SEMI", "ANTI"):
            raise Unmodelled(f"{method} {kind} join")
        how: JoinKind = "semi" if kind == "SEMI" else "anti" if kind == "ANTI" else _SIDES.get(side, "inner")
        if method == "ASOF":
            if how not in _ASOF or lateral:
                raise Unmodelled(f"{method} {side} {kind} join")
            how = _ASOF[how]
        if how in ("semi", "anti") and side not in ("", "LEFT"):
            raise Unmodelled("right semi join")
        both = _both(left[1], right[1])
        using = [each.name for each in join.args.get("using") or ()]
        if method == "NATURAL":
            using = self.common(left[1], right[1])
        condition: exp.Expression | None = None
        if using:
            condition, merged = self.using(left[1], right[1], using, how)
            both.merged = {**both.merged, **merged}
        elif join.args.get("on") is not None:
            condition = self.condition(join.args["on"], both, around)
        if how in ASOF and not _is_nearest(condition, left[0], right[0]):
            raise Unmodelled("ASOF JOIN by something else than a comparison and equalities of both sides")
        result = left[1] if how in ("semi", "anti") else both
        if (how == "inner" or lateral) and isinstance(condition, exp.Boolean) and condition.this:
            condition = None
        if lateral:
            return lateral_join(left[0], right[0], how, condition, self.names), result
        return Join(left[0], right[0], how, condition), result

    def condition(self, node: exp.Expression, scope: Scope, around: list[Scope]) -> exp.Expression:
        relations = [relation for each in around for relation in each.relations]
        inner = Scope(scope.relations, scope.merged, parent=Scope(relations, parent=self.outer, sibling=True))
        expressions = Expressions(
            inner, self.names, lambda query, near: self.binder.query(query, near, self.ctes), self.binder.moment
        )
        bound = expressions.condition(node)
        if expressions.aggregates or expressions.windows:
            raise Unmodelled("aggregate in a join's condition")
        return bound

    def common(self, left: Scope, right: Scope) -> list[str]:
        if left.has_unknown_names() or right.has_unknown_names():
            raise Unmodelled("NATURAL JOIN of names that DuckDB makes up")
        theirs = {folded(name or "") for name, _ in right.visible()}
        return [name for name, _ in left.visible() if name is not None and folded(name) in theirs]

    def using(
        self, left: Scope, right: Scope, names: Sequence[str], kind: JoinKind
    ) -> tuple[exp.Expression, dict[str, Merged]]:
        """The condition of USING, and the value of each of its columns after the join."""
        condition: exp.Expression | None = None
        merged: dict[str, Merged] = {}
        for name in names:
            key = (folded(name),)
            one, other = left.find(key), right.find(key)
            if one is None or other is None:
                raise Unmodelled("column of USING")
            # ASOF JOIN compares the last one.
            equality = exp.GTE if kind in ASOF and name == names[-1] else exp.EQ
            equal = equality(this=one[0], expression=other[0])
            condition = equal if condition is None else exp.And(this=condition, expression=equal)
            result: exp.Expression = one[0].copy()
            if kind == "right":
                result = other[0].copy()
            elif kind == "full":
                result = exp.Coalesce(this=one[0].copy(), expressions=[other[0].copy()])
            relations = [*left.relations, *right.relations]
            hidden = frozenset(each.index[key[0]] for each in relations if key[0] in each.index)
            merged[key[0]] = Merged(key[0], result, hidden)
        assert condition is not None
        return condition, merged


def _is_nearest(condition: exp.Expression | None, left: Operator, right: Operator) -> bool:
    """Whether it is one comparison beside equalities, each of something of one side with something of the other."""
    sides = {frozenset(left.columns), frozenset(right.columns)}
    comparisons = 0
    for each in conjuncts(condition):
        if not isinstance(each, exp.EQ | exp.GT | exp.GTE | exp.LT | exp.LTE) or subqueries(each):
            return False
        operands = [used(each.this), used(each.expression)]
        if {side for names in operands for side in sides if names and names <= side} != sides:
            return False
        comparisons += not isinstance(each, exp.EQ)
    return comparisons == 1


def _both(left: Scope, right: Scope) -> Scope:
    if left.merged.keys() & right.merged.keys():
        raise Unmodelled("the same column in two USING clauses")
    return Scope([*left.relations, *right.relations], {**left.merged, **right.merged})


def _unwrapped(node: Any) -> Any:
    """A member of FROM without redundant parentheses."""
    while (
        isinstance(node, exp.Subquery)
        and isinstance(node.this, exp.Subquery | exp.Table)
        and not any(value for name, value in node.args.items() if name != "this")
    ):
        node = node.this
    return node


def _joins(node: exp.Expression) -> Sequence[exp.Expression]:
    joins: Sequence[exp.Expression] = node.args.get("joins") or ()
    return joins


def renamed(columns: Iterable[tuple[str | None, str]], alias: exp.Expression | None) -> list[tuple[str | None, str]]:
    """The columns with the names of an alias's column list, which may be shorter than they are."""
    aliases = [each.name for each in alias.args.get("columns") or ()] if alias is not None else []
    known = list(columns)
    if len(aliases) > len(known):
        raise Unmodelled("more names than columns")
    named: list[tuple[str | None, str]] = [
        (name, identifier) for name, (_, identifier) in zip(aliases, known, strict=False)
    ]
    return [*named, *known[len(aliases) :]]


def _function_name(node: exp.Expr) -> str:
    if isinstance(node, exp.Unnest):
        return "unnest"
    if isinstance(node, exp.GenerateSeries):
        return "range" if node.args.get("is_end_exclusive") else "generate_series"
    return node.name.lower()
