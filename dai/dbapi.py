"""``dai.client.dbapi`` by the name that programs import: ``from dai import dbapi``."""

from dai.client.dbapi import *  # noqa: F403 - the module of PEP 249
from dai.client.dbapi import __all__ as __all__
