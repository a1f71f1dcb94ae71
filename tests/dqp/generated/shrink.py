"""Makes a failing query smaller: cuts one piece after the other while it still fails in the same way.

Works on sqlglot's tree of the query, so it takes any query.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import sqlglot
from sqlglot import exp

_CLAUSES = ("where", "having", "qualify", "distinct", "offset", "group", "with", "with_", "order", "limit")
_TRUTHS = (exp.Predicate, exp.Connector, exp.Not, exp.Paren, exp.Boolean)
"""What gives way to another condition only: a number in its place would be another query."""
_LISTS = ("expressions", "joins", "ifs", "grouping_sets", "rollup", "cube")


def shrunk(sql: str, fails: Callable[[str], bool], seconds: float = 30.0) -> str:
    """The smallest query found in the time; ``fails`` says whether a query still fails in the same way."""
    end = time.monotonic() + seconds
    tree = sqlglot.parse_one(sql, dialect="duckdb")
    if not fails(tree.sql(dialect="duckdb")):
        return sql  # it does not survive being written again
    tried: set[str] = set()
    smaller = True
    while smaller:
        smaller = False
        at = 0
        while at < len(nodes := list(tree.walk())):
            for cut in _cuts(nodes[at]):
                if time.monotonic() > end:
                    return tree.sql(dialect="duckdb")
                candidate = tree.copy()
                changed = cut(list(candidate.walk())[at])
                if changed is not None:
                    candidate = changed
                try:
                    text = candidate.sql(dialect="duckdb")
                except ValueError:  # sqlglot cannot write every tree that a cut makes
                    continue
                if text in tried or len(text) >= len(tree.sql(dialect="duckdb")) or not _determined(candidate):
                    continue
                tried.add(text)
                if fails(text):
                    tree, smaller = candidate, True
                    break
            else:
                at += 1
    return tree.sql(dialect="duckdb")


def _determined(tree: exp.Expr) -> bool:
    return all(actual.parent is None or actual.parent.args.get("order") for actual in tree.find_all(exp.Limit))


Cut = Callable[[exp.Expr], exp.Expr | None]
"""Changes a node in place, or returns the tree that takes the place of the whole."""


def _cuts(node: exp.Expr) -> Iterator[Cut]:
    if isinstance(node, exp.Query):
        for at, _ in enumerate(inner for inner in node.find_all(exp.Query) if inner is not node):
            yield lambda found, at=at: _inner(found, at)  # type: ignore[misc]
        for clause in _CLAUSES:
            if node.args.get(clause):
                yield lambda found, clause=clause: found.set(clause, None)  # type: ignore[misc]
        if node.args.get("limit"):
            yield _unlimited
    for name in _LISTS:
        members = node.args.get(name)
        if isinstance(members, list):
            for at in range(len(members)):
                yield lambda found, name=name, at=at: found.set(
                    name, [*found.args[name][:at], *found.args[name][at + 1 :]]
                )  # type: ignore[misc]
    if isinstance(node, exp.Condition) and node.parent is not None and not isinstance(node, exp.Column | exp.Literal):
        truth = isinstance(node, _TRUTHS)
        for at, child in enumerate(node.iter_expressions()):
            if isinstance(child, _TRUTHS if truth else exp.Condition):
                yield lambda found, at=at: _replaced(found, list(found.iter_expressions())[at])  # type: ignore[misc]
        if not isinstance(node, exp.Subquery | exp.Boolean):
            yield lambda found: _replaced(found, exp.true() if truth else exp.Literal.number(1))
    if isinstance(node, exp.Alias) and node.parent is not None:
        yield lambda found: _replaced(found, found.this)


def _inner(found: exp.Expr, at: int) -> exp.Expr | None:
    """A query gives way to one inside it; the CTEs stay."""
    inner = [query for query in found.find_all(exp.Query) if query is not found][at]
    taken = inner.copy()
    key = "with_" if found.args.get("with_") else "with"
    if found.args.get(key) and not taken.args.get(key):
        taken.set(key, found.args[key].copy())
    if isinstance(taken, exp.Subquery):
        taken = taken.this
    if found.parent is None:
        return taken
    found.replace(taken)
    return None


def _unlimited(found: exp.Expr) -> None:
    for clause in ("limit", "offset", "order"):
        found.set(clause, None)


def _replaced(found: exp.Expr, other: exp.Expr) -> None:
    found.replace(other.copy())
