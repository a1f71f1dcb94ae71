"""SQL expressions over tuples: parsed, bounded to expressions, and written anew for DuckDB.

What is run is what was checked: the expression is rendered from its tree. It names columns of the tuples, literals and
the operators and functions of ``_ALLOWED``; no subquery, table function, parameter or setting.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import sqlglot
from sqlglot import exp
from sqlglot.errors import ParseError, SqlglotError

from dai.errors import ParameterError
from dai.plugins import nearest

MOST_CHARACTERS = 10_000
MOST_JOINED = 64
"""Columns that become parts of texts in one activity: so many times longer than the tuples its result may be."""
_WORD = re.compile("[A-Za-z_]+")
_ALLOWED = frozenset(
    """
    column identifier literal boolean null paren var datatype datatypeparam neg not and or xor
    eq neq nullsafeeq nullsafeneq gt gte lt lte is in between like ilike distinct tuple
    add sub mul div intdiv mod pow dpipe bitwiseand bitwiseor bitwisexor bitwisenot interval
    case if cast trycast coalesce nullif greatest least abs ceil floor round sign sqrt cbrt exp ln log
    sin cos tan asin acos atan atan2 upper lower trim length substring left right concat startswith endswith contains
    strposition regexplike extract year month day hour minute second datetrunc timestamptrunc datediff dateadd
    """.split()
)
"""Nodes by the key that sqlglot gives them. Not here: what makes long texts of short ones (repeat, replace, pad)."""
_AGGREGATES = frozenset(
    """
    count countif sum avg min max median stddev stddevpop stddevsamp variance variancepop first last anyvalue
    logicaland logicalor approxdistinct star filter where
    """.split()
)


def expressions(texts: Iterable[str], columns: list[str], *, aggregates: bool = False) -> list[str]:
    """The expressions for DuckDB. ParameterError says what does not belong in them. ``aggregates``: each is one value
    of many tuples; otherwise of one."""
    trees = [_parsed(text, columns, aggregates) for text in texts]
    joined = sum(1 for tree in trees for each in tree.find_all(exp.Column) if each.find_ancestor(exp.DPipe, exp.Concat))
    if joined > MOST_JOINED:
        raise ParameterError(f"The expressions concatenate {joined:,} columns; {MOST_JOINED} are allowed.")
    return [str(tree.sql("duckdb", comments=False)) for tree in trees]


def _parsed(text: str, columns: list[str], aggregates: bool) -> exp.Expr:
    if len(text) > MOST_CHARACTERS:
        raise ParameterError(f"The expression has more than {MOST_CHARACTERS:,} characters.")
    try:
        tree = sqlglot.parse_one(text, read="duckdb")
        for node in tree.walk():
            _check(node, columns, aggregates)
        if aggregates and tree.find(exp.AggFunc) is None:
            raise ParameterError(f"{_cut(text)} is not an aggregate.", hint="Use count, sum, min, max or avg.")
        return tree
    except SqlglotError as error:
        raise ParameterError(f"This is not an SQL expression: {_cut(text)} ({_reason(error)}).") from error
    except RecursionError as error:
        raise ParameterError("The expression is nested too deeply.") from error


def _reason(error: SqlglotError) -> str:
    """Without the names of sqlglot's classes."""
    problem = error.errors[0] if isinstance(error, ParseError) and error.errors else {}
    said = problem.get("description") or str(error).partition("\n")[0]
    near = f" near {_cut(problem['highlight'])}" if problem.get("highlight") else ""
    return f"something is missing{near}" if "<class" in said else f"{said.rstrip('.')}{near}"


def column(name: str, columns: list[str]) -> str:
    """The column of that name, in SQL."""
    return str(exp.to_identifier(column_named(name, columns), quoted=True).sql("duckdb"))


def column_named(name: str, columns: list[str]) -> str:
    """The column of that name: written so, or, if there is only one, with letters of another case."""
    if columns.count(name) == 1:
        return name
    same = [each for each in columns if each.casefold() == name.casefold()]
    if len(same) == 1:
        return same[0]
    if same:
        raise ParameterError(f"{len(same)} columns have the name {name!r}.", hint="Rename them in the query (AS).")
    raise ParameterError(f"The tuples have no column {name!r}.", hint=nearest(name, columns) if columns else None)


def _check(node: exp.Expr, columns: list[str], aggregates: bool) -> None:
    if (isinstance(node, exp.Var) and not _WORD.fullmatch(node.name)) or node.args.get("kind") is not None:
        # these are written into the SQL as they stand
        raise ParameterError(f"{_cut(node.name)} is neither a unit nor a type.", hint="A unit is a word, such as year.")
    if isinstance(node, exp.Column):
        if node.table or isinstance(node.this, exp.Star):
            raise ParameterError(f"{_cut(node.sql('duckdb'))}: write the column without a table.")
        node.set("this", exp.to_identifier(column_named(node.name, columns), quoted=True))
    elif node.key not in _ALLOWED and not (aggregates and node.key in _AGGREGATES):
        what = f"{node.name}()" if isinstance(node, exp.Anonymous) else _cut(node.sql("duckdb"))
        only = "" if aggregates or node.key not in _AGGREGATES else " An aggregate belongs in TupleGroupBy."
        raise ParameterError(
            f"{what} is not allowed in an expression over tuples.{only}",
            hint="Use columns, literals, operators, CASE, CAST and functions of one value.",
        )


def _cut(text: str) -> str:
    return repr(text if len(text) <= 80 else f"{text[:80]}…")
