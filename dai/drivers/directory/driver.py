"""The resource: what the service knows of a directory."""

from __future__ import annotations

import time
from pathlib import Path
from typing import ClassVar

from dai.drivers import DriverOptions
from dai.drivers.directory.beneath import Beneath
from dai.drivers.virtual import WithoutTables
from dai.errors import ConfigurationError


class Directory(WithoutTables):
    """``files``: the files beneath the directory."""

    dialect = "files"
    called = "A directory of files"
    instead = "Use fileAccessActivity, fileWritingActivity, directoryAccess and fileManipulation."
    role: ClassVar[str | None] = "directory"

    def __init__(self, path: Path) -> None:
        self.files = Beneath(path)

    @classmethod
    def connect(cls, url: str, options: DriverOptions) -> Directory:
        raise ConfigurationError("A directory has no URL.", hint='Write directory = "PATH".')

    def product(self) -> str:
        self.check()
        return "directory"

    def check(self) -> float:
        start = time.perf_counter()
        self.files.check()
        return time.perf_counter() - start

    def close(self) -> None:
        """It holds nothing open."""
