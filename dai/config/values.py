"""Values of a configuration: secrets by reference, what the environment overrides, dataclasses of sections."""

from __future__ import annotations

import dataclasses
import os
import re
import types
import typing
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from dai.errors import ConfigurationError
from dai.plugins import nearest

if TYPE_CHECKING:
    from sqlalchemy.engine import URL

PREFIX = "DAI_"
SEPARATOR = "__"
MOST = {int: 1 << 53, float: 1e9}
"""No number in a configuration is larger, or negative; fields with a bound of their own say it in their metadata."""
POSITIVE = {"positive": True}
"""Marks a number that must not be 0 either."""
_SWITCH = {"true": True, "false": False}
_FILE_DATABASES = frozenset({"sqlite", "duckdb"})
_REFERENCES = {"env": "the environment variable", "file": "the file"}
_SECRETS = ("password", "token", "secret")
"""How the keys of secrets end."""
_ESCAPES = "An @ in a password is written %40, a / is written %2F."
_AT_TOO_MANY = re.compile(r"://[^/@:?]*:[^@]*@[^?]*(\?[^=]*)?@")
"""Where a password stands: an @ in a value behind ? may be one."""
_WITH_PASSWORD = re.compile("//[^/@:]*:[^/@]+@")


def named(document: dict[str, Any], section: str) -> list[tuple[str, dict[str, Any]]]:
    entries = list(document.get(section, {}).items())
    for name, value in entries:
        if not isinstance(value, dict):
            raise ConfigurationError(f"[{section}]: {name!r} must be a section [{section}.NAME].")
        if not name or not all(character.isalnum() or character in "-_." for character in name) or name[0] == ".":
            raise ConfigurationError(f"[{section}.{name}]: a name consists of letters, digits, '-', '_' and '.'.")
    return entries


def parsed(text: str, where: str = "The URL") -> URL:
    """A database URL. ConfigurationError for what is none; ``where`` names it there."""
    # SQLAlchemy takes longer to load than a command that asks a service: it is loaded here
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        url = make_url(text)
    except ArgumentError:
        hint = "It looks like postgresql://user@host/database or sqlite:///file.db."
        raise ConfigurationError(f"{where} is not a database URL.", hint=hint) from None
    except ValueError:
        # the port is not shown: where the host was forgotten it is the password
        scheme, _, rest = text.partition("://")
        host = re.split("[:/?]", rest.rpartition("@")[2])[0] if rest.count("@") < 2 else "…"
        raise ConfigurationError(
            f"{where} is not a database URL: in {scheme}://{host}:PORT the port is not a number.",
            hint="It looks like postgresql://user:password@host:5432/database. " + _ESCAPES,
        ) from None
    if "@" in (url.host or "") or _AT_TOO_MANY.search(text):
        # nothing of it is shown: what stands before the last @ is a part of the password
        raise ConfigurationError(f"{where} is not a database URL: it has an @ too many.", hint=_ESCAPES)
    return url


def database_url(text: str, where: str, base: Path, password: str | None = None) -> str:
    """The URL with its password, and with an absolute path where the database is a file."""
    url = parsed(text, where)
    original = url
    if password is not None:
        url = url.set(password=password)
    database = url.database or ""
    if url.get_backend_name() in _FILE_DATABASES and database not in ("", ":memory:") and database[:5] != "file:":
        url = url.set(database=str((base / database).resolve()))
    return text if url == original else url.render_as_string(hide_password=False)


def store_url(text: str, where: str, base: Path) -> str:
    """The same of a database of our own tables. ConfigurationError for one that cannot keep them."""
    url = parsed(text, where)
    if (product := url.get_backend_name()) not in ("sqlite", "postgresql"):
        raise ConfigurationError(f"{where} must be a database of SQLite or PostgreSQL, not of {product}.")
    if product == "sqlite" and url.database in (None, "", ":memory:"):
        raise ConfigurationError(
            f"{where} must be a file or a server: what is in memory would be lost.",
            hint='It looks like "sqlite:///file.db".',
        )
    return database_url(text, where, base)


_origins: ContextVar[dict[str, str] | None] = ContextVar("origins", default=None)


@contextmanager
def origins() -> Iterator[dict[str, str]]:
    """A context that notes where each secret that is read in it comes from, by its place in the configuration."""
    learnt: dict[str, str] = {}
    token = _origins.set(learnt)
    try:
        yield learnt
    finally:
        _origins.reset(token)


def _note(where: str, value: str, environment: Mapping[str, str], base: Path) -> None:
    if (learnt := _origins.get()) is None:
        return
    kind, _, name = value.partition(":")
    variable = f"{PREFIX}{SEPARATOR.join(where.split('.'))}".upper().replace("-", "_")
    if kind in _REFERENCES:
        open_to_all = kind == "file" and os.path.exists(base / name) and os.stat(base / name).st_mode & 0o004
        learnt[where] = (
            f"{_REFERENCES[kind]} {name}{', which everybody on this machine may read' if open_to_all else ''}"
        )
    elif where.endswith(_SECRETS) or where.startswith("telemetry.headers.") or _WITH_PASSWORD.search(value):
        overrides = next((each for each in environment if each.upper() == variable), None)
        learnt[where] = f"the environment variable {overrides}" if overrides else "the configuration itself"


