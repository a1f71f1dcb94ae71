"""Role maps: which user of the database a caller is. ``docs/service.md`` says how an operator writes one.

A map is a file, XML or (by its suffix ``.toml``) TOML, for one resource or several. An entry says whom it is for as a
policy does: a caller's name, ``group:NAME``, ``*`` or ``anonymous``. A name goes before a group, a group before ``*``;
of several groups the one that stands first. Who is in no entry is refused.

The file is read again when it changes, or a file that has one of its passwords. A file that cannot be used leaves the
former entries in place, and the log says so, as with certificates.
"""

from __future__ import annotations

import logging
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from lxml import etree

from dai.config import secret
from dai.errors import ConfigurationError, DeniedError
from dai.plugins import nearest
from dai.security.identity import Caller
from dai.security.policies import ANYBODY, GROUP, Who, matches
from dai.streams.files import state_of

log = logging.getLogger("dai.security.roles")
_IN_XML: Mapping[str, Who] = {"No Certificate Provided": ("anonymous",), "*": ANYBODY}
"""What these names mean there."""
_ATTRIBUTES = {
    "DatabaseRoles": frozenset[str](),
    "Database": frozenset({"name"}),
    "User": frozenset({"dn", "userid", "password"}),
}
_KEYS = frozenset({"caller", "user", "password"})


@dataclass(frozen=True, slots=True)
class DatabaseUser:
    name: str
    password: str | None = field(default=None, repr=False)


class _Entry(NamedTuple):
    """As it is written, at ``place``; the password may be a reference."""

    place: str
    resource: str
    who: Who
    user: str
    password: str


class RoleMap:
    """Of one resource. ConfigurationError for a file that cannot be used. ``environment``: what passwords may refer
    to."""

    def __init__(self, resource: str, file: Path, environment: Mapping[str, str]) -> None:
        self._resource, self._file, self._environment = resource, file, environment
        self._seen: dict[Path, object] = {}
        self._users = self._read()

    @property
    def users(self) -> Mapping[str, DatabaseUser]:
        """By their names."""
        return {user.name: user for user in self._users.values()}

    def user_of(self, caller: Caller) -> DatabaseUser:
        """DeniedError for a caller who is in no entry."""
        fitting = [who for who in self._users if matches(who, caller)]
        if not fitting:
            raise DeniedError(
                f"{repr(caller.name) if caller.name else 'An anonymous caller'} has no database user of the resource "
                f"{self._resource!r}.",
                hint="Ask the operator of the service to add this caller to the role map of the resource (roles).",
            )
        return self._users[min(fitting, key=_rank)]

    def named(self, name: str | None) -> DatabaseUser:
        """DeniedError for one who is not in the map, or not any more."""
        user = self.users.get(name or "")
        if user is None:
            raise DeniedError(
                f"The database user of this job is no longer in the role map of the resource {self._resource!r}.",
                hint="Send the document again.",
            )
        return user

    def follow(self) -> bool:
        """Reads the file again where it has changed. Whether the entries may be others now."""
        if all(state_of(path) == seen for path, seen in self._seen.items()):
            return False
        try:
            self._users = self._read()
        except ConfigurationError as error:
            log.error("a role map cannot be used; the former one stays", extra={"why": str(error)})
            return False
        log.info("a role map was read again", extra={"resource": self._resource})
        return True

    def _read(self) -> dict[Who, DatabaseUser]:
        where, file = f"resources.{self._resource}.roles", self._file
        # what a file is like is noted before it is read: a change meanwhile is seen next time
        self._seen = {file: state_of(file)}
        try:
            text = file.read_bytes()
        except OSError as error:
            raise ConfigurationError(f"{where}: the file {file.name!r} cannot be read: {error.strerror}.") from error
        read: Callable[[bytes, str], Iterator[_Entry]] = _of_toml if file.suffix == ".toml" else _of_xml
        entries: dict[Who, DatabaseUser] = {}
        for each in list(read(text, f"{where}: {file.name}")):
            if each.resource != self._resource:
                continue
            kind, _, name = each.password.partition(":")
            if kind == "file":
                path = file.parent / name
                self._seen[path] = state_of(path)
            password = secret(each.password, f"{where}.{each.user}.password", self._environment, file.parent)
            user = DatabaseUser(each.user, password or None)
            if each.who in entries:
                raise ConfigurationError(f"{each.place}: there is already an entry for the same caller.")
            if any(other.name == user.name and other != user for other in entries.values()):
                raise ConfigurationError(f"{each.place}: {user.name!r} has another password in another entry.")
            entries[each.who] = user
        if not entries:
            log.warning("a role map has no entry for its resource", extra={"resource": self._resource})
        return entries


