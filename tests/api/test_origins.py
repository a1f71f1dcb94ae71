"""Who may ask: Host, Origin, Sec-Fetch-Site and Content-Type, as browsers and others send them."""

import http.client
import socket
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

import httpx
import pytest

from dai.api.requests.origins import check_host, check_page
from dai.api.server.serve import Background
from dai.config import parse
from dai.errors import ConfigurationError, DeniedError, RequestError
from tests.api.conftest import DOCUMENT, XML, Serve
from tests.api.described import paths

INSERT = DOCUMENT.format(
    '<sqlUpdateStatement name="u"><expression>insert into numbers values (-7, null)</expression>'
    '<resultStream name="n"/></sqlUpdateStatement>'
)
FOREIGN = ["http://evil.example", "https://evil.example:8080", "null", "http://127.0.0.1.evil.example"]
PULLS = {
    "/sessions/{session}/streams/{stream}",
    "/sessions/{session}/streams/{stream}/blocks/{number}",
}
"""What changes something though it is a GET."""


@dataclass(frozen=True)
class Operation:
    method: str
    path: str
    name: str
    body: tuple[str, ...]
    body_required: bool

    @property
    def changes(self) -> bool:
        return self.method != "GET" or self.path in PULLS

    @property
    def address(self) -> str:
        return self.path.replace("{number}", "0").replace("{", "").replace("}", "")


def operations() -> Iterator[Operation]:
    for path, methods in paths().items():
        for method, about in methods.items():
            body = about.get("requestBody", {"content": (), "required": False})
            yield Operation(method.upper(), path, about["operationId"], tuple(body["content"]), body["required"])


OPERATIONS = tuple(operations())
CHANGING = [each for each in OPERATIONS if each.changes]


def named(operation: Operation) -> str:
    return operation.name


@pytest.fixture
def unchanged(book: str) -> Iterator[None]:
    """Nobody has inserted anything."""
    yield
    with sqlite3.connect(book.removeprefix("sqlite:///")) as connection:
        assert connection.execute("delete from numbers where i = -7").rowcount == 0


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "http://evil.example", "Host": "evil.example"}, 403),
        ({"Origin": "http://evil.example", **XML}, 403),
        ({"Host": "evil.example", **XML}, 403),
        ({"Sec-Fetch-Site": "same-site", **XML}, 403),
        ({}, 415),
    ],
)
@pytest.mark.usefixtures("unchanged")
def test_a_page_of_another_site_changes_nothing(shared: Background, headers: dict[str, str], status: int) -> None:
    # httpx adds no Content-Type of its own to bytes
    answer = httpx.post(f"{shared.url}/resources/book/perform", content=INSERT.encode(), headers=headers, timeout=60)
    assert answer.status_code == status
    assert answer.json()["hint"]


@pytest.mark.parametrize("operation", OPERATIONS, ids=named)
def test_an_unknown_host_is_refused_everywhere(client: httpx.Client, operation: Operation) -> None:
    for host in ("evil.example", "localhost.evil.example", "127.0.0.1.evil.example:80"):
        answer = client.request(operation.method, operation.address, headers={"Host": host})
        assert (answer.status_code, answer.json()["type"]) == (403, "denied")
        assert "hosts" in answer.json()["hint"]


@pytest.mark.parametrize("operation", CHANGING, ids=named)
def test_what_changes_something_is_refused_to_other_sites(client: httpx.Client, operation: Operation) -> None:
    sent = [{"Origin": each} for each in FOREIGN]
    sent += [{"Sec-Fetch-Site": each} for each in ("cross-site", "same-site")]
    for headers in sent:
        answer = client.request(operation.method, operation.address, headers=headers)
        assert (answer.status_code, answer.json()["type"]) == (403, "denied"), headers


def test_that_covers_every_method_that_changes_something() -> None:
    assert {each.method for each in CHANGING} == {"GET", "POST", "PUT", "PATCH", "DELETE"}
    assert {each.path for each in CHANGING if each.method == "GET"} == PULLS


