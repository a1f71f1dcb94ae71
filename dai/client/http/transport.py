"""HTTP/1.1 as the client needs it: kept-alive connections, streamed bodies, retries, errors of ``dai.errors``.

On ``http.client``, whose ``readinto`` puts a body into Arrow's own memory without a copy (docs/decisions says what was
measured). Every foreign exception is translated here. What a retry may repeat: an idempotent call after any failure
that came before its reply; any call when the connection was refused or the service said "busy, try after"; nothing
once a byte of a result has arrived.
"""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import random
import re
import socket
import ssl
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import SplitResult, quote, urlsplit

from dai.client.http.body import SMALL, Body, Plain
from dai.client.http.connection import Connection, SecureConnection
from dai.client.http.problems import from_reply, read_json
from dai.client.tracing import current
from dai.errors import BusyError, DaiError, RequestError, UnauthenticatedError, UnreachableError
from dai.streams.cancellation import Cancellation
from dai.streams.files import state_of
from dai.version import __version__

if TYPE_CHECKING:
    from dai.client.http.signed_documents import DocumentSigner
    from dai.client.http.signing import Signer

IDEMPOTENT = frozenset({"GET", "HEAD", "PUT", "DELETE"})
IDLE_CONNECTIONS = 8
NOT_MODIFIED = 304
CORRELATION = "x-request-id"
_PERFORM = re.compile(r"/resources/[^/?]+/perform(\?|$)")
"""The paths to which documents are sent."""


class Tokens(Protocol):
    """Bearer tokens of a short life."""

    def token(self, cancellation: Cancellation) -> str:
        """The one to send now."""

    def refused(self, token: str) -> bool:
        """A service does not take that one. Whether another may do."""


