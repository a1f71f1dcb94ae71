"""A connection that a cancellation or a time limit cuts, and reading that goes on where it broke off."""

from __future__ import annotations

import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, Self

from dai.config import AccountConfig, DeliveryConfig
from dai.drivers.connections.interrupts import interruptible
from dai.errors import DaiError, DataError, LimitError, TruncatedError, UnreachableError
from dai.perform.delivery.addresses import resolved
from dai.streams.cancellation import Cancellation
from dai.streams.stream import ByteStream

BLOCK_BYTES = 1 << 18
RETRIES = 3
"""Most attempts to resume a transfer that broke off, without a byte in between."""
PAUSE_SECONDS = 0.1
"""Before the first of them; each further pause is twice as long."""
REPLIES_BYTES = 1 << 20
"""Most bytes that a server may send over one connection besides data."""
_MEDIA_TYPE = re.compile(r'[\w.+-]+/[\w.+-]+( *; *[\w-]+=([\w.+:/-]+|"[ !#-\[\]-~]*"))*', re.ASCII)


def media_type_of(said: str | None) -> str:
    """What the other side says that it is, where that is a media type: it comes into headers of ours."""
    said = (said or "").strip()
    return said if _MEDIA_TYPE.fullmatch(said) else "application/octet-stream"


def too_late(config: DeliveryConfig) -> LimitError:
    return LimitError(
        f"The delivery took longer than {config.seconds:g} seconds, or nothing arrived for {config.silence:g} seconds.",
        limit="delivery.seconds",
    )


def tls(config: DeliveryConfig, account: AccountConfig | None = None) -> ssl.SSLContext:
    """Checks certificates and names, by the authorities of the system and those of the configuration, and shows the
    certificate of the account."""
    context = ssl.create_default_context()
    if config.authorities is not None:
        context.load_verify_locations(config.authorities)
    if account is not None and account.certificate is not None:
        context.load_cert_chain(account.certificate, account.key)
    return context


class Blocks:
    """The bytes that are sent; closing them stops their source."""

    def __init__(self, source: ByteStream) -> None:
        self._source, self.close = source, source.close

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> bytes:
        return bytes(memoryview(next(self._source).data))


class Replies:
    """The lines that a server says, as a library reads them from a file, of REPLIES_BYTES at most."""

    def __init__(self, file: Any, host: str) -> None:
        self._file, self._host, self._left = file, host, REPLIES_BYTES
        self.close = file.close

    def readline(self, size: int) -> Any:
        line = self._file.readline(size)
        self._left -= len(line)
        if self._left < 0:
            raise DataError(f"{self._host!r} replies with more than {REPLIES_BYTES:,} bytes.")
        return line


class Call:
    """The connections of one delivery to one host; leaving it closes them.

    ``errors`` are those of the protocol's library that say that the other side broke off.
    """

    def __init__(
        self, host: str, config: DeliveryConfig, cancellation: Cancellation, errors: tuple[type[Exception], ...]
    ) -> None:
        self.host, self.config = host, config
        self._cancellation, self._errors = cancellation, errors
        self._stack = ExitStack()
        self._sockets: list[socket.socket] = []
        self._ended = threading.Event()
        self._interrupt: Callable[[], None] | None = None
        self._late = False

    def __enter__(self) -> Self:
        self._stack.callback(self.hang_up)
        try:
            self._stack.enter_context(self._cancellation.on_cancel(self._cut))
        except BaseException:
            self._stack.close()
            raise
        timer = threading.Timer(self.config.seconds, self._end)
        timer.daemon = True
        timer.start()
        self._stack.callback(timer.cancel)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def connect(self, port: int) -> socket.socket:
        """A connection to the address of the host, once it was looked at."""
        return self.connect_to(resolved(self.host, port, self.config, self._cancellation), port)

    def connect_to(self, number: str, port: int) -> socket.socket:
        """A connection to an address that was looked at. Its second handle here is what is cut: a library may put
        another object in the place of the first."""
        connection = socket.socket(socket.AF_INET6 if ":" in number else socket.AF_INET, socket.SOCK_STREAM)
        try:
            self._sockets.append(connection.dup())
            self.check()
            connection.settimeout(self.config.silence)
            with interruptible(self._cancellation, self._cut):  # once may come just before the call waits
                connection.connect((number, port))
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.check()
        except BaseException:
            connection.close()
            raise
        return connection

    def interrupted_by(self, interrupt: Callable[[], None]) -> None:
        """``interrupt`` ends what waits, in place of a cut: the connections so far are left to whoever uses them."""
        self._interrupt = interrupt
        for each in self._sockets:
            each.close()
        self._sockets = []

    def hang_up(self) -> None:
        """Closes the connections so far; another may follow."""
        for each in self._sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        self._sockets = []

    @property
    def ended(self) -> bool:
        return self._ended.is_set()

    def check(self) -> None:
        """Raises the cause of a cancellation, or that the time is over."""
        self._cancellation.check()
        if self._late:
            raise too_late(self.config)

    def pause(self, seconds: float) -> None:
        self._ended.wait(seconds)
        self.check()

    def _cut(self) -> None:
        self._ended.set()
        if self._interrupt is not None:
            self._interrupt()
        for each in list(self._sockets):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _end(self) -> None:
        self._late = True
        self._cut()

    @contextmanager
    def translated(self) -> Iterator[None]:
        """What the other side does as an error of ours. What was cut by us looks like an end, or like its failure."""
        try:
            yield
        except TimeoutError as error:
            self.check()
            raise too_late(self.config) from error
        except self._errors as error:
            self.check()
            if isinstance(error.__context__, TimeoutError):
                raise too_late(self.config) from error
            raise TruncatedError(f"{self.host!r} broke off its answer.") from error
        except ssl.SSLCertVerificationError as error:
            raise UnreachableError(
                f"The certificate of {self.host!r} is not valid: {error.verify_message}.",
                hint="The operator of the service can trust other authorities with authorities in [delivery].",
            ) from error
        except OSError as error:
            self.check()
            raise UnreachableError(f"{self.host!r} cannot be reached, or closed the connection.") from error
        except DaiError as error:
            try:
                self.check()
            except DaiError as cause:
                raise cause from error
            raise
        self.check()


def _changed(call: Call, position: int) -> TruncatedError:
    return TruncatedError(
        f"{call.host!r} broke off after {position:,} bytes. The delivery cannot go on from there: the server "
        "does not tell the version of the file, or has another version now.",
        hint="Run the document again; the delivery begins again with the first byte.",
    )


def going_on(open_at: Callable[[int], Iterator[bytes] | None], call: Call, config: DeliveryConfig) -> Iterator[bytes]:
    """The blocks from ``open_at(0)``. Where they break off, ``open_at`` goes on from the bytes so far; it says None
    where the server cannot, or has another file by now."""
    position = failures = 0
    broken: DaiError | None = None
    while True:
        try:
            blocks = open_at(position)
            if blocks is None:
                raise _changed(call, position)
            for data in blocks:
                position, failures = position + len(data), 0
                if config.bytes and position > config.bytes:
                    raise LimitError(f"The answer has more than {config.bytes:,} bytes.", limit="delivery.bytes")
                yield data
            return
        except (TruncatedError, UnreachableError) as error:
            failures += 1
            if error is broken or failures > RETRIES:
                raise
            broken = error
        call.pause(PAUSE_SECONDS * 2 ** (failures - 1))
