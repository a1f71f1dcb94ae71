"""Every entry of every dialect's whitelist on edge values: the source's answer is DuckDB's, errors too."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce
from typing import Any

import pytest
from sqlglot import exp

from dqp.algebra.dialects import DIALECTS
from dqp.algebra.operators import Aggregate, Distinct, Filter, Operator, Project, SetOperation, Sort, column
from dqp.sql import dialects
from dqp.sql.dialects import NotPushed
from tests.dqp.dialects.edges import ORDER, Edge, differences, expression, kinds, same, signed

_CONSTANTS = {
    "tinyint": ["0", "5", "127", "300", "-1", "1.5"],
    "utinyint": ["0", "5", "255", "300", "-1"],
    "smallint": ["0", "5", "32767", "40000", "-1"],
    "usmallint": ["0", "5", "65535", "-1"],
    "integer": ["0", "5", "2147483647", "-2147483648", "3000000000", "1.5"],
    "uinteger": ["0", "5", "4294967295", "-1"],
    "bigint": ["0", "5", "9223372036854775807", "-1", "9007199254740992", "0.5"],
    "ubigint": ["0", "5", "9223372036854775807"],
    "hugeint": ["0", "5"],
    "decimal": ["0", "1", "0.05", "0.070", "123.450", "9999999999999.99", "-0.01", "0.055"],
    "float": [],
    "double": ["0", "1.5", "0.1", "1e300", "-1.5", "0.30000000000000004", "9007199254740993"],
    "varchar": ["'a'", "'A'", "''", "'a '", "'o''x'", "'b\\c'", "'á'", "'ss'", "'100%'", "'👍🏽x'", "'1994-01-01'"],
    "date": ["date '1970-01-01'", "'1994-01-01'", "date '2000-01-31' + interval 1 month",
             "timestamp '1970-01-01 01:00'"],
    "timestamp": ["timestamp '1970-01-01 00:00:00'", "'1994-01-01'", "date '2000-02-29'"],
    "timestamptz": ["timestamptz '2000-02-29 12:30:00.5+00'", "'1994-01-01'", "date '1994-01-01'",
                    "'2024-12-31 20:00:00.000001-03'", "timestamp '2000-02-29 12:30:00.5'"],
    "uuid": ["'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'", "'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'", "'a'", "''"],
    "char": ["'a'", "'a    '", "'A'", "''", "'     '", "'ab   '", "'ab'", "'á'", "'日本   '"],
    "enum": ["'a'", "'A'", "''", "'nothing'"],
    "inet": ["'10.0.0.1'", "'10.0.0.1/32'", "'10.0.0.0/8'", "''"],
    "boolean": [],
    "blob": [],
    "time": [],
}  # fmt: skip
_PATTERNS = [
    "a%",
    "%a",
    "_",
    "__",
    "a_b",
    "%\\%",
    "b\\c",
    "100%",
    "%'%",
    "",
    "%",
    "%[b]",
    "%|%",
    "a?*%",
    "é",
    "%á%",
    "x%x",
]
_COMPARISONS = {"=", "<>", "<", "<=", ">", ">="}


def cases(operation: str, kind: str, of: list[str]) -> list[str]:
    """Expressions that use the entry; a KeyError where somebody added one without edge values. ``of``: the kinds that
    the dialect's columns have."""
    x, y = f"{kind}_x", f"{kind}_y"
    constants = _CONSTANTS.get(kind, [])
    if operation in _COMPARISONS:
        texts = [f"{x} {operation} {y}", *(f"{x} {operation} {each}" for each in constants)]
        texts += [f"{each} {operation} {y}" for each in constants[:2]]
        texts += [f"not ({x} {operation} {y})", f"case when {x} {operation} {y} then 1 else 2 end"]
        if operation == "=" and constants:
            texts += [f"{x} in ({', '.join(constants)})", f"{x} in ({constants[0]}, NULL)", f"nullif({x}, {y})"]
            texts += [
                f"{x} not in ({', '.join(constants)})",
                f"case {x} when {constants[0]} then 1 when {y} then 2 end",
            ]
        if operation in ("<=", ">=") and constants:
            texts += [f"{x} between {constants[0]} and {constants[1]}"]
        if kind in ("integer", "bigint") and "decimal" in of:
            texts += [f"{x} {operation} decimal_y", f"decimal_x {operation} {y}"]
        if kind in ("smallint", "bigint"):
            texts += [f"{x} {operation} {other}_y" for other in of if other.endswith("int") and other[0] != "u"]
        if kind == "date" and "timestamp" in of:
            texts += [f"{x} {operation} timestamp_y"]
        return texts
    simple = {
        "like": [f"{x} like '{each.replace(chr(39), chr(39) * 2)}'" for each in _PATTERNS]
        + [f"{x} not like 'a%'"],
        "case": [f"case when id < 9 then {x} else {y} end", f"coalesce({x}, {y})", f"nullif({x}, {y})",
                 f"case when id < 9 then {x} end", *(f"coalesce({x}, {each})" for each in constants[:2])],
        "+": [f"{x} + {y}", f"{x} + 1", f"1 + {x} + {y}"],
        "-": [f"{x} - {y}", f"1 - {x}", f"{x} - 1"],
        "*": [f"{x} * {y}", f"{x} * 2", f"{x} * (1 - {y})"],
        "/": [f"{x} / {y}", f"1 / {x}", f"id / {x}", f"-1.5 / {x}", f"0.07 * id / {x}", f"{x} / {y} is null"],
        "/ constant": [f"{x} / 7.0", f"{x} / -3", f"{x} / 0.1 * 0.3", f"{x} / 1e10", f"{x} / 0.3 < 5.5",
                       *(f"{each}_x / 7.0" for each in of if each in ("integer", "bigint", "decimal"))],
        "//": [f"{x} // 3", f"{x} // {y}"],
        "%": [f"{x} % 3", f"{x} % {y}"],
        "neg": [f"-{x}", f"-(-{x})"],
        "abs": [f"abs({x})"],
        "||": [f"{x} || {y}", f"{x} || 'é'", f"'o''x' || {x}"],
        "substring": [f"substr({x}, 1, 1)", f"substring({x}, 2, 3)", f"substr({x}, 1, 0)", f"left({x}, 2)",
                      f"substr({x}, 1, 1) = 'a'"],
        "substring from": [f"substr({x}, 1)", f"substr({x}, 3)"],
        "length": [f"length({x})"],
        "year": [f"year({x})", f"extract(year from {x})", f"extract(year from {x}) = 1970"],
        "month": [f"month({x})"],
        "day": [f"day({x})"],
        "quarter": [f"quarter({x})"],
        **{f"trunc to {part}": [f"date_trunc('{part}', {x})"] for part in ("year", "quarter", "month", "week", "day")},
        **{f"as {to}": [f"cast({x} as {to})"] for to in ("integer", "bigint", "double", "timestamp", "varchar")},
    }  # fmt: skip
    if operation == "/" and kind == "bounded":
        return [*simple[operation], f"{x} / ({y} * -1.5)", f"1 / (0.5 - {x})"]
    if operation == "*" and kind == "decimal":
        return [f"{x} * 2", f"{x} * (1 - {y})", f"{x} * {y}", f"{x} * (1 - decimal_x) * (1 + {y})", f"{x} * 0.5"]
    return simple[operation]


