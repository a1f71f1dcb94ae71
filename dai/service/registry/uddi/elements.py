"""Elements of XML that are declared once: messages are read and written by their declarations, and the schemas and
WSDLs come from them. An element without attributes and children is read as a text, any other as a dict: attributes and
``text`` by their names, children by theirs, in lists where several may stand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from xml.sax.saxutils import escape, quoteattr

from dai.errors import DocumentError

_XML = "{http://www.w3.org/XML/1998/namespace}"


@dataclass(frozen=True, slots=True)
class Element:
    """``attributes``: names, with ``:`` before those that are of the vocabulary's namespace. ``children``: those that
    may stand once (False) or several times (True); of another vocabulary with its prefix. Those of ``kept`` are written
    though they are empty."""

    attributes: tuple[str, ...] = ()
    children: Mapping[str, bool] = field(default_factory=dict)
    text: bool = False
    kept: frozenset[str] = frozenset()

    @property
    def simple(self) -> bool:
        return not self.attributes and not self.children


_TEXT = Element(text=True)


def declared(words: str) -> Element:
    """``@attribute``, ``@attribute!`` for one that is always written, ``child``, ``child*``, ``=`` for a text."""
    attributes, children, kept, text = [], {}, set(), False
    for each in words.split():
        if each == "=":
            text = True
        elif each.startswith("@"):
            name = each[1:].rstrip("!")
            attributes.append(name)
            if each.endswith("!"):
                kept.add(name)
        else:
            children[each.rstrip("*")] = each.endswith("*")
    return Element(tuple(attributes), children, text, frozenset(kept))


@dataclass(frozen=True)
class Vocabulary:
    """The elements of a ``namespace``, which WSDLs and messages call ``prefix``. ``qualified``: whether children are of
    the namespace, too. ``others``: vocabularies whose elements may stand in these; ``types``: of texts, where they are
    no strings."""

    namespace: str
    prefix: str
    elements: Mapping[str, Element]
    others: tuple[Vocabulary, ...] = ()
    qualified: bool = True
    types: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        tags = {name: {self._tag(child): child for child in each.children} for name, each in self.elements.items()}
        object.__setattr__(self, "_tags", tags)

    def _tag(self, child: str) -> str:
        owner, name = self.of(child)
        return f"{{{owner.namespace}}}{name}" if owner.qualified else name

    def of(self, child: str) -> tuple[Vocabulary, str]:
        """Whose element a child is, and its name there."""
        prefix, colon, name = child.partition(":")
        return (next(each for each in self.others if each.prefix == prefix), name) if colon else (self, child)

    def read(self, element: Any) -> Any:
        """An element of lxml. DocumentError for what may not stand in it."""
        name = element.tag.rpartition("}")[2]
        declaration = self.elements.get(name, _TEXT)
        if declaration.simple and declaration.text:
            return (element.text or "").strip()
        values: dict[str, Any] = {}
        for key, value in element.attrib.items():
            bare = key.rpartition("}")[2] if key.startswith((_XML, f"{{{self.namespace}}}")) else key
            if bare in declaration.attributes or f":{bare}" in declaration.attributes:
                values[bare] = value
        if declaration.text:
            values["text"] = (element.text or "").strip()
        tags: Mapping[str, str] = self._tags.get(name, {})  # type: ignore[attr-defined]
        for child in element:
            if not isinstance(child.tag, str):
                continue
            if (there := tags.get(child.tag)) is None:
                raise DocumentError(
                    f"{child.tag.rpartition('}')[2][:100]!r} is not allowed in {name}.",
                    hint=f"These may: {', '.join(declaration.children) or 'none'}.",
                )
            owner, bare = self.of(there)
            if declaration.children[there]:
                values.setdefault(bare, []).append(owner.read(child))
            else:
                values[bare] = owner.read(child)
        return values

    def write(self, name: str, value: Any) -> str:
        """The element, of what ``read`` gives, without its namespace."""
        parts: list[str] = []
        self._write(name, value, parts)
        return "".join(parts)

    def _write(self, name: str, value: Any, parts: list[str]) -> None:
        declaration = self.elements.get(name, _TEXT)
        if declaration.simple and declaration.text:
            parts.append(f"<{name}>{escape(str(value))}</{name}>")
            return
        parts.append(f"<{name}")
        for each in declaration.attributes:
            if (said := value.get(each.lstrip(":"), "")) or each in declaration.kept:
                written = f"{self.prefix}{each}" if each[0] == ":" else "xml:lang" if each == "lang" else each
                parts.append(f" {written}={quoteattr(str(said))}")
        parts.append(">")
        if declaration.text:
            parts.append(escape(str(value.get("text", ""))))
        for child, several in declaration.children.items():
            if child in value:
                for each in value[child] if several else (value[child],):
                    self._write(child, each, parts)
        parts.append(f"</{name}>")

    def message(self, name: str, value: Any) -> str:
        """The element with its namespace, for the body of an envelope."""
        written = self.write(name, value)
        if self.qualified:
            space = f' xmlns="{self.namespace}"'
            if any(each[0] == ":" for element in self.elements.values() for each in element.attributes):
                # only then: Axis calls elements by the prefix where there is one, and UDDI4J does not know them
                space += f' xmlns:{self.prefix}="{self.namespace}"'
            return f"<{name}{space}{written[len(name) + 1 :]}"
        outer = f"{self.prefix}:{name}"
        return f'<{outer} xmlns:{self.prefix}="{self.namespace}"{written[len(name) + 1 : -len(name) - 1]}{outer}>'

    def schema(self) -> str:
        form = "qualified" if self.qualified else "unqualified"
        lines = [f'<xs:schema targetNamespace="{self.namespace}" elementFormDefault="{form}">']
        lines += [f'<xs:import namespace="{other.namespace}"/>' for other in self.others]
        if any("lang" in each.attributes for each in self.elements.values()):
            # with its schema beside it: no client has to fetch that from elsewhere
            lines.append(f'<xs:import namespace="{_XML[1:-1]}" schemaLocation="schemas/xml.xsd"/>')
        own = {name for each in self.elements.values() for name in each.attributes if name[0] == ":"}
        lines += [f'<xs:attribute name="{each[1:]}" type="xs:string"/>' for each in sorted(own)]
        bare = {child for each in self.elements.values() for child in each.children if ":" not in child}
        texts = bare - self.elements.keys() if self.qualified else set[str]()
        lines += [f'<xs:element name="{each}" type="{self._type(each)}"/>' for each in sorted(texts)]
        for name, each in self.elements.items():
            if each.simple and each.text:
                lines.append(f'<xs:element name="{name}" type="{self._type(name)}"/>')
                continue
            if not self.qualified:
                lines.append(f'<xs:element name="{name}" type="{self.prefix}:{name}"/>')
                lines.append(f'<xs:complexType name="{name}">{self._content(each)}</xs:complexType>')
            else:
                lines.append(f'<xs:element name="{name}"><xs:complexType>{self._content(each)}')
                lines.append("</xs:complexType></xs:element>")
        return "\n".join((*lines, "</xs:schema>"))

    def _type(self, text: str) -> str:
        return self.types.get(text, "xs:string")

    def _content(self, element: Element) -> str:
        attributes = "".join(
            '<xs:attribute ref="xml:lang"/>'
            if attribute == "lang"
            else f'<xs:attribute ref="{self.prefix}{attribute}"/>'
            if attribute[0] == ":"
            else f'<xs:attribute name="{attribute}" type="xs:string"/>'
            for attribute in element.attributes
        )
        if element.text:
            extension = f'<xs:extension base="xs:string">{attributes}</xs:extension>'
            return f"<xs:simpleContent>{extension}</xs:simpleContent>"
        children = "".join(
            f'<xs:element {self._kind(child)} minOccurs="0" maxOccurs="{"unbounded" if several else "1"}"/>'
            for child, several in element.children.items()
        )
        return f"<xs:sequence>{children}</xs:sequence>{attributes}"

    def _kind(self, child: str) -> str:
        if self.qualified:
            return f'ref="{child if ":" in child else f"{self.prefix}:{child}"}"'
        complex_type = child in self.elements and not self.elements[child].simple
        return f'name="{child}" type="{f"{self.prefix}:{child}" if complex_type else self._type(child)}"'


def xml_schema() -> bytes:
    """That of ``xml:lang``, which others import."""
    attribute = '<xs:attribute name="lang" type="xs:string"/>'
    start = f'<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema" targetNamespace="{_XML[1:-1]}">'
    return f"{start}{attribute}</xs:schema>".encode()


@dataclass(frozen=True, slots=True)
class Port:
    """What is called at one address: the ``calls`` with what they are answered with, elements of ``vocabulary`` (or,
    with its prefix, of another). An operation has the name of its call, without ``suffix``; in SOAPAction ``action``
    stands before it."""

    name: str
    target: str
    vocabulary: Vocabulary
    calls: Mapping[str, str]
    fault: str | None = None
    action: str = ""
    suffix: str = ""

    def wsdl(self, address: str) -> bytes:
        def message(element: str) -> str:
            name = element if ":" in element else f"{self.vocabulary.prefix}:{element}"
            return f'<message name="{_bare(element)}"><part name="body" element="{name}"/></message>'

        named = dict.fromkeys((*self.calls, *self.calls.values(), *filter(None, (self.fault,))))
        messages = {_bare(each): message(each) for each in named}
        faults = f'<fault name="error" message="t:{self.fault}"/>' if self.fault else ""
        operations = "".join(
            f'<operation name="{call.removesuffix(self.suffix)}"><input message="t:{call}"/>'
            f'<output message="t:{_bare(answer)}"/>{faults}</operation>'
            for call, answer in self.calls.items()
        )
        literal = '<soap:body use="literal"/>'
        fault = '<fault name="error"><soap:fault name="error" use="literal"/></fault>' if self.fault else ""
        bound = "".join(
            f'<operation name="{each}"><soap:operation soapAction="{self.action}{each}" style="document"/>'
            f"<input>{literal}</input><output>{literal}</output>{fault}</operation>"
            for each in (call.removesuffix(self.suffix) for call in self.calls)
        )
        vocabularies = (*self.vocabulary.others, self.vocabulary)
        spaces = " ".join(f'xmlns:{each.prefix}="{each.namespace}"' for each in vocabularies)
        schemas = "".join(each.schema() for each in vocabularies)
        title = self.name
        return f"""<?xml version="1.0" encoding="UTF-8"?>
<definitions xmlns="http://schemas.xmlsoap.org/wsdl/" xmlns:soap="http://schemas.xmlsoap.org/wsdl/soap/"
    xmlns:xs="http://www.w3.org/2001/XMLSchema" {spaces} xmlns:t="{self.target}" targetNamespace="{self.target}">
<types>{schemas}</types>{"".join(messages.values())}
<portType name="{title}">{operations}</portType>
<binding name="{title}Soap" type="t:{title}">
<soap:binding style="document" transport="http://schemas.xmlsoap.org/soap/http"/>{bound}</binding>
<service name="{title}Service"><port name="{title}" binding="t:{title}Soap">
<soap:address location={quoteattr(address)}/></port></service>
</definitions>""".encode()


def _bare(element: str) -> str:
    return element.rpartition(":")[2]
