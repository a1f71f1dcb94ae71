"""SPARQL: what is published can be asked, by whoever sees it, and a query does nothing else."""

import json
import socket
from collections.abc import Iterator

import httpx
import pytest
from rdflib.plugins.stores.sparqlstore import SPARQLStore

from tests.registry.conftest import LABEL, Known, publish, service

pytestmark = pytest.mark.server
JSON = "application/sparql-results+json"
UNIT = "http://example.org/terms#unit"
NAMES = f"select ?n {{ ?s a <urn:dai:registry:Service> ; <{LABEL}> ?n }} order by ?n"
SLOW = "select (count(*) as ?n) { ?a ?b ?c . ?d ?e ?f . ?g ?h ?i . ?j ?k ?l . ?m ?n2 ?o }"


def asked(client: httpx.Client, query: str, **headers: str) -> list[dict[str, str]]:
    answer = client.get("/sparql", params={"query": query}, headers=headers)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == JSON
    return [{name: value["value"] for name, value in each.items()} for each in answer.json()["results"]["bindings"]]


def test_what_is_published_can_be_asked_at_once(known: Known) -> None:
    alice, bob = known("alice"), known("bob")
    publish(
        alice,
        service("urn:s:sky"),
        {"key": "http://r", "kind": "resource", "parent": "urn:s:sky", "name": "r"},
        {"key": "http://r#t", "kind": "table", "parent": "http://r", "name": "t", "properties": {"rows": 7}},
        {"key": "http://r#t.f", "kind": "column", "parent": "http://r#t", "name": "flux"},
    )
    said = {"key": "urn:m:1", "about": "http://r#t.f", "type": UNIT, "value": "mJy"}
    bob.post("/metadata", json=said).raise_for_status()
    query = f"""prefix : <urn:dai:registry:> prefix dct: <http://purl.org/dc/terms/>
        select ?service ?rows {{ ?column <{UNIT}> "mJy" ; dct:isPartOf ?table . ?table :rows ?rows .
        ?table dct:isPartOf+ ?service . ?service a :Service }}"""
    assert asked(alice, query) == [{"service": "urn:s:sky", "rows": "7"}]
    who = "select ?who { ?m <urn:dai:registry:about> <http://r#t.f> ; <urn:dai:registry:owner> ?who }"
    assert asked(alice, who) == [{"who": "bob"}]
    alice.post("/metadata", json={**said, "key": "urn:m:2"}).raise_for_status()
    bob.delete("/entries", params={"key": "urn:m:1"}).raise_for_status()
    assert asked(alice, query) == [{"service": "urn:s:sky", "rows": "7"}]
    alice.delete("/entries", params={"key": "urn:m:2"}).raise_for_status()
    assert asked(alice, query) == []
    alice.post("/deprecated", json={"key": "urn:s:sky"}).raise_for_status()
    assert asked(alice, "select * { ?s ?p ?o }") == []
    publish(alice, service("urn:s:sky"))
    assert len(asked(alice, "select ?s { ?s <urn:dai:registry:rows> 7 }")) == 1


def test_structured_metadata_is_asked_as_rdf(known: Known) -> None:
    alice = known("alice")
    publish(alice, service("urn:s:a"))
    value = '<> <urn:p:rating> [ <urn:p:by> "bob" ; <urn:p:stars> 4 ] .'
    said = {"key": "urn:m:1", "about": "urn:s:a", "type": "urn:t:review", "form": "rdf", "value": value}
    alice.post("/metadata", json=said).raise_for_status()
    query = "select ?stars { <urn:s:a> <urn:t:review>/<urn:p:rating>/<urn:p:stars> ?stars }"
    assert asked(alice, query) == [{"stars": "4"}]


def test_who_is_no_reader_gets_no_triple(known: Known) -> None:
    alice, bob, root = known("alice"), known("bob"), known("root")
    publish(alice, service("urn:s:open"), service("urn:s:hidden", readers=["alice"]))
    publish(bob, service("urn:s:group", readers=["group:none"]))
    assert [each["n"] for each in asked(alice, NAMES)] == ["hidden", "open"]
    assert [each["n"] for each in asked(bob, NAMES)] == ["group", "open"]
    assert [each["n"] for each in asked(root, NAMES)] == ["group", "hidden", "open"]
    for query in (
        "select * { graph ?g { ?s ?p 'hidden' } }",
        "select * from named <urn:dai:audience:x> { graph ?g { ?s ?p 'hidden' } }",
        "select * { ?s ?p 'hidden' }",
    ):
        assert asked(bob, query) == []
    alice.post("/readers", json={"key": "urn:s:hidden", "readers": ["*"]}).raise_for_status()
    assert [each["n"] for each in asked(bob, NAMES)] == ["group", "hidden", "open"]


