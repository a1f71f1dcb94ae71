"""PEP 249 over a federation: ``from dqp import dbapi``. All names but ``connect`` are those of ``dai.dbapi``."""

from dai.client.dbapi import *  # noqa: F403 - the module of PEP 249
from dai.client.dbapi import __all__ as __all__
from dqp.interfaces.dbapi import connect as connect  # type: ignore[assignment]
