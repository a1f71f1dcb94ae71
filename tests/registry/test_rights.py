"""Who may do what with the registry: every operation of the OpenAPI document by every sort of caller. What is not
granted is refused, changing nothing."""

from typing import Any

import pytest

from dai.api.app import create_app
from dai.api.server.serve import Background
from dai.service.registry.webhooks.store import Webhook
from tests.registry.conftest import Known, publish, service

pytestmark = pytest.mark.server
CALLERS = ("nobody", "stranger", "bob", "alice", "root")
"""``stranger`` may read, ``bob`` write, too; ``alice`` owns the entry, ``root`` is an administrator."""
READ = {"stranger", "bob", "alice", "root"}
WRITE = {"bob", "alice", "root"}
OWN = {"alice", "root"}
KEY = {"key": "urn:s:a"}
UDDI = (
    '<e:Envelope xmlns:e="http://schemas.xmlsoap.org/soap/envelope/"><e:Body><save_service xmlns="urn:uddi-org:api_v2"'
    ' generic="2.0"><businessService serviceKey="urn:s:a" businessKey=""><name>b</name></businessService>'
    "</save_service></e:Body></e:Envelope>"
)
ASK = "ask { ?s ?p ?o }"
OPERATIONS: dict[tuple[str, str], tuple[set[str], dict[str, Any]]] = {
    ("GET", ""): (READ, {}),
    ("GET", "/entries"): (READ, {}),
    ("POST", "/entries"): (OWN, {"json": {"entries": [service("urn:s:a", name="b")]}}),
    ("DELETE", "/entries"): (OWN, {"params": KEY}),
    ("GET", "/entry"): (READ, {"params": KEY}),
    ("POST", "/deprecated"): (OWN, {"json": KEY}),
    ("POST", "/leases"): (OWN, {"json": {"keys": ["urn:s:a"], "seconds": 5000}}),
    ("POST", "/readers"): (OWN, {"json": {**KEY, "readers": ["alice"]}}),
    ("GET", "/services"): (READ, {}),
    ("GET", "/metadata"): (READ, {}),
    ("POST", "/metadata"): (WRITE, {"json": {"about": "urn:s:a", "type": "urn:t:t", "value": "v"}}),
    ("GET", "/find"): (READ, {"params": {"text": "a"}}),
    ("GET", "/sparql"): (READ, {"params": {"query": ASK}}),
    ("POST", "/sparql"): (READ, {"content": ASK, "headers": {"Content-Type": "application/sparql-query"}}),
    ("GET", "/changes"): (READ, {}),
    ("GET", "/dcat"): (READ, {}),
    ("GET", "/webhooks"): (READ, {}),
    ("POST", "/webhooks"): (WRITE, {"json": {"url": "http://127.0.0.1:9/hook"}}),
    ("DELETE", "/webhooks"): (OWN, {"params": {"id": "hers"}}),
    ("GET", "/uddi/schemas/xml.xsd"): (READ, {}),
    ("GET", "/uddi/{part}"): (READ, {}),
    ("POST", "/uddi/{part}"): (OWN, {"content": UDDI, "headers": {"Content-Type": "text/xml"}}),
}
"""Whom each is for, and a request that does it. A new operation says so here."""


HERS = Webhook(
    id="hers", owner="alice", groups=[], administrator=False, url="http://127.0.0.1:9/hook", secret="s", kinds=["none"],
    actions=[], prefix="", number=0,
)  # fmt: skip


def test_every_operation_has_a_rule() -> None:
    described = {
        (method.upper(), path.removeprefix("/registry"))
        for path, operations in create_app().openapi()["paths"].items()
        for method in operations
        if path.startswith("/registry")
    }
    assert described == set(OPERATIONS)


@pytest.mark.parametrize("operation", OPERATIONS, ids=" ".join)
def test_every_operation(served: Background, known: Known, operation: tuple[str, str]) -> None:
    method, path = operation
    granted, request = OPERATIONS[operation]
    registry = served.service.registry
    assert registry is not None
    webhooks = served.service.webhooks
    assert webhooks is not None
    for who in CALLERS:
        webhooks.put(HERS)
        known("root").delete("/entries", params=KEY)
        publish(known("alice"), service("urn:s:a"))
        number = registry.number()
        path = path.replace("{part}", "publication")
        answer = known(who).request(method, f"{served.url}/registry{path}", **request)
        if who in granted:
            assert answer.is_success, (who, answer.text)
            assert (registry.number() == number) is (method == "GET" or path in ("/sparql", "/webhooks"))
        else:
            soap = "uddi" in path and who in READ
            refusal = 401 if who == "nobody" else 500 if soap else 403
            if (method, path) == ("DELETE", "/webhooks") and who in WRITE:
                refusal = 404  # what is anothers is not there
            assert answer.status_code == refusal, (who, answer.text)
            assert not soap or "E_userMismatch" in answer.text
            assert registry.number() == number
