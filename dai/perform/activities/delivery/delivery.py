"""Delivery to and from files of the service and addresses, where the operator allows them (``[delivery]``)."""

from __future__ import annotations

import urllib.parse
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, ClassVar, Literal

from dai.drivers.directory.beneath import Beneath
from dai.drivers.directory.beneath import blocks as blocks_of
from dai.errors import DeniedError, ParameterError
from dai.perform.activity import ANY, Activity, Context, Element, Input, Output, attribute, child, input, output, text
from dai.perform.delivery import mail
from dai.perform.delivery.addresses import Address, allowed
from dai.perform.delivery.calls import Blocks
from dai.perform.delivery.protocols import carrier
from dai.streams.stream import Block, ByteStream


def _beneath(name: str, context: Context) -> tuple[Beneath, str]:
    """The configured directory, and the name in it: relative, or absolute below it."""
    directory = context.config.delivery.directory
    if directory is None:
        raise DeniedError(
            "This service does not deliver to or from its files.",
            hint="The operator of the service allows it with a directory in [delivery].",
        )
    name = name.strip()
    if name.startswith("/") and PurePosixPath(name).is_relative_to(directory):
        name = str(PurePosixPath(name).relative_to(directory))
    return Beneath(directory), name


def _to_file(name: str, source: ByteStream, context: Context) -> None:
    files, name = _beneath(name, context)
    with source, files.replacing(name, new=True) as (_, writer):
        for block in source:
            writer.write(block.data)
        context.cancellation.check()


@contextmanager
def _from_file(name: str, context: Context) -> Iterator[tuple[str, Iterator[bytes]]]:
    files, name = _beneath(name, context)
    with files.reading(name) as file:
        yield "application/octet-stream", blocks_of(file)


def _file_of(url: str) -> str | None:
    """The name that a ``file:`` URL stands for."""
    try:
        parts = urllib.parse.urlsplit(url.strip())
    except ValueError as error:
        raise ParameterError("This is not a URL.") from error
    if parts.scheme.lower() != "file":
        return None
    if parts.netloc not in ("", "localhost"):
        raise ParameterError("A file: URL cannot name another machine.")
    return urllib.parse.unquote(parts.path)


def _read(
    source: AbstractContextManager[tuple[str, Iterator[bytes]]], size: int | None, context: Context
) -> ByteStream:
    media_type, data = context.closing(source)
    if size is not None:
        data = _cut(data, size)
    return ByteStream(media_type, (Block(each, 1) for each in data))


def _cut(data: Iterator[bytes], size: int) -> Iterator[bytes]:
    """Blocks of exactly ``size`` bytes, the last one shorter."""
    rest = bytearray()
    for each in data:
        rest += each
        whole = len(rest) - len(rest) % size
        for start in range(0, whole, size):
            yield bytes(rest[start : start + size])
        del rest[:whole]
    if rest:
        yield bytes(rest)


@dataclass(frozen=True, kw_only=True)
class DeliverToFile(Activity):
    """Writes its input to a file of the service, in the directory that the operator allows.

    The file appears, or is replaced, only when it is complete.
    """

    example: ClassVar[str] = """
        <deliverToFile name="delivery">
          <fromLocal from="document"/>
          <toFile>result.xml</toFile>
        </deliverToFile>"""
    role: ClassVar[str | None] = ANY
    changes: ClassVar[bool] = True

    source: Input[ByteStream] = input("fromLocal")
    file: str = child("toFile")

    def run(self, context: Context) -> None:
        _to_file(self.file, context.bytes(self.source), context)


@dataclass(frozen=True, kw_only=True)
class DeliverFromFile(Activity):
    """Reads a file of the service, in the directory that the operator allows."""

    example: ClassVar[str] = """
        <deliverFromFile name="delivery">
          <fromFile>data.xml</fromFile>
          <toLocal name="data"/>
        </deliverFromFile>"""
    role: ClassVar[str | None] = ANY
    tabular: ClassVar[Literal["no"]] = "no"

    file: str = child("fromFile")
    result: Output[ByteStream] = output("toLocal")

    def run(self, context: Context) -> ByteStream:
        return _read(_from_file(self.file, context), None, context)


@dataclass(frozen=True, kw_only=True)
class DeliverToResponse(Activity):
    """Puts its input into the response, as a result with the name of this activity.

    An output that no activity reads is in the response without it. With it, an output that other activities read is
    there, too.
    """

    example: ClassVar[str] = """
        <deliverToResponse name="delivery">
          <fromLocal from="document"/>
        </deliverToResponse>"""
    role: ClassVar[str | None] = ANY
    tabular: ClassVar[Literal["like its input"]] = "like its input"

    source: Input[ByteStream] = input("fromLocal")
    result: Output[ByteStream] = output()

    def run(self, context: Context) -> ByteStream:
        return context.bytes(self.source)


@dataclass(frozen=True, kw_only=True)
class DeliverToURL(Activity):
    """Sends its input to a URL that the operator allows: ``http:`` and ``https:`` (by PUT), or ``file:``."""

    example: ClassVar[str] = """
        <deliverToURL name="delivery">
          <fromLocal from="document"/>
          <toURL>file:///result.xml</toURL>
        </deliverToURL>"""
    role: ClassVar[str | None] = ANY
    changes: ClassVar[bool] = True

    source: Input[ByteStream] = input("fromLocal")
    url: str = child("toURL")

    def run(self, context: Context) -> None:
        source = context.bytes(self.source)
        if (name := _file_of(self.url)) is not None:
            return _to_file(_in_directory(name, context), source, context)
        address = allowed(self.url, context.config.delivery)
        return _put(address, source, context)


