"""Names of other libraries for methods that have other names here."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, ClassVar

from dai.errors import own_lines

OF_RESULTS: Mapping[str, str] = {
    **dict.fromkeys(("to_df", "fetchdf", "fetch_df", "fetch_df_all", "DataFrame"), ".df()"),
    **dict.fromkeys(("to_arrow", "fetch_arrow_table", "to_table"), ".arrow()"),
    **dict.fromkeys(("all", "to_list", "tolist", "to_pylist"), ".rows()"),
    **dict.fromkeys(("columns", "column_names", "names"), ".arrow().column_names"),
    "shape": ".arrow().shape",
    "dtypes": ".arrow().schema",
    "json": '.text(), of query(…, format="json")',
    **dict.fromkeys(("plot", "describe", "iloc", "loc", "values", "groupby", "to_numpy", "sort_values"), ".df()"),
    **dict.fromkeys(("to_csv", "write_csv"), '.save("result.csv")'),
    **dict.fromkeys(("to_parquet", "write_parquet"), '.save("result.parquet")'),
}
OF_RESOURCES: Mapping[str, str] = {
    **dict.fromkeys(("sql", "read_sql", "execute_query", "select", "fetch"), ".query(sql)"),
    **dict.fromkeys(("tables", "list_tables", "columns", "describe"), ".schema()"),
    **dict.fromkeys(("cursor", "commit"), "dai.dbapi.connect(resource.url)"),
    "executemany": ".execute(sql, rows)",
    **dict.fromkeys(("insert", "update", "run"), ".execute(sql)"),
    **dict.fromkeys(("load", "upload", "to_sql"), 'frame.to_sql("name", "dai://host:8080/resource"), by pandas'),
    "job": ".jobs()",
}


class UnknownName(AttributeError):
    """A name that something has not; a notebook shows one line of it."""

    def _render_traceback_(self) -> list[str]:
        return [*own_lines(self), f"AttributeError: {self}"]


class UnknownLength(TypeError):
    """How many rows there are is not known yet; a notebook shows one line of it."""

    def _render_traceback_(self) -> list[str]:
        return [*own_lines(self), f"TypeError: {self}"]


class Elsewhere:
    """The error for a name of another library says what to use here: ``_instead``, by that name."""

    _instead: ClassVar[Mapping[str, str]] = {}

    if not TYPE_CHECKING:  # types know what there is

        def __getattr__(self, name: str) -> Any:
            said = f"{type(self).__name__!r} object has no attribute {name!r}"
            if name in self._instead:
                said += f". Write {self._instead[name]}"
            elif not name.startswith("_"):
                public = [each for each in dir(self) if not each.startswith("_")]
                said += "".join(f". Did you mean {near!r}?" for near in get_close_matches(name, public, 1))
            raise UnknownName(said)
