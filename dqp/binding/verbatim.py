"""Makes verbatim queries: query expressions that DuckDB runs as they are written, because no operator covers them.

What such a query reads is planned like everything else. Queries within it that use no names from around them, and its
common table expressions, are bound alone; placeholders replace them and the tables in the text. ``needs`` says which
columns and rows of a table are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sqlglot import exp

from dai.errors import NotFoundError, StatementError
from dqp.algebra.functions import TABLE_FUNCTIONS, moment_type, place_of
from dqp.algebra.operators import Filter, Inline, Operator, Scan, Verbatim
from dqp.binding.common_tables import closed_over, is_defined, taken_out
from dqp.binding.expressions import IN_LIST
from dqp.binding.needs import columns_used, condition_of, narrowed
from dqp.binding.scope import Output, Unmodelled, folded
from dqp.binding.statement import Binder, Cte, Ctes, Shape
from dqp.catalog.catalog import Catalog
from dqp.catalog.validator import SHOWN, describes
from dqp.sql.render_duckdb import query_sql


def described(catalog: Catalog, query: exp.Expression) -> Shape:
    """Names and types of a query expression's columns. Raises Unmodelled for one that cannot run alone."""
    try:
        return catalog.describe(query_sql(_unmarked(query.copy()), comments=False))
    except StatementError as error:
        raise Unmodelled("does not stand alone") from error


def verbatim(binder: Binder, node: exp.Expression, ctes: Ctes, shape: Shape | None = None) -> Output:
    """A query expression as a Verbatim. ``shape``: its columns, where they are known. Raises Unmodelled for one that
    uses names of the queries around it."""
    closed = closed_over(node, ctes)
    shape = described(binder.catalog, closed) if shape is None else shape
    columns = tuple((name, binder.names.new(name)) for name, _ in shape)
    return Output(_operator(binder, closed, tuple((each, name) for name, each in columns)), columns)


def recursive_rows(binder: Binder, cte: Cte) -> Output:
    """The rows of a common table expression that reads itself."""
    name = exp.Identifier(this=cte.node.alias, quoted=True)
    query = exp.Select(expressions=[exp.Star()], from_=exp.From(this=exp.Table(this=name)))
    return verbatim(binder, query, {**cte.ctes, folded(cte.node.alias): cte})


def _operator(binder: Binder, closed: exp.Expression, items: tuple[tuple[str, str], ...]) -> Verbatim:
    """The Verbatim of a query expression with all its common table expressions; ``closed`` is changed."""
    if isinstance(closed, exp.Table):
        raise Unmodelled("a table alone")
    for each in closed.find_all(exp.Join):
        if each.method.upper() == "ASOF" and each.side.upper() in ("RIGHT", "FULL"):
            raise StatementError(
                f"A federation has no ASOF {each.side.upper()} JOIN: DuckDB 2.0 does not always end one.",
                hint="Write ASOF LEFT JOIN, and add the rows without a partner by UNION ALL.",
            )
    ctes = taken_out(closed)
    queries = [*_alone_within(binder, closed, ctes), *_with_calls(binder, closed, ctes)]
    _without_moments(binder, _unmarked(closed))
    tables = list(_tables(binder, closed, ctes, frozenset(name for name, _, _ in queries)))
    words, all_of_select = columns_used(closed)
    aliases = _aliases(binder, closed, [table for table, _ in tables])
    for (table, _), alias in zip(tables, aliases, strict=True):
        table.set("alias", alias)
    parts: list[Operator] = []
    names: list[str] = []
    exposed: list[tuple[tuple[str, str], ...]] = []
    for name, member, output in queries:
        condition = condition_of(binder, member, output) if member is not None else None
        parts.append(output.tree if condition is None else Filter(output.tree, condition))
        names.append(name)
        exposed.append(tuple((each, identifier) for each, identifier in output.columns if each is not None))
    conditions = [condition_of(binder, table, output) for table, output in tables]
    for (table, output), condition in zip(tables, conditions, strict=True):
        known = [(name, identifier) for name, identifier in output.columns if name is not None]
        whole = all_of_select is None or id(table.find_ancestor(exp.Select)) in all_of_select
        kept = [each for each in known if whole or folded(each[0]) in words] or known[:1]
        name = binder.names.new(f"part_{table.name}")
        placeholder = exp.Table(**{**table.args, "this": exp.Identifier(this=name, quoted=True)})
        placeholder.set("db", None)
        placeholder.set("catalog", None)
        table.replace(placeholder)
        part = narrowed(output.tree, [identifier for _, identifier in kept])
        parts.append(part if condition is None else Filter(part, condition))
        names.append(name)
        exposed.append(tuple(kept))
    return Verbatim(closed, tuple(parts), tuple(names), tuple(exposed), items)


