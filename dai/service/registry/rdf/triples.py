"""An entry in RDF: its own properties, and, for metadata, the statement about another entry.

The vocabulary is ``VOCABULARY``, with rdfs:label for names and Dublin Core for descriptions, times and what an entry
stands below. Properties that are words are words of the vocabulary, others the IRIs that they are. A piece of metadata
is a node of its own, and besides one triple: what it is about, its type, its value.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from dai.errors import DataError, MissingDependencyError
from dai.plugins import extra_hint
from dai.service.registry.entries import SAID, VALUES, VOCABULARY, Audience, Entry, listed

if TYPE_CHECKING:
    from pyoxigraph import DefaultGraph, Literal, NamedNode, Quad

_DCTERMS = "http://purl.org/dc/terms/"
_RDF = "http://www.w3.org/1999/02/22-rdf-syntax-ns#"
_LABEL = "http://www.w3.org/2000/01/rdf-schema#label"
_XSD = "http://www.w3.org/2001/XMLSchema#"


def oxigraph() -> Any:
    """The library. MissingDependencyError where it is not installed."""
    try:
        import pyoxigraph
    except ImportError as error:
        raise MissingDependencyError(
            "RDF needs the optional package pyoxigraph.", hint=extra_hint("registry")
        ) from error
    return pyoxigraph


def graph_of(audience: Audience) -> NamedNode | DefaultGraph:
    """The graph for triples of entries that only this audience sees."""
    ox = oxigraph()
    if not audience:
        return ox.DefaultGraph()  # type: ignore[no-any-return]
    digest = hashlib.sha256(repr(sorted(audience)).encode()).hexdigest()
    return ox.NamedNode(f"urn:dai:audience:{digest}")  # type: ignore[no-any-return]


def quads(entry: Entry, audience: Audience) -> Iterator[Quad]:
    ox = oxigraph()
    graph = graph_of(audience)
    for subject, predicate, value in _triples(entry):
        yield ox.Quad(ox.NamedNode(subject), ox.NamedNode(predicate), value, graph)
    if entry.metadata is not None and entry.metadata.form == "rdf":
        for triple in _described(entry):
            if not _is_own(*triple[1:]):  # an earlier release took these
                yield ox.Quad(*triple, graph)


def statement(entry: Entry, audience: Audience) -> Quad | None:
    """The statement of a metadata entry about another entry. Other metadata may state the same."""
    if entry.metadata is None or entry.parent is None:
        return None
    ox = oxigraph()
    subject, predicate = ox.NamedNode(entry.parent), ox.NamedNode(entry.metadata.type)
    return ox.Quad(subject, predicate, _object(entry), graph_of(audience))  # type: ignore[no-any-return]


def _triples(entry: Entry) -> Iterator[tuple[str, str, Any]]:
    ox = oxigraph()
    key, literal, node = entry.key, ox.Literal, ox.NamedNode
    kind = "TModel" if entry.kind == "tmodel" else entry.kind.capitalize()
    yield key, f"{_RDF}type", node(VOCABULARY + kind)
    yield key, f"{VOCABULARY}owner", literal(entry.owner)
    for name, moment in (("issued", entry.published), ("modified", entry.modified)):
        written = datetime.fromtimestamp(moment, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        yield key, _DCTERMS + name, literal(written, datatype=node(f"{_XSD}dateTime"))
    if entry.metadata is not None:
        assert entry.parent is not None
        yield key, f"{VOCABULARY}about", node(entry.parent)
        yield key, f"{VOCABULARY}type", node(entry.metadata.type)
        yield key, f"{_RDF}value", _object(entry)
    elif entry.parent is not None:
        yield key, f"{_DCTERMS}isPartOf", node(entry.parent)
    for texts, predicate in ((entry.names, _LABEL), (entry.descriptions, f"{_DCTERMS}description")):
        for text, language in texts:
            yield key, predicate, text_of(text, language)
    for name, value in entry.properties.items():
        for each in () if name in SAID else listed(value):  # an earlier release took these
            yield key, name if ":" in name else VOCABULARY + name, _value(each)
    for each in entry.implements:
        yield key, f"{VOCABULARY}implements", node(each)
    for word, references in (("category", entry.categories), ("identifier", entry.identifiers)):
        for number, reference in enumerate(references):
            at = f"{_value_node(entry)}-{word}-{number}"
            yield key, VOCABULARY + word, node(at)
            if reference.tmodel:
                yield at, f"{VOCABULARY}taxonomy", node(reference.tmodel)
            yield at, f"{_RDF}value", literal(reference.value)
            if reference.name:
                yield at, _LABEL, literal(reference.name)


def text_of(text: str, language: str) -> Literal:
    ox = oxigraph()
    try:
        return ox.Literal(text, language=language or None)  # type: ignore[no-any-return]
    except ValueError:
        return ox.Literal(text)  # type: ignore[no-any-return]


def _value(value: Any) -> Any:
    ox = oxigraph()
    return ox.NamedNode(value["uri"]) if isinstance(value, dict) else ox.Literal(value)


def _object(entry: Entry) -> Any:
    ox = oxigraph()
    assert entry.metadata is not None
    match entry.metadata.form:
        case "uri":
            return ox.NamedNode(entry.metadata.value)
        case "rdf":
            return ox.NamedNode(_value_node(entry))
    return ox.Literal(entry.metadata.value)


def _value_node(entry: Entry) -> str:
    """The name of a value that is RDF; without a fragment, so that <> is it."""
    return f"{VALUES}{hashlib.sha256(entry.key.encode()).hexdigest()}"


def _described(entry: Entry) -> Iterator[tuple[Any, Any, Any]]:
    """The triples of a value that is RDF. What has no name there has one of the entry's here."""
    ox = oxigraph()
    assert entry.metadata is not None
    base = _value_node(entry)

    def named(term: Any) -> Any:
        return ox.NamedNode(f"{base}-{term.value}") if isinstance(term, ox.BlankNode) else term

    for each in ox.parse(entry.metadata.value, format=ox.RdfFormat.TURTLE, base_iri=base):
        yield named(each.subject), each.predicate, named(each.object)


