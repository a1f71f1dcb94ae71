"""Finds what a verbatim query needs of a table: the columns whose names appear in the text, or all of them where its
SELECT may use others too (a star, a whole row or the like), and the rows that the conditions on it in the WHERE of its
SELECT leave."""

from __future__ import annotations

from contextlib import suppress

from sqlglot import exp

from dqp.algebra.chains import all_of, conjuncts
from dqp.algebra.operators import Inline, Operator, Scan
from dqp.binding.expressions import Expressions
from dqp.binding.scope import Output, Relation, Scope, Unmodelled, folded
from dqp.binding.statement import Binder


def columns_used(query: exp.Expression) -> tuple[frozenset[str], frozenset[int] | None]:
    """Every name in the text in lower case, and the SELECTs (by ``id``) that may use columns of their tables which the
    text does not name; None for all."""
    relations = {folded(each.alias_or_name) for each in query.find_all(exp.Table)}
    words: set[str] = set()
    doubtful: set[int] = set()
    for node in query.walk():
        if isinstance(node, exp.Identifier):
            words.add(folded(node.name))
        elif isinstance(node, exp.Column) and not node.table and folded(node.name) in relations:
            return frozenset(), None
        elif _doubtful(node):
            doubtful.add(id(node.find_ancestor(exp.Select)))
    return frozenset(words), frozenset(doubtful)


def _doubtful(node: exp.Expr) -> bool:
    """Whether the node means columns that it does not name: all, the common ones, those of a pattern or position."""
    if isinstance(node, exp.Star):
        return not isinstance(node.parent, exp.Count)
    if isinstance(node, exp.Join):
        return node.method.upper() not in ("", "ASOF") or bool(node.args.get("using"))
    if isinstance(node, exp.Table):
        return bool(node.alias_column_names)
    return isinstance(node, exp.Columns | exp.Pivot | exp.PositionalColumn)


def condition_of(binder: Binder, member: exp.Table | exp.Subquery, output: Output) -> exp.Expression | None:
    """What the WHERE around a member of FROM says of its columns alone; None where it says nothing, or where rows that
    do not fulfil it may be wanted."""
    select = member.find_ancestor(exp.Select)
    where = select.args.get("where") if select is not None else None
    alias = member.args.get("alias")
    renames = alias is not None and alias.args.get("columns")
    if select is None or where is None or renames or not _preserved(member, select):
        return None
    joins = select.args.get("joins") or ()
    common = {folded(each.name) for join in joins for each in join.args.get("using") or ()}
    natural = any((join.method or "").upper() == "NATURAL" for join in joins)
    relation = Relation(member.alias or None, output.columns)
    expressions = Expressions(Scope([relation]), binder.names, _no_subquery, binder.moment)
    bound = []
    for each in conjuncts(where.this):
        columns = list(each.find_all(exp.Column))
        bare = {folded(one.name) for one in columns if not one.table}
        others = [
            one for one in columns if one.table and [folded(part.name) for part in one.parts[:-1]] != [relation.alias]
        ]
        if others or (natural and bare) or bare & common:
            continue
        with suppress(Unmodelled):
            condition = expressions.condition(each)
            if not expressions.aggregates and not expressions.windows and condition.find(exp.Column):
                bound.append(condition)
    return all_of(bound)


def _preserved(table: exp.Expression, select: exp.Select) -> bool:
    """Whether the rows of the SELECT come from all rows of the table that its WHERE allows: the table is no side of an
    outer join that may be filled with NULL, and no row depends on the others."""
    if select.args.get("sample") or any(table.args.get(each) for each in ("joins", "pivots", "sample")):
        return False
    joins = select.args.get("joins") or []
    ways = [(join, *((join.args.get(each) or "").upper() for each in ("method", "side", "kind"))) for join in joins]
    if any(method == "POSITIONAL" or side in ("RIGHT", "FULL") for _, method, side, _ in ways):
        return False
    inner = [
        join
        for join, method, side, kind in ways
        if method in ("", "NATURAL") and not side and kind in ("", "INNER", "CROSS")
    ]
    clause = select.args.get("from_")
    return any(table is each.this for each in (clause, *inner) if each is not None)


def _no_subquery(query: exp.Expression, scope: Scope) -> Output:
    raise Unmodelled("subquery")


def narrowed(tree: Operator, columns: list[str]) -> Operator:
    """The tree with only these columns, if it is a table."""
    if isinstance(tree, Scan):
        return Scan(tree.table, tuple(each for each in tree.items if each[0] in columns))
    if isinstance(tree, Inline):
        return Inline(tree.name, tuple(each for each in tree.items if each[0] in columns), tree.data)
    return tree
