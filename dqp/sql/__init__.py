"""Writes operators as SQL: DuckDB's SQL for what runs here, the dialects of the sources for what is pushed down.

``render`` knows the shape of a SELECT, ``render_duckdb`` writes everything, ``dialects`` write only what they list. The
package imports ``dqp.algebra`` and below. A new dialect is a module in ``dialects`` and a line in ``DIALECTS`` of
``dqp.algebra.dialects``.
"""

from sqlglot.generators import duckdb

from dai.errors import MissingDependencyError

if not duckdb.__file__.endswith(".py"):
    raise MissingDependencyError(
        "dqp extends the SQL generators of sqlglot; the compiled ones of the package sqlglotc cannot be extended.",
        hint="pip uninstall sqlglotc",
    )
