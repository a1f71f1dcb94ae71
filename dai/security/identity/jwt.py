"""JSON Web Tokens (RFC 7519) of one issuer, as an OpenID Connect provider gives them, checked as RFC 8725 asks.

The keys come from the issuer or a file, never from what a token names (``jku``, ``x5u``, ``jwk`` are not read); each
is for its own algorithms, so none is taken for another's. They are read when first needed, again when a token names one
that is not there (at most once in PAUSE seconds, whoever asks) and after FRESH seconds, while those in hand serve on.
A token whose signature was checked is taken until it expires, or until the keys have changed.
"""

from __future__ import annotations

import asyncio
import hashlib
import http.client
import json
import logging
import ssl
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

import jwt

from dai.config import IdentityConfig
from dai.config.identity import ASYMMETRIC, JwtConfig, is_safe
from dai.errors import BusyError, ConfigurationError, UnauthenticatedError
from dai.security.identity import BEARER, Caller, Headers, LookUp, is_name
from dai.security.identity.replay import Seen

log = logging.getLogger("dai.security.jwt")

PAUSE = 10.0
"""Seconds between two attempts to read the keys."""
FRESH = 3600.0
SECONDS, BYTES = 5.0, 1 << 20
"""Most seconds and bytes of one answer of the issuer."""
MOST_KEPT, MOST_KEYS = 10_000, 100
_MOST_CHARACTERS = 16_384
_LEAST_RSA_BITS = 2048
_SCHEME = b"bearer "
_DISCOVERY = "/.well-known/openid-configuration"
_UNREADABLE = (jwt.PyJWTError, ValueError, TypeError, KeyError, OverflowError, RecursionError)
"""Exceptions that libraries of JSON, base64 and keys raise for bad input."""
Keys = Mapping[tuple[str | None, str], jwt.PyJWK]
"""By key id and algorithm."""


class JsonWebTokens:
    hint: ClassVar[str] = BEARER

    def __init__(self, config: IdentityConfig, look_up: LookUp, seen: Seen | None = None) -> None:
        """ConfigurationError without [identity.jwt], or for a file that holds no keys."""
        if config.jwt is None:
            raise ConfigurationError(
                'identity.methods has "jwt", but there is no section [identity.jwt].',
                hint='It looks like issuer = "https://login.example.org", audience = ["dai"].',
            )
        self._config = config.jwt
        self._keys: Keys = {}
        self._read = self._tried = -FRESH
        self._reading: asyncio.Task[None] | None = None
        self._checked: dict[bytes, tuple[Caller, float]] = {}
        """By hash of the token: whose it is, when it expires."""
        if isinstance(config.jwt.jwks, Path):
            try:
                self._keys = _keys(config.jwt)
            except (OSError, *_UNREADABLE) as error:
                raise ConfigurationError(f"identity.jwt.jwks holds no keys: {error}.") from error
            self._read = time.monotonic()

    async def caller(self, headers: Headers) -> Caller | None:
        value = headers.get(b"authorization", b"")
        token = value[len(_SCHEME) :].strip()
        if value[: len(_SCHEME)].lower() != _SCHEME or token.count(b".") != 2 or len(token) > _MOST_CHARACTERS:
            return None
        digest = hashlib.sha256(token).digest()
        if self._read + FRESH < time.monotonic():
            await self._renewed(wait=not self._keys)
        checked = self._checked.get(digest)
        if checked is None:
            checked = await self._verified(token.decode("latin-1"))
            if len(self._checked) >= MOST_KEPT:
                self._checked.clear()
            self._checked[digest] = checked
        caller, expires = checked
        if expires <= time.time():
            del self._checked[digest]
            raise UnauthenticatedError("This token has expired.", hint="Ask the issuer for a new one.")
        return caller

    async def _verified(self, token: str) -> tuple[Caller, float]:
        config = self._config
        try:
            header = jwt.get_unverified_header(token)
            algorithm, id = str(header["alg"]), header.get("kid")
            if algorithm not in config.algorithms:
                raise jwt.InvalidAlgorithmError
            if "crit" in header:  # extensions that must be understood (RFC 7515, 4.1.11): there are none
                raise jwt.InvalidTokenError
            key = self._key(id, algorithm)
            if key is None:
                await self._renewed(wait=True)
                key = self._key(id, algorithm)
            if key is None:
                raise UnauthenticatedError("This token is signed with a key that its issuer does not publish.")
            claims = jwt.decode(
                token,
                key,
                algorithms=[algorithm],
                audience=config.audience,
                issuer=config.issuer,
                leeway=config.leeway,
                options={"require": ["exp", "iss", "aud"]},
            )
            return self._caller(claims), float(claims["exp"]) + config.leeway
        except _UNREADABLE as error:
            raise UnauthenticatedError(_WRONG.get(type(error), "This token is not valid.")) from error

    def _key(self, id: str | None, algorithm: str) -> jwt.PyJWK | None:
        """That of the id; for a token without one the only key of the algorithm."""
        if id is not None:
            return self._keys.get((id, algorithm))
        fitting = [key for (_, each), key in self._keys.items() if each == algorithm]
        return fitting[0] if len(fitting) == 1 else None

    def _caller(self, claims: Mapping[str, Any]) -> Caller:
        config = self._config
        (name,) = _texts(claims, config.name) or ("",)
        resources = frozenset(_texts(claims, config.resources))
        if not name or (config.resources and not resources):
            lacks = config.resources if name else config.name
            raise UnauthenticatedError(f"This token lacks the claim {lacks!r}, which this service needs.")
        administrator = bool(config.administrator) and _claim(claims, config.administrator) is True
        return Caller(name, "jwt", resources, administrator, frozenset(_texts(claims, config.groups)))

    async def _renewed(self, wait: bool) -> None:
        """Reads the keys again, unless that was tried a moment ago. BusyError where there are none at all."""
        if self._reading is None and self._tried + PAUSE < time.monotonic():
            self._tried = time.monotonic()
            self._reading = asyncio.create_task(self._read_again())
        if wait and self._reading is not None:
            await asyncio.wait([self._reading], timeout=2 * SECONDS)
        if not self._keys:
            raise BusyError("The keys of the issuer cannot be fetched at the moment.", retry_after=int(PAUSE))

    async def _read_again(self) -> None:
        try:
            keys = await asyncio.to_thread(_keys, self._config)
        except (OSError, http.client.HTTPException, *_UNREADABLE) as error:
            log.warning("the keys of the issuer cannot be read", extra={"error": f"{type(error).__name__}: {error}"})
            return
        finally:
            self._reading = None
        self._read = time.monotonic()
        if {each: key.key for each, key in keys.items()} != {each: key.key for each, key in self._keys.items()}:
            self._keys = keys
            self._checked.clear()


