"""What the OpenAPI description says of each address. A process makes it once: that takes a second."""

from functools import cache
from typing import Any

from dai.api.app import create_app


@cache
def paths() -> dict[str, dict[str, Any]]:
    return create_app().openapi()["paths"]  # type: ignore[no-any-return]
