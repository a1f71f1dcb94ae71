"""Names that other libraries have for what has another one here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

OF_RESULTS: Mapping[str, str] = {
    **dict.fromkeys(("to_df", "fetchdf", "fetch_df", "fetch_df_all", "DataFrame"), ".df()"),
    **dict.fromkeys(("to_arrow", "fetch_arrow_table", "to_table"), ".arrow()"),
    **dict.fromkeys(("all", "to_list", "tolist", "to_pylist"), ".rows()"),
    **dict.fromkeys(("columns", "column_names", "names"), ".arrow().column_names"),
    "shape": ".arrow().shape",
    "dtypes": ".arrow().schema",
    **dict.fromkeys(("plot", "describe", "iloc", "loc", "values", "groupby", "to_numpy", "sort_values"), ".df()"),
    **dict.fromkeys(("to_csv", "to_parquet", "write_csv", "write_parquet"), '.save("result.parquet")'),
}
OF_RESOURCES: Mapping[str, str] = {
    **dict.fromkeys(("sql", "read_sql", "execute_query", "select", "fetch"), ".query(sql)"),
    **dict.fromkeys(("tables", "list_tables", "columns", "describe"), ".schema()"),
    **dict.fromkeys(("cursor", "commit", "executemany"), "dai.dbapi.connect(resource.url)"),
    **dict.fromkeys(("insert", "update", "run"), ".execute(sql)"),
}


class Elsewhere:
    """Says what stands in the place of a name that somebody brings from elsewhere: ``instead``, by that name."""

    instead: ClassVar[Mapping[str, str]] = {}

    if not TYPE_CHECKING:  # types know what there is

        def __getattr__(self, name: str) -> Any:
            said = f"{type(self).__name__!r} object has no attribute {name!r}"
            if name in self.instead:
                said += f". Write {self.instead[name]}"
            raise AttributeError(said, name=name, obj=self)
