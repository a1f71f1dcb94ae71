from contextlib import nullcontext

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lxml import etree

from dai.errors import DocumentError
from dai.perform.activity import ACTIVITIES, fields_of
from dai.perform.graph import PREVIEW, WSI
from dai.perform.parser import DIALECTS, xsd
from dai.perform.validation import validate
from tests.thoroughness import examples

XS = "{http://www.w3.org/2001/XMLSchema}"


@pytest.mark.parametrize("dialect", DIALECTS)
def test_it_is_a_schema_of_every_installed_activity(dialect):
    root = etree.fromstring(xsd(dialect))
    etree.XMLSchema(root)
    assert root.get("targetNamespace") == dialect.namespace
    named = {each.get("name"): each for each in root.findall(f"{XS}element")}
    others = {"dataResource"} if dialect is PREVIEW else set()
    assert named.keys() == {dialect.request, "session", "sequence", "flow", *others, *ACTIVITIES}
    for name, declared in ACTIVITIES.items():
        about = named[name].find(f"{XS}annotation/{XS}documentation").text
        assert about.split() == (declared.__doc__ or "").split("\n\n")[0].split()


@pytest.mark.parametrize("name", ACTIVITIES)
def test_every_field_stands_in_it(name):
    root = etree.fromstring(xsd())
    element = next(each for each in root.findall(f"{XS}element") if each.get("name") == name)
    elements = {each.get("name") for each in element.iter(f"{XS}element")}
    attributes = {each.get("name") for each in element.find(f"{XS}complexType").findall(f"{XS}attribute")}
    for spec in fields_of(ACTIVITIES[name]):
        wanted = set(spec.place.names)
        assert wanted <= (attributes if spec.place.how == "attribute" else elements)


VALUES = [
    "",
    " ",
    "x",
    "1",
    " 7 ",
    "+1",
    "1.5",
    "1e3",
    "true",
    "0",
    "NaN",
    "-INF",
    "١",
    "9223372036854775808",
    "integer",
]
NAMES = ["name", "from", "sqlParameter", "position", "type", "expression", "session", "timeout", "flow", "unknown"]
WHOLE = "".join(
    f'<perform xmlns="{WSI.namespace}"><documentation>d</documentation><session id="s" timeout="5" end="true"/>'
    f"<sequence>{''.join(declared.example for declared in ACTIVITIES.values())}</sequence></perform>"
).encode()
SCHEMA = etree.XMLSchema(etree.fromstring(xsd(WSI)))


@given(st.data())
@settings(max_examples=examples(300))
def test_what_the_schema_refuses_is_refused_and_nothing_else(data):
    """One element of a document with every activity is changed: its name, an attribute, its text, its children."""
    root = etree.fromstring(WHOLE)
    nodes = list(root.iter("*"))
    node = data.draw(st.sampled_from(nodes[1:]))
    name, value = data.draw(st.sampled_from(NAMES)), data.draw(st.sampled_from(VALUES))
    inside = f"{{{data.draw(st.sampled_from([WSI.namespace, WSI.namespace, 'urn:other']))}}}{name}"
    match data.draw(st.integers(0, 6)):
        case 0:
            node.tag = inside
        case 1:
            node.set(name, value)
        case 2 if node.attrib:
            node.set(data.draw(st.sampled_from(sorted(node.attrib))), value)
        case 3 if node.attrib:
            del node.attrib[data.draw(st.sampled_from(sorted(node.attrib)))]
        case 4:
            node.text = value if value.strip() else None  # a blank in an element without content is let pass here
        case 5:
            node.tail = value
        case _:
            etree.SubElement(node, inside).text = value
    root = etree.fromstring(etree.tostring(root))
    with nullcontext() if SCHEMA.validate(root) else pytest.raises(DocumentError) as refused:
        validate(root, WSI)
    assert refused is None or refused.value.expected
