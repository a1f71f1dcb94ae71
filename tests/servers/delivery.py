"""Real servers that deliveries speak to: mail, SFTP, FTP and objects, on loopback, in threads of this process."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import asyncssh
import boto3
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session
from moto.server import ThreadedMotoServer
from pyftpdlib.authorizers import DummyAuthorizer
from pyftpdlib.handlers import DTPHandler, FTPHandler
from pyftpdlib.ioloop import IOLoop
from pyftpdlib.servers import FTPServer

T = TypeVar("T")
USER, PASSWORD = "loader", "the password"


class Loop:
    """An event loop in a thread; leaving it cancels what still runs."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)

    def __enter__(self) -> Loop:
        self._thread.start()
        return self

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(60)

    def __exit__(self, *_: object) -> None:
        self.run(self._cancel())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(60)
        self.loop.close()

    async def _cancel(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@dataclass
class MailServer:
    """Keeps the messages that it accepted; an address that begins with ``nobody`` is refused. ``breaks_off``: in place
    of its answer to a message."""

    port: int = 0
    messages: list[bytes] = field(default_factory=list)
    recipients: list[list[str]] = field(default_factory=list)
    refuses: bool = False
    breaks_off: bool = False

    async def handle_RCPT(  # noqa: N802
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        if address.startswith("nobody"):
            return "550 there is no such person"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:  # noqa: N802
        if self.refuses:
            return "554 not today"
        assert isinstance(envelope.content, bytes)
        self.messages.append(envelope.content)
        self.recipients.append(list(envelope.rcpt_tos))
        if self.breaks_off:
            assert server.transport is not None
            server.transport.close()
        return "250 OK"


def _authenticate(server: SMTP, session: Session, envelope: Envelope, mechanism: str, data: Any) -> AuthResult:
    known = isinstance(data, LoginPassword) and (data.login, data.password) == (USER.encode(), PASSWORD.encode())
    return AuthResult(success=known, handled=False)


@contextmanager
def mail_server(certificate: Path | None = None, most: int = 1 << 30) -> Iterator[MailServer]:
    """It takes messages of ``most`` bytes. With a certificate it takes mail after STARTTLS and a login alone."""
    handler = MailServer()
    options: dict[str, Any] = {"hostname": "mail.test", "data_size_limit": most}
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, certificate.with_suffix(".key"))
        options |= {
            "tls_context": context, "require_starttls": True, "auth_required": True, "authenticator": _authenticate,
        }  # fmt: skip
    with Loop() as loop:

        async def start() -> asyncio.Server:
            running = asyncio.get_running_loop()
            return await running.create_server(lambda: SMTP(handler, loop=running, **options), "127.0.0.1", 0)

        server = loop.run(start())
        handler.port = server.sockets[0].getsockname()[1]
        yield handler
        loop.loop.call_soon_threadsafe(server.close)


class _Login(asyncssh.SSHServer):  # type: ignore[misc,unused-ignore]
    def password_auth_supported(self) -> bool:
        return True

    def validate_password(self, username: str, password: str) -> bool:
        return (username, password) == (USER, PASSWORD)


@dataclass
class FileServer:
    """``port``; ``root``: the directory that it serves; ``known_hosts``: a file with its key."""

    port: int
    root: Path
    known_hosts: Path


@contextmanager
def sftp_server(directory: Path, client_key: Path | None = None) -> Iterator[FileServer]:
    """Serves ``directory``/root to USER, with PASSWORD or the key."""
    root = directory / "root"
    root.mkdir()
    key = asyncssh.generate_private_key("ssh-ed25519")
    with Loop() as loop:

        async def start() -> Any:
            return await asyncssh.listen(
                "127.0.0.1",
                0,
                server_factory=_Login,
                server_host_keys=[key],
                authorized_client_keys=None if client_key is None else str(client_key),
                sftp_factory=lambda channel: asyncssh.SFTPServer(channel, chroot=str(root).encode()),
            )

        server = loop.run(start())
        port = server.get_port()
        known_hosts = directory / "known_hosts"
        known_hosts.write_text(f"[127.0.0.1]:{port} {key.export_public_key().decode()}")
        yield FileServer(port, root, known_hosts)
        loop.loop.call_soon_threadsafe(server.close)


@contextmanager
def ftp_server(root: Path, breaks: Breaks | None = None) -> Iterator[int]:
    """Serves the directory to USER with PASSWORD; the port. With ``breaks`` each transfer breaks off."""
    users = DummyAuthorizer()
    users.add_user(USER, PASSWORD, str(root), perm="elradfmwMT")

    class Data(DTPHandler):  # type: ignore[misc,unused-ignore]
        def send(self, data: bytes) -> int:
            self._check()
            return int(super().send(data[: 1 << 16]))

        def recv(self, size: int) -> bytes:
            if breaks is not None and breaks.loses and self.get_transmitted_bytes() > breaks.after:
                super().recv(size)
                return b""
            self._check()
            return bytes(super().recv(size))

        def use_sendfile(self) -> bool:
            return breaks is None and bool(super().use_sendfile())

        def _check(self) -> None:
            if breaks is not None and not breaks.loses and breaks.now(self.get_transmitted_bytes()):
                raise ConnectionResetError

    class Handler(FTPHandler):  # type: ignore[misc,unused-ignore]
        authorizer = users
        dtp_handler = Data

    server = FTPServer(("127.0.0.1", 0), Handler, ioloop=IOLoop())
    ended = threading.Event()

    def serve() -> None:
        while not ended.is_set():
            server.serve_forever(timeout=0.05, blocking=False, handle_exit=False)
        server.close_all()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield server.socket.getsockname()[1]
    finally:
        ended.set()
        thread.join(60)


@contextmanager
def object_store(bucket: str) -> Iterator[tuple[str, Any]]:
    """Its endpoint, and a client of it; ``bucket`` exists."""
    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        endpoint = f"http://{host}:{port}"
        client = boto3.client(
            "s3", endpoint_url=endpoint, region_name="us-east-1", aws_access_key_id=USER, aws_secret_access_key=PASSWORD
        )
        client.create_bucket(Bucket=bucket)
        yield endpoint, client
    finally:
        server.stop()


@dataclass
class Breaks:
    """Connections that break off, each ``after`` so many bytes, the first ``most`` of those that carry as many.
    ``meanwhile`` is called the first time. ``loses``: an FTP server takes the rest
    and forgets it."""

    after: int
    most: int = 1 << 30
    loses: bool = False
    meanwhile: Callable[[], object] = lambda: None
    count: int = 0

    def now(self, passed: int) -> bool:
        """Whether the connection, of so many bytes, breaks off now."""
        if passed <= self.after or self.count >= self.most:
            return False
        self.count += 1
        if self.count == 1:
            self.meanwhile()
        return True


@contextmanager
def breaking(port: int, breaks: Breaks) -> Iterator[int]:
    """A port that leads to a server on loopback, by connections that break off."""
    with Loop() as loop:

        async def forward(client_reader: asyncio.StreamReader, client_writer: asyncio.StreamWriter) -> None:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            passed = 0

            async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
                nonlocal passed
                while data := await source.read(1 << 16):
                    target.write(data)
                    await target.drain()
                    passed += len(data)
                    if breaks.now(passed):
                        return

            copies = [
                asyncio.create_task(copy(client_reader, writer)),
                asyncio.create_task(copy(reader, client_writer)),
            ]
            await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
            for each in copies:
                each.cancel()
            await asyncio.gather(*copies, return_exceptions=True)
            for end in (writer, client_writer):
                end.transport.abort()

        server = loop.run(asyncio.start_server(forward, "127.0.0.1", 0))
        yield server.sockets[0].getsockname()[1]
        loop.loop.call_soon_threadsafe(server.close)


class Cut:
    """Leads to a server on loopback, until ``after`` bytes went there: then it breaks off, and stays away."""

    def __init__(self, port: int, after: int) -> None:
        self._target, self._left = port, after
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = [self._listener]
        self.port = self._listener.getsockname()[1]

    def __enter__(self) -> Cut:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._break_off()

    def _break_off(self) -> None:
        with self._lock:
            for each in self._sockets:
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
                each.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if not self._left:
                    client.close()
                    continue
                server = socket.create_connection(("127.0.0.1", self._target))
                with self._lock:
                    self._sockets += [client, server]
                threading.Thread(target=self._forward, args=(client, server, True), daemon=True).start()
                threading.Thread(target=self._forward, args=(server, client, False), daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket, counted: bool) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
                if counted:
                    self._left = max(0, self._left - len(data))
                    if not self._left:
                        return self._break_off()
            target.shutdown(socket.SHUT_WR)
        return None
