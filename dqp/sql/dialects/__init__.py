"""Dialects: which operations each kind of source may run (a whitelist for each), and the rendering of trees of
operators as statements of the source.

An operation is on a whitelist only if the database's answer is exactly DuckDB's: same values, same type, same order,
errors where DuckDB has errors. ``statement`` renders and checks in one pass: an operation that is not on the list
raises ``NotPushed`` with a reason, which EXPLAIN shows. The tests run every entry on its server with edge values
(tests/dqp/dialects).

A new function is an entry of ``OPERATIONS`` in each dialect that computes it, and its cases in ``test_whitelists.py``.
If no dialect has it yet, it is also a method ``_on_…`` in ``functions``, by the class of its sqlglot node (``_on_pad``
for ``lpad``). The node's own arguments (``is_left``) go into ``_ARGUMENTS`` of ``expressions``; otherwise the function
counts as not on the list. The lists in ``planning.predicates`` and ``planning.rules.narrow`` let rules move it further
down: without them it is pushed less often, never wrongly.

Five exceptions:

- Sums of DOUBLE depend on the order of rows, in every database. One that is too large is an error in PostgreSQL and
  MariaDB.
- A mean of exact numbers is rounded once. The last bit of DuckDB's own depends on the aggregates beside it.
- MariaDB has no negative zero.
- If an intermediate decimal has more digits than DuckDB's type, MariaDB gives the exact answer instead of an error.
- DuckDB does not compute a sum or difference that is compared with a constant; in other databases it can overflow.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dqp.algebra.arrival import Promise
from dqp.algebra.dialects import DIALECTS
from dqp.algebra.keys import KeyTable
from dqp.sql.dialects.typing import NotPushed

if TYPE_CHECKING:
    from dqp.algebra.operators import Operator

__all__ = ["NotPushed", "Statement", "statement"]


@dataclass(frozen=True)
class Statement:
    """One query for a source. ``columns`` are (identifier, DuckDB type), in order: what arrives can be cast to that
    type without loss. ``parameters`` in the order of the ``?`` in ``sql``: none so far; constants are literals that can
    hold nothing but the value, since bound values cost the fast paths of the drivers (docs/decisions/0007, 0008).
    ``tables``: keys that travel beside it. ``promise``: what may arrive."""

    sql: str
    parameters: tuple[Any, ...]
    columns: tuple[tuple[str, str], ...]
    tables: tuple[KeyTable, ...] = ()
    promise: Promise = field(default_factory=Promise, compare=False)


def statement(tree: Operator, dialect: str) -> Statement:
    """The tree as one statement of the dialect, rendered once: the tree keeps it. Raises NotPushed where any part of it
    is not on the dialect's list."""
    rendered: Statement | str | None = tree.rendered.get(dialect)
    if rendered is None:
        try:
            rendered = _rendered(tree, dialect)
        except NotPushed as reason:
            rendered = str(reason)
        tree.rendered[dialect] = rendered
    if isinstance(rendered, str):
        raise NotPushed(rendered)
    return rendered


def _rendered(tree: Operator, dialect: str) -> Statement:
    if dialect not in DIALECTS:
        raise NotPushed(f"nothing is known of the SQL of {dialect}")
    writing = DIALECTS[dialect]()
    sql, columns = writing.statement(tree)
    origins = {each: writing.native[each] for each, _ in columns if each in writing.native}
    loose = tuple(each for each in origins if writing.LOOSE and each in writing.opaque)
    return Statement(sql, (), columns, tuple(writing.tables), Promise(columns, origins, loose))
