"""Binds a whole statement: ``bind`` makes a tree of operators from SQL text.

DuckDB checks the query and names its columns (``Catalog.describe``, the validator). The binder resolves each name and
expresses the query in operators. A part that the operators do not cover is no error: the smallest query expression
around it that can run alone becomes a ``Verbatim``.

``bind`` is exact: the rendered tree means what the query means. The rules make it fast.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from itertools import pairwise
from typing import Any

import pyarrow as pa
from sqlglot import exp
from sqlglot.dialects.duckdb import DuckDB
from sqlglot.errors import ParseError
from sqlglot.parsers.duckdb import DuckDBParser
from sqlglot.tokenizer_core import Token, TokenType

from dai.errors import LimitError, NotAQueryError, StatementError
from dqp.algebra.chains import balanced
from dqp.algebra.functions import REVEALING
from dqp.algebra.operators import Names, Operator, SetOperation, Sort, column
from dqp.binding import structs
from dqp.binding.common_tables import reads_itself
from dqp.binding.expressions import IN_LIST, Expressions
from dqp.binding.from_clause import values
from dqp.binding.marks import marked, settled
from dqp.binding.parameters import Parameters, Statement, read, tokens
from dqp.binding.scope import Output, Relation, Scope, Unmodelled, folded, only
from dqp.binding.select import Select, is_constant, limits, ordered, position_of
from dqp.binding.statement import Binder, Cte, Ctes, Shape
from dqp.binding.verbatim import verbatim
from dqp.catalog.catalog import Catalog

DEEPEST = 60
"""Lists in lists in a column of an answer: Arrow takes 64 levels of anything."""
MOST_READ = 2_000
"""Names in FROM. Each use of a view or of a name of WITH counts the names in its query again."""
MOST_SETS = 256
"""Grouping sets of one GROUP BY."""
_SET = frozenset("with_ this expression distinct order limit offset".split())
_SUBQUERY = frozenset("with_ this alias order limit offset".split())
_KINDS: dict[type[exp.Expression], Any] = {exp.Union: "union", exp.Intersect: "intersect", exp.Except: "except"}


@dataclass(frozen=True)
class Bound:
    """``names`` are the columns as the user gets them (a name may repeat), ``types`` DuckDB's; the tree's columns match
    by position. ``statement``: ``query``, ``explain`` or ``explain analyze``; ``form`` of the plan that these give."""

    tree: Operator
    names: tuple[str, ...]
    types: tuple[str, ...]
    statement: str
    placed: Callable[[StatementError], StatementError]
    """Translates the position of an error in the bound text to the position in the text that the user sent."""
    form: str | None = None
    reusable: bool = False
    """Whether the literals that stand for parameters are marked, so that others may take their place."""


def bind(sql: str, catalog: Catalog, parameters: Parameters = (), marks: Mapping[str, str] | None = None) -> Bound:
    """The operators of one query, perhaps with EXPLAIN or EXPLAIN ANALYZE before it.

    ``parameters``: a sequence for ``?`` and ``$1``, a mapping for ``$name`` and ``:name``; a sequence as a value is a
    list, after IN the list of values. ``marks``: texts of literals that may be marked (``dqp.binding.marks``). Raises
    StatementError with the position in ``sql`` for what is no valid query, NotAQueryError for anything but one query,
    ParameterError, DatabaseUnavailableError for a source that is needed.
    """
    statement = read(sql, parameters)
    if statement.lists:
        try:
            return _bound(statement, catalog, {})
        except StatementError as error:
            # DuckDB casts a constant to the type it is compared with, a text to a date for example, but no column.
            try:
                statement = read(sql, parameters, None)
            except LimitError:
                raise error from None
    return _bound(statement, catalog, {} if statement.lists else marks or {})


def _bound(statement: Statement, catalog: Catalog, marks: Mapping[str, str]) -> Bound:
    try:
        _nothing_telling(statement.tokens, statement.text)
        shape = catalog.describe(statement.text)
        _not_too_deep(shape)
        parsed, reusable = _with_marks(statement, marks)
        output = StatementBinder(catalog, statement.lists).statement(parsed, shape)
        structs.check(output.tree)
    except StatementError as error:
        if statement.text is statement.written and (error.position is None or error.extra.get("excerpt")):
            raise
        raise statement.error(error) from error
    names, types = (tuple(each) for each in zip(*shape, strict=True))
    return Bound(output.tree, names, types, statement.kind, statement.error, statement.form, reusable)


def _with_marks(statement: Statement, marks: Mapping[str, str]) -> tuple[exp.Expression, bool]:
    """The syntax tree with marks at the literals of parameters, and whether it has them."""
    sql_tokens = marked(statement, marks)
    if sql_tokens is not None:
        with suppress(StatementError, ValueError):
            query = _parsed(sql_tokens, statement.text)
            if settled(query, len(statement.values)):
                return query, True
    return _parsed(statement.tokens, statement.text), False


def _not_too_deep(shape: Shape) -> None:
    for number, (_, type) in enumerate(shape, 1):
        if (depth := type[len(type.rstrip("[]")) :].count("[]")) > DEEPEST:
            raise LimitError(
                f"Column {number} of the answer has lists in lists, {depth} levels deep; the limit is {DEEPEST}.",
                hint="Take the lists apart with unnest, or CAST the column AS VARCHAR.",
            )


def _nothing_telling(sql_tokens: tuple[Token, ...], sql: str) -> None:
    for token, following in pairwise(sql_tokens):
        if following.token_type == TokenType.L_PAREN and token.text.lower() in REVEALING:
            raise StatementError(
                f"The function {token.text} is not allowed: it gives information about the server.",
                sql=sql,
                position=token.start + 1,
            )


def _parsed(sql_tokens: tuple[Token, ...], sql: str) -> exp.Expression:
    """The syntax tree of one query that DuckDB has accepted."""
    text = _marked(sql_tokens, sql)
    try:
        queries = _Dialect().parser().parse(list(sql_tokens) if text is sql else tokens(text), text)
    except ParseError as error:
        problem = error.errors[0] if error.errors else {}
        position = None
        if text is sql and problem.get("line"):
            lines = sql.split("\n")[: problem["line"] - 1]
            position = sum(len(each) + 1 for each in lines) + max(
                problem.get("col", 1) - len(problem.get("highlight") or "") + 1, 1
            )
        raise StatementError(
            "The federation does not support this syntax yet.",
            sql=sql,
            position=position,
            hint="Write the query without it.",
        ) from error
    if len(queries) != 1 or not isinstance(queries[0], exp.Query | exp.Values | exp.Pivot):
        raise NotAQueryError("This is not a query; nothing was run.", sql=sql, position=1, hint="Send one SELECT.")
    query = balanced(queries[0])  # type: ignore[arg-type]
    _few_sets(query)
    if text is not sql:
        _without_places(query)
    return query


def _few_sets(query: exp.Expression) -> None:
    """DuckDB groups once for each grouping set, all at the same time, with megabytes for each."""
    for group in query.find_all(exp.Group):
        parts = [*group.expressions]
        for name in ("grouping_sets", "rollup", "cube"):
            parts += group.args.get(name) or []
        if math.prod(map(_sets_of, parts)) > MOST_SETS:
            raise LimitError(
                f"A GROUP BY has more than {MOST_SETS} grouping sets.", hint="Name those that you need (GROUPING SETS)."
            )


def _sets_of(part: exp.Expression) -> int:
    if isinstance(part, exp.GroupingSets):
        return sum(map(_sets_of, part.expressions))
    if isinstance(part, exp.Cube):
        return 1 << len(part.expressions)
    return len(part.expressions) + 1 if isinstance(part, exp.Rollup) else 1


def _without_places(query: exp.Expression) -> None:
    for each in query.find_all(exp.Anonymous):
        each.meta.clear()


def _marked(sql_tokens: tuple[Token, ...], sql: str) -> str:
    """The text with a mark in every ``IN […]``, and parentheses around ``DATE '…'`` before ``::``: without them sqlglot
    casts the text, not the date."""
    marks: list[tuple[int, int, str]] = []
    for index, token in enumerate(sql_tokens[:-2]):
        kinds = [each.token_type for each in sql_tokens[index + 1 : index + 3]]
        if kinds == [TokenType.STRING, TokenType.DCOLON] and token.token_type in DuckDB.Parser.TYPE_TOKENS:
            marks += [(token.start, 0, "("), (sql_tokens[index + 1].end + 1, 0, ")")]
    for index, (token, following) in enumerate(pairwise(sql_tokens)):
        if (
            token.token_type == TokenType.IN
            and following.token_type == TokenType.L_BRACKET
            and not _loop(sql_tokens, index)
        ):
            depth = 0
            for each in sql_tokens[index + 1 :]:
                depth += (each.token_type == TokenType.L_BRACKET) - (each.token_type == TokenType.R_BRACKET)
                if depth == 0:
                    comma = "" if each is sql_tokens[index + 2] else ", "
                    marks += [(following.start, 1, f"({IN_LIST}{comma}"), (each.start, 1, ")")]
                    break
    for start, length, text in sorted(marks, reverse=True):
        sql = f"{sql[:start]}{text}{sql[start + length :]}"
    return sql


def _loop(sql_tokens: tuple[Token, ...], index: int) -> bool:
    """Whether the IN at ``index`` belongs to a list comprehension, ``x FOR x IN …`` or ``x FOR x, i IN …``."""
    return any(
        each.token_type == TokenType.FOR
        for each in (*sql_tokens[index - 2 : index - 1], *sql_tokens[index - 4 : index - 3])
    )


_ONE_UNIT = re.compile(r"\s*-?\d+\s*(?:year|quarter|month|week|day|hour|minute|second)s?\s*", re.I)
_LONGEST = 200
"""Characters of an interval that sqlglot looks through, for units: it takes hours for many digits."""


class _Dialect(DuckDB):
    """DuckDB's SQL, where paths into JSON and texts of intervals stay as they are written, and no parameters are left:
    ``[:k]`` is a slice."""

    class Parser(DuckDBParser):
        """sqlglot reads of ``INTERVAL '1 day 03:00'`` only the day; the unit of ``'1 mon'`` is one in a text alone.
        It takes ``log2(x)`` for ``log(2, x)``, whose last digit differs, and ``f(js -> 'a')`` for a lambda: DuckDB 2.0
        writes those ``lambda x: …``, and an arrow extracts from JSON. It wants three arguments of ``reduce``, and
        takes ``apply`` for a keyword."""

        FUNC_TOKENS = DuckDBParser.FUNC_TOKENS | {TokenType.APPLY}
        FUNCTIONS = {  # noqa: RUF012
            name: make for name, make in DuckDBParser.FUNCTIONS.items() if name not in ("APPLY", "LOG2", "REDUCE")
        }
        LAMBDAS = {  # noqa: RUF012
            kind: make for kind, make in DuckDBParser.LAMBDAS.items() if kind != TokenType.ARROW
        }
        PLACEHOLDER_PARSERS = {  # noqa: RUF012
            kind: parse for kind, parse in DuckDBParser.PLACEHOLDER_PARSERS.items() if kind != TokenType.COLON
        }

        def _parse_interval_span(self, this: exp.Expr, parse_function_unit: bool = True) -> exp.Interval:
            text = this.name if this.is_string else ""
            if len(text) > _LONGEST or (re.search("[a-z]", text, re.I) and not _ONE_UNIT.fullmatch(text)):
                return exp.Interval(this=this)
            interval: exp.Interval = super()._parse_interval_span(this, parse_function_unit)
            return interval

    def to_json_path(self, path: exp.Expr | None) -> exp.Expr | None:
        return path


@lru_cache(maxsize=256)
def _parsed_view(sql: str) -> exp.Expression:
    query = _parsed(tuple(tokens(sql)), sql)
    _without_places(query)
    return query


class StatementBinder(Binder):
    """Binds one statement. ``now()`` is the moment when the binder was created."""

    def __init__(self, catalog: Catalog, lists: Mapping[str, pa.Table] | None = None) -> None:
        self.catalog = catalog
        self.lists = lists or {}
        self.names = Names()
        self._read = 0
        self._now = datetime.now(UTC)
        self._views = {folded(name): sql for name, sql in catalog.views.items()}

    def reads(self) -> None:
        self._read += 1
        if self._read > MOST_READ:
            raise LimitError(
                f"The query reads more than {MOST_READ:,} tables and queries. A view or a name of WITH "
                "counts each time that the query names it.",
                hint="Run a part that the query names often on its own, and upload its answer as a table.",
            )

    def moment(self, kind: str) -> exp.Expression:
        now = self._now
        text = {"DATE": now.date().isoformat(), "TIME": now.time().isoformat(), "TIMETZ": now.timetz().isoformat()}.get(
            kind, (now if kind == "TIMESTAMPTZ" else now.replace(tzinfo=None)).isoformat(sep=" ")
        )
        return exp.Cast(this=exp.Literal(this=text, is_string=True), to=exp.DataType.build(kind, dialect="duckdb"))

    # --- query expressions ---

    def statement(self, node: exp.Expression, shape: Shape) -> Output:
        """The whole statement, whose columns are known."""
        try:
            return self._query(node, None, {})
        except Unmodelled:
            return verbatim(self, node, {}, shape)

    def query(self, node: exp.Expression, outer: Scope | None, ctes: Ctes) -> Output:
        try:
            return self._query(node, outer, ctes)
        except Unmodelled:
            return verbatim(self, node, ctes)

    def view(self, name: str) -> Output | None:
        sql = self._views.get(folded(name))
        if sql is None:
            return None
        output = self.query(_parsed_view(sql), None, {})
        if all(each is not None for each, _ in output.columns):
            return output
        shape = self.catalog.describe(sql)
        columns = tuple((each, identifier) for (each, _), (_, identifier) in zip(shape, output.columns, strict=True))
        return Output(output.tree, columns)

    def _query(self, node: exp.Expression, outer: Scope | None, ctes: Ctes) -> Output:
        ctes = self._with(node, ctes)
        if isinstance(node, exp.Select):
            return Select(self, node, outer, ctes).bound()
        if isinstance(node, exp.SetOperation):
            return self._set_operation(node, outer, ctes)
        if isinstance(node, exp.Subquery):
            return self._parenthesised(node, outer, ctes)
        if isinstance(node, exp.Values):
            return values(self, node, ctes)
        raise Unmodelled(type(node).__name__)

    def _with(self, node: exp.Expression, ctes: Ctes) -> Ctes:
        clause = node.args.get("with_")
        if clause is None:
            return ctes
        known = dict(ctes)
        for each in clause.expressions:
            recursive = bool(clause.args.get("recursive")) and reads_itself(each)
            if not isinstance(each.this, exp.Query | exp.Values) or (
                each.args.get("key_expressions") and not recursive
            ):
                raise Unmodelled("WITH")
            cte = Cte(each, dict(known), recursive)
            if cte.volatile():
                # A query that is read twice runs twice, with two different results.
                raise Unmodelled("volatile function in WITH")
            known[folded(each.alias)] = cte
        return known

    def _parenthesised(self, node: exp.Subquery, outer: Scope | None, ctes: Ctes) -> Output:
        only(node, _SUBQUERY)
        output = self.query(node.this, outer, ctes)
        return self._sorted(node, output, output.columns, ctes)

    def _set_operation(self, node: exp.SetOperation, outer: Scope | None, ctes: Ctes) -> Output:
        only(node, _SET)
        left, right = self.query(node.this, outer, ctes), self.query(node.expression, outer, ctes)
        if len(left.columns) != len(right.columns):
            raise Unmodelled("sides of different width")
        names = tuple(self.names.new(name or identifier) for name, identifier in left.columns)
        tree = SetOperation(left.tree, right.tree, _KINDS[type(node)], not node.args.get("distinct"), names)
        columns = tuple((name, identifier) for (name, _), identifier in zip(left.columns, names, strict=True))
        others = tuple((name, identifier) for (name, _), identifier in zip(right.columns, names, strict=True))
        return self._sorted(node, Output(tree, columns), (*columns, *others), ctes)

    def _sorted(
        self, node: exp.Expression, output: Output, known: tuple[tuple[str | None, str], ...], ctes: Ctes
    ) -> Output:
        """ORDER BY, LIMIT and OFFSET after a set operation or parentheses; ``known``: the columns they may name."""
        keys: list[exp.Expression] = []
        scope = Scope()
        for name, identifier in known:
            if name is not None and folded(name) not in {each.alias for each in scope.relations}:
                relation = Relation(name, [(name, identifier)])
                scope.relations.append(relation)
        expressions = Expressions(scope, self.names, lambda query, inner: self.query(query, inner, ctes), self.moment)
        order = node.args.get("order")
        for each in order.expressions if order is not None else ():
            if isinstance(each.this, exp.Var) and each.this.name.upper() == "ALL":
                keys += [ordered(each, column(identifier)) for _, identifier in output.columns]
            elif (position := position_of(each.this, len(output.columns))) is not None:
                keys.append(ordered(each, column(output.columns[position][1])))
            elif not is_constant(each.this):
                keys.append(expressions.bind(each))
        if expressions.aggregates or expressions.windows:
            raise Unmodelled("aggregate in ORDER BY")
        limit, offset = limits(node)
        if not keys and limit is None and not offset:
            return output
        return Output(Sort(output.tree, tuple(keys), limit, offset), output.columns)
