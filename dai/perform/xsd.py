"""The XML schema of the perform language (W3C XML Schema 1.0), written from the declarations of the installed
activities.

The schema allows children in any order and any number; ``dai.perform.building`` checks how often each may occur, with
better messages.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

from dai.perform.activity import ACTIVITIES, Activity, Element, FieldSpec, Markup, fields_of
from dai.perform.graph import GDS, PREVIEW, Dialect
from dai.perform.validation import MOST_NAME

_XSD_ANY = '<xs:sequence><xs:any processContents="skip" minOccurs="0" maxOccurs="unbounded"/></xs:sequence>'
_XSD_TYPES = {str: "xs:string", int: "xs:long", float: "xs:double", bool: "xs:boolean"}


_ACTIVITY = """        <xs:group ref="activity"/>
"""
_REQUESTS = """        <xs:element name="request">
          <xs:complexType>
            <xs:choice minOccurs="0" maxOccurs="unbounded">
              <xs:element name="documentation" type="xs:string"/>
              <xs:element name="parameter" type="value"/>
              <xs:element ref="dataResource"/>
              <xs:group ref="activity"/>
            </xs:choice>
            <xs:attribute name="name" type="name" use="required"/>
          </xs:complexType>
        </xs:element>
        <xs:element name="execute">
          <xs:complexType>
            <xs:sequence>
              <xs:element name="withParameter" type="value" minOccurs="0" maxOccurs="unbounded"/>
            </xs:sequence>
            <xs:attribute name="name" type="name" use="required"/>
            <xs:attribute name="requestName" type="name" use="required"/>
          </xs:complexType>
        </xs:element>
"""
_VALUE = """  <xs:complexType name="value" mixed="true">
    <xs:sequence><xs:element name="value" type="xs:string" minOccurs="0"/></xs:sequence>
    <xs:attribute name="name" type="name" use="required"/>
    <xs:attribute name="value" type="xs:string"/>
  </xs:complexType>
  <xs:element name="dataResource" type="xs:string"/>
"""


@cache
def xsd(dialect: Dialect = GDS) -> bytes:
    """The XML schema of a dialect with every installed activity in it (W3C XML Schema 1.0)."""
    elements = [_xsd_activity(name, ACTIVITIES[name]) for name in ACTIVITIES]
    groups = _xsd_group("sequence", "One after the other.") + _xsd_group("flow", "At once.")
    text = f"""<?xml version="1.0" encoding="UTF-8"?>
<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema" xmlns="{dialect.namespace}"
           targetNamespace="{dialect.namespace}" elementFormDefault="qualified">
  <xs:simpleType name="name">
    <xs:restriction base="xs:string"><xs:minLength value="1"/><xs:maxLength value="{MOST_NAME}"/></xs:restriction>
  </xs:simpleType>
  <xs:group name="activity">
    <xs:choice>
{"".join(f'      <xs:element ref="{name}"/>{chr(10)}' for name in (*ACTIVITIES, "sequence", "flow"))}    </xs:choice>
  </xs:group>
  <xs:element name="{dialect.request}">
    <xs:complexType>
      <xs:choice minOccurs="0" maxOccurs="unbounded">
        <xs:element name="documentation" type="xs:string"/>
        <xs:element ref="session"/>
{_REQUESTS if dialect is PREVIEW else _ACTIVITY}      </xs:choice>
    </xs:complexType>
  </xs:element>
  <xs:element name="session">
    <xs:complexType>
      <xs:attribute name="id" type="xs:string"/>
      <xs:attribute name="timeout" type="xs:double"/>
      <xs:attribute name="end" type="xs:boolean"/>
    </xs:complexType>
  </xs:element>
{_VALUE if dialect is PREVIEW else ""}{groups}{"".join(elements)}</xs:schema>
"""
    return text.encode()


def _xsd_group(name: str, about: str) -> str:
    return f"""  <xs:element name="{name}">
    <xs:annotation><xs:documentation>{about}</xs:documentation></xs:annotation>
    <xs:complexType>
      <xs:group ref="activity" minOccurs="0" maxOccurs="unbounded"/>
      <xs:attribute name="name" type="xs:string"/>
    </xs:complexType>
  </xs:element>