_AGGREGATES = {
    "sum": ["sum({x})", "sum({x}) filter (where g = 1)", "sum(case when g = 1 then {x} end)"],
    "sum distinct": ["sum(distinct {x})"],
    "avg": ["avg({x})", "avg({x}) filter (where g = 1)", "avg(case when g = 1 then {x} end)"],
    "avg distinct": ["avg(distinct {x})", "avg(distinct {x}) filter (where g = 1)"],
    "min": ["min({x})", "min({x}) filter (where g = 1)"],
    "max": ["max({x})", "max({x}) filter (where g = 1)"],
    "logicaland": ["bool_and({x})"],
    "logicalor": ["bool_or({x})"],
}


OPERATIONS = sorted({operation for each in DIALECTS.values() for operation, _ in each.OPERATIONS})


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_entry_is_duckdbs(edges: Edge, operation: str) -> None:
    differing: list[str] = []
    of = [kind for name, kind in DIALECTS[edges.dialect].OPERATIONS if name == operation]
    if operation in _AGGREGATES:
        differing += aggregated_side_by_side(edges, of, operation)
        of = []
    for kind in of:
        if operation == "group":
            differing += grouped(edges, kind)
        elif operation == "order":
            differing += sorted_by(edges, kind)
        else:
            differing += computed_all(edges, kind, operation)
    assert not differing, "\n".join(differing[:400])


