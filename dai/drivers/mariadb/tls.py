"""TLS to MariaDB and MySQL: what the URL asks for holds, or there is no connection.

``ssl_mode`` is REQUIRED, VERIFY_CA or VERIFY_IDENTITY (or DISABLED, PREFERRED, which ask for none); ``ssl_ca`` names
the certificate to trust and asks for VERIFY_CA by itself, and instead of REQUIRED. To libmariadb 3.3 VERIFY_CA is
VERIFY_IDENTITY; from 3.4 on it trusts, where no ``ssl_ca`` is named, a MariaDB that proves to know the password.
"""

from __future__ import annotations

from typing import Any

from MySQLdb.constants import CLIENT
from sqlalchemy.engine import URL

from dai.errors import ConfigurationError, DatabaseUnavailableError

INSECURE = 2026
"""The number of the library's errors about TLS."""
_ENCRYPTED = ("REQUIRED", "VERIFY_CA", "VERIFY_IDENTITY")
_MODES = ("DISABLED", "PREFERRED", *_ENCRYPTED)


def options_of(url: URL) -> dict[str, Any]:
    """The TLS arguments of ``MySQLdb.connect``; ConfigurationError for options that contradict each other."""
    mode, authority = str(url.query.get("ssl_mode", "")).upper(), str(url.query.get("ssl_ca", ""))
    if mode and mode not in _MODES:
        raise ConfigurationError(
            "The URL of the MariaDB database has an unknown ssl_mode.", hint=f"Known: {', '.join(_MODES)}."
        )
    if authority and mode and mode not in _ENCRYPTED:
        raise ConfigurationError(
            f"The URL of the MariaDB database has an ssl_ca, but its ssl_mode {mode} does not use TLS.",
            hint="Set ssl_mode=VERIFY_CA, or leave one of the two out.",
        )
    if authority and not mode.startswith("VERIFY"):
        mode = "VERIFY_CA"  # libmariadb 3.4 looks at no certificate unless it is told to
    return {**({"ssl_mode": mode} if mode else {}), **({"ssl": {"ca": authority}} if authority else {})}


def check(raw: Any, options: dict[str, Any]) -> None:
    """Closes a new connection that is plain though ``options`` ask for TLS, and raises: where the server has no TLS,
    libmariadb 3.3 goes on without it and does not say so."""
    if options.get("ssl_mode") in _ENCRYPTED and not raw.client_flag & CLIENT.SSL:
        raw.close()
        raise DatabaseUnavailableError(
            "The database offers no encrypted connection, which its URL asks for.",
            hint="Turn on TLS in the database, or take ssl_mode and ssl_ca out of the URL.",
        )


def refused() -> DatabaseUnavailableError:
    """The error for a new connection that is not encrypted."""
    return DatabaseUnavailableError(
        "There is no encrypted connection to the database: it offers none, or its certificate is not trusted.",
        hint="Set ssl_ca in the URL to the file of the authority that signed the database's certificate.",
    )
