"""Credentials of a caller: options that a call does not set come from the environment or a profile.

A profile is a section of ``~/.config/dai/profiles.toml`` (``DAI_PROFILES`` may name another file)::

    [lab]
    url = "https://data.example.org"
    token = "keyring:lab"           # or env:NAME, file:PATH, or the token itself
    ca = "/etc/ssl/lab.pem"

It holds for the addresses below its ``url`` alone: by itself, or by name (``profile="lab"``, ``DAI_PROFILE``), which
also makes its ``url`` the service that names of resources are of. An argument counts more than a profile that was
named, then the environment (``DAI_TOKEN``, ``DAI_CA``, ``DAI_CERTIFICATE``, ``DAI_KEY``, ``DAI_SIGNING_KEY``,
``DAI_KEY_ID``), then the profile of the address.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from dai.client.http.transport import Options, is_loopback, parts_of
from dai.errors import ConfigurationError, MissingDependencyError, RequestError
from dai.plugins import extra_hint, nearest

FROM_ENVIRONMENT = ("token", "ca", "certificate", "key", "signing_key", "key_id")
_WHO = frozenset({"token", "certificate", "signing_key"})
"""Options that identify the caller. If a call sets one of these, no others are looked for."""
_PATHS = frozenset({"ca", "certificate", "key", "signing_key"})
_RESERVED = frozenset({"url", "headers", "tls", "origin"})
_KINDS: Mapping[str, Any] = {"int": int, "float": int | float, "bool": bool}
"""Of the options that are no texts."""
_REFERENCES = ("env:", "file:", "keyring:")
_KEYRING = "dai"
"""The name of the service in a keyring."""


_NOBODY = ""
"""Given as the profile: no profile, whatever DAI_PROFILE names."""


def options_for(address: str, arguments: Mapping[str, Any], profile: str | None = None) -> dict[str, Any]:
    """The options of a call for an address, completed from the environment or a profile. ConfigurationError for a
    profile that does not exist or is for another address."""
    known = _profiles()
    named = None if profile is _NOBODY else _named(profile, known)
    if named is not None and not is_below(address, str(known[named].get("url", ""))):
        raise ConfigurationError(
            f"The profile {named!r} is for {known[named].get('url')}, not for {_origin(address)}.",
            hint="Credentials of a profile are sent to its own address only. Leave the profile out, or use its "
            "address.",
        )
    fitting = named or next((name for name, each in known.items() if is_below(address, str(each.get("url", "")))), None)
    environment = from_environment()
    own = {} if fitting is None else _options(fitting, known[fitting])
    sources = (arguments, own, environment) if named is not None else (arguments, environment, own)
    options: dict[str, Any] = {}
    for each in sources:
        is_known = bool(_WHO & {name for name, value in options.items() if value is not None})
        for name, value in each.items():
            if options.get(name) is None and not (is_known and name in (*_WHO, "key", "key_id", "signs")):
                options[name] = value
    if said := [name for name, value in own.items() if options.get(name) is value]:
        options["origin"] = f"The profile {fitting} sets {', '.join(said)}."
    if "token" in said:
        options["token"] = _secret(str(fitting), str(options["token"]))
    return options


@dataclass(frozen=True)
class Personal:
    """Credentials of the user who runs this program, for any number of addresses. A ``profile`` that is named, here or
    by DAI_PROFILE, is for addresses below its url only."""

    profile: str | None = None

    def options(self, address: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """As ``options_for``. The token of the environment is never sent without encryption; whoever listens there
        could read it."""
        known = _profiles()
        named = _named(self.profile, known)
        covers = named is not None and is_below(address, str(known[named].get("url", "")))
        options = options_for(address, arguments, named if covers else _NOBODY)
        parts = parts_of(address)
        is_open = parts.scheme != "https" and not is_loopback(parts.hostname or "")
        if is_open and "token" not in arguments and options.get("token") == os.environ.get("DAI_TOKEN"):
            options.pop("token", None)
        return options


def from_environment() -> dict[str, Any]:
    """The options that apply to every service."""
    said = {name: os.environ.get(f"DAI_{name.upper()}") for name in FROM_ENVIRONMENT}
    return {name: value for name, value in said.items() if value}


def server_of(profile: str | None = None) -> str | None:
    """The address of the service of a profile that is named, here or by DAI_PROFILE."""
    if profile is None and not os.environ.get("DAI_PROFILE"):
        return None
    known = _profiles()
    named = _named(profile, known)
    return None if named is None else str(known[named].get("url", "")).rstrip("/") or None


def _named(profile: str | None, known: Mapping[str, Any]) -> str | None:
    name = profile or os.environ.get("DAI_PROFILE") or None
    if name is not None and name not in known:
        hint = nearest(name, list(known)) if known else f"Add a section [{name}] with url and token."
        raise ConfigurationError(f"There is no profile {name!r} in {_file()}.", hint=hint)
    return name


def _file() -> Path:
    if said := os.environ.get("DAI_PROFILES"):
        return Path(said)
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config", "dai", "profiles.toml")


def _profiles() -> dict[str, dict[str, Any]]:
    """By name. ConfigurationError for a file that is wrong, that others can change, or whose secrets others can
    read."""
    path = _file()
    try:
        text = path.read_text(encoding="utf-8")
        mode = path.stat().st_mode
    except OSError:
        return {}
    try:
        document = tomllib.loads(text)
    except ValueError as error:
        raise ConfigurationError(f"{path} is not TOML: {error}.") from error
    if os.name == "posix" and mode & 0o002:
        raise ConfigurationError(
            f"Everybody can change {path}, which says where tokens are sent.", hint=f"chmod 600 {path}"
        )
    for name, each in document.items():
        if not isinstance(each, dict) or not isinstance(each.get("url"), str):
            raise ConfigurationError(f"{path}: {name} must be a section with a url.")
        try:
            scheme = parts_of(each["url"]).scheme
        except RequestError as error:
            raise ConfigurationError(f"{path}: the url of {name}: {error}") from error
        if scheme not in ("http", "https"):
            raise ConfigurationError(f"{path}: the url of {name} is not the address of a service.")
        token = each.get("token")
        if os.name == "posix" and mode & 0o077 and isinstance(token, str) and not token.startswith(_REFERENCES):
            raise ConfigurationError(
                f"{path} holds the token of {name}, and others can read the file.", hint=f"chmod 600 {path}"
            )
    return document


def _options(name: str, profile: Mapping[str, Any]) -> dict[str, Any]:
    known = {each.name: str(each.type) for each in fields(Options) if each.name not in _RESERVED}
    options = {key: value for key, value in profile.items() if key != "url"}
    if unknown := next((each for each in options if each not in known), None):
        raise ConfigurationError(f"The profile {name} has a key {unknown!r}.", hint=nearest(unknown, list(known)))
    for key, value in options.items():
        if not isinstance(value, _KINDS.get(known[key], str)):
            raise ConfigurationError(f"The profile {name}: {key} cannot be {value!r}.")
    for key in _PATHS & options.keys():
        options[key] = str(_file().parent / Path(options[key]).expanduser())
    return options


def _secret(profile: str, value: str) -> str:
    """The secret that a reference in a profile names."""
    kind, _, name = value.partition(":")
    if kind == "env":
        if name not in os.environ:
            raise ConfigurationError(f"The profile {profile}: the environment variable {name!r} is not set.")
        return os.environ[name]
    if kind == "file":
        try:
            return (_file().parent / Path(name).expanduser()).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"The profile {profile}: the file {name!r} cannot be read.") from error
    if f"{kind}:" not in _REFERENCES:
        return value
    try:
        import keyring
        import keyring.errors
    except ImportError as error:
        raise MissingDependencyError(
            f"The profile {profile} has its token in a keyring.", hint=extra_hint("keyring")
        ) from error
    try:
        token = keyring.get_password(_KEYRING, name)
    except keyring.errors.KeyringError as error:
        raise ConfigurationError(f"The profile {profile}: the keyring cannot be read.", hint=str(error)) from error
    if token is None:
        raise ConfigurationError(
            f"The profile {profile}: the keyring has no token {name!r}.", hint=f"keyring set {_KEYRING} {name}"
        )
    return str(token)


def is_below(address: str, url: str) -> bool:
    """Whether the address is that of the url or below it."""
    wanted, allowed = parts_of(address), parts_of(url)
    path = allowed.path.rstrip("/")
    same = (wanted.scheme, wanted.netloc.lower()) == (allowed.scheme, allowed.netloc.lower()) and bool(allowed.netloc)
    return same and not goes_up(wanted.path) and (wanted.path == path or wanted.path.startswith(f"{path}/"))


def goes_up(path: str) -> bool:
    """Whether some server may take the path for one in another directory: ``..``, ``..;x``, and all that encoded."""
    segments = unquote(path).replace("\\", "/").split("/")
    return any(each.partition(";")[0] in ("..", ".") for each in segments)


def _origin(address: str) -> str:
    parts = parts_of(address)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
