"""Distributed queries: one SQL over the tables of many data services.

A federation speaks DuckDB's SQL, whichever database executes a part. A query's life::

    text ──binder──> one tree of operators ──rules──> leaves are statements of sources ──partition──> fragments
                                                                                                         │
    Stream <── root fragment <── exchanges <── fragments on evaluators, each one SQL for its DuckDB <── runtime

* ``catalog`` knows the tables of all sources and what their databases know about them. Its validator, a DuckDB with the
  same tables, all empty, checks every query and gives the types of its answer.
* ``binder`` makes the tree (``operators``): every column has an identifier of its own. What it does not model stays as
  it was written, in a ``Verbatim``.
* ``rules`` move work into the sources. What a source may do is decided by writing it: a dialect's renderer refuses
  whatever it cannot have done exactly as DuckDB does it.
* A leaf is a ``Remote``: one statement, sent when its turn comes. Small builds run first; what they held becomes a
  filter of the large statements that are still to be sent (``adaptive``).
* All that is left runs in DuckDB, in this process or on evaluators that pull each other's rows by Arrow Flight.

Nothing is handed out twice or cut short: a source or evaluator that dies is replaced while no row has left; after
that the query fails with the name of what died. Closing the answer's stream stops everything below it, the statements
in the databases too.

``dqp`` is a guest of ``dai``: a federation is a driver (``dqp.interfaces.driver``), an evaluator is an activity
(``dqp.interfaces.activity``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dqp.interfaces.lab import Lab

__all__ = ["connect"]


def connect(federation: Any, **options: Any) -> Lab:
    """A federation to query: the path of a federation.toml, the same as a mapping, or the URL of a federation that a
    data service offers; see ``dqp.interfaces.lab.Lab``."""
    from dqp.interfaces.lab import Lab

    return Lab(federation, **options)


def load_ipython_extension(ipython: Any) -> None:
    """``%load_ext dqp`` in a notebook: ``%dqp`` and ``%%dqp``, see ``dqp.interfaces.magic``."""
    from dqp.interfaces.magic import FederationMagics

    ipython.register_magics(FederationMagics)