@pytest.mark.parametrize("operation", [each for each in OPERATIONS if each.body and "*/*" not in each.body], ids=named)
def test_a_body_says_what_it_is(client: httpx.Client, operation: Operation) -> None:
    for kind in (None, "text/plain", "multipart/form-data; boundary=x", "application/x-unknown"):
        headers = {"Content-Type": kind} if kind else {}
        answer = client.request(operation.method, operation.address, content=b"{}", headers=headers)
        assert answer.status_code == 415, kind
        assert next(iter(operation.body)) in answer.json()["hint"]
    if not operation.body_required:
        assert client.request(operation.method, operation.address).status_code < 400


def test_a_body_in_chunks_says_what_it_is(client: httpx.Client) -> None:
    answer = client.post("/resources/book/query", content=iter([b'{"sql": "select 1"}']))
    assert answer.status_code == 415


@pytest.mark.parametrize("site", ["same-origin", "none", None])
def test_our_own_page_may_do_everything(client: httpx.Client, site: str | None) -> None:
    headers = {"Origin": str(client.base_url), **({"Sec-Fetch-Site": site} if site else {})}
    assert client.post("/resources/book/query", json={"sql": "select 1"}, headers=headers).status_code == 200
    created = client.post("/sessions", headers=headers)
    assert created.status_code == 201
    assert client.delete(created.headers["location"], headers=headers).status_code == 204


def test_reading_is_not_refused_to_links_from_elsewhere(client: httpx.Client) -> None:
    answer = client.get("/resources", headers={"Origin": "http://evil.example", "Sec-Fetch-Site": "cross-site"})
    assert answer.status_code == 200
    assert not [each for each in answer.headers if each.startswith("access-control")]


@pytest.mark.parametrize(
    ("mode", "into", "link"),
    [
        ("cors", "empty", False),
        ("no-cors", "image", False),
        ("navigate", "document", True),
        ("navigate", None, True),
        *(("navigate", each, False) for each in ("iframe", "frame", "object", "embed")),
    ],
)
@pytest.mark.parametrize("site", ["cross-site", "same-site", "same-origin", "none"])
def test_a_page_of_another_site_does_not_time_queries(
    client: httpx.Client, mode: str, into: str | None, link: bool, site: str
) -> None:
    """It learns how long an answer takes that it may not read, and a query can say what takes long."""
    headers = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": mode, **({"Sec-Fetch-Dest": into} if into else {})}
    answer = client.get("/resources/book/query?sql=select+1+as+one", headers=headers)
    assert answer.status_code == (403 if site.endswith("-site") and not link else 200)


@pytest.mark.parametrize("operation", OPERATIONS, ids=named)
def test_a_browser_runs_no_answer(client: httpx.Client, operation: Operation) -> None:
    answer = client.request(operation.method, operation.address)
    assert answer.headers["x-content-type-options"] == "nosniff"
    policy = answer.headers["content-security-policy"]
    assert policy == ("frame-ancestors 'none'" if operation.path == "/docs" else "sandbox; default-src 'none'")


def test_a_result_that_looks_like_html_is_sandboxed(client: httpx.Client) -> None:
    for accept in ("text/csv", "application/vnd.webrowset+xml", "application/x-ndjson", "text/html"):
        sent = {"sql": "select '<script>alert(1)</script>' as \"<html>\""}
        answer = client.post("/resources/book/query", json=sent, headers={"Accept": accept})
        assert answer.status_code == (406 if accept == "text/html" else 200)
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["content-security-policy"] == "sandbox; default-src 'none'"


