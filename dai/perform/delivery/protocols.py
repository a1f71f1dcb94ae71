"""The protocols of URLs, by their schemes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Protocol, cast

from dai.config import DeliveryConfig
from dai.perform.delivery.addresses import Address
from dai.perform.delivery.calls import Blocks
from dai.plugins import Table
from dai.streams.cancellation import Cancellation

PROTOCOLS = Table(
    "protocol",
    "dai.delivery_protocols",
    {
        "http": "dai.perform.delivery.http:HTTP",
        "https": "dai.perform.delivery.http:HTTP",
        "ftp": "dai.perform.delivery.ftp:FTP",
        "sftp": "dai.perform.delivery.sftp:SFTP",
        "s3": "dai.perform.delivery.objects:Objects",
    },
    {"sftp": "delivery", "s3": "delivery"},
)


class Carrier(Protocol):
    """The operations of a protocol. They raise a DaiError; a cancellation ends both at once."""

    def put(
        self,
        address: Address,
        blocks: Blocks,
        media_type: str,
        config: DeliveryConfig,
        cancellation: Cancellation,
    ) -> None:
        """Sends the blocks as they come. Where that fails they are closed before anything is undone there."""

    def got(
        self, address: Address, config: DeliveryConfig, cancellation: Cancellation
    ) -> AbstractContextManager[tuple[str, Iterator[bytes]]]:
        """The media type and the bytes as they come."""


def carrier(address: Address) -> Carrier:
    return cast(Carrier, PROTOCOLS.named(address.scheme)())
