"""Client certificates: of the connection, or of the connection of a proxy that is known by its address and a secret.

Whoever asks for the certificate has verified it; here it only says who calls. A subject is compared as one text, in
which RFC 4514 escapes what could be taken for another attribute; what cannot be told in a line is nobody's name.
"""

from __future__ import annotations

import base64
import hmac
import ipaddress
import re
import time
from typing import ClassVar

from cryptography import x509
from cryptography.x509.oid import NameOID

from dai.config import IdentityConfig
from dai.config.identity import CertificateConfig
from dai.errors import ConfigurationError, UnauthenticatedError
from dai.security.identity import MOST_NAME, Caller, Head, LookUp, is_name
from dai.security.identity.replay import Seen

MOST_KEPT = 10_000
_MOST_CHARACTERS = 16_384
_BYTES = re.compile(rb":([A-Za-z0-9+/=]+):")
"""A byte sequence of RFC 9651."""
_FURTHER = {
    NameOID.EMAIL_ADDRESS: "emailAddress",
    NameOID.SERIAL_NUMBER: "serialNumber",
    NameOID.SURNAME: "SN",
    NameOID.GIVEN_NAME: "GN",
}
"""Attributes that OpenSSL names so, besides those of RFC 4514."""
_ALTERNATIVES: dict[str, type[x509.RFC822Name] | type[x509.DNSName] | type[x509.UniformResourceIdentifier]] = {
    "email": x509.RFC822Name,
    "dns": x509.DNSName,
    "uri": x509.UniformResourceIdentifier,
}
_NEVER = float("inf")
_UNREADABLE = (
    ValueError, x509.InvalidVersion, x509.ExtensionNotFound, x509.DuplicateExtension, x509.UnsupportedGeneralNameType,
)  # fmt: skip


class Certificates:
    hint: ClassVar[str] = "Present a certificate. In Python: dai.connect(…, certificate=…, key=…)."

    def __init__(self, config: IdentityConfig, look_up: LookUp, seen: Seen | None = None) -> None:
        """ConfigurationError for a subject that is none."""
        self._config = config.certificate
        self._proxies = [ipaddress.ip_network(each) for each in self._config.proxies]
        self._secret = (self._config.secret or "").encode()
        self._header, self._secret_header = (
            each.lower().encode() for each in (self._config.header, self._config.secret_header)
        )
        self._callers = _callers(self._config)
        self._kept: dict[str | bytes, tuple[Caller, float]] = {}
        """By what was shown: whose it is, when it expires."""

    async def caller(self, head: Head) -> Caller | None:
        shown = self._header_value(head) if self._is_proxy(head.address) else head.certificate
        if not shown:
            return None
        kept = self._kept.get(shown)
        if kept is None:
            kept = self._read(shown)
            if len(self._kept) >= MOST_KEPT:
                self._kept.clear()
            self._kept[shown] = kept
        caller, expires = kept
        if expires <= time.time():
            raise UnauthenticatedError("This certificate has expired.")
        return caller

    def _is_proxy(self, address: str) -> bool:
        if not self._proxies:
            return False
        try:
            parsed = ipaddress.ip_address(address)
        except ValueError:
            return False
        if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is not None:
            parsed = parsed.ipv4_mapped
        return any(parsed in each for each in self._proxies)

    def _header_value(self, head: Head) -> bytes | None:
        """What the proxy says; nothing without its secret."""
        secrets = [value for name, value in head.lines if name == self._secret_header]
        if len(secrets) != 1 or not hmac.compare_digest(secrets[0], self._secret):
            return None
        sent = [value for name, value in head.lines if name == self._header]
        if len(sent) > 1:
            raise UnauthenticatedError("The proxy of this service has sent several certificates.")
        return sent[0].strip() if sent else None

    def _read(self, shown: str | bytes) -> tuple[Caller, float]:
        """UnauthenticatedError for what names nobody who is known."""
        try:
            if len(shown) > _MOST_CHARACTERS:
                raise ValueError("it is too long")
            if isinstance(shown, bytes) and not self._config.shows_all:
                subject, expires = _parsed(shown.decode()), _NEVER
                name = _text(subject) if self._config.name == "dn" else _common_name(subject)
            else:
                certificate = _certificate(shown)
                name, expires = _name(certificate, self._config.name), certificate.not_valid_after_utc.timestamp()
        except _UNREADABLE as error:
            raise UnauthenticatedError(
                "This certificate does not say who calls.",
                hint=f"This service reads the caller from its {self._config.name} (identity.certificate.name): it "
                "must have exactly one.",
            ) from error
        caller = self._callers.get(name)
        if caller is None and self._callers:
            raise UnauthenticatedError("This service does not know the subject of this certificate.")
        if caller is None and not is_name(name):
            raise UnauthenticatedError(
                f"The name in this certificate has characters that cannot be printed, or more than {MOST_NAME} "
                "characters.",
                hint="The operator of the service can give it another name: [identity.certificate.subjects].",
            )
        return caller or Caller(name, "certificate"), expires


def _callers(config: CertificateConfig) -> dict[str, Caller]:
    callers = {}
    for subject, each in config.subjects.items():
        try:
            name = _text(_parsed(subject)) if config.name == "dn" else subject
        except ValueError as error:
            hint = 'It looks like "CN=alice,O=Lab": the most specific part first, as in RFC 4514.'
            raise ConfigurationError(
                f"identity.certificate.subjects: {subject!r} is not a subject.", hint=hint
            ) from error
        groups, resources = frozenset(each.groups), frozenset(each.resources)
        callers[name] = Caller(each.name, "certificate", resources, each.administrator, groups)
    return callers


def _certificate(shown: str | bytes) -> x509.Certificate:
    if isinstance(shown, str):
        return x509.load_pem_x509_certificate(shown.encode())
    if (match := _BYTES.fullmatch(shown)) is None:
        raise ValueError("it is no byte sequence")
    return x509.load_der_x509_certificate(base64.b64decode(match[1], validate=True))


def _name(certificate: x509.Certificate, what: str) -> str:
    if what == "dn":
        return _text(certificate.subject)
    if what == "cn":
        return _common_name(certificate.subject)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    (name,) = names.get_values_for_type(_ALTERNATIVES[what])
    return str(name)


def _common_name(subject: x509.Name) -> str:
    (name,) = subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(name.value)


def _parsed(text: str) -> x509.Name:
    return x509.Name.from_rfc4514_string(text, {name: oid for oid, name in _FURTHER.items()})


def _text(subject: x509.Name) -> str:
    """As RFC 4514 writes it; of attributes that stand together, which have no order, in that of their text."""
    if not len(subject):
        raise ValueError("it is empty")
    return ",".join("+".join(sorted(each.rfc4514_string(_FURTHER) for each in rdn)) for rdn in reversed(subject.rdns))
