"""Tables and views as SQLAlchemy's inspector reflects them."""

from __future__ import annotations

import contextlib

import sqlalchemy as sa
from sqlalchemy import exc

from dai.drivers.generic.types import arrow_name
from dai.drivers.tables import Column, ForeignKey, Index, TableInfo


def table_info(inspector: sa.Inspector, name: str, kind: str) -> TableInfo:
    """One table or view, with the details that its dialect reports."""
    comment = None
    with contextlib.suppress(NotImplementedError, exc.SQLAlchemyError):
        comment = inspector.get_table_comment(name).get("text")
    indexes = [
        Index(index["name"] or "", tuple(filter(None, names)), bool(index["unique"]) and all(names))
        for index in inspector.get_indexes(name)
        for names in (index["column_names"],)
    ]
    known = {index.name for index in indexes}
    with contextlib.suppress(NotImplementedError, exc.SQLAlchemyError):
        indexes += [
            Index(unique["name"] or "", tuple(unique["column_names"]), True)
            for unique in inspector.get_unique_constraints(name)
            if unique["name"] not in known
        ]
    return TableInfo(
        name=name,
        columns=tuple(
            Column(
                name=column["name"],
                type=str(column["type"]).split("(")[0].lower(),
                arrow=arrow_name(column["type"]),
                nullable=column["nullable"],
                default=column["default"],
                precision=getattr(column["type"], "precision", None),
                scale=getattr(column["type"], "scale", None),
                length=getattr(column["type"], "length", None),
                autoincrement=column.get("autoincrement") is True,
                comment=column.get("comment"),
            )
            for column in inspector.get_columns(name)
        ),
        kind=kind,
        primary_key=tuple(inspector.get_pk_constraint(name).get("constrained_columns") or ()),
        foreign_keys=tuple(
            ForeignKey(
                tuple(key["constrained_columns"]),
                key["referred_table"],
                tuple(key["referred_columns"]),
                key["referred_schema"],
                key["name"],
            )
            for key in inspector.get_foreign_keys(name)
        ),
        indexes=tuple(indexes),
        comment=comment,
    )
