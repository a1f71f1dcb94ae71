"""The resource: what the service knows of stored XML documents."""

from __future__ import annotations

import time
from typing import ClassVar

from dai.drivers import DriverOptions
from dai.drivers.collections.store import Store
from dai.drivers.virtual import WithoutTables


class Collections(WithoutTables):
    """``store``: the documents."""

    dialect = "xml"
    called = "A resource of XML collections"
    instead = (
        "Use xPathStatement, xQueryStatement, xUpdateStatement, xmlCollectionManagement and xmlResourceManagement."
    )
    role: ClassVar[str | None] = "collections"

    def __init__(self, url: str, options: DriverOptions) -> None:
        self.store = Store(url, options)

    @classmethod
    def connect(cls, url: str, options: DriverOptions) -> Collections:
        return cls(url, options)

    def product(self) -> str:
        return f"XML collections in {self.store.product()}"

    def check(self) -> float:
        start = time.perf_counter()
        self.store.product()
        return time.perf_counter() - start

    def pool_state(self) -> dict[str, int]:
        return self.store.pool_state()

    def close(self) -> None:
        self.store.close()
