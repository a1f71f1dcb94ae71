"""The tables of a lab: as a table that is drawn, and by attributes (``lab.source.table.column``)."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa

from dai.client.results.elsewhere import UnknownName
from dai.client.results.preview import SHOWN_COLUMNS, SHOWN_ROWS
from dai.client.results.table import lines
from dai.client.results.tabular import Tabular, checked_rows
from dai.plugins import nearest
from dai.streams.stream import Stream
from dqp.algebra.operators import quoted

Names = Mapping[tuple[str, ...], Sequence[str]]
"""The columns of tables by their paths: (source, table) or (source, schema, table), (name,) of views and uploads."""


NO_PROBLEMS: Mapping[str, str] = {}


class Listing(Tabular):
    """What ``SHOW TABLES`` gives, an Arrow table that is drawn; whatever else an Arrow table has, it has, too."""

    def __init__(self, table: pa.Table, problems: Mapping[str, str] = NO_PROBLEMS) -> None:
        """``problems``: what cannot be listed, by name, and why."""
        self._table, self._problems = table, problems

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._table, name)

    def __getitem__(self, key: Any) -> Any:
        return self._table[key]

    def stream(self) -> Stream:
        return Stream.of(self._table)

    def reader(self) -> pa.RecordBatchReader:
        return self._table.to_reader()

    def arrow(self) -> pa.Table:
        return self._table

    def head(self, rows: int = SHOWN_ROWS) -> pa.Table:
        return self._table.slice(0, checked_rows(rows))

    def _length(self) -> int:
        return int(self._table.num_rows)

    def names(self) -> Names:
        paths: dict[tuple[str, ...], Sequence[str]] = {}
        for each in self._table.to_pylist():
            source = (each["source"],) if each["source"] is not None else ()
            paths[(*source, *(each["table"].split(".", 1) if source else (each["table"],)))] = each["columns"]
        return paths

    def __repr__(self) -> str:
        rows = [
            [
                _name(each),
                _count(each),
                _first([_with_unit(column) for column in _columns(each)]),
                each["comment"] or "",
            ]
            for each in self._table.to_pylist()
        ]
        table = lines(["table", "rows", "columns", "comment"], rows, right=[1]) if rows else ["<no tables>"]
        return "\n".join([*table, *self._notes()])

    def _notes(self) -> list[str]:
        return [f"{name}: {why}" for name, why in self._problems.items()]

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{each}</th>" for each in ("table", "rows", "columns", "comment"))
        body = "".join(f"<tr>{''.join(_cells(each))}</tr>" for each in self._table.to_pylist())
        count = len(self)
        note = f"{count:,} table{'' if count == 1 else 's'}"
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table><p>{note}</p>" + "".join(
            f"<pre>{html.escape(each)}</pre>" for each in self._notes()
        )


def _name(row: Mapping[str, Any]) -> str:
    return f"{row['source']}.{row['table']}" if row["source"] else str(row["table"])


def _first(columns: Sequence[str]) -> str:
    more = len(columns) - SHOWN_COLUMNS
    return ", ".join([*columns[:SHOWN_COLUMNS], *([f"… ({more:,} more)"] if more > 0 else [])])


def _count(row: Mapping[str, Any]) -> str:
    return "" if row["rows"] is None else f"{row['rows']:,}"


def _columns(row: Mapping[str, Any]) -> Iterable[Mapping[str, str | None]]:
    names = ("columns", "types", "comments", "units", "ucds", "quantities")
    return (dict(zip(names, each, strict=True)) for each in zip(*(row[name] for name in names), strict=True))


def _with_unit(column: Mapping[str, str | None]) -> str:
    return f"{column['columns']} [{column['units']}]" if column["units"] else str(column["columns"])


def _about(column: Mapping[str, str | None]) -> str:
    """Of a column, behind its name."""
    meant = ", ".join(str(column[name]) for name in ("units", "ucds", "quantities") if column[name])
    comment = f" – {column['comments']}" if column["comments"] else ""
    return f"{column['types']}{f' [{meant}]' if meant else ''}{comment}"


def _cells(row: Mapping[str, Any]) -> list[str]:
    columns = [
        f"{html.escape(str(each['columns']))} <small>{html.escape(_about(each))}</small>" for each in _columns(row)
    ]
    texts = (html.escape(_name(row)), _count(row), "<br>".join(columns), html.escape(row["comment"] or ""))
    return [f'<td style="text-align:left;vertical-align:top">{each}</td>' for each in texts]


class Asked(Protocol):
    """A lab, as places need it."""

    def sql(self, sql: str, /) -> Any: ...


class Place:
    """A source, a schema, a table or a column of a lab, which <Tab> completes. A table, and a column, is a query like
    any other: ``lab.shop.orders.df()``, ``lab.shop.orders.amount.head()``."""

    def __init__(self, lab: Asked, names: Names, path: tuple[str, ...], column: str | None = None) -> None:
        self._lab, self._known, self._path, self._column = lab, names, path, column

    def names(self) -> list[str]:
        """What can follow."""
        if self._column is not None:
            return []
        if self._path in self._known:
            return list(self._known[self._path])
        depth = len(self._path)
        below = (each[depth] for each in self._known if each[:depth] == self._path and len(each) > depth)
        return list(dict.fromkeys(below))

    def at(self, name: str) -> Place:
        """AttributeError that suggests the nearest name."""
        names = self.names()
        if name not in names:
            where = ".".join(self._path) or "The lab"
            raise UnknownName(f"{where} has no {name!r}. {nearest(name, names) if names else ''}".rstrip())
        if self._path in self._known:
            return Place(self._lab, self._known, self._path, name)
        return Place(self._lab, self._known, (*self._path, name))

    @property
    def query(self) -> Any:
        if self._table not in self._known:
            raise UnknownName(f"{'.'.join(self._path)} is no table; it has: {', '.join(self.names())}.")
        what = "*" if self._column is None else quoted(self._column)
        return self._lab.sql(f"select {what} from {'.'.join(map(quoted, self._table))}")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if name in self.names():
            return self.at(name)
        if self._table in self._known and hasattr(Tabular, name):
            return getattr(self.query, name)
        return self.at(name)

    @property
    def _table(self) -> tuple[str, ...]:
        """The path of the table: a source may be named for its one table, as one of files is."""
        own = (*self._path, *self._path)
        return own if len(self._path) == 1 and own in self._known else self._path

    def __dir__(self) -> Iterable[str]:
        of_queries = [each for each in dir(Tabular) if not each.startswith("_")] if self._table in self._known else []
        return [*self.names(), *of_queries]

    def __repr__(self) -> str:
        named = ".".join((*self._path, *([self._column] if self._column else [])))
        return f"<{named}: {', '.join(self.names()) or 'a column'}>"

    def _repr_html_(self) -> str | None:
        return self.query._repr_html_() if self._table in self._known else None
