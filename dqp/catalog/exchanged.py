"""Exchanges the tokens of callers for tokens of a source (OAuth 2.0 Token Exchange, RFC 8693).

Each caller's credentials have a catalog of their own, with sources of its own (docs/decisions/0038), so each of these
objects holds the token of one caller for one source, in memory, where no other caller can get it.
"""

from __future__ import annotations

import base64
import json
import logging
import re
import threading
import time
from contextlib import closing
from dataclasses import replace
from typing import Any
from urllib.parse import quote_plus, urlencode, urlsplit

from dai.client import Options
from dai.client.http.transport import Reply, Transport
from dai.errors import DaiError, DatabaseUnavailableError, RequestError, TruncatedError, UnreachableError
from dai.streams.cancellation import Cancellation
from dqp.errors import NoTokenError
from dqp.settings import ExchangeSettings

log = logging.getLogger("dqp.exchange")

GRANT = "urn:ietf:params:oauth:grant-type:token-exchange"
SECONDS, BYTES = 10.0, 1 << 16
"""Most seconds and bytes of one answer of the token endpoint."""
EARLY = 30.0
"""A token is not used in the last seconds of its life: these, or a tenth of its life if that is less."""
UNTOLD = 60.0
"""Seconds for which a token is used whose answer does not say when it ends."""
_OURS = frozenset({"invalid_client", "unauthorized_client", "unsupported_grant_type"})
"""Errors of RFC 6749 that are about the federation, and not about the caller."""
_CODE = re.compile(r"[a-z_]{1,40}")
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]{1,16384}=*")
"""RFC 6750, 2.1."""


class ExchangedTokens:
    """``Tokens`` of a client: those for the source ``alias`` of the caller whose token is ``bearer``. Thread-safe: one
    thread asks, the others wait. Of the token endpoint's answers only the error code leaves this object."""

    def __init__(self, alias: str, settings: ExchangeSettings, bearer: str | None, options: Options) -> None:
        """``options``: of TLS."""
        self._alias, self._settings, self._bearer = alias, settings, bearer
        parts = urlsplit(settings.url)
        self._path = parts.path + (f"?{parts.query}" if parts.query else "")
        self._base = f"{parts.scheme}://{parts.netloc}"
        basic = base64.b64encode(f"{quote_plus(settings.client_id)}:{quote_plus(settings.client_secret)}".encode())
        headers = {"Authorization": f"Basic {basic.decode()}", "Accept": "application/json"}
        self._options = replace(
            options,
            read=SECONDS,
            retries=1,
            token=None,
            headers=headers,
            compression="identity",
            ca=settings.ca or options.ca,
        )
        self._lock = threading.Lock()
        self._known: tuple[str, float] | None = None
        """A token, and until when it is used."""
        self._again = False
        """Whether it was sent more than once."""

    def token(self, cancellation: Cancellation) -> str:
        """NoTokenError if this caller gets none, DatabaseUnavailableError if the token endpoint gives no answer."""
        with self._lock:
            if self._known is not None and time.monotonic() < self._known[1]:
                self._again = True
                return self._known[0]
            self._known, self._again = self._exchanged(cancellation), False
            return self._known[0]

    def refused(self, token: str) -> bool:
        with self._lock:
            if self._known is None or self._known[0] != token:
                return self._known is not None
            self._known = None
            return self._again

    def _exchanged(self, cancellation: Cancellation) -> tuple[str, float]:
        if self._bearer is None:
            raise NoTokenError(
                f"The source {self._alias!r} needs a token exchanged for yours, and you sent none.",
                hint="Send a token: Authorization: Bearer …",
                source=self._alias,
            )
        began = time.monotonic()
        asked = {
            "grant_type": GRANT,
            "subject_token": self._bearer,
            "subject_token_type": self._settings.subject_token_type,
            "requested_token_type": self._settings.requested_token_type,
            **{key: value for key in ("audience", "resource", "scope") if (value := getattr(self._settings, key))},
        }
        try:
            with closing(Transport(self._base, self._options)) as transport:
                form = {"Content-Type": "application/x-www-form-urlencoded"}
                body = urlencode(asked).encode()
                reply = transport.send("POST", self._path, body, form, _ANY, cancellation)
                with reply.body:
                    status, document = reply.status, _document(reply, began + SECONDS)
        except (UnreachableError, RequestError, TruncatedError) as error:
            raise self._away(error.detail, "does not answer") from error
        if status == 200:
            return self._token(document, began)
        said = document.get("error")
        code = said if isinstance(said, str) and _CODE.fullmatch(said) else f"status {status}"
        if status == 429 or status >= 500 or status < 400:
            raise self._away(code, "does not answer")
        if status == 401 or code in _OURS:
            raise self._away(code, f"does not serve this federation ({code})")
        log.info("a token is not exchanged", extra={"source": self._alias, "error": code})
        raise NoTokenError(
            f"Your token could not be exchanged for one for the source {self._alias!r}: {code}.",
            hint="Has your token expired? If not, ask the operator of its issuer for access to this source.",
            source=self._alias,
        )

    def _token(self, document: dict[str, Any], began: float) -> tuple[str, float]:
        token, kind = document.get("access_token"), document.get("issued_token_type")
        kinds = (self._settings.requested_token_type, *_BEARERS)
        if not isinstance(token, str) or not _TOKEN.fullmatch(token) or kind not in (None, *kinds):
            raise self._away("no token, or one of another type", "gave no token that can be sent")
        if str(document.get("token_type")).lower() != "bearer":
            raise self._away("no bearer token", "gave no token that can be sent")
        if token == self._bearer:
            raise self._away("the same token", "returned the token that it was sent")
        life = document.get("expires_in")
        seconds = float(life) if isinstance(life, int | float) and 0 <= life < 1e9 else UNTOLD
        return token, began + seconds - min(EARLY, seconds / 10)

    def _away(self, why: str, what: str) -> DaiError:
        """The error of a token endpoint that gave no usable answer; the log says why."""
        log.warning("no token of the token endpoint", extra={"source": self._alias, "error": why})
        return DatabaseUnavailableError(
            f"The issuer of its tokens {what}; the log of this service says why.", source=self._alias
        )


_BEARERS = tuple(f"urn:ietf:params:oauth:token-type:{each}" for each in ("access_token", "jwt"))
_ANY = frozenset(range(400, 600))


def _document(reply: Reply, deadline: float) -> dict[str, Any]:
    """The JSON object of the answer, empty if it is not one. RequestError if the answer is too large or too slow."""
    content = b""
    for piece in reply.body:
        content += piece
        if len(content) > BYTES or time.monotonic() > deadline:
            raise RequestError("The token endpoint sends too much, or too slowly.")
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}
