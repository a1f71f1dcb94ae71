"""The limit of a request's head, and reading of its lists of values."""

from __future__ import annotations

from starlette.requests import Request
from starlette.types import Scope

from dai.errors import HeadTooLargeError

HEAD_BYTES = 1 << 16
"""Most bytes of a request line and its headers."""


def head_too_large() -> HeadTooLargeError:
    return HeadTooLargeError(
        f"The request line and the headers have more than the {HEAD_BYTES:,} bytes allowed.",
        hint="Send what is large in the body.",
    )


def check_head(scope: Scope) -> None:
    """HeadTooLargeError."""
    size = len(scope["raw_path"]) + len(scope["query_string"])
    if size + sum(len(name) + len(value) for name, value in scope["headers"]) > HEAD_BYTES:
        raise head_too_large()


def listed(request: Request, name: str) -> str | None:
    """The value of a header that is a list: several lines are one list (RFC 9110 section 5.3)."""
    return ", ".join(request.headers.getlist(name)) or None


def preferences(request: Request) -> dict[str, str]:
    """What the client prefers (RFC 7240): values by their names in lower case, empty where there is none."""
    preferred: dict[str, str] = {}
    for each in filter(None, (listed(request, "prefer") or "").split(",")):
        name, _, value = each.partition(";")[0].partition("=")
        preferred.setdefault(name.strip().lower(), value.strip().strip('"'))
    return preferred
