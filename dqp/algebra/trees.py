"""Walks trees of operators and makes changed copies of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from sqlglot import exp

from dqp.algebra.operators import Nested, Operator, Remote, leaves


def walk(tree: Operator) -> Iterator[Operator]:
    """The tree's operators, root first, without those of plans in expressions."""
    stack = [tree]
    while stack:
        node = stack.pop()
        yield node
        stack += reversed(node.inputs)


def plans_in(node: Operator) -> Iterator[Operator]:
    """The plans nested in a node's expressions."""
    return (each.plan for each in node.subqueries)


def walk_deep(tree: Operator) -> Iterator[Operator]:
    """As ``walk``, with each node's nested plans after the node."""
    for node in walk(tree):
        yield node
        for plan in plans_in(node):
            yield from walk_deep(plan)


def remotes(tree: Operator) -> Iterator[Remote]:
    """The remote subtrees, with those in the plans of expressions."""
    return (node for node in walk_deep(tree) if isinstance(node, Remote))


def identifiers(tree: Operator) -> Iterator[str]:
    """Every identifier that the tree or a plan in its expressions outputs."""
    for node in walk_deep(tree):
        yield from node.columns


def rewritten(tree: Operator, change: Callable[[Operator], Operator]) -> Operator:
    """The tree with ``change`` applied to every operator, children first; the same object where nothing changes."""
    inputs = [rewritten(each, change) for each in tree.inputs]
    same = all(one is other for one, other in zip(inputs, tree.inputs, strict=True))
    return change(tree if same else tree.with_inputs(*inputs))


def exchanged(tree: Operator, old: Operator, new: Operator) -> Operator:
    """The tree with another subtree in place of one object."""
    if tree is old:
        return new
    return tree.with_inputs(*(exchanged(each, old, new) for each in tree.inputs))


def used(expression: exp.Expression) -> frozenset[str]:
    """Identifiers that an expression and its nested plans need from outside."""
    names: set[str] = set()
    for node in leaves(expression):
        if isinstance(node, Nested):
            names |= free(node.plan)
        else:
            names.add(node.name)
    return frozenset(names)


def free(tree: Operator) -> frozenset[str]:
    """Identifiers that a tree uses but does not output: those that a correlated subquery takes from outside."""
    produced: set[str] = set()
    needed: set[str] = set()
    for node in walk(tree):
        produced.update(node.columns)
        for each in node.inputs:
            produced.update(each.columns)
        for expression in node.expressions:
            needed |= used(expression)
        if isinstance(node, Remote):
            needed |= free(node.tree)
    return frozenset(needed - produced)


def substituted(expression: exp.Expression, by: dict[str, exp.Expression]) -> exp.Expression:
    """The expression with columns replaced, also in nested plans."""

    def change(node: Any) -> Any:
        if isinstance(node, exp.Column) and node.name in by:
            return by[node.name].copy()
        if isinstance(node, Nested) and free(node.plan) & by.keys():
            return node.over(everywhere(node.plan, lambda each: substituted(each, by)))
        return node

    changed: exp.Expression = expression.transform(change)
    return changed


def everywhere(tree: Operator, change: Callable[[exp.Expression], exp.Expression]) -> Operator:
    """The tree with ``change`` applied to every expression of every operator."""
    return rewritten(tree, lambda each: each.with_expressions(change))
