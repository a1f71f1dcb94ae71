"""Finds the expression that defines a column of a tree, and says whether two columns certainly have the same type."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from sqlglot import exp

from dqp.algebra.operators import Aggregate, Join, Nested, Operator, Project, SetOperation
from dqp.planning.context import Context
from dqp.planning.predicates import bare

BRANCHES = 16
"""Of a tree of set operations that are looked at."""
_INT32 = 2**31


def same_type(one: Operator, name: str, other: Operator, other_name: str, context: Context) -> bool:
    """Whether the column ``name`` of one tree and ``other_name`` of the other certainly have the same type: both types
    are known, or the same operations make both of columns and constants of the same types."""
    types = context.types.get(name), context.types.get(other_name)
    if None not in types:
        return types[0] == types[1]
    first, second = _definition(one, name, context), _definition(other, other_name, context)
    return first is not None and second is not None and _alike(*first, *second, context)


def _definition(tree: Operator, name: str, context: Context) -> tuple[Operator, exp.Expression] | None:
    """The expression that makes the column, and the tree whose columns it uses; None where there is none."""
    while True:
        if isinstance(tree, Project | Aggregate):
            items = dict(tree.items) if isinstance(tree, Project) else dict((*tree.keys, *tree.aggregates))
            node = bare(items[name])
            if not isinstance(node, exp.Column):
                return tree.input, node
            tree, name = tree.input, node.name
        elif isinstance(tree, SetOperation):
            (first, own), *others = list(islice(_branches(tree, tree.names.index(name)), BRANCHES))
            if len(others) == BRANCHES - 1 or not all(same_type(first, own, *each, context) for each in others):
                return None
            tree, name = first, own
        elif len(tree.inputs) != 1 and not isinstance(tree, Join):
            return None
        elif isinstance(tree, Join):
            tree = tree.left if name in tree.left.columns else tree.right
        else:
            (tree,) = tree.inputs
        if name not in tree.columns:
            return None


def _branches(tree: Operator, at: int) -> Iterator[tuple[Operator, str]]:
    """The inputs of a tree of set operations, each with the name of its column at this place."""
    if isinstance(tree, SetOperation):
        yield from _branches(tree.left, at)
        yield from _branches(tree.right, at)
    else:
        yield tree, tree.columns[at]


def _alike(one: Operator, node: exp.Expression, other: Operator, another: exp.Expression, context: Context) -> bool:
    """Whether two expressions over the columns of two trees are the same operations on the same types."""
    node, another = bare(node), bare(another)
    if isinstance(node, exp.Column) and isinstance(another, exp.Column):
        return same_type(one, node.name, other, another.name, context)
    if type(node) is not type(another) or isinstance(node, Nested | exp.Column | exp.Anonymous):
        return False
    if isinstance(node, exp.Literal):
        return (_text(node) and _text(another)) or node == another or (_int32(node) and _int32(another))
    if node.args.keys() != another.args.keys():
        return False
    return all(_same(one, mine, other, another.args[key], context) for key, mine in node.args.items())


def _same(one: Operator, mine: Any, other: Operator, theirs: Any, context: Context) -> bool:
    if isinstance(mine, list) and isinstance(theirs, list):
        return len(mine) == len(theirs) and all(
            _same(one, each, other, another, context) for each, another in zip(mine, theirs, strict=True)
        )
    if isinstance(mine, exp.Expression) and isinstance(theirs, exp.Expression):
        return _alike(one, mine, other, theirs, context)
    return bool(mine == theirs)


def _text(node: exp.Expression) -> bool:
    return isinstance(node, exp.Literal) and node.is_string


def _int32(node: exp.Expression) -> bool:
    return isinstance(node, exp.Literal) and not node.is_string and node.name.isdigit() and int(node.name) < _INT32
