"""What a caller who may write could do to everybody else: each of these once stopped the registry, or SPARQL."""

import json
import re
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import httpx
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dai.api.requests import parameters
from dai.api.routes.registry import changes, entries
from dai.api.server.serve import Background
from dai.security.identity import ANONYMOUS
from dai.service.registry import entries as said
from dai.service.registry import finding
from dai.service.registry.database import Database
from dai.service.registry.entries import (
    MOST_DEPTH,
    MOST_READERS,
    MOST_WORDS,
    VOCABULARY,
    Entry,
    Metadata,
    is_iri,
    terms,
)
from dai.service.registry.finding import find
from dai.service.registry.mirror import Mirror
from dai.service.registry.rdf.triples import oxigraph, quads
from dai.service.registry.sparql.process import OF_ONE
from dai.service.registry.sparql.worker import Triples
from dai.service.registry.uddi.finding import _like
from dqp.catalog.discovery.conditions import query_of
from tests.registry.conftest import LABEL, Known, publish, service
from tests.thoroughness import examples

pytestmark = pytest.mark.server
TYPE = "http://example.org/terms#note"
_SIGNS = "aZ0:/?#[]@!$&'()*+,;=%-._~ <>\"{}|^`\\é\x7f\xa0\ue000\ufdd0\ufffe"
_PIECES = [*_SIGNS, "//", "%41", "%zz", "[::1]", "::", ":80"]


def asks(client: httpx.Client, query: str = "ask {}") -> httpx.Response:
    return client.get("/sparql", params={"query": query})


@settings(max_examples=examples(300), deadline=None)
@given(st.sampled_from(["a:", "urn:x:", "http://", "http://h/"]), st.lists(st.sampled_from(_PIECES), max_size=6))
def test_every_iri_is_one_in_rdf(beginning: str, pieces: list[str]) -> None:
    text = beginning + "".join(pieces)
    if is_iri(text):
        oxigraph().NamedNode(text)


