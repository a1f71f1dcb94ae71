"""Distributed queries: one SQL query over the tables of many data services.

A federation speaks DuckDB's SQL, whichever database runs a part of it. The life of a query::

    text ──binding──> tree of operators ──rules──> leaves are statements of sources ──partition──> fragments
                                                                                                      │
    Stream <── root fragment <── exchanges <── fragments on evaluators, each one SQL for its DuckDB <── runtime

* ``catalog`` keeps the tables of all sources and their statistics. Its validator, a DuckDB with the same tables and no
  rows, checks every query and gives the types of its answer.
* ``binding`` makes the tree (``algebra.operators``), where every column has a unique identifier. A query that the
  operators do not cover becomes a ``Verbatim``, which DuckDB runs as it is written.
* ``planning.rules`` push work down into the sources. A source may run what its dialect can write: the renderer refuses
  everything that the source does not compute exactly as DuckDB does.
* A leaf is a ``Remote``: one statement of a source. Small build sides run first; their keys become a filter in the
  large statements that have not been sent yet (``planning.semijoins``).
* DuckDB runs the rest, in this process or on evaluators that fetch each other's rows by Arrow Flight.

No row leaves twice, and no answer is cut short. While no row has left, a replica or another evaluator replaces one that
is lost; after that the query fails with an error that names it. Closing the stream of the answer stops everything below
it, also the statements in the databases.

``dqp`` is a guest of ``dai``: a federation is a driver (``dqp.interfaces.driver``), an evaluator is an activity
(``dqp.interfaces.activity``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dqp.interfaces.lab import Lab

__all__ = ["connect"]


def connect(federation: Any, **options: Any) -> Lab:
    """A federation to query: the path of a federation.toml, the same as a mapping, the URL of a federation that a
    data service offers, or one database, by its URL or its file; see ``dqp.interfaces.lab.Lab``.

    ::

        lab = dqp.connect("field.db")
        lab.sql("select * from field.samples").df()

    Options: ``progress`` (whether to show it; by default where somebody watches), ``token`` or ``profile`` (for the
    federation of a service; without them as ``dai.client.credentials`` says), ``numeric`` (what decimal numbers are:
    ``double``, ``decimal`` or ``text``).
    """
    from dai.errors import ParameterError
    from dai.plugins import nearest
    from dqp.interfaces.lab import Lab

    known = ["progress", "token", "numeric", "profile"]
    if unknown := next((each for each in options if each not in known), None):
        raise ParameterError(f"dqp.connect has no option {unknown!r}.", hint=nearest(unknown, known))
    return Lab(federation, **options)


def load_ipython_extension(ipython: Any) -> None:
    """``%load_ext dqp`` in a notebook: ``%dqp`` and ``%%dqp``, see ``dqp.interfaces.magic``."""
    from dqp.interfaces.magic import FederationMagics

    magics = FederationMagics(ipython)
    ipython.register_magics(magics)
    ipython.Completer.custom_matchers.append(magics.completed)
