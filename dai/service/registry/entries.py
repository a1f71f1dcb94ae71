"""Entries of the registry: their kinds, and the data of each.

Keys are IRIs: an entry has the same name in the registry and in RDF. The publisher chooses the key, or leaves it to the
registry (``urn:uuid:``).
"""

from __future__ import annotations

import ipaddress
import math
import re
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from dai.errors import ParameterError
from dai.plugins import nearest

KINDS: Mapping[str, frozenset[str | None]] = {
    kind: frozenset(None if each == "-" else each for each in parents.split())
    for kind, parents in {
        "business": "-",
        "service": "- business",
        "binding": "service",
        "tmodel": "-",
        "resource": "service",
        "table": "resource",
        "column": "table",
        "activity": "service resource",
        "evaluator": "service",
        "interface": "- service",
        "operation": "interface",
        "part": "interface operation",
        "assertion": "business",
    }.items()
}
"""The kinds below which each kind may be; ``-``: none."""
METADATA = "metadata"
"""A statement about another entry, whoever owns that. It is an entry as well, and may stand below any other."""
EVERYBODY = ("*", "anonymous")
FORMS = ("string", "uri", "rdf")
VOCABULARY = "urn:dai:registry:"
MEANING = "urn:dai:meaning:"
"""Before ``unit``, ``ucd``, ``quantity`` and ``description``: types of metadata about columns, which services take over
from whom they believe."""
MEANT = frozenset({"unit", "ucd", "quantity"})
EVALUATOR = "evaluator"
MOST_KEY = 800
MOST_DEPTH = 32
"""Of what stands below something: metadata may be about metadata."""
MOST_READERS = 4000
"""Characters of all who see an entry: they stand in each change of what is below it."""
MOST_ATOMS = 16
"""Words of a UCD by whose beginnings it is found, and parts of one."""
MOST_WORDS = 300
"""By which one entry is found."""
_LETTER = (
    r"(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2}|[\u00a0-\ud7ff\uf900-\ufdcf\ufdf0-\uffef]"
    rf"|[{''.join(f'{chr(each << 16)}-{chr((each << 16) + 0xFFFD)}' for each in range(1, 14))}\U000e1000-\U000efffd])"
)
_HOST = rf"(?:(?:(?![:@]){_LETTER})*@)?(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?:(?![:@]){_LETTER})*)(?::[0-9]{{0,5}})?"
_IRI = re.compile(
    rf"[A-Za-z][A-Za-z0-9+.-]*:(?://{_HOST}(?:/{_LETTER}*)*|(?!//)(?:{_LETTER}|/)*)"
    rf"(?:\?(?:{_LETTER}|[/?])*)?(?:#(?:{_LETTER}|[/?])*)?"
)
"""RFC 3987."""
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,99}")
_LARGE = 4096
"""Bytes."""
VALUES = "urn:dai:value:"
"""Nodes of values in RDF."""
_OWN = (VOCABULARY, VALUES)
_RESERVED = (
    *_OWN,
    "http://www.w3.org/1999/02/22-rdf-syntax-ns#",
    "http://www.w3.org/2000/01/rdf-schema#",
    "http://purl.org/dc/terms/",
)
SAID = frozenset({"about", "category", "identifier", "implements", "owner", "taxonomy"})
"""Words of the vocabulary that the registry itself uses. No property may have such a name."""
Text = tuple[str, str]
"""With its language, as ``en``; empty: none is said."""
Audience = frozenset[tuple[str, tuple[str, ...]]]
"""Owners and readers of the restricted entries on the way to an entry: who sees it is among each. Empty: everybody."""