def _put(address: Address, source: ByteStream, context: Context) -> None:
    with source:
        config, cancellation = context.config.delivery, context.cancellation
        carrier(address).put(address, Blocks(source), source.media_type, config, cancellation)


def _in_directory(name: str, context: Context) -> str:
    """The path of a ``file:`` URL: below the allowed directory, or from it on."""
    directory = context.config.delivery.directory
    return name if directory is None or PurePosixPath(name).is_relative_to(directory) else name.removeprefix("/")


@dataclass(frozen=True, kw_only=True)
class FromURL(Element):
    """The URL; ``blockSizeInBytes``: the size of the blocks of the output."""

    size: int | None = attribute("blockSizeInBytes", default=None)
    url: str = text()


@dataclass(frozen=True, kw_only=True)
class DeliverFromURL(Activity):
    """Reads from a URL that the operator allows: ``http:`` and ``https:`` (by GET), or ``file:``."""

    example: ClassVar[str] = """
        <deliverFromURL name="delivery">
          <fromURL blockSizeInBytes="8192">file:///data.xml</fromURL>
          <toLocal name="data"/>
        </deliverFromURL>"""
    role: ClassVar[str | None] = ANY
    tabular: ClassVar[Literal["no"]] = "no"

    source: FromURL = child("fromURL")
    result: Output[ByteStream] = output("toLocal")

    def run(self, context: Context) -> ByteStream:
        most, size = context.config.limits.block_bytes, self.source.size
        if size is not None and not 1 <= size <= most:
            raise ParameterError(f"blockSizeInBytes must be from 1 to {most:,}, not {size}.")
        opened: Any
        if (name := _file_of(self.source.url)) is not None:
            opened = _from_file(_in_directory(name, context), context)
        else:
            delivery = context.config.delivery
            address = allowed(self.source.url, delivery)
            opened = carrier(address).got(address, delivery, context.cancellation)
        return _read(opened, size, context)


@dataclass(frozen=True, kw_only=True)
class DeliverToSMTP(Activity):
    """Sends its input as a mail, by the server and to the recipients that the operator allows.

    The input is the content of the message, in base64, with its media type. No recipient gets the message if one of
    them is refused, or if the input fails.
    """

    example: ClassVar[str] = """
        <deliverToSMTP name="delivery">
          <fromLocal from="document"/>
          <to>reader@example.org</to>
          <from>service@example.org</from>
          <subject>The result</subject>
        </deliverToSMTP>"""
    role: ClassVar[str | None] = ANY
    changes: ClassVar[bool] = True

    source: Input[ByteStream] = input("fromLocal")
    to: tuple[str, ...] = child("to")
    sender: str = child("from")
    subject: str = child("subject")

    def run(self, context: Context) -> None:
        with context.bytes(self.source) as source:
            config, cancellation = context.config.delivery, context.cancellation
            mail.send(self.sender, self.to, self.subject, Blocks(source), source.media_type, config, cancellation)


@dataclass(frozen=True, kw_only=True)
class GridFile(Element):
    """A ``file`` of a ``host``; ``port``: by default that of the protocol."""

    host: str = attribute()
    port: int | None = attribute(default=None)
    file: str = attribute()


def _today(remote: GridFile, context: Context) -> Address:
    """The address that stands for it today: by SFTP, or else by HTTPS, as the operator allows."""
    at = remote.host if remote.port is None else f"{remote.host}:{remote.port}"
    rest = f"{at}/{urllib.parse.quote(remote.file.lstrip('/'))}"
    if not set(remote.host).isdisjoint("/?#@\\"):
        raise ParameterError("The host of a file must be a name or an address.")
    try:
        return allowed(f"sftp://{rest}", context.config.delivery)
    except DeniedError:
        return allowed(f"https://{rest}", context.config.delivery)


@dataclass(frozen=True, kw_only=True)
class DeliverToGFTP(Activity):
    """Sends its input to a file of another machine, by SFTP, or by HTTPS (PUT), as the operator allows.

    GridFTP itself is not supported. The account is in the configuration.
    """

    example: ClassVar[str] = """
        <deliverToGFTP name="delivery">
          <fromLocal from="document"/>
          <toGFTP host="files.example.org" port="22" file="/incoming/result.xml"/>
        </deliverToGFTP>"""
    role: ClassVar[str | None] = ANY
    changes: ClassVar[bool] = True

    source: Input[ByteStream] = input("fromLocal")
    target: GridFile = child("toGFTP")

    def run(self, context: Context) -> None:
        _put(_today(self.target, context), context.bytes(self.source), context)


@dataclass(frozen=True, kw_only=True)
class DeliverFromGFTP(Activity):
    """Reads a file of another machine, by SFTP, or by HTTPS, as the operator allows.

    GridFTP itself is not supported. The account is in the configuration.
    """

    example: ClassVar[str] = """
        <deliverFromGFTP name="delivery">
          <fromGFTP host="files.example.org" port="22" file="/outgoing/data.xml"/>
          <toLocal name="data"/>
        </deliverFromGFTP>"""
    role: ClassVar[str | None] = ANY
    tabular: ClassVar[Literal["no"]] = "no"

    source: GridFile = child("fromGFTP")
    result: Output[ByteStream] = output("toLocal")

    def run(self, context: Context) -> ByteStream:
        address = _today(self.source, context)
        return _read(carrier(address).got(address, context.config.delivery, context.cancellation), None, context)
