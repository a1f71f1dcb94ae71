"""Real servers that deliveries speak to: mail, on loopback, in threads of this process."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session

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
    """Keeps the messages that it accepted; an address that begins with ``nobody`` is refused."""

    port: int = 0
    messages: list[bytes] = field(default_factory=list)
    recipients: list[list[str]] = field(default_factory=list)
    refuses: bool = False

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
        return "250 OK"


def _authenticate(server: SMTP, session: Session, envelope: Envelope, mechanism: str, data: Any) -> AuthResult:
    known = isinstance(data, LoginPassword) and (data.login, data.password) == (USER.encode(), PASSWORD.encode())
    return AuthResult(success=known, handled=False)


@contextmanager
def mail_server(certificate: Path | None = None) -> Iterator[MailServer]:
    """With a certificate it takes mail after STARTTLS and a login alone."""
    handler = MailServer()
    options: dict[str, Any] = {"hostname": "mail.test", "data_size_limit": 1 << 30}
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
