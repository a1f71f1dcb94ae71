"""The leaves of a tree as tables of the SQL that DuckDB runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

import pyarrow as pa
from sqlglot import exp

from dai.errors import DataError
from dqp.algebra.operators import Call, Inline, Operator, Receive, Remote, Verbatim, quoted
from dqp.algebra.trees import plans_in, remotes
from dqp.algebra.types import duckdb_type
from dqp.catalog.catalog import Catalog
from dqp.planning.common_subtrees import Sharing, alike
from dqp.sql import dialects
from dqp.sql.render_duckdb import DuckDB

TYPE = b"dqp.type"
"""In the metadata of a field: DuckDB's type of the column, where the field is a fragment's."""
CARRIED = b"dqp.carried"
"""Beside it: the type of the values in JSON, where they travel so (``dqp.execution.nested``)."""


class Leaves:
    """Gives the leaves of a tree their tables as it is rendered. Statements of one source with the same rows are one
    input if one of them has the columns of the others; an input that is read more than once has to be materialised."""

    def __init__(self, tree: Operator, catalog: Catalog) -> None:
        self.remotes: dict[str, Remote] = {}
        self.calls: dict[str, Call] = {}
        self.receives: dict[str, Receive] = {}
        self.tables: dict[str, pa.Table] = {}
        self._catalog = catalog
        self._names: dict[Operator, str] = {}
        self._same: dict[object, str] = {}
        self._read: dict[str, int] = {}
        self._repeated = frozenset(repeated(tree))
        sources = [each.source for each in remotes(tree)]
        self._shared = frozenset(each for each in sources if sources.count(each) > 1)
        self._wider = alike([each for each in remotes(tree) if each.source in self._shared])
        self._tree, self._sharing = tree, Sharing(tree)

    def sql(self) -> str:
        """The tree over its inputs. What stands in it more than once is computed once."""
        sharing = self._sharing
        heads = [
            f"{quoted(each.name)} AS MATERIALIZED ({DuckDB(self, sharing).definition(each.tree)})"
            for each in sharing.tables
        ]
        body = DuckDB(self, sharing).render(self._tree)
        return f"SELECT * FROM (WITH {', '.join(heads)} {body})" if heads else body

    @property
    def remarks(self) -> tuple[str, ...]:
        """Remarks for EXPLAIN: what is computed once."""
        return self._sharing.remarks

    def __call__(self, node: Operator) -> str:
        if isinstance(node, Inline):
            name = self._names.setdefault(node, f"i{len(self.tables) + 1}")
            self.tables[name] = node.data
            return quoted(name)
        if isinstance(node, Call):
            name = self._names.setdefault(node, f"c{len(self.calls) + 1}")
            self.calls[name] = node
            return self._once_more(name, node)
        if isinstance(node, Receive):
            name = self._names.setdefault(node, f"x{len(self.receives) + 1}")
            self.receives[name] = node
            return self._once_more(name, node)
        assert isinstance(node, Remote)
        read, names = self._wider.get(id(node), (node, {}))
        assert isinstance(read, Remote)
        if read not in self._names:
            key = statement_key(read, self._catalog) if read.source in self._shared else read
            name = self._same.setdefault(key, f"r{len(self.remotes) + 1}")
            self._names[read] = name
            self.remotes.setdefault(name, read)
        name = self._names[read]
        table = self._once_more(name, node)
        first = dict(zip(read.columns, self.remotes[name].columns, strict=True))
        pairs = [(first[names.get(each, each)], each) for each in node.columns]
        if pairs == [(each, each) for each in self.remotes[name].columns]:
            return table
        return f"(SELECT {', '.join(f'{quoted(one)} AS {quoted(other)}' for one, other in pairs)} FROM {table})"

    def _once_more(self, name: str, node: Operator) -> str:
        self._read[name] = self._read.get(name, 0) + (2 if node in self._repeated else 1)
        return quoted(table_of(name))

    def several(self, name: str) -> bool:
        return self._read.get(name, 0) > 1


def statement_key(remote: Remote, catalog: Catalog) -> object:
    """Equal for equal statements of one source, whatever their columns are called here."""
    try:
        same = dialects.statement(remote.numbered, catalog.dialect(remote.source))
    except dialects.NotPushed:
        return remote
    return (remote.source, same)


def repeated(tree: Operator, inside: bool = False) -> Iterator[Operator]:
    """Leaves that DuckDB may read several times although they stand once in the tree: a query taken as it was written
    may name its tables more than once, a subquery in an expression may run for several rows. One SELECT from
    one table, without any other query in it, reads that once."""
    inside = inside or (isinstance(tree, Verbatim) and not _reads_once(tree))
    if inside and not tree.inputs:
        yield tree
    if inside and isinstance(tree, Call):
        yield tree
    for each in tree.inputs:
        yield from repeated(each, inside)
    for plan in plans_in(tree):
        yield from repeated(plan, True)


def _reads_once(verbatim: Verbatim) -> bool:
    query = verbatim.query
    if not isinstance(query, exp.Select) or query.find(exp.Join, exp.Lateral, exp.Pivot):
        return False
    return len(list(query.find_all(exp.Query))) == 1 and len(list(query.find_all(exp.Table))) == 1


def read_as(name: str, columns: Iterable[tuple[str, str]], schema: pa.Schema) -> str:
    """The SELECT that reads an input in the types that its statement promised: ``columns`` are (identifier, DuckDB
    type)."""
    items, names = [], Counter(schema.names)
    for identifier, want in columns:
        if names[identifier] != 1:
            raise DataError("A source returned other columns than its statement selects.")
        text = quoted(identifier)
        items.append(text if _arrives(schema.field(identifier), want) else f"CAST({text} AS {want}) AS {text}")
    return f"SELECT {', '.join(items)} FROM {quoted(name)}"


def as_promised(columns: Sequence[tuple[str, str]], schema: pa.Schema) -> bool:
    """Whether ``read_as`` would select all columns as they are."""
    return [each for each, _ in columns] == schema.names and all(
        _arrives(field, want) for field, (_, want) in zip(schema, columns, strict=True)
    )


def _arrives(field: pa.Field, want: str) -> bool:
    """Whether DuckDB reads the column in that type; one without a type is of a type of its own there."""
    same = want.replace(" ", "").upper() == duckdb_type(field.type).replace(" ", "").upper()
    return same and not pa.types.is_null(field.type)


def table_of(name: str) -> str:
    """The name of the CTE that reads an input; users do not write such names in queries."""
    return f"input {name}"


def over(body: str, tables: Mapping[str, str], repeated: Container[str]) -> str:
    """The query ``body`` over inputs: by name, what reads it. A stream can be read once, so what is ``repeated`` is
    materialised."""
    heads = [
        f"{quoted(table_of(name))} AS {'MATERIALIZED ' if name in repeated else ''}({text})"
        for name, text in tables.items()
    ]
    return f"WITH {', '.join(heads)} {body}" if heads else body


def restored(name: str, schema: pa.Schema) -> str:
    """What reads a fragment's rows in the types that they had there (``TYPE`` in the metadata): Arrow has no HUGEINT,
    and nested values travel as JSON."""
    items = []
    for each in schema:
        text, type = quoted(each.name), (each.metadata or {}).get(TYPE, b"").decode()
        have = duckdb_type(each.type)
        if not type or type.replace(" ", "").upper() == have.replace(" ", "").upper():
            items.append(text)
        elif form := each.metadata.get(CARRIED, b"").decode():
            items.append(f"CAST(CAST(CAST({text} AS JSON) AS {form}) AS {type}) AS {text}")
        else:
            items.append(f"CAST({text} AS {type}) AS {text}")
    return f"SELECT {', '.join(items)} FROM {quoted(name)}"
