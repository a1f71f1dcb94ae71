"""SQLAlchemy's plugin of pytest. It writes the names of dialects with their driver: ``dai+dai``."""

from typing import Any

import pytest
from sqlalchemy import Connection, MetaData
from sqlalchemy.dialects import registry
from sqlalchemy.engine.reflection import ObjectKind, ObjectScope
from sqlalchemy.sql.ddl import sort_tables_and_constraints
from sqlalchemy.testing import provision
from sqlalchemy.testing.plugin.pytestplugin import *  # noqa: F403
from sqlalchemy.testing.plugin.pytestplugin import pytest_collection_modifyitems as _modify

from tests.thoroughness import part

registry.register("dai.dai", "dai.client.sqlalchemy", "ServedDialect")


@provision.delete_from_all_tables.for_db("dai")  # type: ignore[misc]
def _delete(connection: Connection, config: Any, metadata: MetaData) -> None:
    """After each test. SQLAlchemy's own asks before which tables the whole database has."""
    for table, _ in reversed(sort_tables_and_constraints(metadata.tables.values())):
        if table is not None:
            connection.execute(table.delete())


def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    _modify(session, config, items)
    items[:] = part([each for each in items if not _repeats(each)])


def _repeats(item: pytest.Item) -> bool:
    """Of what describes many tables, there are 84 cases: kinds and what is temporary, in each combination. It is
    SQLAlchemy's own loop over the names of each kind: once each kind, and what is temporary with all of them, will
    do."""
    if not isinstance(item, pytest.Function) or not hasattr(item, "callspec"):
        return False
    parameters = item.callspec.params
    kind, scope = parameters.get("kind"), parameters.get("scope")
    if kind is None or scope is None:
        return False
    single = (ObjectKind.TABLE, ObjectKind.VIEW, ObjectKind.MATERIALIZED_VIEW)
    return kind is not ObjectKind.ANY and (kind not in single or scope is not ObjectScope.DEFAULT)