AS_TEXT = ["=", "<>", "<", "<=", ">", ">=", "like", "case", "||", "substring", "length", "group", "order", "min", "max"]


@pytest.mark.parametrize("kind", ["uuid", "char", "enum", "inet"])
def test_what_arrives_as_text_is_computed_with_as_text(edges: Edge, kind: str) -> None:
    if kind not in kinds(edges.dialect):
        pytest.skip(f"{edges.dialect} has no {kind}")
    differing: list[str] = []
    for operation in AS_TEXT:
        if operation in _AGGREGATES:
            differing += aggregated(edges, [kind], operation)
        elif operation == "group":
            differing += grouped(edges, kind)
        elif operation == "order":
            differing += sorted_by(edges, kind)
        else:
            differing += computed_all(edges, kind, operation)
    assert not differing, "\n".join(differing[:400])


def computed_all(edges: Edge, kind: str, operation: str) -> list[str]:
    pushed: list[str] = []
    reasons: set[str] = set()
    for text in cases(operation, kind, kinds(edges.dialect)):
        try:
            dialects.statement(values(edges, kind, [text]), edges.dialect)
        except NotPushed as reason:
            reasons.add(str(reason))  # its constants are not for this entry
        else:
            pushed.append(text)
    if not pushed:
        return [f"no case of {operation} on {kind} was pushed: {'; '.join(sorted(reasons))}"]
    return computed_together(edges, kind, pushed)


def values(edges: Edge, kind: str, texts: list[str]) -> Operator:
    items = (("id", column("id")), *((f"value{at}", expression(text)) for at, text in enumerate(texts)))
    return Project(edges.source(kind, *texts), items)


BIGINT = 2**40
"""Constants above are of this type, and unions of columns of it are computed everywhere."""


def computed_together(edges: Edge, kind: str, texts: list[str]) -> list[str]:
    """All in one statement, and all that are conditions in another. Where DuckDB has an error, or a source another
    answer, each is asked for itself."""
    tree = values(edges, kind, texts)
    if edges.expected(tree) is None:
        bad = [each for each in texts if edges.expected(values(edges, kind, [each])) is None]
        good = [each for each in texts if each not in bad]
        alone = [one for each in bad or good for one in computed(edges, kind, each)]
        return [*alone, *computed_together(edges, kind, good)] if bad and good else alone
    if difference := differences(tree, edges, equal=exact(edges)):
        return [one for each in texts for one in computed(edges, kind, each)] or difference
    types = [type for _, type in edges.types(tree)[1:]]
    conditions = [text for text, type in zip(texts, types, strict=True) if type == "BOOLEAN"]
    kept: list[Operator] = [
        Project(
            Filter(edges.source(kind, text), expression(text)),
            (("id", column("id")), ("text", exp.convert(BIGINT + at))),
        )
        for at, text in enumerate(conditions)
    ]
    union = partial(SetOperation, kind="union", all=True, names=("id", "text"))
    if difference := differences(reduce(union, kept), edges) if kept else []:
        return [one for each in conditions for one in computed(edges, kind, each)] or difference
    return []


def computed(edges: Edge, kind: str, text: str) -> list[str]:
    source = edges.source(kind, text)
    items = (("id", column("id")), ("value", expression(text)))
    tree = Project(source, items)
    compared = partial(differences, edges=edges, equal=exact(edges))
    difference = compared(tree)
    if difference or edges.expected(tree) is None:
        # An error of one row hides the others.
        bad = failing(edges, source, text)
        rows = [f"id not in ({', '.join(map(str, bad))})" if bad else "id >= 0", *(f"id = {n}" for n in bad)]
        single = [each for row in rows for each in compared(Project(Filter(source, expression(row)), items))]
        return [each for each in single or difference if not is_liberty(edges, text, each)]
    if str(edges.types(tree)[1][1]) == "BOOLEAN":
        kept = Project(Filter(source, expression(text)), (("id", column("id")),))
        return differences(kept, edges)
    return []