def secret(value: str, where: str, environment: Mapping[str, str], base: Path) -> str:
    """The secret that a reference ``env:NAME`` or ``file:PATH`` names; any other text is the secret itself."""
    _note(where, value, environment, base)
    kind, _, name = value.partition(":")
    if kind == "env":
        if name not in environment:
            raise ConfigurationError(f"{where}: the environment variable {name!r} is not set.")
        return environment[name]
    if kind == "file":
        try:
            return (base / name).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"{where}: the file {name!r} cannot be read.") from error
    return value


def overridden(document: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    merged: dict[str, Any] = {
        section: {name: dict(each) if isinstance(each, dict) else each for name, each in value.items()}
        if isinstance(value, dict)
        else value
        for section, value in document.items()
    }
    for variable, text in environment.items():
        if not variable.upper().startswith(PREFIX) or SEPARATOR not in variable:
            continue
        levels = variable[len(PREFIX) :].lower().split(SEPARATOR)
        place: Any = merged
        for level in levels[:-1]:
            place = place.setdefault(_known_as(level, place), {})
            if not isinstance(place, dict):
                raise ConfigurationError(f"{variable}: {level!r} is a value, not a section.")
        if not all(levels):
            raise ConfigurationError(f"{variable} does not name a value.")
        place[_known_as(levels[-1], place)] = _Override(text, variable)
    return merged


class _Override(str):
    """A value from the environment: text that is read as the type of its field."""

    def __new__(cls, text: str, variable: str) -> _Override:
        secret = super().__new__(cls, text)
        secret.variable = variable
        return secret

    variable: str

    def __reduce__(self) -> tuple[type[_Override], tuple[str, str]]:
        return _Override, (str(self), self.variable)


def is_web(url: object) -> bool:
    """Whether it is an address at ``http://`` or ``https://`` with a host."""
    if not isinstance(url, str):
        return False
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - raises ValueError where it is not a number
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname) and " " not in parts.netloc


def _known_as(level: str, place: Mapping[str, Any]) -> str:
    for name in place:
        if name.lower().replace("-", "_").replace(".", "_") == level:
            return name
    return level


def keys(kind: Any) -> dict[str, str]:
    """The fields of a section by the keys that set them: its name, and the one that it had in an earlier release."""
    fields = dataclasses.fields(kind)
    former = {each.metadata["formerly"]: each.name for each in fields if "formerly" in each.metadata}
    return {each.name: each.name for each in fields} | former


def section(kind: Any, where: str, values: Mapping[str, Any], base: Path, /, **fixed: Any) -> Any:
    """A dataclass ``kind`` of the values of a section; ``fixed`` are fields that no key sets. ``where`` names it in
    errors. ConfigurationError for an unknown key, with the nearest, and for a value of another type."""
    hints = typing.get_type_hints(kind)
    bounds = {each.name: each.metadata for each in dataclasses.fields(kind)}
    known = {key: name for key, name in keys(kind).items() if name not in fixed}
    fields: dict[str, Any] = dict(fixed)
    for name, value in values.items():
        key = known.get(name.replace("-", "_"))
        if key is None:
            source = f" ({value.variable})" if isinstance(value, _Override) else ""
            whose = f"[{where}]" if where else "The top level"
            raise ConfigurationError(
                f"{whose} has no key {name!r}{source}.", hint=nearest(name, list(dict.fromkeys(known.values())))
            )
        place = f"{where}.{name}" if where else name
        if key in fields:
            raise ConfigurationError(f"{place}: {key} is already set by another key.", hint=f"Set {key} once.")
        fields[key] = _bounded(_value(value, hints[key], place, base), place, bounds[key])
    return kind(**fields)


def _bounded(value: Any, where: str, bounds: Mapping[str, Any]) -> Any:
    """``value``; ConfigurationError for a number below 0, beyond its field's ``bounds``, or that is none."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        most = bounds.get("most", MOST[type(value)])
        if value < 0:
            raise ConfigurationError(f"{where} must be 0 or more, not {value}.")
        if not value and "positive" in bounds:
            raise ConfigurationError(f"{where} must be more than 0.")
        if not value <= most:
            raise ConfigurationError(f"{where} must be at most {int(most):_}, not {value}.")
    return value


def _value(value: Any, hint: Any, where: str, base: Path) -> Any:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        (hint,) = [each for each in typing.get_args(hint) if each is not type(None)]
    if typing.get_origin(hint) is tuple:
        if isinstance(value, _Override):
            value = [each.strip() for each in value.split(",")]
        if not isinstance(value, list | tuple):
            raise ConfigurationError(f"{where} must be a list.")
        return tuple(value)
    wanted = {bool: "true or false", int: "a whole number", float: "a number", str: "text", Path: "a path"}[hint]
    shown = "" if where.endswith(_SECRETS) else f", not {_display(value)}"
    wrong = ConfigurationError(f"{where} must be {wanted}{shown}.")
    if isinstance(value, _Override) and hint in (int, float):
        try:
            return hint(value)
        except ValueError:
            raise wrong from None
    if isinstance(value, _Override) and hint is bool and value.lower() in _SWITCH:
        return _SWITCH[value.lower()]
    if isinstance(value, bool) and hint is not bool:
        raise wrong
    if hint is Path and isinstance(value, str):
        return (base / value).resolve()
    if hint is float and isinstance(value, int):
        # a larger one than any float is refused as that
        return float(min(max(value, -(1 << 60)), 1 << 60))
    if not isinstance(value, hint):
        raise wrong
    return str(value) if hint is str else value


def _display(value: Any) -> str:
    return repr(str(value)) if isinstance(value, str) else repr(value)
