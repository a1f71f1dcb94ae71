import pytest
from lxml import etree

from dai.perform.activity import ACTIVITIES, fields_of
from dai.perform.parser import DIALECTS, xsd

XS = "{http://www.w3.org/2001/XMLSchema}"


@pytest.mark.parametrize("dialect", DIALECTS)
def test_it_is_a_schema_of_every_installed_activity(dialect):
    root = etree.fromstring(xsd(dialect))
    etree.XMLSchema(root)
    assert root.get("targetNamespace") == dialect.namespace
    named = {each.get("name"): each for each in root.findall(f"{XS}element")}
    assert named.keys() == {dialect.request, "session", "sequence", "flow", *ACTIVITIES}
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