def _is_own(predicate: Any, value: Any) -> bool:
    """Whether that is for the registry to say: a word of its vocabulary, what an entry is, and what it stands below.
    Otherwise whoever says something would seem to publish tables of others."""
    typed = predicate.value == f"{_RDF}type" and str(value).startswith(f"<{VOCABULARY}")
    return typed or predicate.value == f"{_DCTERMS}isPartOf" or predicate.value.startswith(VOCABULARY)


_LANGUAGES = {
    "": "TURTLE", "TURTLE": "TURTLE", "N3": "TURTLE", "N-TRIPLE": "N_TRIPLES", "N-TRIPLES": "N_TRIPLES",
    "RDF/XML": "RDF_XML", "RDF/XML-ABBREV": "RDF_XML",
}  # fmt: skip
"""Formats by the names that programs of 2004 give them."""


def about_itself(text: str, language: str, base: str, resource: str) -> str:
    """RDF about a resource as Turtle about ``<>``, in an order of its own. DataError for what cannot be read."""
    ox = oxigraph()
    if language.upper() not in _LANGUAGES:
        raise DataError(
            f"RDF in {language[:100]!r} is not supported.",
            hint=f"These languages are: {', '.join(filter(None, _LANGUAGES))}.",
        )
    try:
        form = getattr(ox.RdfFormat, _LANGUAGES[language.upper()])
        statements = list(ox.parse(text, format=form, base_iri=base or None))
    except (SyntaxError, ValueError) as error:
        raise DataError(f"The triples are not {language or 'Turtle'}: {error}.") from error

    def written(term: Any) -> str:
        return "<>" if isinstance(term, ox.NamedNode) and term.value == resource else str(term)

    lines = (f"{written(each.subject)} {each.predicate} {written(each.object)} ." for each in statements)
    return "\n".join(sorted(lines))


def check_rdf(entry: Entry) -> None:
    """DataError for a value that is not RDF, or that says something of others than itself."""
    ox = oxigraph()
    base = _value_node(entry)
    try:
        for subject, predicate, value in _described(entry):
            if not isinstance(subject, ox.NamedNode) or not subject.value.startswith(base):
                raise DataError(
                    f"The RDF of {entry.key!r} may not be about {str(subject)[:200]}.",
                    hint="It may only be about <> (the value itself) and blank nodes: [ … ], _:a.",
                )
            if _is_own(predicate, value) or isinstance(value, ox.Triple):
                raise DataError(f"The RDF of {entry.key!r} has {predicate}, which only the registry sets.")
    except (SyntaxError, ValueError) as error:
        raise DataError(f"The value of {entry.key!r} is not Turtle: {error}.") from error
