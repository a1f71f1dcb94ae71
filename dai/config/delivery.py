"""The section ``[delivery]``: what perform documents may read and write besides resources."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dai.config.values import POSITIVE, named, secret, section
from dai.errors import ConfigurationError

DELIVERY_SCHEMES = ("http", "https", "ftp", "sftp", "s3")
"""The schemes of addresses that deliveries may be allowed."""
MAIL_TLS = ("starttls", "tls", "none")


@dataclass(frozen=True, kw_only=True)
class AccountConfig:
    """Credentials for the addresses that begin with ``url``: ``user`` and ``password``, or the file of a private
    ``key`` (sftp); or a bearer ``token`` (http, https), or a ``certificate`` and its ``key`` (https). For an object
    store ``user`` is the name of the access key and ``password`` the key; ``endpoint`` and ``region`` are those of
    the store."""

    name: str
    url: str
    user: str = ""
    password: str | None = field(default=None, repr=False)
    key: Path | None = None
    certificate: Path | None = None
    token: str | None = field(default=None, repr=False)
    endpoint: str | None = None
    region: str = "us-east-1"


@dataclass(frozen=True, kw_only=True)
class MailConfig:
    """The mail server of deliverToSMTP. ``senders`` and ``recipients``: the allowed addresses; ``@example.org``
    allows a whole domain. ``tls``: starttls, tls (from the first byte) or none. A mail has at most ``bytes``."""

    host: str
    port: int = field(default=587, metadata={"most": 65_535, **POSITIVE})
    tls: str = "starttls"
    user: str = ""
    password: str | None = field(default=None, repr=False)
    senders: tuple[str, ...] = ()
    recipients: tuple[str, ...] = ()
    bytes: int = field(default=25 << 20, metadata=POSITIVE)


@dataclass(frozen=True, kw_only=True)
class DeliveryConfig:
    """The files and addresses that deliveries may use; by default none.

    ``directory``: for files. ``urls``: the beginnings of addresses; ``private``: their hosts may have private
    addresses. One delivery takes at most ``seconds``, waits ``silence`` seconds for the other side, and reads
    ``bytes`` (0: no limit). ``authorities``: certificates (PEM) trusted besides those of the system;
    ``known_hosts``: the keys of SFTP servers, as OpenSSH keeps them.
    """

    directory: Path | None = None
    urls: tuple[str, ...] = ()
    private: bool = False
    seconds: float = field(default=3600.0, metadata={"most": 1_000_000, **POSITIVE})
    silence: float = field(default=60.0, metadata={"most": 1_000_000, **POSITIVE})
    bytes: int = 0
    authorities: Path | None = None
    known_hosts: Path | None = None
    accounts: Mapping[str, AccountConfig] = field(default_factory=dict)
    mail: MailConfig | None = None


def read(values: dict[str, Any], base: Path, environment: Mapping[str, str]) -> DeliveryConfig:
    def referred(where: str, value: str | None) -> str | None:
        return None if value is None else secret(value, where, environment, base)

    def address(where: str, value: Any) -> None:
        if not isinstance(value, str) or not value.startswith(tuple(f"{each}://" for each in DELIVERY_SCHEMES)):
            hint = 'It looks like urls = ["https://data.example.org/incoming/"].'
            raise ConfigurationError(f"{where}: {value!r} is not an address.", hint=hint)

    accounts: dict[str, AccountConfig] = {}
    for name, each in named(values, "accounts"):
        place = f"delivery.accounts.{name}"
        if "url" not in each:
            raise ConfigurationError(f"[{place}] needs url, with which the addresses of this account begin.")
        account = section(AccountConfig, place, each, base, name=name)
        address(f"{place}.url", account.url)
        password, token = (referred(f"{place}.{each}", getattr(account, each)) for each in ("password", "token"))
        accounts[name] = dataclasses.replace(account, password=password, token=token)
    mail: MailConfig | None = None
    if "mail" in values:
        where = "delivery.mail"
        if not isinstance(values["mail"], dict) or "host" not in values["mail"]:
            raise ConfigurationError(f"[{where}] must be a section with host, the name of the mail server.")
        mail = section(MailConfig, where, values["mail"], base)
        if mail.tls not in MAIL_TLS:
            raise ConfigurationError(f"{where}.tls must be one of {', '.join(MAIL_TLS)}, not {mail.tls!r}.")
        if mail.user and mail.tls == "none":
            raise ConfigurationError(f"{where}: a user name needs TLS.", hint='Set tls = "starttls".')
        mail = dataclasses.replace(mail, password=referred(f"{where}.password", mail.password))
    rest = {name: value for name, value in values.items() if name not in ("accounts", "mail")}
    delivery: DeliveryConfig = section(DeliveryConfig, "delivery", rest, base, accounts=accounts, mail=mail)
    for url in delivery.urls:
        address("delivery.urls", url)
    return delivery
