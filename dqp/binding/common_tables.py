"""Finds what a query expression reads by the names that WITH defines, so that it can stand alone with them."""

from __future__ import annotations

from typing import Any

from sqlglot import exp

from dqp.binding.scope import Unmodelled, folded
from dqp.binding.statement import Cte, Ctes


def reads_itself(cte: exp.Expression) -> bool:
    """Whether the query of a common table expression reads a table of its name, which is itself after RECURSIVE."""
    name = folded(cte.alias)
    return any(
        not table.db and folded(table.name) == name and not is_defined(table, cte.this)
        for table in cte.this.find_all(exp.Table)
    )


def taken_out(closed: exp.Expression) -> Ctes:
    """Takes the common table expressions out of ``closed`` that can be bound wherever they are named. Those stay that
    read themselves, have other values each time they run, or are bound up with one that stays."""
    clause: Any = closed.args.get("with_")
    ctes: dict[str, Cte] = {}
    staying: list[exp.Expression] = []
    read: set[str] = set()
    for each in clause.expressions if clause is not None else ():
        name, tables = folded(each.alias), _names_read(each)
        cte = Cte(each, dict(ctes), bool(clause.args.get("recursive")) and reads_itself(each))
        if (
            cte.recursive
            or cte.volatile()
            or not isinstance(each.this, exp.Query | exp.Values)
            or each.args.get("key_expressions")
            or name in read
            or tables & {folded(one.alias) for one in staying}
        ):
            staying.append(each)
            read |= tables
        else:
            ctes[name] = cte
    if clause is not None:
        clause.pop()
        wanted, needed = _names_read(closed), list[exp.Expression]()
        for each in reversed(staying):  # what no query reads may even be wrong: DuckDB does not look at it
            if folded(each.alias) in wanted:
                wanted |= _names_read(each)
                needed.insert(0, each)
        if needed:
            closed.set("with_", exp.With(expressions=needed, recursive=clause.args.get("recursive")))
    return ctes


def closed_over(node: exp.Expression, ctes: Ctes) -> exp.Expression:
    """A copy of the query expression, with a definition of every common table expression that it uses."""
    needed: dict[str, Cte] = {}

    def need(query: exp.Expression, known: Ctes) -> None:
        for table in query.find_all(exp.Table):
            name = folded(table.name)
            if table.db or name not in known or is_defined(table, query):
                continue
            cte = known[name]
            if needed.get(name, cte).node is not cte.node:
                raise Unmodelled("two common table expressions of one name")
            if name not in needed:
                inside = {each: one for each, one in cte.ctes.items() if each != name or not cte.recursive}
                need(cte.node.this, inside)
                needed[name] = cte

    need(node, ctes)
    closed = node.copy()
    if needed:
        own = closed.args.get("with_")
        if own is not None and any(folded(each.alias) in needed for each in own.expressions):
            closed, own = exp.Select(expressions=[exp.Star()], from_=exp.From(this=exp.Subquery(this=closed))), None
        listed = [each.node.copy() for each in needed.values()] + (list(own.expressions) if own is not None else [])
        if not isinstance(closed, exp.Query):
            raise Unmodelled("WITH before something else than a query")
        recursive = (own is not None and own.args.get("recursive")) or any(each.recursive for each in needed.values())
        if recursive and any(not each.recursive and reads_itself(each.node) for each in needed.values()):
            raise Unmodelled("a name of WITH that would read itself")
        closed.set("with_", exp.With(expressions=listed, recursive=recursive or None))
    return closed


def is_defined(table: exp.Expression, within: exp.Expression) -> bool:
    """Whether a WITH inside of ``within`` defines the name that ``table`` refers to."""
    name = folded(table.name)
    child: Any = table
    parent: Any = table.parent
    while parent is not None and child is not within:
        clause = parent.args.get("with_")
        if clause is not None and child is not clause:
            if any(folded(each.alias) == name for each in clause.expressions):
                return True
        elif isinstance(parent, exp.With):
            for each in parent.expressions:
                if each is child and not parent.args.get("recursive"):
                    break
                if folded(each.alias) == name:
                    return True
        child, parent = parent, parent.parent
    return False


def _names_read(query: exp.Expression) -> set[str]:
    """The names in FROM that a common table expression may have."""
    return {folded(each.name) for each in query.find_all(exp.Table) if not each.db}
