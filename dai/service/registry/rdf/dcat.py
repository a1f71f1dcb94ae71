"""Entries as a catalog in DCAT-AP 3 (W3C DCAT, SEMIC): services are ``dcat:DataService``, their tables ``dcat:Dataset``
with a ``dcat:Distribution`` that they serve. A pure function of what the caller sees."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from dai.security.identity import Caller
from dai.service.registry.entries import Entry, is_iri
from dai.service.registry.mirror import Mirror
from dai.service.registry.rdf.triples import oxigraph, text_of

DCAT, DCT = "http://www.w3.org/ns/dcat#", "http://purl.org/dc/terms/"
FOAF, RDF = "http://xmlns.com/foaf/0.1/", "http://www.w3.org/1999/02/22-rdf-syntax-ns#"
XSD = "http://www.w3.org/2001/XMLSchema#"
PREFIXES = {"dcat": DCAT, "dct": DCT, "foaf": FOAF, "rdf": RDF, "xsd": XSD}
FORMATS = ("text/turtle", "application/ld+json", "application/rdf+xml", "application/n-triples")
Triple = tuple[str, str, Any]


def catalog(mirror: Mirror, caller: Caller, services: Iterable[Entry], address: str, title: str) -> Iterator[Triple]:
    """Subjects and predicates as IRIs, objects as terms of the library. ``address``: of the catalog."""
    ox = oxigraph()
    publisher = f"{address}#publisher"
    yield address, f"{RDF}type", _node(f"{DCAT}Catalog")
    yield address, f"{DCT}title", ox.Literal(title)
    yield address, f"{DCT}description", ox.Literal("The services that are published here, and the tables they hold.")
    yield address, f"{DCT}publisher", _node(publisher)
    yield from _agent(publisher, title)
    for service in services:
        yield address, f"{DCAT}service", _node(service.key)
        yield from _described(service, "DataService", address)
        bindings = mirror.shown_below(service, "binding", caller)
        for at in filter(None, map(_address, (service, *bindings))):
            yield service.key, f"{DCAT}endpointURL", _node(at)
        for resource in mirror.shown_below(service, "resource", caller):
            for table in mirror.shown_below(resource, "table", caller):
                yield address, f"{DCAT}dataset", _node(table.key)
                yield service.key, f"{DCAT}servesDataset", _node(table.key)
                yield from _dataset(mirror, caller, table, _address(resource) or resource.key, service, address)


def _dataset(
    mirror: Mirror, caller: Caller, table: Entry, access: str, service: Entry, address: str
) -> Iterator[Triple]:
    ox = oxigraph()
    yield from _described(table, "Dataset", address)
    for column in mirror.shown_below(table, "column", caller):
        yield table.key, f"{DCAT}keyword", ox.Literal(column.name)
    distribution = f"{table.key}{'/' if '#' in table.key else '#'}distribution"
    yield table.key, f"{DCAT}distribution", _node(distribution)
    yield distribution, f"{RDF}type", _node(f"{DCAT}Distribution")
    yield distribution, f"{DCT}title", ox.Literal(table.name)
    yield distribution, f"{DCAT}accessURL", _node(access)
    yield distribution, f"{DCAT}accessService", _node(service.key)


def _described(entry: Entry, kind: str, address: str) -> Iterator[Triple]:
    """The properties of each in a catalog. An entry without a description has its name as one, because DCAT-AP requires
    one."""
    ox = oxigraph()
    yield entry.key, f"{RDF}type", _node(DCAT + kind)
    for texts, predicate in ((entry.names, "title"), (entry.descriptions or entry.names, "description")):
        for each in texts:
            yield entry.key, DCT + predicate, text_of(*each)
    for moment, predicate in ((entry.published, "issued"), (entry.modified, "modified")):
        written = datetime.fromtimestamp(moment, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        yield entry.key, DCT + predicate, ox.Literal(written, datatype=_node(f"{XSD}dateTime"))
    if entry.owner:
        publisher = f"{address}#owner-{quote(entry.owner, safe='')}"
        yield entry.key, f"{DCT}publisher", _node(publisher)
        yield from _agent(publisher, entry.owner)


def _node(iri: str) -> Any:
    return oxigraph().NamedNode(iri)


def _agent(key: str, name: str) -> Iterator[Triple]:
    yield key, f"{RDF}type", _node(f"{FOAF}Agent")
    yield key, f"{FOAF}name", oxigraph().Literal(name)


def _address(entry: Entry) -> str | None:
    value = entry.properties.get("address")
    uri = value.get("uri") if isinstance(value, dict) else value
    return uri if isinstance(uri, str) and is_iri(uri) else None


def to_rdf(triples: Iterable[Triple], media_type: str) -> bytes:
    """Duplicates are written once."""
    ox = oxigraph()
    statements = dict.fromkeys(ox.Triple(ox.NamedNode(each[0]), ox.NamedNode(each[1]), each[2]) for each in triples)
    data: bytes = ox.serialize(statements, format=ox.RdfFormat.from_media_type(media_type), prefixes=PREFIXES)
    return data