@pytest.mark.parametrize(
    "entry",
    [
        service("a:%"),
        service("http://["),
        service("http://[::1::]/"),
        service("urn:a#b#c"),
        service("urn:a", properties={"http://h:port/": 1}),
        service("urn:a", properties={"a": {"uri": "a:%zz"}}),
        service("urn:a", properties={"a": 1 << 64}),
        service("urn:a", properties={"a": -(1 << 64)}),
        service("urn:a", properties={"a": float("inf")}),
        service("urn:a", properties={"a": [None]}),
        service("urn:a", implements=["a:\ue000"]),
        service("urn:a", name="\ud800"),
        service("urn:dai:value:0-category-0"),
        service("urn:dai:registry:Service"),
    ],
    ids=repr,
)
def test_what_rdf_cannot_say_is_refused(known: Known, entry: dict[str, Any]) -> None:
    """Or said as something near it; never does it stand in the way of what others say."""
    alice = known("alice")
    body = json.dumps({"entries": [entry]}).encode()
    answer = alice.post("/entries", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code in (200, 400), answer.text
    if answer.status_code == 200:
        assert abs(answer.json()["entries"][0]["properties"]["a"]) >= 1 << 63
    assert asks(known("bob")).json()["boolean"] is True


@pytest.mark.parametrize("word", ["owner", "about", "category", "identifier", "implements", "taxonomy"])
def test_no_property_says_what_the_registry_says(known: Known, word: str) -> None:
    """Who follows a registry by SPARQL believes its :owner."""
    alice = known("alice")
    forged = service("urn:a", properties={word: "bob"})
    answer = alice.post("/entries", json={"entries": [forged]})
    assert (answer.status_code, "sets itself" in answer.text) == (400, True)
    old = Entry(key="urn:a", kind="service", owner="alice", names=(("a", ""),), properties={word: "bob", "x": "bob"})
    said = {str(each.predicate.value) for each in quads(old, frozenset()) if each.object.value == "bob"}
    assert said == {"urn:dai:registry:x"}


def test_metadata_of_a_stranger_makes_no_table_of_a_resource() -> None:
    """A federation that looks for table=galaxies took a trusted resource for one that has it."""
    forged = (
        f'<> a <{VOCABULARY}Table> ; <http://purl.org/dc/terms/isPartOf> <urn:r> ; <{LABEL}> "galaxies" ; '
        '<urn:p:by> "bob" .'
    )
    said = Metadata(type="urn:t:t", value=forged, form="rdf")
    old = Entry(key="urn:m", kind="metadata", owner="bob", parent="urn:r", metadata=said)
    resource = Entry(key="urn:r", kind="resource", owner="alice", parent="urn:s", names=(("r", ""),))
    store = oxigraph().Store()
    for each in (old, resource):
        store.extend(quads(each, frozenset()))
    assert [*store.query(query_of("resource=r", "find"))]
    assert not [*store.query(query_of("table=galaxies", "find"))]
    assert store.query('ask { ?said <urn:p:by> "bob" }')


def test_entries_without_what_their_kind_needs_keep_nobody_from_finding(known: Known, served: Background) -> None:
    alice, bob = known("alice"), known("bob")
    uuid = "00000000-0000-4000-8000-00000000000b"
    publish(bob, {"key": f"urn:uuid:{uuid}", "kind": "business", "name": "b"})
    related = {"to": f"urn:uuid:{uuid}"}
    publish(
        alice,
        {"key": "urn:uuid:a", "kind": "business", "name": "a"},
        {"key": "urn:as", "kind": "assertion", "parent": "urn:uuid:a", "properties": related},
        {"key": "urn:i", "kind": "interface", "name": "i"},
        {"key": "urn:o", "kind": "operation", "name": "o", "parent": "urn:i", "properties": {"input": ["x", 1]}},
        {"key": "urn:p", "kind": "part", "name": "p", "parent": "urn:i"},
    )
    publish(alice, *({"kind": "metadata", "parent": each, "metadata": {"type": "urn:t:t", "value": "v"}}
                     for each in ("urn:o", "urn:p")))  # fmt: skip

    def asked(part: str, body: str) -> str:
        message = (
            f'<e:Envelope xmlns:e="http://schemas.xmlsoap.org/soap/envelope/"><e:Body>{body}</e:Body></e:Envelope>'
        )
        answer = bob.post(f"/uddi/{part}", content=message, headers={"Content-Type": "text/xml"})
        assert answer.status_code == 200, answer.text
        return answer.text

    uddi, own = 'xmlns="urn:uddi-org:api_v2" generic="2.0"', 'xmlns="http://www.grimoires.org/metadata.xsd"'
    business = f"<businessKey>{uuid}</businessKey>"
    assert "relatedBusinessInfo>" not in asked(
        "inquiry", f"<find_relatedBusinesses {uddi}>{business}</find_relatedBusinesses>"
    )
    asked("publication", f"<get_assertionStatusReport {uddi}/>")
    query = "<metadataQuery><metadataType>urn:t:t</metadataType></metadataQuery>"
    found = asked(
        "metadata", f"<find_entityByMetadata {own}><metadataQueryBag>{query}</metadataQueryBag></find_entityByMetadata>"
    )
    assert found.count("Reference>") > 2
    asked("metadata", f"<find_operation {own}><messageName>m</messageName></find_operation>")


def test_a_category_of_a_key_with_a_fragment(known: Known) -> None:
    publish(known("alice"), service("urn:a#b", categories=[{"tmodel": "urn:t", "value": "x"}]))
    query = "ask { <urn:a#b> <urn:dai:registry:category> [ <urn:dai:registry:taxonomy> <urn:t> ] }"
    answer = asks(known("bob"), query)
    assert answer.json().get("boolean") is True, answer.text


def test_what_an_earlier_release_took_does_not_end_all_queries() -> None:
    mirror = Mirror()
    wrong = [Entry(key="a:%", kind="service"), Entry(key="urn:a", kind="service", properties={"a": None})]
    for each in (*wrong, Entry(key="urn:well", kind="service")):
        mirror.put(each)
    triples = Triples(mirror)
    triples.follow(None)
    assert triples.store.query("ask { <urn:well> ?p ?o }")
    for each in wrong:
        mirror.drop(each.key)
    triples.follow([each.key for each in wrong])


def chain(length: int, top: str, name: str) -> list[dict[str, Any]]:
    keys = [top, *(f"urn:{name}:{number}" for number in range(length))]
    note = {"kind": "metadata", "metadata": {"type": TYPE, "value": "v"}}
    return [{"key": key, "parent": parent, **note} for parent, key in pairwise(keys)]


def test_nothing_stands_below_too_much(known: Known) -> None:
    """A chain of a thousand ended the registry when the lease of its first entry did."""
    alice, bob = known("alice"), known("bob")
    publish(alice, service("urn:top"), service("urn:other"))
    publish(bob, *chain(MOST_DEPTH - 1, "urn:top", "a"))
    last = f"urn:a:{MOST_DEPTH - 2}"
    refused = bob.post("/entries", json={"entries": chain(1, last, "more")})
    assert (refused.status_code, "would be more than" in refused.text) == (400, True)
    # nor by what stands somewhere else until now
    publish(bob, *chain(3, "urn:other", "b"))
    moved = {**chain(1, f"urn:a:{MOST_DEPTH - 4}", "b")[0], "key": "urn:b:0"}
    assert bob.post("/entries", json={"entries": [moved]}).status_code == 400
    assert alice.get("/entry", params={"key": "urn:top", "below": "true"}).status_code == 200
    assert alice.delete("/entries", params={"key": "urn:top"}).status_code == 204
    assert bob.get("/entry", params={"key": last}).status_code == 404


def test_a_deep_chain_of_an_earlier_release_ends(tmp_path: Any) -> None:
    """The lease of what it stands below has ended, and the registry goes on."""
    from dai.config import RegistryConfig
    from dai.service.registry.registry import Registry

    store = f"sqlite:///{tmp_path}/registry.db"
    database = Database(store)
    deep = [Entry(key="urn:d:0", kind="service", names=(("a", ""),), expires=1.0)]
    deep += [Entry(key=f"urn:d:{number}", kind="service", parent=f"urn:d:{number - 1}") for number in range(1, 2000)]
    rows = [(each.key, each.expires, each.to_bytes().decode()) for each in deep]
    with database.transaction() as connection:
        database.write(connection, rows, [], [])
    database.close()
    registry = Registry(RegistryConfig(store=store))
    with registry.reading() as mirror:
        assert mirror.entries == {}
    registry.close()


def test_readers_have_a_bound(known: Known) -> None:
    alice = known("alice")
    many = ["a" * 99] * (MOST_READERS // 100 + 1)
    refused = alice.post("/entries", json={"entries": [service("urn:a", readers=many)]})
    assert (refused.status_code, "Name a group" in refused.text) == (400, True)
    publish(alice, service("urn:a", readers=many[:-1]))
    assert alice.post("/readers", json={"key": "urn:a", "readers": many}).status_code == 400


def test_words_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """One entry of many words, and one text of them, took minutes in which nobody was answered."""
    counted, plain = 0, said.words

    def words(text: str) -> list[str]:
        nonlocal counted
        counted += 1
        return plain(text)

    text = " ".join(f"w{number}" for number in range(9000))
    mirror = Mirror()
    for number in range(3):
        mirror.put(Entry(key=f"urn:{number}", kind="service", descriptions=((text, ""),)))
    assert sum(each[0] == "word" for each in terms(mirror.entries["urn:0"])) == MOST_WORDS
    monkeypatch.setattr("dai.service.registry.entries.words", words)
    assert {each.entry.key for each in find(mirror, ANONYMOUS, text)} == {"urn:0", "urn:1", "urn:2"}
    assert counted <= 3 * finding.MOST_SOUGHT
    monkeypatch.setattr(finding, "MOST_SEEN", 1)
    assert len(find(mirror, ANONYMOUS, text)) <= 2


def test_a_ucd_of_many_words_has_few_beginnings() -> None:
    assert sum(map(len, said.meaning_terms("ucd", ";".join(["a" + ".a" * 1000] * 30)))) < 200_000


def test_renewals_are_forgotten() -> None:
    mirror = Mirror()
    for number in range(10_000):
        mirror.put(Entry(key="urn:a", kind="service", expires=1e9 + number))
    assert len(mirror._leases) < 2000
    assert mirror.next_end() == 1e9 + 9999


def test_followers_have_a_bound(known: Known, served: Background, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each caller; and a connection ends, so that a caller who is known no more is not told for ever."""
    monkeypatch.setattr(changes, "MOST_OF_ONE", 1)
    monkeypatch.setattr(changes, "LOOK_SECONDS", 0.05)
    alice, bob = known("alice"), known("bob")
    events: dict[str, Any] = {"headers": {"Accept": "text/event-stream"}, "params": {"after": "0"}}
    with alice.stream("GET", "/changes", **events) as first:
        pieces = first.iter_raw()
        next(pieces)
        second = alice.get("/changes", **events)
        assert (second.status_code, second.json()["type"]) == (429, "quota-exceeded")
        with bob.stream("GET", "/changes", **events) as other:
            assert other.status_code == 200
    monkeypatch.setattr(changes, "FOLLOWED_SECONDS", 0.2)
    number = bob.get("/changes").json()["number"]
    whole = bob.get("/changes", headers=events["headers"])
    assert whole.text.endswith(f"id: {number}\n\n")


def test_slow_queries_of_one_caller_keep_nobody_waiting(known: Known) -> None:
    """Neither who reads or writes, nor who asks in SPARQL; the caller's own wait for their turn."""
    publish(known("alice"), *(service(f"urn:s:{number}") for number in range(30)))
    slow = "select * { " + " ".join(f"?a{each} ?b{each} ?c{each} ." for each in range(9)) + "} order by ?a1 ?b3"
    known("bob"), known("alice")
    with ThreadPoolExecutor(8) as pool:
        bombs = [pool.submit(asks, known("bob"), slow) for _ in range(8)]
        assert asks(known("alice")).json()["boolean"] is True
        assert known("alice").get("/entries").status_code == 200
        assert sum(each.done() for each in bombs) <= 2 * OF_ONE, "who waits for none of theirs"
        assert {each.result().status_code for each in bombs} <= {413, 422}


@settings(max_examples=examples(300), deadline=None)
@given(st.text("ab", max_size=8), st.text("ab%", min_size=1, max_size=6), st.booleans())
def test_names_are_compared_as_expressions_would(name: str, pattern: str, exact: bool) -> None:
    expression = ".*".join(map(re.escape, pattern.split("%"))) + ("" if exact else ".*")
    assert _like(name, pattern.split("%"), exact=exact) is bool(re.fullmatch(expression, name, re.DOTALL))


def test_a_long_name_and_many_wildcards(known: Known) -> None:
    """By an expression that took hours, in which the whole process stood still."""
    publish(known("alice"), service("urn:a", name="a" * 20_000))
    call = f'<find_service xmlns="urn:uddi-org:api_v2" generic="2.0"><name>{"%a" * 60}%b</name></find_service>'
    message = f'<e:Envelope xmlns:e="http://schemas.xmlsoap.org/soap/envelope/"><e:Body>{call}</e:Body></e:Envelope>'
    answer = known("bob").post("/uddi/inquiry", content=message, headers={"Content-Type": "text/xml"})
    assert (answer.status_code, "serviceKey" in answer.text) == (200, False)


def test_a_webhook_has_bounds(known: Known) -> None:
    for more in ({"kinds": ["service"] * 1000}, {"prefix": "x" * 10_000}, {"kinds": ["x" * 1000]}):
        answer = known("alice").post("/webhooks", json={"url": "https://example.org", **more})
        assert (answer.status_code, answer.json()["type"]) == (400, "bad-parameter")


def test_a_large_body_is_refused_at_its_first_fault(known: Known, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[object] = []

    def element(model: Any, value: object, *place: str | int) -> Any:
        read.append(value)
        return parameters.element(model, value, *place)

    monkeypatch.setattr(entries, "element", element)
    wrong = {"entries": [{"key": number} for number in range(1000)]}
    answer = known("alice").post("/entries", json=wrong)
    assert (answer.status_code, "entries.0" in answer.text, len(read)) == (400, True, 1)
    read.clear()
    large = {"entries": [service("urn:a", properties={f"p{number}": 1 for number in range(100_000)})]}
    assert known("alice").post("/entries", json=large).status_code == 413
    assert read == []
    many = orjson.dumps({"entries": [1] * (entries.MOST_AT_ONCE + 1)})
    answer = known("alice").post("/entries", content=many, headers={"Content-Type": "application/json"})
    assert (answer.status_code, "100,000 are allowed" in answer.text) == (400, True)
