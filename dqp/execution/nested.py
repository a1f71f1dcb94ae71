"""Nested values go from one fragment to another as JSON, which Arrow carries as text.

JSON has no bytes, bits or large numbers, and objects have texts as keys; DuckDB writes a DECIMAL(18,18) as ``.5``,
which is not JSON. So a value is cast to the type ``carried`` before it becomes JSON and again when it is read: a value
that JSON cannot hold is DuckDB's own text there.
"""

from __future__ import annotations

from typing import Any

from dai.drivers.duckdb.types import arrow_type
from dai.errors import StatementError
from dqp.algebra.operators import quoted

_LISTS = frozenset({"list", "array"})
_NESTED = frozenset({"struct", "map", "union", "tuple", "variant"})
_TEXTS = frozenset({"blob", "bit", "bignum"})
_TEXT = "VARCHAR"


def carried(type: Any) -> str | None:
    """The type as which values of a DuckDB type (``DuckDBPyType``) become JSON; None where they travel as they are.
    Raises StatementError for what would come back as something else."""
    inner = type
    while inner.id in _LISTS:
        inner = inner.children[0][1]
    if inner.id in _NESTED or (type.id in _LISTS and arrow_type(type)[1].startswith("CAST(to_json(")):
        return _carried(type)
    return None


def _carried(type: Any) -> str:
    kind = type.id
    if kind in _TEXTS or str(type) == "JSON" or (kind == "decimal" and type.children[0][1] == type.children[1][1]):
        return _TEXT
    if kind == "list":
        return f"{_carried(type.children[0][1])}[]"
    if kind == "array":
        (_, child), (_, size) = type.children
        return f"{_carried(child)}[{size}]"
    if kind == "map":
        (_, key), (_, item) = type.children
        return f"MAP({_key(key)}, {_carried(item)})"
    if kind == "tuple":
        return f"TUPLE({', '.join(_carried(each) for _, each in type.children)})"
    if kind in ("struct", "union"):
        # The first child of a union is its tag, which has no name.
        items = (f"{quoted(name)} {_carried(each)}" for name, each in type.children if name or kind == "struct")
        return f"{kind.upper()}({', '.join(items)})" if type.children else kind.upper()
    if kind == "variant":
        raise _refused("VARIANT", "JSON")
    return str(type)


def _key(type: Any) -> str:
    """Of a map: DuckDB's text, where it is not a plain value."""
    if _has_union(type):
        raise _refused("MAP with a UNION in its keys", _TEXT)
    return _TEXT if type.id in _NESTED | _LISTS else _carried(type)


def _has_union(type: Any) -> bool:
    if type.id in ("union", "variant"):
        return True
    if type.id in _LISTS:
        return _has_union(type.children[0][1])
    return type.id in _NESTED and any(_has_union(each) for _, each in type.children)


def _refused(what: str, instead: str) -> StatementError:
    return StatementError(
        f"A {what} within the query cannot be sent from one of its fragments to another.",
        hint=f"CAST it AS {instead} in the expression that computes it.",
    )
