"""Columns whose database has structs or maps in them arrive as text, as JSON. What DuckDB would do with the text
(``len``: its characters) is not what it does with a list: such a query is an error that says what to write."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from sqlglot import exp

from dai.errors import StatementError
from dqp.algebra.operators import Operator, Project, Scan, Verbatim
from dqp.algebra.trees import walk_deep

_STRUCTURED = re.compile(r"(?:struct|map|union)\b", re.I)
_OF_LISTS = frozenset({"list_extract", "array_extract", "list_element", "list_slice", "array_slice"})


def check(tree: Operator) -> None:
    """StatementError where a query takes such a column for a list, a struct or a map."""
    nodes = [*walk_deep(tree)]
    found: dict[str, tuple[str, str]] = {}
    for node in reversed(nodes):
        if isinstance(node, Scan):
            for identifier, name in node.items:
                column = node.table.column(name)
                if column.type == "VARCHAR" and _STRUCTURED.match(column.source_type):
                    found[identifier] = (name, column.source_type)
        elif isinstance(node, Project):
            for identifier, value in node.items:
                if isinstance(value, exp.Column) and value.name in found:
                    found[identifier] = found[value.name]
    for node in nodes if found else ():
        if isinstance(node, Verbatim):
            pairs = [pair for pairs in node.exposed for pair in pairs]
            others = {name for name, identifier in pairs if identifier not in found}
            named = {name: found[identifier] for name, identifier in pairs if identifier in found}
            others |= set(_other_names(node.query))
            _check(node.query, {name: each for name, each in named.items() if name not in others})
        else:
            for expression in node.expressions:
                _check(expression, found)


def _other_names(query: exp.Expression) -> Iterator[str]:
    """Names that a query within gives to something else: such a name may not be that of the column."""
    for each in query.find_all(exp.Alias, exp.TableAlias):
        if isinstance(each, exp.TableAlias):
            yield from (column.name for column in each.columns)
        elif each.parent is not query and not (isinstance(each.this, exp.Column) and each.this.name == each.alias):
            yield each.alias


def _check(node: exp.Expression, found: Mapping[str, tuple[str, str]]) -> None:
    for each in node.find_all(exp.Length, exp.Bracket, exp.ArraySlice, exp.Anonymous):
        called = isinstance(each, exp.Anonymous)
        if called and each.name.lower() not in _OF_LISTS:
            continue
        operand = next(iter(each.expressions), None) if called else each.this
        if isinstance(operand, exp.Column) and (column := found.get(operand.name)) is not None:
            name, kind = column
            what = kind.partition("(")[0].rstrip("[]")
            what = f"a list of {what}s" if kind.endswith("[]") else f"a {what}"
            raise StatementError(
                f"{name} is {what}, which arrives here as text (JSON).",
                hint=f"Read it by {name}->>'field', {name}->0 or json_array_length({name}).",
            )
