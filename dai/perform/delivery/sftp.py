"""SFTP, by asyncssh: keys of hosts as the operator lists them, writing and reading by several requests at once."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self, cast

import asyncssh

from dai.config import DeliveryConfig
from dai.errors import DataError, DeniedError, NotFoundError, TruncatedError, UnreachableError
from dai.perform.delivery.addresses import Address, account_of
from dai.perform.delivery.calls import PAUSE_SECONDS, RETRIES, Blocks, Call, going_on
from dai.perform.delivery.loops import Loop
from dai.streams.cancellation import Cancellation

PIECE_BYTES = 1 << 20
"""One reading or writing, which the library cuts into requests that are on their way at once."""


class _Session:
    """One connection after another to one server."""

    def __init__(self, address: Address, config: DeliveryConfig, call: Call) -> None:
        account = account_of(address, config)
        if account is None or not account.user:
            raise DeniedError(
                f"This service has no account at {address.host!r}.",
                hint="The operator of the service can add one in [delivery.accounts].",
            )
        if config.known_hosts is None:
            raise DeniedError(
                f"The host key of {address.host!r} is not known.",
                hint="The operator of the service can add it to the file that known_hosts in [delivery] names.",
            )
        self._address, self._call, self.file = address, call, address.file
        self._options: dict[str, Any] = {
            "host": address.host, "port": address.port, "username": account.user, "password": account.password,
            "client_keys": [str(account.key)] if account.key else None, "known_hosts": str(config.known_hosts),
            # nothing of the user who runs the service: no configuration, agent, certificates
            "config": None, "agent_path": None, "x509_trusted_certs": None, "gss_host": None,
        }  # fmt: skip
        self._connection: asyncssh.SSHClientConnection | None = None

    def __enter__(self) -> Self:
        self._loop = Loop(self._call)
        return self

    def __exit__(self, *_: object) -> None:
        with self._loop:
            self._hang_up()

    def open(self, name: str, flags: int) -> None:
        """Connects anew and opens the file."""
        self._hang_up()
        with self._translated():
            connected = self._call.connect(self._address.port)
            self._call.interrupted_by(self._loop.stop)
            self._loop.wait(self._start(connected, name, flags))

    async def _start(self, connected: socket.socket, name: str, flags: int) -> None:
        connected.setblocking(False)
        self._connection = await asyncssh.connect(sock=connected, **self._options)
        self._client = await self._connection.start_sftp_client()
        self._open = await self._client.open(name, flags, encoding=None)

    def identity(self) -> tuple[int | None, int | None]:
        """Size and time of the last change."""
        with self._translated():
            known = self._loop.wait(self._open.stat())
        return known.size, known.mtime

    def read(self, position: int) -> bytes:
        with self._translated():
            return cast(bytes, self._loop.wait(self._open.read(PIECE_BYTES, position)))

    def write(self, data: bytes, position: int) -> None:
        with self._translated():
            self._loop.wait(self._open.write(data, position))

    def rename(self, part: str, name: str) -> None:
        with self._translated():
            self._loop.wait(self._open.close())
            self._loop.wait(self._client.posix_rename(part, name))

    def remove(self, name: str) -> None:
        """After a failure, as far as the server is still there."""
        if self._connection is not None:
            self._loop.settle(self._client.remove(name))

    def _hang_up(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort()
            self._loop.settle(connection.wait_closed())

    @contextmanager
    def _translated(self) -> Iterator[None]:
        host = self._address.host
        with self._call.translated():
            try:
                yield
            except asyncssh.HostKeyNotVerifiable as error:
                raise DeniedError(f"The host key of {host!r} is not the one in the file known_hosts.") from error
            except asyncssh.PermissionDenied as error:
                raise DeniedError(f"{host!r} refuses the credentials of this service.") from error
            except (asyncssh.SFTPNoSuchFile, asyncssh.SFTPNoSuchPath) as error:
                raise NotFoundError(f"{host!r} has no file of this name, or no such directory.") from error
            except asyncssh.SFTPPermissionDenied as error:
                raise DeniedError(f"{host!r} does not allow access to this file.") from error
            except (asyncssh.SFTPConnectionLost, asyncssh.SFTPNoConnection, asyncssh.DisconnectError) as error:
                raise TruncatedError(f"{host!r} broke off.") from error
            except asyncssh.Error as error:
                raise DataError(f"{host!r} does not transfer the file (SFTP code {error.code}).") from error


class SFTP:
    """A file is written beside its name, and gets it at the end. What breaks off goes on at the same byte."""

    def put(
        self,
        address: Address,
        blocks: Blocks,
        media_type: str,
        config: DeliveryConfig,
        cancellation: Cancellation,
    ) -> None:
        with Call(address.host, config, cancellation, ()) as call, _Session(address, config, call) as session:
            part = f"{session.file}.part-{secrets.token_hex(6)}"
            session.open(part, asyncssh.FXF_WRITE | asyncssh.FXF_CREAT | asyncssh.FXF_EXCL)
            try:
                position = 0
                for piece in _pieces(blocks):
                    _write(session, call, part, piece, position)
                    position += len(piece)
                call.check()
                session.rename(part, session.file)
            except BaseException:
                blocks.close()
                session.remove(part)
                raise

    @contextmanager
    def got(
        self, address: Address, config: DeliveryConfig, cancellation: Cancellation
    ) -> Iterator[tuple[str, Iterator[bytes]]]:
        with Call(address.host, config, cancellation, ()) as call, _Session(address, config, call) as session:
            session.open(session.file, asyncssh.FXF_READ)
            known = session.identity()

            def open_at(position: int) -> Iterator[bytes] | None:
                if position:
                    session.open(session.file, asyncssh.FXF_READ)
                return _read(session, position, known[0]) if session.identity() == known else None

            yield "application/octet-stream", going_on(open_at, call, config)


def _pieces(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Blocks of PIECE_BYTES at least, the last one shorter."""
    piece = bytearray()
    for block in blocks:
        piece += block
        if len(piece) >= PIECE_BYTES:
            yield bytes(piece)
            piece.clear()
    if piece:
        yield bytes(piece)


def _write(session: _Session, call: Call, part: str, piece: bytes, position: int) -> None:
    """Writes the piece at its place: once more, over a new connection, where that breaks off."""
    for failures in range(RETRIES + 1):
        try:
            if failures:
                call.pause(PAUSE_SECONDS * 2 ** (failures - 1))
                session.open(part, asyncssh.FXF_WRITE)
            return session.write(piece, position)
        except (TruncatedError, UnreachableError):
            if failures == RETRIES:
                raise
    return None


def _read(session: _Session, position: int, size: int | None) -> Iterator[bytes]:
    while data := session.read(position):
        position += len(data)
        yield data
    if size is not None and position < size:
        raise TruncatedError("The file is shorter than its size says.")
