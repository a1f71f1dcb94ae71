"""An issuer of JSON Web Tokens that exchanges them (RFC 8693): small, and as strict as one that is not."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ssl import SSLContext
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, unquote_plus

import jwt
from cryptography.hazmat.primitives.asymmetric import ec

TYPES = "urn:ietf:params:oauth:token-type:"
Answer = tuple[int, dict[str, str], bytes]


class Refusal(Exception):
    """Status and error code (RFC 6749, 5.2)."""


@dataclass
class Issuer:
    """It exchanges tokens for the audience ``own`` that it has signed, for the ``client``, and for who is in ``may`` of
    the wanted audience. ``answers``: in the place of its own, for the next ones; None: it closes the connection."""

    client: tuple[str, str]
    own: str
    may: dict[str, set[str]]
    url: str = ""
    life: int = 600
    claims: dict[str, Any] = field(default_factory=dict)
    """What stands in exchanged tokens in the place of what is right."""
    exchanged: list[dict[str, str]] = field(default_factory=list)
    """What was asked, also of what was refused."""
    issued: list[str] = field(default_factory=list)
    answers: list[Answer | None] = field(default_factory=list)
    keys: dict[str, ec.EllipticCurvePrivateKey] = field(default_factory=dict)
    former: dict[str, ec.EllipticCurvePrivateKey] = field(default_factory=dict)
    """Known to itself, and not shown any more."""

    def rotate(self) -> None:
        """A new key, and no other."""
        self.former |= self.keys
        self.keys = {f"key {len(self.former)}": ec.generate_private_key(ec.SECP256R1())}

    def token(self, subject: str, audience: str | None = None, **claims: Any) -> str:
        ((id, key),) = self.keys.items()
        now = int(time.time())
        usual = {"iss": self.url, "sub": subject, "aud": audience or self.own, "iat": now, "exp": now + 600}
        return jwt.encode(usual | claims, key, "ES256", {"kid": id})

    def key_set(self) -> dict[str, Any]:
        family = jwt.get_algorithm_by_name("ES256")
        keys = [family.to_jwk(key.public_key(), as_dict=True) | {"kid": id} for id, key in self.keys.items()]
        return {"keys": keys}

    def exchange(self, authorization: str, asked: dict[str, str]) -> dict[str, Any]:
        scheme, _, encoded = authorization.partition(" ")
        name, _, secret = base64.b64decode(encoded).decode().partition(":")
        if scheme != "Basic" or (unquote_plus(name), unquote_plus(secret)) != self.client:
            raise Refusal(401, "invalid_client")
        if asked.get("grant_type") != "urn:ietf:params:oauth:grant-type:token-exchange":
            raise Refusal(400, "unsupported_grant_type")
        if asked.get("subject_token_type") not in (f"{TYPES}access_token", f"{TYPES}jwt"):
            raise Refusal(400, "invalid_request")
        token = asked["subject_token"]
        try:
            key = (self.former | self.keys)[jwt.get_unverified_header(token)["kid"]]
            subject = jwt.decode(token, key.public_key(), ["ES256"], audience=self.own, issuer=self.url)["sub"]
        except (jwt.PyJWTError, KeyError) as error:
            raise Refusal(400, "invalid_request") from error
        audience = asked.get("audience", "")
        if subject not in self.may.get(audience, ()):
            raise Refusal(400, "invalid_target")
        self.issued.append(self.token(subject, audience, **self.claims))
        return {
            "access_token": self.issued[-1],
            "issued_token_type": asked.get("requested_token_type", f"{TYPES}access_token"),
            "token_type": "Bearer",
            "expires_in": self.life,
        }


@contextmanager
def issuing(issuer: Issuer, tls: SSLContext | None = None) -> Iterator[Issuer]:
    """It listens at ``issuer.url``: keys at /keys, exchange at /token."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer((200, {}, json.dumps(issuer.key_set()).encode()))

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            asked = {name: values[0] for name, values in parse_qs(body, strict_parsing=True).items()}
            issuer.exchanged.append(asked)
            if issuer.answers:
                answer = issuer.answers.pop(0)
                if answer is None:
                    self.close_connection = True
                else:
                    self._answer(answer)
                return
            try:
                said, status = issuer.exchange(self.headers["Authorization"], asked), 200
            except Refusal as refusal:
                status, code = refusal.args
                # as careless as an issuer may be
                said = {"error": code, "error_description": f"{asked['subject_token']} will not do"}
            self._answer((status, {"Content-Type": "application/json"}, json.dumps(said).encode()))

        def _answer(self, answer: Answer) -> None:
            status, headers, content = answer
            self.send_response(status)
            for name, value in (headers | {"Content-Length": str(len(content))}).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Nothing."""

    issuer.rotate()
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        issuer.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{server.server_port}"
        Thread(target=server.serve_forever, daemon=True).start()
        yield issuer
        server.shutdown()
