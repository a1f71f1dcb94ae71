"""SQLAlchemy's plugin of pytest. It writes the names of dialects with their driver: ``dai+dai``."""

import pytest
from sqlalchemy.dialects import registry
from sqlalchemy.engine.reflection import ObjectKind, ObjectScope
from sqlalchemy.testing.plugin.pytestplugin import *  # noqa: F403
from sqlalchemy.testing.plugin.pytestplugin import pytest_collection_modifyitems as _modify

registry.register("dai.dai", "dai.client.sqlalchemy", "ServedDialect")


def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    _modify(session, config, items)
    items[:] = [each for each in items if not _repeats(each)]


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
