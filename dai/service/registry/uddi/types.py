"""The elements of UDDI v2: each is declared once. An element without attributes and children is read as a text, any
other as a dict: attributes and ``text`` by their names, children by theirs, in lists where several may stand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from xml.sax.saxutils import escape, quoteattr

from lxml import etree

from dai.errors import DocumentError

NAMESPACE = "urn:uddi-org:api_v2"
_XML = "{http://www.w3.org/XML/1998/namespace}"


@dataclass(frozen=True, slots=True)
class Element:
    """``children``: names, with ``*`` behind those that may stand several times."""

    attributes: tuple[str, ...] = ()
    children: tuple[str, ...] = ()
    text: bool = False

    def several(self, name: str) -> bool | None:
        """Whether it may stand several times; None: not at all."""
        return True if f"{name}*" in self.children else False if name in self.children else None


def _element(declared: str) -> Element:
    words = declared.split()
    return Element(
        tuple(each[1:] for each in words if each.startswith("@")),
        tuple(each for each in words if each[0] not in "@="),
        "=" in words,
    )


_FIND = "@generic @maxRows findQualifiers"
ELEMENTS: Mapping[str, Element] = {
    name: _element(declared)
    for name, declared in {
        # structures
        "name": "@lang =",
        "description": "@lang =",
        "keyedReference": "@tModelKey @keyName @keyValue",
        "identifierBag": "keyedReference*",
        "categoryBag": "keyedReference*",
        "tModelBag": "tModelKey*",
        "discoveryURL": "@useType =",
        "discoveryURLs": "discoveryURL*",
        "phone": "@useType =",
        "email": "@useType =",
        "addressLine": "@keyName @keyValue =",
        "address": "@useType @sortCode @tModelKey addressLine*",
        "contact": "@useType description* personName phone* email* address*",
        "contacts": "contact*",
        "businessEntity": "@businessKey @operator @authorizedName discoveryURLs name* description* contacts"
        " businessServices identifierBag categoryBag",
        "businessServices": "businessService*",
        "businessService": "@serviceKey @businessKey name* description* bindingTemplates categoryBag",
        "bindingTemplates": "bindingTemplate*",
        "bindingTemplate": "@bindingKey @serviceKey description* accessPoint hostingRedirector tModelInstanceDetails",
        "accessPoint": "@URLType =",
        "hostingRedirector": "@bindingKey",
        "tModelInstanceDetails": "tModelInstanceInfo*",
        "tModelInstanceInfo": "@tModelKey description* instanceDetails",
        "instanceDetails": "description* overviewDoc instanceParms",
        "overviewDoc": "description* overviewURL",
        "tModel": "@tModelKey @operator @authorizedName name description* overviewDoc identifierBag categoryBag",
        # inquiry
        "findQualifiers": "findQualifier*",
        "find_business": f"{_FIND} name* identifierBag categoryBag tModelBag discoveryURLs",
        "find_service": f"@businessKey {_FIND} name* categoryBag tModelBag",
        "find_binding": f"@serviceKey {_FIND} tModelBag",
        "find_tModel": f"{_FIND} name identifierBag categoryBag",
        "get_businessDetail": "@generic businessKey*",
        "get_businessDetailExt": "@generic businessKey*",
        "get_serviceDetail": "@generic serviceKey*",
        "get_bindingDetail": "@generic bindingKey*",
        "get_tModelDetail": "@generic tModelKey*",
        # publication
        "get_authToken": "@generic @userID @cred",
        "discard_authToken": "@generic authInfo",
        "get_registeredInfo": "@generic authInfo",
        "save_business": "@generic authInfo businessEntity*",
        "save_service": "@generic authInfo businessService*",
        "save_binding": "@generic authInfo bindingTemplate*",
        "save_tModel": "@generic authInfo tModel*",
        "delete_business": "@generic authInfo businessKey*",
        "delete_service": "@generic authInfo serviceKey*",
        "delete_binding": "@generic authInfo bindingKey*",
        "delete_tModel": "@generic authInfo tModelKey*",
        # answers
        "businessList": "@generic @operator @truncated businessInfos",
        "businessInfos": "businessInfo*",
        "businessInfo": "@businessKey name* description* serviceInfos",
        "serviceList": "@generic @operator @truncated serviceInfos",
        "serviceInfos": "serviceInfo*",
        "serviceInfo": "@serviceKey @businessKey name*",
        "tModelList": "@generic @operator @truncated tModelInfos",
        "tModelInfos": "tModelInfo*",
        "tModelInfo": "@tModelKey name",
        "bindingDetail": "@generic @operator @truncated bindingTemplate*",
        "serviceDetail": "@generic @operator @truncated businessService*",
        "businessDetail": "@generic @operator @truncated businessEntity*",
        "businessDetailExt": "@generic @operator @truncated businessEntityExt*",
        "businessEntityExt": "businessEntity",
        "tModelDetail": "@generic @operator @truncated tModel*",
        "authToken": "@generic @operator authInfo",
        "registeredInfo": "@generic @operator @truncated businessInfos tModelInfos",
        "dispositionReport": "@generic @operator result*",
        "result": "@errno @keyType errInfo",
        "errInfo": "@errCode =",
    }.items()
}
_TEXT = Element(text=True)
ANSWERS = {
    "find_business": "businessList",
    "find_service": "serviceList",
    "find_binding": "bindingDetail",
    "find_tModel": "tModelList",
    "get_businessDetail": "businessDetail",
    "get_businessDetailExt": "businessDetailExt",
    "get_serviceDetail": "serviceDetail",
    "get_bindingDetail": "bindingDetail",
    "get_tModelDetail": "tModelDetail",
    "get_authToken": "authToken",
    "discard_authToken": "dispositionReport",
    "get_registeredInfo": "registeredInfo",
    "save_business": "businessDetail",
    "save_service": "serviceDetail",
    "save_binding": "bindingDetail",
    "save_tModel": "tModelDetail",
    "delete_business": "dispositionReport",
    "delete_service": "dispositionReport",
    "delete_binding": "dispositionReport",
    "delete_tModel": "dispositionReport",
}
"""What each call is answered with."""
PUBLICATION = tuple(
    each
    for each in ANSWERS
    if each.startswith(("save_", "delete_")) or each in ("get_authToken", "discard_authToken", "get_registeredInfo")
)
INQUIRY = tuple(each for each in ANSWERS if each not in PUBLICATION)


def read(element: Any) -> Any:
    """An element of the declared ones. DocumentError for what may not stand in it."""
    name = etree.QName(element).localname
    declared = ELEMENTS.get(name, _TEXT)
    if declared == _TEXT:
        return (element.text or "").strip()
    found: dict[str, Any] = {}
    for key, value in element.attrib.items():
        if (bare := key.removeprefix(_XML)) in declared.attributes:
            found[bare] = value
    if declared.text:
        found["text"] = (element.text or "").strip()
    for child in element:
        if not isinstance(child.tag, str):
            continue
        qualified = etree.QName(child)
        several = declared.several(qualified.localname) if qualified.namespace == NAMESPACE else None
        if several is None:
            raise DocumentError(
                f"{qualified.localname[:100]!r} may not stand in {name}.",
                hint=f"These may: {', '.join(each.rstrip('*') for each in declared.children) or 'none'}.",
            )
        if several:
            found.setdefault(qualified.localname, []).append(read(child))
        else:
            found[qualified.localname] = read(child)
    return found


def write(name: str, value: Any) -> str:
    """The element, of what ``read`` gives."""
    declared = ELEMENTS.get(name, _TEXT)
    if declared == _TEXT:
        return f"<{name}>{escape(str(value))}</{name}>"
    said = {"xml:lang" if each == "lang" else each: value[each] for each in declared.attributes if value.get(each)}
    if name == "keyedReference" or name.endswith(("Service", "Info", "Entity", "Template")):
        # keys are required, though they may be empty
        said |= {each: value.get(each, "") for each in declared.attributes if each.endswith(("Key", "Value"))}
    attributes = "".join(f" {each}={quoteattr(str(text))}" for each, text in said.items())
    content = [escape(str(value.get("text", "")))] if declared.text else []
    for child in declared.children:
        bare = child.rstrip("*")
        if bare in value:
            content += [write(bare, each) for each in (value[bare] if child.endswith("*") else [value[bare]])]
    return f"<{name}{attributes}>{''.join(content)}</{name}>"


def schema() -> str:
    """Of all elements, for the WSDLs."""
    most = {True: "unbounded", False: "1"}
    lines = [f'<xs:schema targetNamespace="{NAMESPACE}" elementFormDefault="qualified">']
    # with its schema beside it: no client has to fetch that from elsewhere
    lines.append(f'<xs:import namespace="{_XML[1:-1]}" schemaLocation="xml.xsd"/>')
    texts = sorted({child.rstrip("*") for each in ELEMENTS.values() for child in each.children} - ELEMENTS.keys())
    lines += [f'<xs:element name="{each}" type="xs:string"/>' for each in texts]
    for name, each in ELEMENTS.items():
        attributes = "".join(
            '<xs:attribute ref="xml:lang"/>'
            if attribute == "lang"
            else f'<xs:attribute name="{attribute}" type="xs:string"/>'
            for attribute in each.attributes
        )
        lines.append(f'<xs:element name="{name}"><xs:complexType>')
        if each.text:
            extension = f'<xs:extension base="xs:string">{attributes}</xs:extension>'
            lines.append(f"<xs:simpleContent>{extension}</xs:simpleContent>")
        else:
            children = "".join(
                f'<xs:element ref="u:{child.rstrip("*")}" minOccurs="0" maxOccurs="{most[child.endswith("*")]}"/>'
                for child in each.children
            )
            lines.append(f"<xs:sequence>{children}</xs:sequence>{attributes}")
        lines.append("</xs:complexType></xs:element>")
    return "\n".join((*lines, "</xs:schema>"))


def xml_schema() -> bytes:
    """That of ``xml:lang``, which the other imports."""
    attribute = '<xs:attribute name="lang" type="xs:string"/>'
    declared = f'<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema" targetNamespace="{_XML[1:-1]}">'
    return f"{declared}{attribute}</xs:schema>".encode()


def wsdl(part: str, address: str) -> bytes:
    """``inquiry`` or ``publication``."""
    calls = INQUIRY if part == "inquiry" else PUBLICATION
    names = dict.fromkeys((*calls, *(ANSWERS[each] for each in calls), "dispositionReport"))
    messages = "".join(f'<message name="{each}"><part name="body" element="u:{each}"/></message>' for each in names)
    operations = "".join(
        f'<operation name="{each}"><input message="t:{each}"/><output message="t:{ANSWERS[each]}"/>'
        '<fault name="error" message="t:dispositionReport"/></operation>'
        for each in calls
    )
    literal = '<soap:body use="literal"/>'
    bound = "".join(
        f'<operation name="{each}"><soap:operation soapAction="{each}" style="document"/>'
        f"<input>{literal}</input><output>{literal}</output>"
        '<fault name="error"><soap:fault name="error" use="literal"/></fault></operation>'
        for each in calls
    )
    target, title = f"urn:uddi-org:{part}_v2", part.capitalize()
    return f"""<?xml version="1.0" encoding="UTF-8"?>
<definitions xmlns="http://schemas.xmlsoap.org/wsdl/" xmlns:soap="http://schemas.xmlsoap.org/wsdl/soap/"
    xmlns:xs="http://www.w3.org/2001/XMLSchema" xmlns:u="{NAMESPACE}" xmlns:t="{target}" targetNamespace="{target}">
<types>{schema()}</types>{messages}
<portType name="{title}">{operations}</portType>
<binding name="{title}Soap" type="t:{title}">
<soap:binding style="document" transport="http://schemas.xmlsoap.org/soap/http"/>{bound}</binding>
<service name="{title}Service"><port name="{title}" binding="t:{title}Soap">
<soap:address location={quoteattr(address)}/></port></service>
</definitions>""".encode()
