"""The faces over JSON: entries, leases, metadata, changes, and what fits a text."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from dai.api.server.serve import Background
from tests.registry.conftest import Known, counts, publish, service

pytestmark = pytest.mark.server
UNIT = "http://example.org/terms#unit"


def keys(answer: httpx.Response) -> list[str]:
    assert answer.status_code == 200, answer.text
    return [each["key"] for each in answer.json()["entries"]]


def test_a_tree_is_published_listed_and_deleted(known: Known) -> None:
    alice = known("alice")
    tree = [
        service("urn:s:sky", name="Sky survey", description=[{"text": "Galaxien", "language": "de"}]),
        {"key": "http://d/r", "kind": "resource", "parent": "urn:s:sky", "name": "r"},
        {"key": "http://d/r#t", "kind": "table", "parent": "http://d/r", "name": "t", "properties": {"rows": 7}},
        {"kind": "column", "parent": "http://d/r#t", "name": "z"},
    ]
    published = publish(alice, *tree)
    assert published[0]["owner"] == "alice"
    assert published[0]["description"] == [{"text": "Galaxien", "language": "de"}]
    assert published[3]["key"].startswith("urn:uuid:")
    assert keys(alice.get("/services")) == ["urn:s:sky"]
    assert keys(alice.get("/entries", params={"kind": "service", "name": "sky S"})) == ["urn:s:sky"]
    assert keys(alice.get("/entries", params={"kind": "service", "name": "survey"})) == []
    assert keys(alice.get("/entries", params={"parent": "http://d/r"})) == ["http://d/r#t"]
    whole = alice.get("/entry", params={"key": "urn:s:sky", "below": "true"}).json()
    assert whole["below"][0]["below"][0]["properties"] == {"rows": 7}
    assert counts(alice)["entries"] == 4
    assert alice.delete("/entries", params={"key": "urn:s:sky"}).status_code == 204
    assert counts(alice)["entries"] == 0
    assert alice.get("/entry", params={"key": "http://d/r#t"}).status_code == 404


@pytest.mark.parametrize(
    ("entry", "status", "says"),
    [
        ({"key": "no iri", "kind": "service", "name": "a"}, 400, "is not an IRI"),
        ({"kind": "servce", "name": "a"}, 400, "Did you mean 'service'"),
        ({"kind": "service"}, 400, "needs a name"),
        ({"kind": "table", "name": "t"}, 400, "must be below a resource"),
        ({"kind": "table", "name": "t", "parent": "urn:missing"}, 404, "no entry 'urn:missing'"),
        ({"kind": "service", "name": "a", "properties": {"a b": 1}}, 400, "not the name of a property"),
        ({"kind": "service", "name": "a", "properties": {"urn:dai:registry:owner": "r"}}, 400, "not the name of a"),
        ({"kind": "service", "name": "a", "properties": {"a": None}}, 400, "has a value of a kind that is not allowed"),
        ({"kind": "metadata", "parent": "urn:s:there"}, 400, "must have a type and a value"),
        ({"kind": "service", "name": "a" * 70_000}, 413, "bytes; 65,536 are allowed"),
        ({"kind": "service", "name": "a", "colour": 1}, 400, "entries"),
    ],
)  # fmt: skip
def test_what_is_no_entry_is_refused_and_changes_nothing(
    known: Known, entry: dict[str, Any], status: int, says: str
) -> None:
    alice = known("alice")
    publish(alice, service("urn:s:there"))
    number = counts(alice)["number"]
    answer = alice.post("/entries", json={"entries": [service("urn:s:before"), entry]})
    assert answer.status_code == status, answer.text
    problem = answer.json()
    assert says in problem["detail"] + (problem.get("hint") or "")
    assert counts(alice) == {"entries": 1, "number": number}


def test_metadata_of_third_parties_and_of_all_forms(known: Known) -> None:
    alice, bob = known("alice"), known("bob")
    publish(alice, service("urn:s:a"))
    said = {"key": "urn:m:1", "about": "urn:s:a", "type": UNIT, "value": "mJy"}
    assert bob.post("/metadata", json=said).json()["owner"] == "bob"
    bob.post("/metadata", json={**said, "key": "urn:m:2", "form": "uri", "value": "http://unit"}).raise_for_status()
    turtle = '<> <urn:p:by> "bob" ; <urn:p:with> [ <urn:p:value> 5 ] .'
    bob.post("/metadata", json={**said, "key": "urn:m:3", "form": "rdf", "value": turtle}).raise_for_status()
    assert keys(alice.get("/metadata", params={"about": "urn:s:a"})) == ["urn:m:1", "urn:m:2", "urn:m:3"]
    assert keys(alice.get("/metadata", params={"type": UNIT, "value": "mJy"})) == ["urn:m:1"]
    assert alice.post("/metadata", json={**said, "value": "Jy"}).status_code == 403
    assert bob.post("/metadata", json={**said, "value": "Jy"}).status_code == 200
    assert keys(alice.get("/metadata", params={"type": UNIT, "value": "mJy"})) == []
    assert alice.delete("/entries", params={"key": "urn:m:1"}).status_code == 403
    assert bob.delete("/entries", params={"key": "urn:m:1"}).status_code == 204
    for value, says in (
        ("<> <urn:p", "is not Turtle"),
        ("<urn:s:a> <urn:p:is> 5 .", "may not be about <urn:s:a>"),
        ("<> <urn:dai:registry:owner> 'alice' .", "which only the registry sets"),
        ("<> a <urn:dai:registry:Table> .", "which only the registry sets"),
        ("[] a <urn:dai:registry:Column> .", "which only the registry sets"),
        ("<> <http://purl.org/dc/terms/isPartOf> <urn:s:a> .", "which only the registry sets"),
    ):
        answer = bob.post("/metadata", json={**said, "key": "urn:m:4", "form": "rdf", "value": value})
        assert answer.status_code == 400
        assert says in answer.json()["detail"]
    answer = bob.post("/metadata", json={**said, "type": "http://purl.org/dc/terms/isPartOf"})
    assert "only the registry sets" in answer.json()["detail"]


def test_bindings_are_found_by_the_tmodels_that_they_implement(known: Known) -> None:
    alice = known("alice")
    binding = {"key": "urn:b", "kind": "binding", "parent": "urn:s:a", "properties": {"address": {"uri": "http://a"}}}
    publish(alice, {"key": "urn:t", "kind": "tmodel", "name": "query"}, service("urn:s:a"))
    publish(alice, {**binding, "implements": ["urn:t"]})
    assert keys(alice.get("/entries", params={"tmodel": "urn:t"})) == ["urn:b"]
    assert keys(alice.get("/entries", params={"tmodel": "urn:other"})) == []


def test_leases_deprecation_and_publishing_again(known: Known) -> None:
    alice = known("alice")
    publish(alice, service("urn:s:a", seconds=50))
    renewed = alice.post("/leases", json={"keys": ["urn:s:a"], "seconds": 500}).json()["expires"]["urn:s:a"]
    assert renewed == alice.get("/entry", params={"key": "urn:s:a"}).json()["expires"]
    assert alice.post("/leases", json={"keys": ["urn:s:a", "urn:s:b"], "seconds": 5}).status_code == 404
    assert alice.get("/entry", params={"key": "urn:s:a"}).json()["expires"] == renewed
    assert alice.post("/deprecated", json={"key": "urn:s:a"}).json()["deprecated"] is True
    assert keys(alice.get("/services")) == []
    assert keys(alice.get("/services", params={"deprecated": "true"})) == ["urn:s:a"]
    publish(alice, service("urn:s:a"))
    assert keys(alice.get("/services")) == ["urn:s:a"]


def test_who_is_no_reader_sees_neither_the_entry_nor_what_is_below_it(known: Known) -> None:
    alice, bob, root = known("alice"), known("bob"), known("root")
    before = counts(alice)["number"]
    resource = {"key": "http://r", "kind": "resource", "parent": "urn:s:a", "name": "r"}
    publish(alice, service("urn:s:a", readers=["alice"]), resource)
    for path in ("/entry?key=urn:s:a", "/entry?key=http://r"):
        assert [each.get(path).status_code for each in (alice, bob, root)] == [200, 404, 200]
    assert keys(bob.get("/entries")) == []
    said = {"about": "http://r", "type": UNIT, "value": "m"}
    assert bob.post("/metadata", json=said).status_code == 404
    taken = bob.post("/entries", json={"entries": [service("urn:s:a")]})
    assert taken.status_code == 403
    changes = bob.get("/changes", params={"after": before}).json()["changes"]
    assert changes == []
    assert bob.get("/find", params={"text": "a"}).json() == {"found": []}
    alice.post("/readers", json={"key": "urn:s:a", "readers": ["alice", "bob"]}).raise_for_status()
    assert bob.get("/entry?key=http://r").status_code == 200


def events(client: httpx.Client, headers: dict[str, str], count: int, until: Any) -> list[tuple[int, str, str]]:
    """So many events; ``until`` is called once the connection stands."""
    found: list[tuple[int, str, str]] = []
    with client.stream("GET", "/changes", headers={"Accept": "text/event-stream", **headers}) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        number, event = 0, ""
        for line in answer.iter_lines():
            if line.startswith(": the changes"):
                until()
            name, _, value = line.partition(": ")
            if name == "id":
                number = int(value)
            elif name == "event":
                event = value
            elif name == "data":
                found.append((number, event, json.loads(value)["key"]))
                if len(found) == count:
                    break
    return found


def test_changes_are_followed_and_gone_on_with(known: Known) -> None:
    alice, bob = known("alice"), known("bob")

    def change() -> None:
        publish(alice, service("urn:s:a", seconds=5))
        alice.post("/leases", json={"keys": ["urn:s:a"], "seconds": 50}).raise_for_status()
        publish(alice, service("urn:s:hidden", readers=["alice"]))
        publish(alice, service("urn:s:a", name="other", seconds=50))
        alice.delete("/entries", params={"key": "urn:s:a"}).raise_for_status()

    changing = threading.Thread(target=change)
    seen = events(bob, {}, 3, changing.start)
    changing.join()
    assert [(event, key) for _, event, key in seen] == [
        ("published", "urn:s:a"),
        ("modified", "urn:s:a"),
        ("deleted", "urn:s:a"),
    ]
    assert events(bob, {"Last-Event-ID": str(seen[0][0])}, 2, lambda: None) == seen[1:]
    page = bob.get("/changes", params={"after": seen[0][0]}).json()
    assert [each["action"] for each in page["changes"]] == ["modified", "deleted"]


def test_changes_that_are_not_kept_any_more_are_gone(known: Known, served: Background) -> None:
    registry = served.service.registry
    assert registry is not None
    alice = known("alice")
    first = counts(alice)["number"]
    publish(alice, service("urn:s:a"), service("urn:s:b"))
    with registry.database._engine.begin() as connection:
        connection.exec_driver_sql(f"delete from dai_registry_changes where number <= {first + 1}")
    assert alice.get("/changes", params={"after": first}).status_code == 410
    assert alice.get("/changes", params={"after": first + 1}).status_code == 200


def test_what_fits_best_comes_first_with_its_reasons(known: Known) -> None:
    alice, bob = known("alice"), known("bob")
    for number in range(8):
        publish(alice, service(f"urn:s:{number}", name=f"Weather {number}"))
    publish(
        alice,
        service("urn:s:sky", name="Sky survey"),
        {"key": "http://r", "kind": "resource", "parent": "urn:s:sky", "name": "catalogue"},
        {"key": "http://r#t", "kind": "table", "parent": "http://r", "name": "galaxies"},
        {"key": "http://r#t.z", "kind": "column", "parent": "http://r#t", "name": "redShift"},
    )
    bob.post("/metadata", json={"about": "http://r#t.z", "type": UNIT, "value": "dimensionless"}).raise_for_status()
    found = alice.get("/find", params={"text": "galaxies with redshift"}).json()["found"]
    assert found[0]["key"] == "http://r#t"
    assert found[0]["reasons"] == ["name: galaxies"]
    found = alice.get("/find", params={"text": "Galaxies, red_shift, dimensionless"}).json()["found"]
    assert found[0]["key"] == "http://r#t"
    assert set(found[0]["reasons"]) == {
        "name: galaxies",
        "column redShift",
        f"column redShift, {UNIT}: dimensionless (bob)",
    }
    assert alice.get("/find", params={"text": "survey", "kind": "table"}).json() == {"found": []}


def test_a_thousand_services_renew_their_leases_at_once(known: Known) -> None:
    alice = known("alice")
    names = [f"urn:s:{each}" for each in range(1000)]
    publish(alice, *({**service(each), "seconds": 60} for each in names))

    def renewed(key: str) -> float:
        answer = alice.post("/leases", json={"keys": [key], "seconds": 5000}).raise_for_status()
        return float(answer.json()["expires"][key])

    before = alice.get("/entry", params={"key": names[0]}).json()["time"]
    with ThreadPoolExecutor(16) as pool:  # with more than 20 httpx closes connections, some of them in use
        ends = list(pool.map(renewed, names))
    assert len(ends) == 1000
    assert min(ends) >= before + 5000
    kept = [alice.get("/entry", params={"key": each}).json()["expires"] for each in names[::100]]
    assert kept == ends[::100]
