"""The catalog in DCAT-AP, read by rdflib."""

import pytest
import rdflib
from rdflib import DCTERMS, FOAF, RDF, Graph, Literal, URIRef

from tests.registry.conftest import Known, publish, service

pytestmark = pytest.mark.server
CATALOG, DATASET, SERVICE = rdflib.DCAT.Catalog, rdflib.DCAT.Dataset, rdflib.DCAT.DataService


def read(known: Known, who: str, media_type: str, **asked: int) -> tuple[Graph, URIRef]:
    answer = known(who).get("/dcat", headers={"Accept": media_type}, params=asked)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].partition(";")[0] == media_type
    graph = Graph().parse(data=answer.text, format=media_type)
    (catalog,) = graph.subjects(RDF.type, CATALOG)
    return graph, URIRef(str(catalog))


def holding(known: Known) -> None:
    at, table = {"uri": "http://data/sky"}, "http://data/resources/sky#flux"
    publish(
        known("alice"),
        service("urn:s:sky", name=[{"text": "Sky", "language": "en"}], properties={"address": at}),
        {"key": "http://data/resources/sky", "kind": "resource", "parent": "urn:s:sky", "name": "sky"},
        {"key": table, "kind": "table", "parent": "http://data/resources/sky", "name": "flux", "description": "a < b"},
        {"key": f"{table}/ra", "kind": "column", "parent": table, "name": "ra"},
        service("urn:s:hidden", readers=["alice"]),
        service("urn:s:old"),
        {"key": "urn:b", "kind": "binding", "parent": "urn:s:old", "properties": {"address": "http://old/a"}},
    )


@pytest.mark.parametrize("media_type", ["text/turtle", "application/ld+json", "application/rdf+xml"])
def test_services_and_tables_are_a_catalog(known: Known, media_type: str) -> None:
    holding(known)
    graph, catalog = read(known, "bob", media_type)
    sky, table = URIRef("urn:s:sky"), URIRef("http://data/resources/sky#flux")
    assert set(graph.objects(catalog, rdflib.DCAT.service)) == {sky, URIRef("urn:s:old")}
    assert (
        list(graph.objects(catalog, rdflib.DCAT.dataset))
        == list(graph.objects(sky, rdflib.DCAT.servesDataset))
        == [table]
    )
    assert graph.value(sky, rdflib.DCAT.endpointURL) == URIRef("http://data/sky")
    assert graph.value(URIRef("urn:s:old"), rdflib.DCAT.endpointURL) == URIRef("http://old/a")
    assert graph.value(sky, DCTERMS.title) == Literal("Sky", lang="en")
    assert graph.value(table, DCTERMS.description) == Literal("a < b")
    assert graph.value(table, rdflib.DCAT.keyword) == Literal("ra")
    distribution = graph.value(table, rdflib.DCAT.distribution)
    assert graph.value(distribution, rdflib.DCAT.accessURL) == URIRef("http://data/resources/sky")
    assert graph.value(distribution, rdflib.DCAT.accessService) == sky
    # what DCAT-AP requires of each
    for kind in (CATALOG, DATASET, SERVICE):
        for each in graph.subjects(RDF.type, kind):
            assert graph.value(each, DCTERMS.title) is not None
            assert graph.value(each, DCTERMS.description) is not None
            publisher = graph.value(each, DCTERMS.publisher)
            assert (publisher, RDF.type, FOAF.Agent) in graph
            assert graph.value(publisher, FOAF.name) is not None


def test_who_reads_and_how_much(known: Known) -> None:
    holding(known)
    graph, catalog = read(known, "alice", "text/turtle")
    assert len(list(graph.objects(catalog, rdflib.DCAT.service))) == 3
    graph, catalog = read(known, "bob", "text/turtle", limit=1, offset=1)
    assert list(graph.objects(catalog, rdflib.DCAT.service)) == [URIRef("urn:s:sky")]
    known("alice").post("/deprecated", json={"key": "urn:s:sky"}).raise_for_status()
    assert not list(read(known, "bob", "text/turtle")[0].subjects(RDF.type, DATASET))
    assert known("bob").get("/dcat", headers={"Accept": "image/png"}).status_code == 406
