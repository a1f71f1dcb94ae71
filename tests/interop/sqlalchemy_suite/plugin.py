"""SQLAlchemy's plugin of pytest. It writes the names of dialects with their driver: ``dai+dai``."""

from sqlalchemy.dialects import registry
from sqlalchemy.testing.plugin.pytestplugin import *  # noqa: F403

registry.register("dai.dai", "dai.client.sqlalchemy", "ServedDialect")
