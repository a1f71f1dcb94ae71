"""SQLAlchemy's plugin of pytest, which names a dialect with its driver."""

from sqlalchemy.dialects import registry
from sqlalchemy.testing.plugin.pytestplugin import *  # noqa: F403

registry.register("dai.dai", "dai.client.sqlalchemy", "ServedDialect")
