"""FTP in the passive mode (RFC 959, RFC 3659). Passwords and data are not encrypted."""

from __future__ import annotations

import dataclasses
import ftplib
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from dai.config import DeliveryConfig
from dai.errors import DaiError, DataError, DeniedError, NotFoundError, TruncatedError
from dai.perform.delivery.addresses import Address, account_of
from dai.perform.delivery.calls import BLOCK_BYTES, Blocks, Call, Replies, going_on
from dai.streams.cancellation import Cancellation

SETTLE_SECONDS = 1.0


class _Session:
    def __init__(self, address: Address, call: Call) -> None:
        self._address, self._call = address, call
        self.file = address.file.lstrip("/")

    def open(self) -> None:
        """Connects and logs in."""
        account = account_of(self._address, self._call.config)
        with self.translated():
            self._ftp = ftplib.FTP()
            connected = self._ftp.sock = self._call.connect(self._address.port)
            self._server = connected.getpeername()[0]
            self._ftp.af = connected.family
            lines = connected.makefile("r", encoding="utf-8", errors="replace")
            self._ftp.file = Replies(lines, self._call.host)  # type: ignore[assignment]
            self._ftp.getresp()
            try:
                self._ftp.login(account.user, account.password or "") if account else self._ftp.login()
            except ftplib.error_perm as error:
                raise DeniedError(f"{self._call.host!r} refuses the credentials of this service.") from error
            self.command("TYPE I")

    def command(self, command: str) -> str:
        with self.translated():
            return self._ftp.sendcmd(command)

    def identity(self) -> tuple[str, str]:
        """Size and time of the last change; DataError where the server does not say them."""
        return self.command(f"SIZE {self.file}"), self.command(f"MDTM {self.file}")

    def check_size(self, file: str, transferred: int) -> None:
        """The end of a data connection looks like that of the file."""
        with suppress(DataError):  # the server does not say it
            size = self.command(f"SIZE {file}").split()[-1]
            if size != str(transferred):
                raise TruncatedError(f"{self._call.host!r} has {size} bytes; {transferred} were transferred.")

    @contextmanager
    def data(self, command: str, position: int = 0) -> Iterator[socket.socket]:
        """The connection for what a command sends. It goes to the address of the server, whatever that says."""
        with self.translated():
            try:
                _, port = self._ftp.makepasv()
            except ValueError:
                port = 0
            if not 0 < port < 65_536:
                raise DataError(f"{self._call.host!r} gave no valid port for the data.")
            with self._call.connect_to(self._server, port) as data:
                if position:
                    self._ftp.sendcmd(f"REST {position}")
                if not self._ftp.sendcmd(command).startswith("1"):
                    raise DataError(f"{self._call.host!r} does not transfer the file.")
                yield data
                with suppress(OSError):
                    data.shutdown(socket.SHUT_RDWR)
            try:
                self._ftp.voidresp()
            except ftplib.error_temp as error:
                raise TruncatedError(f"{self._call.host!r} broke off.") from error

    @contextmanager
    def translated(self) -> Iterator[None]:
        host = self._call.host
        with self._call.translated():
            try:
                yield
            except ftplib.error_perm as error:
                if str(error).startswith("550"):
                    raise NotFoundError(f"{host!r} has no such file, or does not allow access to it.") from error
                raise DataError(f"{host!r} does not transfer the file (status {str(error)[:3]}).") from error
            except ftplib.error_temp as error:
                raise DataError(f"{host!r} does not transfer the file (status {str(error)[:3]}).") from error


_BROKEN = (EOFError, ftplib.Error)


class FTP:
    """A file is written beside its name, and gets it at the end. A reading that breaks off goes on at the same byte."""

    def put(
        self,
        address: Address,
        blocks: Blocks,
        media_type: str,
        config: DeliveryConfig,
        cancellation: Cancellation,
    ) -> None:
        part = f"{address.file.lstrip('/')}.part-{secrets.token_hex(6)}"
        try:
            with Call(address.host, config, cancellation, _BROKEN) as call:
                session = _Session(address, call)
                session.open()
                size = 0
                with session.data(f"STOR {part}") as data:
                    for block in blocks:
                        data.sendall(block)
                        size += len(block)
                session.check_size(part, size)
                session.command(f"RNFR {part}")
                session.command(f"RNTO {session.file}")
        except BaseException:
            blocks.close()
            _remove(address, part, config)
            raise

    @contextmanager
    def got(
        self, address: Address, config: DeliveryConfig, cancellation: Cancellation
    ) -> Iterator[tuple[str, Iterator[bytes]]]:
        with Call(address.host, config, cancellation, _BROKEN) as call:
            session = _Session(address, call)
            session.open()
            known: tuple[str, str] | None = None
            with suppress(DataError):
                known = session.identity()

            def open_at(position: int) -> Iterator[bytes] | None:
                if position:
                    call.hang_up()
                    session.open()
                    if known is None or session.identity() != known:
                        return None
                return _blocks(session, position)

            yield "application/octet-stream", going_on(open_at, call, config)


def _blocks(session: _Session, position: int) -> Iterator[bytes]:
    with session.data(f"RETR {session.file}", position) as data:
        while block := data.recv(BLOCK_BYTES):
            position += len(block)
            yield block
    session.check_size(session.file, position)


def _remove(address: Address, part: str, config: DeliveryConfig) -> None:
    """By a connection of its own: that of the delivery may have been cut."""
    soon = dataclasses.replace(config, seconds=SETTLE_SECONDS, silence=SETTLE_SECONDS)
    with suppress(DaiError), Call(address.host, soon, Cancellation(), _BROKEN) as call:
        session = _Session(address, call)
        session.open()
        session.command(f"DELE {part}")
