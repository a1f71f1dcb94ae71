"""Compares a body with the hash that its signature names, while it is read and before its reader gets the last part."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping

from starlette.types import Message, Receive

from dai.errors import UnauthenticatedError


def checked(receive: Receive, digests: Mapping[str, bytes]) -> Receive:
    """UnauthenticatedError for a body with other hashes; without any the body must be empty."""
    hashes = {name: hashlib.new(name.replace("-", "")) for name in digests}

    async def part() -> Message:
        message = await receive()
        if message["type"] != "http.request":
            return message
        body = message.get("body", b"")
        if body and not hashes:
            raise UnauthenticatedError("This body is not signed.", hint="Send a Content-Digest, and sign it.")
        for each in hashes.values():
            each.update(body)
        if not message.get("more_body"):
            for name, digest in digests.items():
                if not hmac.compare_digest(hashes[name].digest(), digest):
                    raise UnauthenticatedError("This body is not the one that was signed.")
        return message

    return part