@pytest.mark.parametrize(
    ("query", "status", "says"),
    [
        ("select", 400, "not a SPARQL 1.1 query"),
        ("insert data { <urn:a> <urn:b> 1 }", 400, "not a SPARQL 1.1 query"),
        ("delete where { ?s ?p ?o }", 400, "not a SPARQL 1.1 query"),
        ("load <http://127.0.0.1:1/>", 400, "not a SPARQL 1.1 query"),
        ("clear all", 400, "not a SPARQL 1.1 query"),
        ("select * { service <http://127.0.0.1/> { ?s ?p ?o } }", 400, "asks another service"),
        (SLOW, 422, "took more than 2 seconds"),
        (f"select * {{ {'?s ?p ?o . ' * 10_000} }}", 400, "100,000 are allowed"),
        ("select ?a ?d ?g { ?a ?b ?c . ?d ?e ?f . ?g ?h ?i }", 413, "more than 1,048,576 bytes"),
    ],
)  # fmt: skip
def test_a_query_only_reads_here_and_within_limits(known: Known, query: str, status: int, says: str) -> None:
    alice = known("alice")
    publish(alice, *(service(f"urn:s:{each}") for each in range(30)))
    answer = alice.post("/sparql", content=query, headers={"Content-Type": "application/sparql-query"})
    assert answer.status_code == status, answer.text
    assert says in answer.text
    assert len(asked(alice, NAMES)) == 30


def test_a_silent_service_is_not_asked(known: Known, scripted_calls: list[str]) -> None:
    address = scripted_calls[0]
    answer = known("alice").get(
        "/sparql", params={"query": f"select * {{ service silent <{address}> {{ ?s ?p ?o }} }}"}
    )
    assert answer.status_code == 200
    assert len(scripted_calls) == 1


@pytest.mark.parametrize(
    ("query", "accept", "answered"),
    [
        (NAMES, "*/*", JSON),
        (NAMES, "text/csv", "text/csv"),
        (NAMES, "application/sparql-results+xml", "application/sparql-results+xml"),
        (NAMES, "text/turtle, text/csv;q=0.5", "text/csv"),
        ("ask { ?s ?p ?o }", JSON, JSON),
        ("construct where { ?s ?p ?o }", "*/*", "text/turtle"),
        ("describe <urn:s:a>", "application/n-triples", "application/n-triples"),
    ],
)  # fmt: skip
def test_the_form_that_is_accepted(known: Known, query: str, accept: str, answered: str) -> None:
    alice = known("alice")
    publish(alice, service("urn:s:a"))
    answer = alice.get("/sparql", params={"query": query}, headers={"Accept": accept})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == answered
    assert answer.content
    refused = alice.get("/sparql", params={"query": query}, headers={"Accept": "image/png"})
    assert refused.status_code == 406


def test_rdflib_asks_it(known: Known) -> None:
    alice = known("alice")
    publish(alice, service("urn:s:a"), service("urn:s:b"))
    for method in ("GET", "POST", "POST_FORM"):
        store = SPARQLStore(
            f"{alice.base_url}sparql", method=method, headers={"Authorization": alice.headers["Authorization"]}
        )
        assert [str(row[0]) for row in store.query(NAMES)] == ["a", "b"]


def test_the_process_that_answers_is_started_again(known: Known, served: object) -> None:
    alice = known("alice")
    publish(alice, service("urn:s:a"))
    assert json.dumps(asked(alice, NAMES)) == '[{"n": "a"}]'
    process = served.service.registry_queries._server.process  # type: ignore[attr-defined]
    process.kill()
    process.wait()
    assert json.dumps(asked(alice, NAMES)) == '[{"n": "a"}]'


@pytest.fixture
def scripted_calls() -> Iterator[list[str]]:
    """The address of a service, and behind it the requests that came."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        calls = [f"http://127.0.0.1:{listening.getsockname()[1]}/"]
        yield calls
        listening.setblocking(False)
        with pytest.raises(BlockingIOError):
            listening.accept()