@dataclass(frozen=True, slots=True)
class Reference:
    """A value in a taxonomy or a scheme of identifiers, which a tModel stands for."""

    tmodel: str
    value: str
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
    """``type``: what is said, an IRI; ``form``: of the value, one of FORMS."""

    type: str
    value: str
    form: str = "string"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """``properties``: texts, numbers, truth values, ``{"uri": …}`` and lists of these by their names, words or IRIs.
    ``implements``: keys of tModels; ``details``: what else UDDI says of it. Times are seconds since 1970; ``expires``:
    until when its lease holds; then it is deleted or, with ``deprecates``, marked as deprecated. ``readers``: who sees
    it, as in a policy."""

    key: str
    kind: str
    owner: str = ""
    parent: str | None = None
    names: tuple[Text, ...] = ()
    descriptions: tuple[Text, ...] = ()
    categories: tuple[Reference, ...] = ()
    identifiers: tuple[Reference, ...] = ()
    properties: Mapping[str, Any] = field(default_factory=dict)
    metadata: Metadata | None = None
    implements: tuple[str, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)
    readers: tuple[str, ...] = EVERYBODY
    published: float = 0.0
    modified: float = 0.0
    expires: float | None = None
    deprecates: bool = False
    deprecated: bool = False

    @property
    def name(self) -> str:
        return self.names[0][0] if self.names else ""

    @property
    def restricted(self) -> bool:
        return not set(EVERYBODY) <= set(self.readers)

    @property
    def weight(self) -> int:
        """For how many it counts where entries are counted: they are all in memory."""
        return 1 + len(self.to_bytes()) // _LARGE

    def to_bytes(self) -> bytes:
        return orjson.dumps(self)

    @classmethod
    def from_bytes(cls, data: bytes | str) -> Entry:
        said: dict[str, Any] = orjson.loads(data)
        for name in ("names", "descriptions"):
            said[name] = tuple((text, language) for text, language in said[name])
        for name in ("categories", "identifiers"):
            said[name] = tuple(Reference(**each) for each in said[name])
        for name in ("readers", "implements"):
            said[name] = tuple(said[name])
        said["metadata"] = Metadata(**said["metadata"]) if said["metadata"] else None
        return cls(**said)


def new_key() -> str:
    return uuid.uuid4().urn


def is_iri(text: str) -> bool:
    if len(text) > MOST_KEY or (match := _IRI.fullmatch(text)) is None or text.endswith(":"):
        return False
    try:
        return match["six"] is None or bool(ipaddress.IPv6Address(match["six"]))
    except ValueError:
        return False


def checked(entry: Entry) -> Entry:
    """ParameterError for what no entry may be."""
    if not is_iri(entry.key) or entry.key.startswith(_OWN):
        raise ParameterError(
            f"The key {entry.key[:100]!r} is not an IRI.", hint="It looks like urn:… or https://…, without spaces."
        )
    if entry.kind != METADATA and entry.kind not in KINDS:
        raise ParameterError(f"There is no kind {entry.kind[:100]!r}.", hint=nearest(entry.kind, [*KINDS, METADATA]))
    if (entry.metadata is None) is (entry.kind == METADATA):
        raise ParameterError(
            f"{entry.key!r}: metadata must have a type and a value, and other entries cannot have them."
        )
    if entry.metadata is not None:
        _check_metadata(entry.metadata)
    elif not entry.name and entry.kind not in ("binding", "assertion"):
        raise ParameterError(f"{entry.key!r}: a {entry.kind} needs a name.")
    check_readers(entry.readers)
    for name, value in entry.properties.items():
        own = name in SAID or (name == "type" and entry.kind == METADATA)
        if own or not (_NAME.fullmatch(name) or (is_iri(name) and not name.startswith(_RESERVED))):
            raise ParameterError(
                f"{entry.key!r}: {name[:100]!r} is not the name of a property.",
                hint="Use a word of letters, digits, - and _, or an IRI outside the registry's vocabulary; but none of "
                f"{', '.join(sorted(SAID))}, which the registry sets itself.",
            )
        for each in listed(value):
            _check_value(entry.key, name, each)
    references = (each.tmodel for each in (*entry.categories, *entry.identifiers) if each.tmodel)
    for each in (*references, *entry.implements):
        if not is_iri(each):
            raise ParameterError(f"{entry.key!r}: the tModel {each[:100]!r} is not an IRI.")
    return entry


def check_readers(readers: tuple[str, ...]) -> None:
    if (size := sum(len(each) + 1 for each in readers)) > MOST_READERS:
        raise ParameterError(
            f"The readers of an entry have {size:,} characters; {MOST_READERS:,} are allowed.",
            hint="Name a group: group:NAME.",
        )