def table_of(binder: Binder, node: exp.Table) -> Output:
    """The uploaded table, the view or the source's table of that name; not a common table expression.

    Raises NotFoundError if there is none."""
    catalog, names = binder.catalog, binder.names
    name, schema, alias = node.name, node.db, node.catalog
    if not alias and schema in ("", "main"):
        data = binder.lists.get(name)
        if data is None:
            data = catalog.uploads.get(name)
        if data is not None:
            items = tuple((names.new(each), each) for each in data.column_names)
            return Output(Inline(names.new(name), items, data), tuple((each, identifier) for identifier, each in items))
        output = binder.view(name)
        if output is not None:
            return output
        table = catalog.table(None, name)
    elif alias:
        table = catalog.table(alias, name, None if schema.lower() == "main" else schema)
    else:
        table = catalog.table(schema, name)
    items = tuple((names.new(each.name), each.name) for each in table.columns)
    return Output(Scan(table, items), tuple((each, identifier) for identifier, each in items))


def _tables(
    binder: Binder, query: exp.Expression, ctes: Ctes, known: frozenset[str]
) -> Iterator[tuple[exp.Table, Output]]:
    """Every table in the text with its bound query, but those ``known`` and the text's own common table expressions."""
    for table in list(query.find_all(exp.Table)):
        if table.name in known:
            continue
        function = table.this
        if isinstance(function, exp.Func):
            if not isinstance(function, exp.GenerateSeries) and function.name.lower() not in TABLE_FUNCTIONS:
                name = function.name or function.key
                hint = SHOWN if describes(name) else None
                raise StatementError(f"A federation has no table function {name}.", hint=hint)
            continue
        if not isinstance(function, exp.Identifier):
            raise StatementError("A query can only read tables of the federation.")
        if not table.db and is_defined(table, query):
            continue
        binder.reads()
        cte = ctes.get(folded(table.name)) if not table.db else None
        if cte is not None:
            yield table, _of_cte(binder, cte)
            continue
        try:
            yield table, table_of(binder, table)
        except NotFoundError as error:
            raise StatementError(error.detail, hint=error.hint) from error


def _of_cte(binder: Binder, cte: Cte) -> Output:
    """The rows of a common table expression, with the names that its columns have in DuckDB."""
    output = binder.query(cte.node.this, None, cte.ctes)
    shape = described(binder.catalog, closed_over(cte.node.this, cte.ctes))
    columns = [(name, identifier) for (name, _), (_, identifier) in zip(shape, output.columns, strict=True)]
    aliases = [each.name for each in cte.node.args["alias"].args.get("columns") or ()]
    named = [(name, identifier) for name, (_, identifier) in zip(aliases, columns, strict=False)]
    return Output(output.tree, (*named, *columns[len(named) :]))


def _aliases(binder: Binder, query: exp.Expression, tables: list[exp.Table]) -> list[exp.TableAlias]:
    """An alias for each table: its own, else its name, or a new one if several sources have a table of that name.
    Changes columns with a longer qualifier to the alias."""
    paths = {id(each): tuple(folded(part.name) for part in each.parts) for each in tables if not each.alias}
    shared = {path[-1] for path in paths.values() if len({each for each in paths.values() if each[-1] == path[-1]}) > 1}
    by_path: dict[tuple[str, ...], str] = {}
    for table in tables:
        if (path := paths.get(id(table))) is not None:
            by_path.setdefault(path, binder.names.new("_".join(path)) if path[-1] in shared else table.name)
    for node in list(query.find_all(exp.Column)):
        parts = node.parts
        words = tuple(folded(part.name) for part in parts)
        size = next((each for each in range(len(parts) - 1, 1, -1) if words[:each] in by_path), 0)
        if size:
            alias, size = by_path[words[:size]], size
        elif len(parts) > 1 and words[0] in shared and (path := _nearest(node, words[0], paths)) is not None:
            alias, size = by_path[path], 1
        else:
            continue
        fields = [exp.Identifier(this=alias, quoted=True), *(part.copy() for part in parts[size:])]
        node.replace(exp.Column(**dict(zip(("this", "table", "db", "catalog"), reversed(fields), strict=False))))
    aliases = []
    for table in tables:
        written = table.args.get("alias")
        path = paths.get(id(table))
        if path is None:
            aliases.append(table.args["alias"].copy())
        else:
            columns = [each.copy() for each in written.args.get("columns") or ()] if written is not None else None
            aliases.append(exp.TableAlias(this=exp.Identifier(this=by_path[path], quoted=True), columns=columns))
    return aliases


def _nearest(node: exp.Expression, name: str, paths: Mapping[int, tuple[str, ...]]) -> tuple[str, ...] | None:
    """The full name of the table that ``name`` means at the node's place in the text."""
    select = node.find_ancestor(exp.Select)
    while select is not None:
        for table in select.find_all(exp.Table):
            path = paths.get(id(table))
            if path is not None and path[-1] == name and table.find_ancestor(exp.Select) is select:
                return path
        select = select.find_ancestor(exp.Select)
    return None