def test_a_setting_names_more_hosts(serve: Serve) -> None:
    running = serve(service={"hosts": ["Data.example.org", "lab.example.org:8443"]})
    with httpx.Client(base_url=running.url, timeout=60) as client:

        def status(host: str | None, origin: str | None = None) -> int:
            headers = {"Host": host} if host else {}
            headers.update({"Origin": origin} if origin else {})
            return client.post("/resources/book/query", json={"sql": "select 1"}, headers=headers).status_code

        assert status("data.example.org") == status("DATA.example.org.:1234") == status("lab.example.org:8443") == 200
        assert status("lab.example.org") == 403
        # a proxy that hands its own Host on, and one that does not
        assert status("data.example.org", "https://data.example.org") == 200
        assert status(None, "https://data.example.org") == 200
        assert status(None, "https://data.example.org:444") == 403
        assert status("data.example.org", "https://lab.example.org") == 403


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:80", "a.localhost", "127.0.0.1:1", "[::1]:8080", "10.1.2.3", socket.gethostname()]
)
def test_addresses_and_the_machine_are_known(client: httpx.Client, host: str) -> None:
    assert client.get("/health/live", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "lines", [[], ["Host: localhost", "Host: evil.example"], ["Host: a/b"], ["Host: a:b"], ["Host:"]]
)
def test_a_request_has_one_host(shared: Background, lines: list[str]) -> None:
    parts = urlsplit(shared.url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
    connection.putrequest("GET", "/health/live", skip_host=True)
    for line in lines:
        name, _, value = line.partition(":")
        connection.putheader(name, value.strip())
    connection.endheaders()
    assert connection.getresponse().status == 400
    connection.close()


def test_hosts_and_pages_without_a_server() -> None:
    check_host([], "1.0", frozenset())
    check_host([b"anything.example"], "1.1", frozenset({"*"}))
    with pytest.raises(RequestError):
        check_host([b"user@localhost"], "1.1", frozenset())
    with pytest.raises(DeniedError):
        check_page({b"host": b"evil.example", b"origin": b"file://evil.example"}, frozenset({"*"}), frozenset())


@pytest.mark.parametrize("hosts", [["http://data.example.org"], [""], [3]])
def test_a_host_in_the_configuration_is_a_name(hosts: list[object]) -> None:
    with pytest.raises(ConfigurationError, match=r"service\.hosts"):
        parse({"service": {"hosts": hosts}}, environment={})


def test_pages_of_other_sites_may_ask_where_the_configuration_says_so(serve: Serve) -> None:
    portal, other = "https://portal.example.org", "https://other.example.org"
    service = serve(service={"origins": [portal]})
    question = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"}
    with httpx.Client(base_url=service.url) as client:
        answer = client.options("/resources/book/query", headers={"Origin": portal, **question})
        assert (answer.status_code, answer.content) == (204, b"")
        assert answer.headers["access-control-allow-origin"] == portal
        assert "POST" in answer.headers["access-control-allow-methods"]
        assert "authorization" in answer.headers["access-control-allow-headers"]
        assert "access-control-allow-credentials" not in answer.headers
        for sent in ({"sql": "select 1"}, {"sql": "selct"}):
            answer = client.post(
                "/resources/book/query", json=sent, headers={"Origin": portal, "Sec-Fetch-Site": "cross-site"}
            )
            assert answer.status_code == (200 if sent["sql"] == "select 1" else 400)
            assert answer.headers["access-control-allow-origin"] == portal
            assert "truncated" in answer.headers["access-control-expose-headers"]
            assert answer.headers["vary"].endswith("Origin")
        assert "access-control-allow-origin" not in client.get("/", headers={"Origin": other}).headers
        refused = client.post("/resources/book/query", json={"sql": "select 1"}, headers={"Origin": other})
        assert refused.status_code == 403


def test_any_page_may_read_where_the_configuration_says_so(serve: Serve) -> None:
    service = serve(service={"origins": ["*"]})
    headers = {"Origin": "https://other.example.org"}
    with httpx.Client(base_url=service.url, headers=headers) as client:
        assert client.get("/resources").headers["access-control-allow-origin"] == headers["Origin"]
        answer = client.options("/jobs", headers={"Access-Control-Request-Method": "POST"})
        assert answer.headers["access-control-allow-methods"] == "GET, HEAD"
        assert client.post("/resources/book/query", json={"sql": "select 1"}).status_code == 403


def test_no_page_of_another_site_is_told_anything_by_default(serve: Serve) -> None:
    service = serve()
    headers = {"Origin": "https://other.example.org", "Access-Control-Request-Method": "GET"}
    for answer in (httpx.get(f"{service.url}/", headers=headers), httpx.options(f"{service.url}/", headers=headers)):
        assert not [each for each in answer.headers if each.startswith("access-control")]