_WRONG: dict[type[BaseException], str] = {
    jwt.ExpiredSignatureError: "This token has expired.",
    jwt.ImmatureSignatureError: "This token is not valid yet.",
    jwt.InvalidIssuedAtError: "This token is not valid yet.",
    jwt.InvalidAudienceError: "This token is for another audience.",
    jwt.InvalidIssuerError: "This token is from another issuer.",
    jwt.InvalidAlgorithmError: "This token is signed with an algorithm that this service does not accept.",
}


def _claim(claims: Mapping[str, Any], path: str) -> Any:
    """The claim of that name; or, with dots, one inside another (``realm_access.roles``)."""
    if path in claims:
        return claims[path]
    outer, _, inner = path.partition(".")
    return _claim(claims[outer], inner) if inner and isinstance(claims.get(outer), dict) else None


def _texts(claims: Mapping[str, Any], path: str) -> tuple[str, ...]:
    """A text, or a list of them, that can be told in a line."""
    value = _claim(claims, path) if path else None
    values = [value] if isinstance(value, str) else value or []
    if not isinstance(values, list) or not all(isinstance(each, str) and is_name(each) for each in values):
        raise UnauthenticatedError(f"The claim {path!r} of this token is neither a name nor a list of names.")
    return tuple(values)


def _keys(config: JwtConfig) -> Keys:
    """Of the file, or of the issuer. It blocks."""
    if isinstance(config.jwks, Path):
        document = json.loads(config.jwks.read_bytes()[:BYTES])
    else:
        url = config.jwks
        if url is None:
            discovered = _got(config.issuer.rstrip("/") + _DISCOVERY, config)
            if discovered["issuer"] != config.issuer:
                raise ValueError("the discovery document is of another issuer")
            url = str(discovered["jwks_uri"])
        document = _got(url, config)
    keys: dict[tuple[str | None, str], jwt.PyJWK] = {}
    for each in document["keys"][:MOST_KEYS]:
        try:
            keys |= _usable(each, config)
        except (AttributeError, *_UNREADABLE) as error:
            log.warning("a key of the issuer cannot be used", extra={"key": _id(each), "error": str(error)})
    if not keys:
        raise ValueError("there is no key for any of identity.jwt.algorithms")
    return keys


def _id(key: Any) -> str:
    return str(key.get("kid"))[:100] if isinstance(key, dict) else "not an object"


def _usable(key: Any, config: JwtConfig) -> dict[tuple[str | None, str], jwt.PyJWK]:
    """The key for each of its algorithms; nothing where it is for something else."""
    if key.get("use", "sig") != "sig" or key.get("kty") == "oct":
        return {}
    keys = {}
    algorithms = ASYMMETRIC.get(key.get("crv", key.get("kty")), ())
    for algorithm in {key.get("alg")} & set(algorithms) if "alg" in key else algorithms:
        if algorithm in config.algorithms:
            usable = jwt.PyJWK(key, algorithm)
            if key["kty"] == "RSA" and usable.key.key_size < _LEAST_RSA_BITS:
                raise ValueError("it is too short")
            keys[key.get("kid"), algorithm] = usable
    return keys


def _got(url: str, config: JwtConfig) -> Any:
    """A JSON document by HTTP, within SECONDS and BYTES; redirects are not followed."""
    deadline = time.monotonic() + SECONDS
    parts = urlsplit(url)
    host = parts.hostname or ""
    if not is_safe(url):
        raise ValueError(f"{url!r} is no address with https://")
    connection: http.client.HTTPConnection
    if parts.scheme == "https":
        trusted = ssl.create_default_context()
        if config.authorities is not None:
            trusted.load_verify_locations(config.authorities)
        connection = http.client.HTTPSConnection(host, parts.port, timeout=SECONDS, context=trusted)
    else:
        connection = http.client.HTTPConnection(host, parts.port, timeout=SECONDS)
    try:
        target = parts.path or "/"
        connection.request("GET", f"{target}?{parts.query}" if parts.query else target)
        answer = connection.getresponse()
        if answer.status != 200:
            raise ValueError(f"{url!r} answers with the status {answer.status}")
        content = b""
        while piece := answer.read1(1 << 16):
            content += piece
            if len(content) > BYTES or time.monotonic() > deadline:
                raise ValueError(f"{url!r} sends too much, or too slowly")
        return json.loads(content)
    finally:
        connection.close()