"""


_NAME = '<xs:attribute name="{}" type="name" use="required"/>'


def _xsd_activity(name: str, declared: type[Activity]) -> str:
    about = (declared.__doc__ or "").strip().split("\n\n")[0]
    about = " ".join(about.split()).replace("&", "&amp;").replace("<", "&lt;")
    body = _xsd_type(declared, "    ", _NAME.format("name"))
    return (
        f'  <xs:element name="{name}">\n'
        f"    <xs:annotation><xs:documentation>{about}</xs:documentation></xs:annotation>\n{body}  </xs:element>\n"
    )


def _xsd_type(declared: type, indent: str, *attributes: str) -> str:
    """The children in any order (``dai.perform.building`` checks how often each occurs), then the attributes."""
    children: list[str] = []
    own, mixed, markup = list(attributes), False, False
    for spec in fields_of(declared):
        how = spec.place.how
        if how == "attribute":
            use = ' use="required"' if spec.required else ""
            own.append(_xsd_value("attribute", spec.place.names[0], spec.kind, use))
        elif how == "text":
            mixed, markup = True, spec.kind is Markup
        elif how == "input" and not spec.place.names:
            use = ' use="required"' if spec.required else ""
            own.append(_xsd_value("attribute", "from", str, use))
        elif how == "output" and not spec.place.names:
            own.append(_NAME.format("name"))
        else:
            children.extend(_xsd_child(name, spec, indent + "    ") for name in spec.place.names)
    mixing = ' mixed="true"' if mixed else ""
    lines = [f"{indent}<xs:complexType{mixing}>\n"]
    if children:
        lines.append(f'{indent}  <xs:choice minOccurs="0" maxOccurs="unbounded">\n')
        lines.extend(children)
        lines.append(f"{indent}  </xs:choice>\n")
    if markup:
        lines.append(f"{indent}  {_XSD_ANY}\n")
    lines.extend(f"{indent}  {each}\n" for each in dict.fromkeys(own))
    lines.append(f"{indent}</xs:complexType>\n")
    return "".join(lines)


def _xsd_child(name: str, spec: FieldSpec, indent: str) -> str:
    if spec.place.how in ("input", "output"):
        port = "from" if spec.place.how == "input" else "name"
        return f'{indent}<xs:element name="{name}"><xs:complexType>{_NAME.format(port)}</xs:complexType></xs:element>\n'
    if isinstance(spec.kind, type) and issubclass(spec.kind, Element):
        return f'{indent}<xs:element name="{name}">\n{_xsd_type(spec.kind, indent + "  ")}{indent}</xs:element>\n'
    if spec.kind is Markup:
        return (
            f'{indent}<xs:element name="{name}"><xs:complexType mixed="true">{_XSD_ANY}</xs:complexType></xs:element>\n'
        )
    return f"{indent}{_xsd_value('element', name, spec.kind, '')}\n"


def _xsd_value(what: str, name: str, kind: Any, use: str) -> str:
    if not isinstance(kind, tuple):
        return f'<xs:{what} name="{name}" type="{_XSD_TYPES[kind]}"{use}/>'
    words = "".join(f'<xs:enumeration value="{word}"/>' for word in kind)
    return (
        f'<xs:{what} name="{name}"{use}><xs:simpleType><xs:restriction base="xs:string">{words}</xs:restriction>'
        f"</xs:simpleType></xs:{what}>"
    )


def fixed() -> dict[str, bytes]:
    """The schemas that do not depend on the installed activities, by file name: of what the service answers."""
    directory = files("dai") / "schemas"
    return {each.name: each.read_bytes() for each in sorted(directory.iterdir(), key=lambda each: each.name)}
