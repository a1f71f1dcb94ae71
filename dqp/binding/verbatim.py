"""Makes verbatim queries: query expressions that DuckDB runs as they are written, because no operator covers them.

What such a query reads is planned like everything else. Queries within it that use no names from around them, and its
common table expressions, are bound alone; placeholders replace them and the tables in the text. A table is read for the
columns whose names appear in the text, or for all of them where its SELECT may use others too (a star, a whole row or
the like), and for the rows that the conditions on it in the WHERE of its SELECT leave.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from sqlglot import exp

from dai.errors import NotFoundError, StatementError
from dqp.algebra.chains import all_of, conjuncts
from dqp.algebra.functions import TABLE_FUNCTIONS, moment_type, place_of
from dqp.algebra.operators import Filter, Inline, Operator, Scan, Verbatim
from dqp.binding.expressions import IN_LIST, Expressions
from dqp.binding.scope import Output, Relation, Scope, Unmodelled, folded
from dqp.binding.statement import Binder, Cte, Ctes, Shape
from dqp.catalog.catalog import Catalog
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
    closed = _closed(node, ctes)
    shape = described(binder.catalog, closed) if shape is None else shape
    columns = tuple((name, binder.names.new(name)) for name, _ in shape)
    return Output(_operator(binder, closed, tuple((each, name) for name, each in columns)), columns)


def recursive_rows(binder: Binder, cte: Cte) -> Output:
    """The rows of a common table expression that reads itself."""
    name = exp.Identifier(this=cte.node.alias, quoted=True)
    query = exp.Select(expressions=[exp.Star()], from_=exp.From(this=exp.Table(this=name)))
    return verbatim(binder, query, {**cte.ctes, folded(cte.node.alias): cte})


def reads_itself(cte: exp.Expression) -> bool:
    """Whether the query of a common table expression reads a table of its name, which is itself after RECURSIVE."""
    name = folded(cte.alias)
    return any(
        not table.db and folded(table.name) == name and not _defined(table, cte.this)
        for table in cte.this.find_all(exp.Table)
    )


def _operator(binder: Binder, closed: exp.Expression, items: tuple[tuple[str, str], ...]) -> Verbatim:
    """The Verbatim of a query expression with all its common table expressions; ``closed`` is changed."""
    if isinstance(closed, exp.Table):
        raise Unmodelled("a table alone")
    ctes = _definitions(closed)
    queries = [*_alone_within(binder, closed, ctes), *_with_calls(binder, closed, ctes)]
    _without_moments(binder, _unmarked(closed))
    tables = list(_tables(binder, closed, ctes, frozenset(name for name, _, _ in queries)))
    words, all_of_select = _words(closed)
    aliases = _aliases(binder, closed, [table for table, _ in tables])
    for (table, _), alias in zip(tables, aliases, strict=True):
        table.set("alias", alias)
    parts: list[Operator] = []
    names: list[str] = []
    exposed: list[tuple[tuple[str, str], ...]] = []
    for name, member, output in queries:
        condition = _condition(binder, member, output) if member is not None else None
        parts.append(output.tree if condition is None else Filter(output.tree, condition))
        names.append(name)
        exposed.append(tuple((each, identifier) for each, identifier in output.columns if each is not None))
    conditions = [_condition(binder, table, output) for table, output in tables]
    for (table, output), condition in zip(tables, conditions, strict=True):
        known = [(name, identifier) for name, identifier in output.columns if name is not None]
        whole = all_of_select is None or id(table.find_ancestor(exp.Select)) in all_of_select
        kept = [each for each in known if whole or folded(each[0]) in words] or known[:1]
        name = binder.names.new(f"part_{table.name}")
        placeholder = exp.Table(**{**table.args, "this": exp.Identifier(this=name, quoted=True)})
        placeholder.set("db", None)
        placeholder.set("catalog", None)
        table.replace(placeholder)
        part = _narrowed(output.tree, [identifier for _, identifier in kept])
        parts.append(part if condition is None else Filter(part, condition))
        names.append(name)
        exposed.append(tuple(kept))
    return Verbatim(closed, tuple(parts), tuple(names), tuple(exposed), items)


def _narrowed(tree: Operator, columns: list[str]) -> Operator:
    """The tree with only these columns, if it is a table."""
    if isinstance(tree, Scan):
        return Scan(tree.table, tuple(each for each in tree.items if each[0] in columns))
    if isinstance(tree, Inline):
        return Inline(tree.name, tuple(each for each in tree.items if each[0] in columns), tree.data)
    return tree


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


def _definitions(closed: exp.Expression) -> Ctes:
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


def _names_read(query: exp.Expression) -> set[str]:
    """The names in FROM that a common table expression may have."""
    return {folded(each.name) for each in query.find_all(exp.Table) if not each.db}


def _closed(node: exp.Expression, ctes: Ctes) -> exp.Expression:
    """A copy of the query expression, with a definition of every common table expression that it uses."""
    needed: dict[str, Cte] = {}

    def need(query: exp.Expression, known: Ctes) -> None:
        for table in query.find_all(exp.Table):
            name = folded(table.name)
            if table.db or name not in known or _defined(table, query):
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


def _defined(table: exp.Expression, within: exp.Expression) -> bool:
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
                raise StatementError(f"A federation has no table function {function.name or function.key}.")
            continue
        if not isinstance(function, exp.Identifier):
            raise StatementError("A query can only read tables of the federation.")
        if not table.db and _defined(table, query):
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
    shape = described(binder.catalog, _closed(cte.node.this, cte.ctes))
    columns = [(name, identifier) for (name, _), (_, identifier) in zip(shape, output.columns, strict=True)]
    aliases = [each.name for each in cte.node.args["alias"].args.get("columns") or ()]
    named = [(name, identifier) for name, (_, identifier) in zip(aliases, columns, strict=False)]
    return Output(output.tree, (*named, *columns[len(named) :]))


def _words(query: exp.Expression) -> tuple[frozenset[str], frozenset[int] | None]:
    """Every name in the text in lower case, and the SELECTs (by ``id``) that may use columns of their tables which the
    text does not name; None for all."""
    relations = {folded(each.alias_or_name) for each in query.find_all(exp.Table)}
    words: set[str] = set()
    doubtful: set[int] = set()
    for node in query.walk():
        if isinstance(node, exp.Identifier):
            words.add(folded(node.name))
        elif isinstance(node, exp.Column) and not node.table and folded(node.name) in relations:
            return frozenset(), None
        elif _doubtful(node):
            doubtful.add(id(node.find_ancestor(exp.Select)))
    return frozenset(words), frozenset(doubtful)


def _doubtful(node: exp.Expr) -> bool:
    """Whether the node means columns that it does not name: all, the common ones, those of a pattern or position."""
    if isinstance(node, exp.Star):
        return not isinstance(node.parent, exp.Count)
    if isinstance(node, exp.Join):
        return bool(node.method or node.args.get("using"))
    if isinstance(node, exp.Table):
        return bool(node.alias_column_names)
    return isinstance(node, exp.Columns | exp.Pivot | exp.PositionalColumn)


def _condition(binder: Binder, member: exp.Table | exp.Subquery, output: Output) -> exp.Expression | None:
    """What the WHERE around a member of FROM says of its columns alone; None where it says nothing, or where rows that
    do not fulfil it may be wanted."""
    select = member.find_ancestor(exp.Select)
    where = select.args.get("where") if select is not None else None
    alias = member.args.get("alias")
    renames = alias is not None and alias.args.get("columns")
    if select is None or where is None or renames or not _preserved(member, select):
        return None
    joins = select.args.get("joins") or ()
    common = {folded(each.name) for join in joins for each in join.args.get("using") or ()}
    natural = any((join.method or "").upper() == "NATURAL" for join in joins)
    relation = Relation(member.alias or None, output.columns)
    expressions = Expressions(Scope([relation]), binder.names, _no_subquery, binder.moment)
    bound = []
    for each in conjuncts(where.this):
        columns = list(each.find_all(exp.Column))
        bare = {folded(one.name) for one in columns if not one.table}
        others = [
            one for one in columns if one.table and [folded(part.name) for part in one.parts[:-1]] != [relation.alias]
        ]
        if others or (natural and bare) or bare & common:
            continue
        with suppress(Unmodelled):
            condition = expressions.condition(each)
            if not expressions.aggregates and not expressions.windows and condition.find(exp.Column):
                bound.append(condition)
    return all_of(bound)


def _preserved(table: exp.Expression, select: exp.Select) -> bool:
    """Whether the rows of the SELECT come from all rows of the table that its WHERE allows: the table is no side of an
    outer join that may be filled with NULL, and no row depends on the others."""
    if select.args.get("sample") or any(table.args.get(each) for each in ("joins", "pivots", "sample")):
        return False
    joins = select.args.get("joins") or []
    ways = [(join, *((join.args.get(each) or "").upper() for each in ("method", "side", "kind"))) for join in joins]
    if any(method == "POSITIONAL" or side in ("RIGHT", "FULL") for _, method, side, _ in ways):
        return False
    inner = [
        join
        for join, method, side, kind in ways
        if method in ("", "NATURAL") and not side and kind in ("", "INNER", "CROSS")
    ]
    clause = select.args.get("from_")
    return any(table is each.this for each in (clause, *inner) if each is not None)


def _no_subquery(query: exp.Expression, scope: Scope) -> Output:
    raise Unmodelled("subquery")


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
                "WITH RECURSIVE, PIVOT, ASOF JOIN, unnest or the like as it is written.",
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
        shape = described(binder.catalog, _closed(query, ctes))
        output = binder.query(query, None, ctes)
    except Unmodelled:
        return None
    names = [name for name, _ in shape]
    if len({folded(each) for each in names}) < len(names):
        return None
    return Output(output.tree, tuple(zip(names, (identifier for _, identifier in output.columns), strict=True)))


def _defined_around(table: exp.Expression, query: exp.Expression, closed: exp.Expression) -> bool:
    return _defined(table, closed) and not _defined(table, query)


def _without_moments(binder: Binder, query: exp.Expression) -> None:
    for node in list(query.walk()):
        kind = moment_type(node)
        if kind is not None and node.parent is not None:
            node.replace(binder.moment(kind))