def _check_metadata(metadata: Metadata) -> None:
    if not is_iri(metadata.type) or metadata.type.startswith(_RESERVED):
        raise ParameterError(
            f"The type {metadata.type[:100]!r} of metadata is not an IRI, or is one that only the registry sets.",
            hint="It looks like http://example.org/terms#quality.",
        )
    if metadata.form not in FORMS:
        raise ParameterError(f"There is no form {metadata.form[:100]!r}.", hint=nearest(metadata.form, list(FORMS)))
    if metadata.form == "uri" and not is_iri(metadata.value):
        raise ParameterError(f"The value {metadata.value[:100]!r} is not an IRI.")


def _check_value(key: str, name: str, value: Any) -> None:
    if isinstance(value, str) or (isinstance(value, float) and math.isfinite(value)):
        return
    if isinstance(value, int) and -(1 << 63) <= value < 1 << 63:
        return
    if isinstance(value, dict) and value.keys() == {"uri"} and isinstance(value["uri"], str) and is_iri(value["uri"]):
        return
    raise ParameterError(
        f"{key!r}: the property {name!r} has a value of a kind that is not allowed.",
        hint='A value is a text, a number (of 64 bits), true, false, {"uri": "…"} or a list of these.',
    )


def listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


_WORD = re.compile(r"[^\W_]+")


def words(text: str) -> list[str]:
    """Those of a text, and of names such as ``galacticLongitude`` and ``galactic_longitude``, in lower case."""
    apart = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", text)
    return [each.casefold() for each in _WORD.findall(apart)]


def worded(entry: Entry) -> Iterator[tuple[str, str, list[str]]]:
    """``texts`` with their words, MOST_WORDS in all."""
    left = MOST_WORDS
    for where, text in texts(entry):
        these = words(text[: 20 * MOST_WORDS])[:left]
        yield where, text, these
        left -= len(these)
        if left == 0:
            return


def texts(entry: Entry) -> Iterator[tuple[str, str]]:
    """What people may look for, with where it stands: ``name``, ``description``, ``category``, or the name of a
    property or the type of metadata."""
    for text, _ in entry.names:
        yield "name", text
    for text, _ in entry.descriptions:
        yield "description", text
    for reference in (*entry.categories, *entry.identifiers):
        yield "category", f"{reference.name} {reference.value}"
    for name, value in entry.properties.items():
        for each in listed(value):
            yield name, each["uri"] if isinstance(each, dict) else str(each)
    if entry.metadata is not None:
        yield entry.metadata.type, entry.metadata.value


def terms(entry: Entry) -> Iterator[tuple[str, ...]]:
    """By which it is found at once."""
    yield ("kind", entry.kind)
    for reference in entry.categories:
        yield ("category", reference.tmodel, reference.value)
    for reference in entry.identifiers:
        yield ("identifier", reference.tmodel, reference.value)
    for each in entry.implements:
        yield ("tmodel", each)
    if entry.kind == "assertion":
        for name in ("from", "to"):
            yield ("related", str(entry.properties.get(name)))
    if entry.metadata is not None:
        yield ("metadata", entry.metadata.type)
        if entry.metadata.form != "rdf":
            yield ("metadata", entry.metadata.type, entry.metadata.value)
    for text, _ in entry.names:
        yield ("name", text.casefold())
    if entry.metadata is None or entry.metadata.form != "rdf":
        for _, _, these in worded(entry):
            for word in these:
                yield ("word", word)
    for where, text in texts(entry):
        if (kind := where.removeprefix(MEANING)) in MEANT:
            for each in meaning_terms(kind, text):
                yield (kind, each)


def meaning_terms(word: str, text: str) -> Iterator[str]:
    """By what a unit, UCD or quantity is found: itself; a UCD also by the beginnings of each of its words."""
    if word != "ucd":
        yield text
        return
    for each in text.lower().split(";")[:MOST_ATOMS]:
        atoms = each.strip().split(".")[:MOST_ATOMS]
        for count in range(1, len(atoms) + 1):
            yield ".".join(atoms[:count])
    yield text.lower()