@dataclass(frozen=True, slots=True)
class Options:
    """``connect`` and ``read``: seconds until a silent service counts as gone (``read`` bounds each wait for bytes, so
    a statement whose first row takes longer belongs in a job). ``retries``: further attempts, after ``backoff`` * 2^n
    seconds and as much jitter again, or what Retry-After says up to ``patience`` seconds; ``busy_only``: only where the
    service was too busy, because the caller has another place to ask when it cannot be reached. ``compression``:
    ``zstd``, ``gzip``, ``identity``, or None for ``identity`` on loopback and ``zstd`` elsewhere. ``token``: a bearer
    token, or where each request has one, which is sent over https or on loopback alone. ``signing_key``: a file with a
    private key (PEM), which the service knows as ``key_id``; each request is signed with it, or (``signs``:
    ``documents``) each perform document, and other requests as they are. ``ca``: a file of authorities (PEM) that are
    trusted besides those of the system; ``certificate`` and ``key``: files that show a service who calls. ``tls``: a
    context in place of all that. These files are read again when they change, for connections that are opened then.
    ``origin``: what errors about them say of where they come from."""

    connect: float = 10.0
    read: float = 600.0
    retries: int = 3
    busy_only: bool = False
    backoff: float = 0.1
    patience: float = 30.0
    compression: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    token: str | Tokens | None = field(default=None, repr=False)
    signing_key: str | Path | None = None
    key_id: str | None = None
    signs: str = "requests"
    ca: str | Path | None = None
    certificate: str | Path | None = None
    key: str | Path | None = None
    tls: ssl.SSLContext | None = None
    origin: str | None = field(default=None, repr=False, compare=False)

    def explain(self, error: DaiError) -> None:
        """Adds where the options come from to an error that may be about one."""
        error.hint = "\n".join(filter(None, (error.hint, self.origin))) or None

    def context(self) -> ssl.SSLContext:
        """For connections with TLS. RequestError for files that cannot be used."""
        if self.tls is not None:
            return self.tls
        context = ssl.create_default_context()
        try:
            if self.ca is not None:
                context.load_verify_locations(self.ca)
            if self.certificate is not None:
                context.load_cert_chain(self.certificate, self.key)
        except (OSError, ssl.SSLError) as error:
            raise RequestError(
                f"ca, certificate or key cannot be used: {error.strerror or error}.",
                hint="They must be PEM files, and the key must belong to the certificate.",
            ) from error
        return context


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply whose head has arrived. ``body`` is read as it comes and must be closed."""

    status: int
    headers: http.client.HTTPMessage
    body: Body

    @property
    def media_type(self) -> str:
        return str(self.headers.get("content-type", "")).partition(";")[0].strip().lower()

    @property
    def size(self) -> int | None:
        """Bytes of the body as they travel, where the service says it."""
        text = self.headers.get("content-length", "")
        return int(text) if text.isdigit() else None

    @property
    def retry_after(self) -> float | None:
        text = self.headers.get("retry-after", "")
        return float(text) if text.isdigit() else None

    def json(self) -> Any:
        """The JSON value of the body. DataError if it is not JSON."""
        return read_json(self.body.read_small())


WHY_SECONDS = 5.0
"""To wait for a service to say why it broke an answer off."""


class Transport:
    """Connections to one service; thread-safe. ``base`` is ``http://host:port`` and, behind a proxy, a path."""

    def __init__(self, base: str, options: Options = Options()) -> None:
        try:
            self._begin(base, options)
        except RequestError as error:
            options.explain(error)
            raise

    def _begin(self, base: str, options: Options) -> None:
        self.base, self.options = base.rstrip("/"), options
        parts = _checked(self.base)
        self._secure, self._host, self._port = parts.scheme == "https", parts.hostname or "", parts.port
        self._prefix, self._origin = parts.path, f"{parts.scheme}://{parts.netloc}"
        self._files = state_of(options.ca, options.certificate, options.key)
        self._tls = options.context() if self._secure else None
        self._idle: list[Connection] = []
        self._lock = threading.Lock()
        compression = options.compression or ("identity" if is_loopback(self._host) else "zstd")
        if compression not in ("identity", "zstd", "gzip"):
            raise RequestError(f"There is no compression {compression!r}.", hint="Known: zstd, gzip, identity.")
        self.compresses = compression == "zstd"
        """Whether what is sent is compressed by whoever sends it: pays on a network."""
        if options.token is not None and not self._secure and not is_loopback(self._host):
            raise RequestError(
                f"A token would travel to {self._host!r} without encryption.", hint="Use an address with https://."
            )
        if (options.signing_key is None) != (options.key_id is None):
            raise RequestError("Signed requests need both signing_key and key_id.")
        if options.signs not in ("requests", "documents"):
            raise RequestError(f'signs must be "requests" or "documents", not {options.signs!r}.')
        if options.signs == "documents" and options.signing_key is None:
            raise RequestError("Signed documents need signing_key and key_id.")
        self._signer: Signer | None = None
        self._document_signer: DocumentSigner | None = None
        if options.signing_key is not None and options.key_id is not None:
            from dai.client.http.signing import Signer

            self._signer = Signer(options.signing_key, options.key_id)
            if options.signs == "documents":
                from dai.client.http.signed_documents import DocumentSigner

                self._document_signer = DocumentSigner(options.signing_key, options.key_id)
        fixed = options.token if isinstance(options.token, str) else None
        self._tokens = options.token if not isinstance(options.token, str) else None
        self._headers = {
            "Accept-Encoding": compression,
            "User-Agent": f"dai/{__version__}",
            **({} if fixed is None else _bearer(fixed)),
            **options.headers,
        }

    def send(
        self,
        method: str,
        path: str,
        body: bytes | memoryview | None = None,
        headers: Mapping[str, str] | None = None,
        accepted: frozenset[int] = frozenset(),
        cancellation: Cancellation | None = None,
    ) -> Reply:
        """Send one request, again where that is allowed, until its reply's head is there.

        Raises the service's error for a status of 400 or more that is not ``accepted``; UnreachableError where nothing
        answers, or not in time. Interrupted (Ctrl-C) or cancelled, the connection is closed, so that the service stops
        the work; ``cancellation`` counts until the body has been read or closed. The request belongs to its span, or to
        the current span of a program that uses OpenTelemetry.
        """
        cancellation = cancellation or Cancellation()
        span = cancellation.span or current()
        sent = {**self._headers, **(headers or {}), **(span.headers if span is not None else {})}
        attempt, tokens, token = 0, self._tokens, ""
        while True:
            delay: float | None
            if tokens is not None:
                token = tokens.token(cancellation)
                sent |= _bearer(token)
            try:
                reply = self._exchange(method, self._prefix + path, body, sent, cancellation)
                if reply.status < 300 or reply.status == NOT_MODIFIED or reply.status in accepted:
                    return reply
                delay = reply.retry_after if reply.status == 503 else None
                with reply.body:
                    content = reply.body.read_small()
                if reply.status < 400:
                    raise self._elsewhere(reply)
                failure = from_reply(reply.status, reply.media_type, content, reply.headers.get(CORRELATION))
                again = isinstance(failure, BusyError) or (delay is not None and not self.options.busy_only)
            except UnreachableError as error:
                failure, delay = error, None
                again = method in IDEMPOTENT or isinstance(error.__cause__, ConnectionRefusedError)
                again = again and not self.options.busy_only
            if tokens is not None and isinstance(failure, UnauthenticatedError) and tokens.refused(token):
                continue
            if not again or attempt >= self.options.retries:
                if isinstance(failure, UnauthenticatedError):
                    self.options.explain(failure)
                raise failure
            woken = threading.Event()
            with cancellation.on_cancel(woken.set):
                woken.wait(self._pause(attempt, delay))
            cancellation.check()
            attempt += 1

    def tell(self, method: str, path: str) -> None:
        """Send one request whose reply nobody wants to know: it is read when the connection is used again. Where the
        service cannot be reached the request is lost."""
        with contextlib.suppress(DaiError):
            headers, _ = self._signed(method, self._prefix + path, self._usual_headers())
            connection = self._take()
            try:
                connection.request_at_once(method, self._prefix + path, None, headers)
            except (OSError, http.client.HTTPException):
                connection.close()
            except BaseException:
                connection.close()
                raise
            else:
                connection.owed = True
                self._given_back(connection)

    def json(self, path: str, *, fresh: bool = False) -> Any:
        """The service's JSON answer at ``path``; ``fresh``: not a cached one."""
        headers = {"Accept": "application/json", **({"Cache-Control": "no-cache"} if fresh else {})}
        reply = self.send("GET", path, headers=headers)
        with reply.body:
            return reply.json()

    def _pause(self, attempt: int, retry_after: float | None) -> float:
        wait: float = self.options.backoff * 2**attempt
        if retry_after is not None:
            wait = max(wait, min(retry_after, self.options.patience))
        return wait * (1 + random.random())

    def _exchange(
        self,
        method: str,
        target: str,
        body: bytes | memoryview | None,
        headers: Mapping[str, str],
        cancellation: Cancellation,
    ) -> Reply:
        headers, body = self._signed(method, target, headers, body)
        connection = self._take()
        try:
            with cancellation.on_cancel(connection.interrupt):
                connection.request_at_once(method, target, body, headers)
                response = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            if cancellation.cause is not None:
                raise cancellation.cause from error
            raise self._unreachable(error) from error
        except BaseException:
            connection.close()
            raise
        give_back = partial(self._given_back, connection)
        plain = Plain(connection, response, give_back, cancellation, connection.interrupt, self._why)
        return Reply(
            response.status, response.headers, Body(plain, response.headers.get("content-encoding", "identity"))
        )

    def _usual_headers(self) -> dict[str, str]:
        """Those of a request that is sent once."""
        span = current()
        token = {} if self._tokens is None else _bearer(self._tokens.token(Cancellation()))
        return {**self._headers, **token, **(span.headers if span is not None else {})}

    def _why(self, correlation: str) -> DaiError | None:
        """What made the service break off the answer of that correlation id; None where it does not say."""
        try:
            connection = self._connected()
        except DaiError:
            return None
        with contextlib.closing(connection):
            try:
                connection.sock.settimeout(WHY_SECONDS)
                path = f"{self._prefix}/problems/{quote(correlation, safe='')}"
                headers, _ = self._signed("GET", path, {**self._usual_headers(), "Accept-Encoding": "identity"})
                connection.request("GET", path, headers=headers)
                response = connection.getresponse()
                if response.status != 200:
                    return None
                return from_reply(200, "application/problem+json", response.read(SMALL), correlation)
            except (OSError, http.client.HTTPException, DaiError):
                return None

    def _signed(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | memoryview | None = None
    ) -> tuple[Mapping[str, str], bytes | memoryview | None]:
        """Headers and body of one attempt."""
        if self._signer is None:
            return headers, body
        url = self._origin + target
        if self._document_signer is not None and _PERFORM.search(target):
            return headers, self._document_signer.signed(bytes(body or b""), url)
        return {**headers, **self._signer.headers(method, url, headers, body)}, body

    def _take(self) -> Connection:
        waits = True
        while True:
            with self._lock:
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                return self._connected()
            try:
                if connection.usable(waits=waits):
                    return connection
                waits = False  # once is enough
            except BaseException:
                connection.close()
                raise
            connection.close()

    def _connected(self) -> Connection:
        connection: Connection
        if self._secure:
            self._follow()
            connection = SecureConnection(self._host, self._port, timeout=self.options.connect, context=self._tls)
        else:
            connection = Connection(self._host, self._port, timeout=self.options.connect)
        try:
            connection.connect()
        except OSError as error:
            connection.close()
            raise self._unreachable(error) from error
        except BaseException:
            connection.close()
            raise
        connection.sock.settimeout(self.options.read)
        connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return connection

    def _follow(self) -> None:
        """Reads the files of TLS again where they have changed; what cannot be used leaves the former in place."""
        files = state_of(self.options.ca, self.options.certificate, self.options.key)
        if files is not None and files != self._files:
            self._files = files
            with contextlib.suppress(RequestError):
                self._tls = self.options.context()

    def _given_back(self, connection: Connection) -> None:
        with self._lock:
            if len(self._idle) < IDLE_CONNECTIONS:
                self._idle.append(connection)
                return
        connection.close()

    def close(self) -> None:
        """Close the idle connections; the transport can still be used."""
        with self._lock:
            connections, self._idle = self._idle, []
        for connection in connections:
            connection.close()

    def _elsewhere(self, reply: Reply) -> DaiError:
        """Redirects are not followed: they could take credentials anywhere."""
        return RequestError(
            f"{self.base} redirects (status {reply.status}); this client does not follow redirects.",
            hint=f"Use the address to which it redirects: {reply.headers.get('location', 'it names none')[:200]!r}.",
        )

    def _unreachable(self, error: Exception) -> DaiError:
        base = self.base
        if isinstance(error, ssl.SSLError):
            return UnreachableError(
                f"No secure connection to {base}: {error.reason or error}.",
                hint="Does the service use plain http://? Is its certificate trusted here? ca=FILE trusts another "
                "authority (commands: DAI_CA).",
            )
        if isinstance(error, socket.gaierror):
            return UnreachableError(f"There is no host {self._host!r} for {base}.", hint="Check the spelling.")
        if isinstance(error, TimeoutError):
            return UnreachableError(
                f"{base} did not answer in time.",
                hint="Run long statements as a job: .submit(…); or connect with a longer read= (seconds).",
            )
        if isinstance(error, http.client.HTTPException) and not isinstance(error, http.client.RemoteDisconnected):
            return UnreachableError(
                f"The server at {base} does not speak HTTP.", hint="Check the port. Does the service need https://?"
            )
        if isinstance(error, ConnectionRefusedError):
            said = "Check host and port."
            parts = urlsplit(base)
            if parts.port is None:
                said = f"The address has no port: `dai serve` listens on 8080, {parts.scheme}://{parts.netloc}:8080."
            return UnreachableError(f"Nothing answers at {base}: is `dai serve` running?", hint=said)
        if isinstance(error, ConnectionError):
            return UnreachableError(f"{base} closed the connection before it answered.", hint="Is it being restarted?")
        return UnreachableError(f"Nothing answers at {base}: {error}.", hint="Check host and port.")


