"""Asks a replica service, and says how tables are targets of it: the URL of their resource, with the table behind
``#``."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlencode

from dai.client import parted
from dai.client.http.transport import Options, Transport
from dai.errors import DataError, RequestError
from dai.streams.cancellation import Cancellation

if TYPE_CHECKING:
    from dai.drivers.tables import TableInfo

ATTRIBUTES = {
    "schema": "string",
    "rows": "int",
    "cost": "float",
    "distance": "float",
    "expires": "date",
    "copied": "date",
    "checksum": "string",
}
"""Of targets that are tables, with their types."""
DEFAULT = Options()
Attributes = Mapping[str, Any]
"""By name, with values of Python; dates are seconds since 1970."""


@dataclass(frozen=True, order=True)
class TableTarget:
    """A table of a resource. ``table`` is ``name`` or ``schema.name``."""

    address: str
    table: str

    @classmethod
    def of(cls, target: str) -> TableTarget | None:
        """None for a target that is not a table."""
        address, _, table = target.partition("#")
        try:
            base, name = parted(address)
        except RequestError:
            return None
        if not table or name is None or not base.startswith(("http://", "https://")):
            return None
        return cls(f"{base}/resources/{quote(name, safe='')}", unquote(table))

    def __str__(self) -> str:
        return f"{self.address}#{quote(self.table, safe='')}"


def columns_digest(columns: Iterable[tuple[str, str]]) -> str:
    """Equal for tables whose columns have the same names and Arrow types in the same order."""
    return hashlib.sha256(json.dumps(list(columns)).encode()).hexdigest()


def schema_digest(table: TableInfo) -> str:
    return columns_digest((each.name, each.arrow) for each in table.columns)


@dataclass(frozen=True)
class Locations:
    """What a replica service knows of some names: the targets of each, and the attributes of logical names and of
    targets. Where several were asked: ``told_by``, which told of a target; ``faults``, by name those that did not
    answer, with the reason."""

    targets: Mapping[str, Sequence[str]] = field(default_factory=dict)
    logical: Mapping[str, Attributes] = field(default_factory=dict)
    attributes: Mapping[str, Attributes] = field(default_factory=dict)
    told_by: Mapping[str, str] = field(default_factory=dict)
    faults: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


class ReplicaClient:
    """Thread-safe. Each call raises UnreachableError or the error of the service, or the cause of ``cancellation``."""

    def __init__(self, url: str, options: Options = DEFAULT, cancellation: Cancellation | None = None) -> None:
        self._transport, self._cancellation = Transport(url, options), cancellation

    def ask(self, method: str, path: str, body: Any = None, **asked: str) -> Any:
        sent = None if body is None else json.dumps(body).encode()
        headers = {"Accept": "application/json", **({} if sent is None else {"Content-Type": "application/json"})}
        query = f"?{urlencode(asked)}" if asked else ""
        reply = self._transport.send(
            method, f"/replicas{path}{query}", body=sent, headers=headers, cancellation=self._cancellation
        )
        with reply.body as answer:
            try:
                return json.loads(answer.read_small())
            except (ValueError, RecursionError) as error:
                raise DataError("The address answers, but it is not a replica service.") from error

    def find(self, names: Iterable[str]) -> Locations:
        """Targets and attributes of logical names, in one request. A name that is not there has no target."""
        answer = self.ask("POST", "/mappings/query", {"names": list(names), "attributes": True})
        try:
            valued = {
                kind: {key: {name: _read(each) for name, each in of.items()} for key, of in keys.items()}
                for kind, keys in answer["attributes"].items()
            }
            return Locations(answer["found"], valued["logical"], valued["target"])
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise DataError("The address answers, but it is not a replica service with attributes.") from error

    def names(self, most: int) -> list[str]:
        """Logical names that have tables as targets, of so many targets at most."""
        answer = self.ask("GET", "/mappings", targetPattern="http*/resources/*#*", limit=str(most))
        try:
            return sorted({str(each["logical"]) for each in answer["mappings"]})
        except (KeyError, TypeError) as error:
            raise DataError("The address answers, but it is not a replica service.") from error

    def define(self) -> None:
        """The attributes of tables; those that are defined already stay."""
        listed = [{"name": name, "of": "target", "type": type} for name, type in ATTRIBUTES.items()]
        self.ask("POST", "/attributes", {"attributes": [*listed, {"name": "schema", "type": "string"}]})

    def register(self, tables: Mapping[tuple[str, TableTarget], Attributes]) -> list[str]:
        """Maps logical names to tables and sets their attributes. The first table of a name says its schema. Gives why
        something was refused."""
        if not tables:
            return []
        self.define()
        refused = self._changed("/mappings", tables, mode="put")
        schemas = [
            _attribute_document("logical", logical, "schema", each["schema"])
            for (logical, _), each in tables.items()
            if "schema" in each
        ]
        self._values("add", schemas)
        values = [
            _attribute_document("target", str(target), name, value)
            for (_, target), attributes in tables.items()
            for name, value in attributes.items()
        ]
        refused += self._values("put", values)
        return refused

    def withdraw(self, tables: Iterable[tuple[str, TableTarget]]) -> None:
        self._changed("/mappings/delete", tables)

    def _values(self, mode: str, values: Sequence[Mapping[str, Any]]) -> list[str]:
        return _reasons(self.ask("POST", "/values", {"values": values}, mode=mode))

    def _changed(self, path: str, tables: Iterable[tuple[str, TableTarget]], **asked: str) -> list[str]:
        mappings = [{"logical": logical, "target": str(target)} for logical, target in tables]
        return _reasons(self.ask("POST", path, {"mappings": mappings}, **asked))

    def close(self) -> None:
        self._transport.close()


def _reasons(answer: Any) -> list[str]:
    return [str(each["reason"]) for each in answer["refused"]]


def _attribute_document(of: str, key: str, name: str, value: Any) -> dict[str, Any]:
    type = ATTRIBUTES[name]
    if type == "date":
        value = datetime.fromtimestamp(value, UTC).strftime("%Y-%m-%d %H:%M:%S")
    return {"of": of, "key": key, "name": name, "type": type, "value": value}


def _read(said: Mapping[str, Any]) -> Any:
    value = said["value"]
    return datetime.fromisoformat(value).replace(tzinfo=UTC).timestamp() if said["type"] == "date" else value