def failing(edges: Edge, source: Operator, text: str) -> list[int]:
    """The rows for each of which DuckDB has an error."""
    bad = edges.expected(Project(Filter(source, expression(f"try(hash({text})) is null")), (("id", column("id")),)))
    assert bad is not None
    return [*bad["id"].to_pylist()]


def exact(edges: Edge) -> Callable[[Any, Any], bool]:
    """MariaDB has no negative zero."""
    return same if edges.dialect in ("mariadb", "mysql") else signed


def is_liberty(edges: Edge, text: str, difference: str) -> bool:
    """MariaDB gives the exact answer where an intermediate decimal has more digits than DuckDB's type."""
    alone = difference.startswith("DuckDB alone has an error")
    return alone and edges.dialect in ("mariadb", "mysql") and "decimal" in text and text.count("*") > 1


FLOATING = ("double", "float")


def aggregated_side_by_side(edges: Edge, of: list[str], operation: str) -> list[str]:
    """All kinds of the dialect's columns in one statement, those that are made from others alone."""
    own = [kind for kind in of if kind in kinds(edges.dialect)]
    exactly = [kind for kind in own if kind not in FLOATING]
    nearly = [kind for kind in own if kind in FLOATING]
    groups = [exactly, nearly, *([kind] for kind in of if kind not in own)]
    return [one for group in groups if group for one in aggregated(edges, group, operation)]


def aggregated(edges: Edge, of: list[str], operation: str) -> list[str]:
    """Where DuckDB has an error, or a source another answer, each kind is asked for itself."""
    equal = ORDER if of[0] in FLOATING else exact(edges)
    texts = [each.format(x=f"{kind}_x") for kind in of for each in _AGGREGATES[operation]]
    columns = {"id", "g", *(f"{kind}_{name}" for kind in of for name in "xy")}
    differing: list[str] = []
    for where in ("true", "id < 0", "id = 4"):
        source = edges.source(of[0]) if len(of) == 1 else edges.scan(only=columns)
        source = Filter(source, expression(where)) if where != "true" else source
        for keys in ((), (("g", column("g")),)):
            together = _aggregate(source, keys, texts)
            right = edges.expected(together)
            if right is not None:
                differing += differences(together, edges, equal=equal)
            if len(of) > 1 and (right is None or differing):
                return [one for kind in of for one in aggregated(edges, [kind], operation)] or differing
            if right is None:  # which of them has no answer, the source shall say, too
                for text in texts:
                    differing += differences(_aggregate(source, keys, [text]), edges, equal=equal)
    return differing


def _aggregate(source: Operator, keys: tuple[tuple[str, exp.Expression], ...], texts: list[str]) -> Operator:
    return Aggregate(source, keys, tuple((f"value{at}", expression(text)) for at, text in enumerate(texts)))


def grouped(edges: Edge, kind: str) -> list[str]:
    source = edges.source(kind)
    x = column(f"{kind}_x")
    count = (("n", expression("count(*)")), ("m", expression(f"count({kind}_y)")), ("low", expression("min(id)")))
    distinct = expression(f"count(distinct {kind}_x)")
    differing = differences(Aggregate(source, (("key", x),), count), edges)
    some, by_order = f"count(distinct {kind}_x) filter (where g = 1)", f"count(distinct {kind}_x order by {kind}_x)"
    several = (("n", distinct), ("f", expression(some)), ("o", expression(by_order)))
    differing += differences(Aggregate(source, (), several), edges)
    differing += differences(Aggregate(source, (("g", column("g")),), (("n", distinct),)), edges)
    differing += differences(Distinct(Project(source, (("key", x),))), edges)
    return differing


def sorted_by(edges: Edge, kind: str) -> list[str]:
    source = edges.source(kind)
    differing = []
    for desc in (False, True):
        for first in (False, True):
            key = exp.Ordered(this=column(f"{kind}_x"), desc=desc, nulls_first=first)
            last = exp.Ordered(this=column("id"), desc=False, nulls_first=False)
            differing += differences(Sort(source, (key, last)), edges, ordered=True)
            differing += differences(Sort(source, (key, last), 5, 3), edges, ordered=True)
    return differing
