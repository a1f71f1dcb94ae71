"""SQLAlchemy over a resource of a data service: ``create_engine("dai://host:port/resource")``.

``dai`` and ``dai+https`` are entry points (``sqlalchemy.dialects``). A dialect is SQLAlchemy's own of the resource's
database (``databases``), which compiles the SQL; ``served`` runs it by ``dai.client.dbapi``, ``reflection`` reads what
the service says of tables, ``types`` turns its values into those of SQLAlchemy's types. A further database is a class
in ``databases`` and a line in its table.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy.engine import URL
from sqlalchemy.engine.default import DefaultDialect

from dai.client import dbapi
from dai.client.sqlalchemy.databases import DIALECTS, class_for
from dai.client.sqlalchemy.served import address, options


class ServedDialect(DefaultDialect):
    """The entry point: asks the service which database the resource is, and gives the dialect of that.

    ``?dialect=postgresql`` in the URL says it instead; then nothing is asked before the first connection.
    """

    @classmethod
    def get_dialect_cls(cls, url: URL) -> type[Any]:
        said = url.query.get("dialect")
        if said is not None:
            return class_for(str(said), "")
        try:
            with dbapi.connect(address(url), **options(url)) as connection:
                return class_for(connection.source.dialect, connection.source.product)
        except dbapi.OperationalError as error:
            if error.code == "unauthenticated":
                error.add_note(
                    "create_engine asks the service which database it is. Set DAI_TOKEN, or have a profile for it in "
                    "~/.config/dai/profiles.toml; or say the database in the "
                    f"URL, ?dialect={'|'.join(DIALECTS)}, and give connect_args={{'token': …}}."
                )
            raise