def _unmarked(query: exp.Expression) -> exp.Expression:
    """The query with ``contains`` in place of ``IN (mark, a, b)``, which was ``IN [a, b]``."""
    for node in list(query.find_all(exp.In)):
        listed = node.expressions
        if listed and isinstance(listed[0], exp.Column) and listed[0].name == IN_LIST:
            values = exp.Array(expressions=[each.copy() for each in listed[1:]])
            node.replace(exp.Anonymous(this="contains", expressions=[values, node.this.copy()]))
    return query


def _alone_within(binder: Binder, closed: exp.Expression, ctes: Ctes) -> list[_Query]:
    """Takes the outermost queries out of ``closed`` that read tables and use no names from around them."""
    found: list[_Query] = []
    stack: list[Any] = [closed]
    while stack:
        node = stack.pop()
        query = node.this if isinstance(node, exp.Subquery | exp.Exists) else None
        if isinstance(query, exp.Select | exp.SetOperation) and node is not closed and _stands_alone(query):
            output = _alone(binder, query, closed, ctes)
            if output is not None:
                is_member = isinstance(node.parent, exp.From | exp.Join) and isinstance(node, exp.Subquery)
                found.append(_taken(binder, query, output, node if is_member else None))
                continue
        stack += node.iter_expressions()
    return found


def _stands_alone(query: exp.Expression) -> bool:
    """Whether it is worth a try to bind the query alone: it reads a table, names no other relation than its own, and
    has no order that what is around it may count on."""
    relations = {folded(each.alias_or_name) for each in query.find_all(exp.Table, exp.Subquery, exp.CTE, exp.Lateral)}
    qualifiers = {folded(each.parts[0].name) for each in query.find_all(exp.Column) if len(each.parts) == 2}
    tables = [each for each in query.find_all(exp.Table) if isinstance(each.this, exp.Identifier)]
    return bool(tables) and qualifiers <= relations and not (query.args.get("order") and not query.args.get("limit"))


_Query = tuple[str, exp.Subquery | None, Output]
"""The name under which the text reads the rows of a query in it, the member of FROM that it is, and the bound query."""


def _taken(binder: Binder, query: exp.Expression, output: Output, member: exp.Subquery | None) -> _Query:
    name = binder.names.new("part_query")
    columns = [exp.Column(this=exp.Identifier(this=each, quoted=True)) for each, _ in output.columns]
    table = exp.Table(this=exp.Identifier(this=name, quoted=True))
    query.replace(exp.Select(expressions=columns, from_=exp.From(this=table)))
    return name, member, output


def _with_calls(binder: Binder, closed: exp.Expression, ctes: Ctes) -> list[_Query]:
    """Takes the queries with operation calls out of ``closed``, because DuckDB does not know these functions. Raises
    StatementError for a call that has no query of its own."""
    calling: list[_Query] = []
    functions = binder.catalog.functions
    while call := next((each for each in closed.find_all(exp.Anonymous) if each.name.lower() in functions), None):
        query: Any = call.find_ancestor(exp.Select, exp.SetOperation)
        while query is not None and query is not closed:
            if (output := _alone(binder, query, closed, ctes)) is not None:
                calling.append(_taken(binder, query, output, None))
                break
            query = query.find_ancestor(exp.Select, exp.SetOperation)
        else:
            raise StatementError(
                f"The operation call {call.name} cannot run inside this query: DuckDB runs a query with "
                "WITH RECURSIVE, PIVOT, unnest or the like as it is written.",
                position=place_of(call),
                hint=f"Call it outside that query, SELECT …, {call.name}(…) FROM (SELECT …), or in a subquery in its "
                "FROM that uses no columns of the query around it.",
            )
    return calling


def _alone(binder: Binder, query: exp.Expression, closed: exp.Expression, ctes: Ctes) -> Output | None:
    """A query within ``closed``, bound alone; None if it uses names from around it but those of ``ctes``."""
    if any(not each.db and _defined_around(each, query, closed) for each in query.find_all(exp.Table)):
        return None
    try:
        shape = described(binder.catalog, closed_over(query, ctes))
        output = binder.query(query, None, ctes)
    except Unmodelled:
        return None
    names = [name for name, _ in shape]
    if len({folded(each) for each in names}) < len(names):
        return None
    return Output(output.tree, tuple(zip(names, (identifier for _, identifier in output.columns), strict=True)))


def _defined_around(table: exp.Expression, query: exp.Expression, closed: exp.Expression) -> bool:
    return is_defined(table, closed) and not is_defined(table, query)


def _without_moments(binder: Binder, query: exp.Expression) -> None:
    for node in list(query.walk()):
        kind = moment_type(node)
        if kind is not None and node.parent is not None:
            node.replace(binder.moment(kind))