def _bearer(token: str) -> dict[str, str]:
    text = token.strip()  # of a file, with the end of its line
    if not text.isascii() or not text.isprintable():
        raise RequestError(
            "The token has characters that a token cannot have.", hint="Give the token as it was printed, in one line."
        )
    return {"Authorization": f"Bearer {text}"}


def parts_of(url: str) -> SplitResult:
    """The parts of an address; RequestError for what is none."""
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - raises ValueError where it is not a number
    except ValueError as error:
        raise RequestError(f"{url!r} is not an address: {error}.", hint=_EXAMPLE) from error
    if not parts.netloc.isprintable() or " " in parts.netloc:
        raise RequestError(f"{url!r} is not an address: its host has a blank or a control character.", hint=_EXAMPLE)
    return parts


def _checked(url: str) -> SplitResult:
    parts = parts_of(url)
    if "://" in url and parts.scheme not in ("http", "https"):
        raise RequestError(
            f"{parts.scheme}://… is not the address of a data service.",
            hint=_EXAMPLE
            if parts.scheme in ("dai", "htp", "htpp", "htttp", "ttp")
            else "For a database: dai serve URL, or dqp.connect(URL) without a service. " + _EXAMPLE,
        )
    if "@" in parts.netloc:
        raise RequestError("The address must not have a user or a password: they would not be sent.", hint=_EXAMPLE)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise RequestError(f"{url!r} is not the address of a data service.", hint=_EXAMPLE)
    return parts


def is_loopback(host: str) -> bool:
    """Whether it is this machine, whoever answers for names: localhost.example.org may be anywhere."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


_EXAMPLE = "An address looks like http://127.0.0.1:8080/data"