def _rank(who: Who) -> int:
    return 2 if "*" in who else 1 if who[0].startswith(GROUP) else 0


def _of_toml(text: bytes, where: str) -> Iterator[_Entry]:
    """A list of tables for each resource."""
    try:
        document = tomllib.loads(text.decode())
    except ValueError as error:
        raise ConfigurationError(f"{where} is not TOML: {error}.") from error
    for resource, entries in document.items():
        if not isinstance(entries, list) or not all(isinstance(each, dict) for each in entries):
            raise ConfigurationError(f"{where}: {resource!r} must be a list of entries [[{resource}]].")
        for number, each in enumerate(entries, 1):
            place = f"{where}, [[{resource}]] number {number}"
            values = _checked(each, _KEYS, place, optional="password")
            yield _Entry(place, resource, (values["caller"],), values["user"], values.get("password", ""))


def _of_xml(text: bytes, where: str) -> Iterator[_Entry]:
    """``DatabaseRoles``, in any namespace or none. No DTD, no entities."""
    parser = etree.XMLParser(
        resolve_entities=False, load_dtd=False, no_network=True, remove_comments=True, remove_pis=True, huge_tree=False
    )
    try:
        root = etree.fromstring(text, parser)
    except etree.XMLSyntaxError as error:
        raise ConfigurationError(f"{where} is not well-formed XML, line {error.lineno}.") from error
    if root.getroottree().docinfo.internalDTD is not None:
        raise ConfigurationError(f"{where} has a DTD; DTDs and entities are not accepted.", hint="Remove it.")
    _element(root, "DatabaseRoles", where)
    for database in root:
        resource = _element(database, "Database", where)["name"]
        for each in database:
            values = _element(each, "User", where, optional="password")
            who = _IN_XML.get(values["dn"], (values["dn"],))
            place = f"{where}, line {each.sourceline}"
            yield _Entry(place, resource, who, values["userid"], values.get("password", ""))


def _element(element: Any, name: str, where: str, optional: str = "") -> Mapping[str, str]:
    """Its attributes; ConfigurationError for another element."""
    place = f"{where}, line {element.sourceline}"
    if etree.QName(element).localname != name:
        raise ConfigurationError(f"{place}: {etree.QName(element).localname!r} is where {name} must be.")
    return _checked(dict(element.attrib), _ATTRIBUTES[name], place, optional)


def _checked(values: Mapping[str, Any], known: frozenset[str], place: str, optional: str) -> Mapping[str, str]:
    """ConfigurationError for values that are missing, empty, unknown or no text."""
    for name, value in values.items():
        if name not in known:
            raise ConfigurationError(f"{place}: there is no {name!r} here.", hint=nearest(name, sorted(known)))
        if not isinstance(value, str):
            raise ConfigurationError(f"{place}: {name} must be a text.")
    for name in sorted(known - {optional}):
        if not values.get(name, "").strip():
            raise ConfigurationError(
                f"{place} has no {name}, or an empty one, which would match nobody.",
                hint=f"Give a {name}, or remove it.",
            )
    return values
