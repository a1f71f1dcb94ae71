"""The status of a failure is the same however long the statements take: on real databases, quick and slow."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from lxml import etree

import dai
from dai.api.server.serve import Background, background
from dai.errors import StatementError
from tests.api.conftest import DOCUMENT, ENDLESS, XML, configured, statement
from tests.drivers.conformance_cases import CASES
from tests.servers.mariadb import MySQLServer

pytestmark = pytest.mark.server  # its service has a resource of every kind
schema = etree.XMLSchema(file=Path(__file__).parents[2] / "schemas/response-2003-07.xsd")
DATABASES = tuple(name for name in CASES if name != "mysql" or MySQLServer.found())
WORK = {
    "postgresql": "select 1 as n from pg_sleep(0.1)",
    "mariadb": "select 1 + sleep(0.1) as n",
    "mysql": "select 1 + sleep(0.1) as n",
    "sqlite": "with recursive r(i) as (select 1 union all select i + 1 from r where i < 200000) "
    "select 1 as n where (select count(*) from r) > 0",
    "duckdb": "select 1 as n where (select count(*) from range(3000) a(i), range(5000) b(j) where i * j % 7 = 8) = 0",
}
"""A query that gives 1, which takes several times as long as a service gathers first bytes."""
PACES = {"quick": dict.fromkeys(WORK, "select 1 as n"), "slow": WORK}


def update(sql: str, name: str = "u", parameter: str = "") -> str:
    escaped = sql.replace("&", "&amp;").replace("<", "&lt;")
    return (
        f'<sqlUpdateStatement name="{name}">{parameter}<expression>{escaped}</expression>'
        f'<resultStream name="{name}-count"/></sqlUpdateStatement>'
    )


def bag(*statements: str) -> str:
    escaped = (each.replace("<", "&lt;") for each in statements)
    inside = "".join(f"<statement><expression>{each}</expression></statement>" for each in escaped)
    return f'<sqlBag name="u">{inside}<resultStream name="u-count"/></sqlBag>'


FED = '<sqlParameter position="1" from="n"/>'
LOAD = (
    '<sqlBulkLoadRowSet name="u"><webRowSetStream from="n"/><loadIntoTable tableName="taken"/>'
    '<resultStream name="u-count"/></sqlBulkLoadRowSet>'
)
REFUSED = {
    "update": lambda work: update(f"insert into taken {work}"),
    "update for each tuple": lambda work: (
        statement(work, output="n") + update("insert into taken values (?)", parameter=FED)
    ),
    "bulk load": lambda work: statement(work, output="n") + LOAD,
    "bag": lambda work: bag("insert into free values (7)", f"insert into taken {work}"),
    "after a result's end": lambda work: (
        f"<sequence>{statement(work, output='n')}<outputStream name='s'><fromLocal from='n'/></outputStream>"
        f"{update('insert into taken values (1)')}</sequence>"
    ),
    "two pipelines": lambda work: update(f"insert into taken {work}") + update("insert into taken values (1)", "v"),
}
"""Documents that deliver no result and break a key."""


@pytest.fixture(scope="module")
def service(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Background]:
    """With a resource of every kind of database; `taken` holds the key 1."""
    directory = tmp_path_factory.mktemp("service")
    urls = {
        name: f"{name}:///{directory / 'test.db'}.{name}"
        if name in ("sqlite", "duckdb")
        else request.getfixturevalue({"postgresql": "postgres"}.get(name, name) + "_module_url")
        for name in DATABASES
    }
    with background(configured(directory, {name: {"url": url} for name, url in urls.items()})) as running:
        for name in DATABASES:
            made = ("create table taken (n integer primary key)", "insert into taken values (1)", FREE)
            assert post(running, name, bag(*made)).status_code == 200
        yield running


FREE = "create table free (n integer primary key)"


def post(running: Background, resource: str, body: str, query: str = "", **headers: str) -> httpx.Response:
    return httpx.post(
        f"{running.url}/resources/{resource}/perform{query}",
        content=DOCUMENT.format(body).encode(),
        headers={**XML, **headers},
        timeout=60,
    )


def local(node: etree._Element) -> str:
    return str(etree.QName(node).localname)


@pytest.mark.parametrize("pace", PACES)
@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("database", DATABASES)
def test_what_fails_before_a_result_has_its_own_status(
    service: Background, database: str, case: str, pace: str
) -> None:
    body = REFUSED[case](PACES[pace][database])
    if "outputStream" in body:
        session = httpx.post(f"{service.url}/sessions", timeout=60).json()["id"]
        answers = [post(service, database, body, f"?session={session}&output=u-count")]
    else:
        answers = [post(service, database, body, query) for query in ("", "?output=u-count")]
    for answer in answers:
        assert answer.status_code == 400, answer.text
        assert answer.headers["content-length"]
        assert "sql-error" in answer.text
    free = post(service, database, statement("select count(*) as n from free"), Accept="text/csv")
    assert free.text.splitlines() == ["n", "0"]


@pytest.mark.parametrize("pace", PACES)
@pytest.mark.parametrize("database", DATABASES)
def test_a_failure_behind_a_result_is_in_the_document(service: Background, database: str, pace: str) -> None:
    """The first byte of the result has been delivered by then, also where all is over at once."""
    body = f"<sequence>{statement(PACES[pace][database])}{update('insert into taken values (1)')}</sequence>"
    answer = post(service, database, body)
    assert answer.status_code == 200
    root = etree.fromstring(answer.content)
    assert [node.get("id") for node in root.iter() if local(node) == "error"][:1] == ["sql-error"]
    assert root[-1].get("status") == "ERROR"


@pytest.mark.parametrize("query", ["", "?output=rows"])
def test_first_bytes_of_a_result_wait_for_nothing(service: Background, query: str) -> None:
    content = DOCUMENT.format(f"<sequence>{statement(ENDLESS)}{update('delete from free')}</sequence>").encode()
    headers = {**XML, "Accept-Encoding": "identity"}
    url = f"{service.url}/resources/sqlite/perform{query}"
    with httpx.stream("POST", url, content=content, headers=headers, timeout=60) as answer:
        assert answer.status_code == 200
        assert b"<currentRow>" in next(answer.iter_raw())


@pytest.mark.parametrize("query", ["", "?output=u-count"])
def test_a_limit_of_time_before_a_result_has_its_own_status(
    query: str, tmp_path_factory: pytest.TempPathFactory, postgres_module_url: str
) -> None:
    directory = tmp_path_factory.mktemp("limited")
    resources = {"pg": {"url": postgres_module_url}}
    with background(configured(directory, resources, limits={"seconds": 0.3})) as running:
        answer = post(running, "pg", update("create table never as select 1 as n from pg_sleep(600)"), query)
        assert answer.status_code == 422
        assert "limit-exceeded" in answer.text


def partly(database: str, pace: str) -> str:
    """The first member is committed, the second breaks a key, the third does not run."""
    members = update(f"insert into {{}} {PACES[pace][database]}", "first") + update("insert into taken values (1)")
    return f"<sequence>{members}{update('insert into taken values (2)', 'never')}</sequence>"


@pytest.fixture
def fresh(request: pytest.FixtureRequest, service: Background) -> Iterator[str]:
    """An empty table of the test's database."""
    parameters = request.node.callspec.params if hasattr(request.node, "callspec") else {}
    empty = (service, parameters.get("database", "postgresql"), update("delete from free"))
    assert post(*empty).status_code == 200
    yield "free"
    assert post(*empty).status_code == 200


@pytest.mark.parametrize("query", ["", *(f"?output={name}-count" for name in ("first", "u", "never"))])
@pytest.mark.parametrize("pace", PACES)
@pytest.mark.parametrize("database", DATABASES)
def test_what_was_committed_before_a_failure_is_told(
    service: Background, fresh: str, database: str, pace: str, query: str
) -> None:
    answer = post(service, database, partly(database, pace).format(fresh), query)
    assert answer.status_code == 207
    assert answer.headers["content-type"] == "application/xml"
    root = etree.fromstring(answer.content)
    schema.assertValid(root)
    elements = {node.get("name"): node for node in root if local(node) == "result"}
    assert [node.get("updateCount") for node in elements["first-count"]] == ["1"]
    assert [(name, node.get("status")) for name, node in elements.items() if node.get("committed")] == [
        ("first", "COMPLETED")
    ]
    assert [(error.get("id"), error.get("activity")) for error in elements["u"]] == [("sql-error", "u")]
    assert elements["never"].get("status") == "TERMINATED"
    assert root[-1].get("status") == "ERROR"
    count = post(service, database, statement("select count(*) as n from free"), Accept="text/csv")
    assert count.text.splitlines() == ["n", "1"]


@pytest.mark.parametrize("body", [bag("insert into free values (7)"), update("insert into free values (7)")])
def test_a_commit_in_another_pipeline_is_told(service: Background, fresh: str, body: str) -> None:
    answer = post(service, "postgresql", body + update("insert into taken values (1)", "v"))
    assert answer.status_code == 207
    assert '<result name="u" status="COMPLETED" committed="true"/>' in answer.text
    assert 'status="COMPLETED_WITH_ERROR"' in answer.text


def test_a_form_that_comes_too_late_is_told_with_what_was_committed(service: Background, fresh: str) -> None:
    body = f"<sequence>{update('insert into free values (7)')}{update('delete from free', 'v')}</sequence>"
    answer = post(service, "postgresql", body, "?output=v-count", Accept="text/csv")
    assert answer.status_code == 207
    assert 'error id="not-acceptable"' in answer.text
    assert 'committed="true"' in answer.text


OPENED = (
    '<sqlStoredProcedure name="call"><storedProcedure name="taking"/><resultStream name="taken"/></sqlStoredProcedure>'
    '<sqlQueryStatement name="q"><table name="t" from="taken"/><expression>select missing from t</expression>'
    '<webRowSetStream name="rows"/></sqlQueryStatement>'
)
"""The table is read, and the call committed, while the query is opened."""
TAKING = (
    "create or replace function taking() returns table (n integer) language sql "
    "as 'insert into free values (7) returning n'"
)


@pytest.mark.parametrize("coding", ["identity", "gzip"])
@pytest.mark.parametrize(("query", "accept"), [("", "*/*"), ("?output=rows", "*/*"), ("?output=rows", "text/csv")])
def test_a_commit_is_told_when_what_reads_it_cannot_be_opened(
    service: Background, fresh: str, query: str, accept: str, coding: str
) -> None:
    assert post(service, "postgresql", update(TAKING)).status_code == 200
    answer = post(service, "postgresql", OPENED, query, **{"Accept": accept, "Accept-Encoding": coding})
    assert answer.status_code == 207
    assert answer.headers["content-type"] == "application/xml"
    root = etree.fromstring(answer.content)
    schema.assertValid(root)
    elements = {node.get("name"): node for node in root if local(node) == "result"}
    assert [name for name, node in elements.items() if node.get("committed")] == ["call"]
    for name in ("rows", "q"):
        assert [(error.get("id"), error.get("sqlstate")) for error in elements[name]] == [("sql-error", "42703")]
    count = post(service, "postgresql", statement("select n from free"), Accept="text/csv")
    assert count.text.splitlines() == ["n", "7"]


@pytest.mark.parametrize("coding", ["identity", "gzip"])
@pytest.mark.parametrize("database", DATABASES)
def test_a_commit_is_told_when_a_result_fails_while_it_is_gathered(
    service: Background, fresh: str, database: str, coding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The result was complete, but nothing of it had left: a busy machine is given the time for that."""
    monkeypatch.setattr("dai.api.work.GATHER_SECONDS", 60.0)
    members = update("insert into free values (7)", "first") + statement("select 1 as n", output="n")
    body = f"<sequence>{members}{update('insert into taken values (1)')}</sequence>"
    answer = post(service, database, body, "?output=n", **{"Accept-Encoding": coding})
    assert answer.status_code == 207
    assert answer.headers["content-type"] == "application/xml"
    root = etree.fromstring(answer.content)
    schema.assertValid(root)
    elements = {node.get("name"): node for node in root if local(node) == "result"}
    assert [name for name, node in elements.items() if node.get("committed")] == ["first"]
    assert elements["n"].get("status") == "ERROR"
    assert [error.get("id") for error in elements["u"]] == ["sql-error"]


@pytest.mark.parametrize("output", [None, "u-count"])
@pytest.mark.parametrize("pace", PACES)
def test_the_client_says_what_was_committed(service: Background, fresh: str, pace: str, output: str | None) -> None:
    resource = dai.connect(f"{service.url}/postgresql")
    document = DOCUMENT.format(partly("postgresql", pace).format(fresh)).encode()
    with closing(resource), pytest.raises(StatementError, match="duplicate key") as raised:
        resource.perform(document, output)
    assert (
        "These activities were committed before the failure, and are not undone: first. Rows changed: first-count 1."
        in str(raised.value)
    )
    assert raised.value.extra["committed"] == ["first"]
    assert raised.value.extra["update_counts"] == {"first-count": 1}


@pytest.mark.parametrize(("body", "committed"), [(partly("postgresql", "quick"), "first"), (OPENED, "call")])
def test_a_job_says_what_was_committed(service: Background, fresh: str, body: str, committed: str) -> None:
    assert post(service, "postgresql", update(TAKING)).status_code == 200
    resource = dai.connect(f"{service.url}/postgresql")
    with closing(resource):
        job = resource.submit(DOCUMENT.format(body.format(fresh)).encode())
        assert job.wait().phase == "ERROR"
    error = httpx.get(f"{service.url}/jobs/{job.id}", timeout=60).json()["error"]
    assert error["committed"] == [committed]
    told = f"These activities were committed before the failure, and are not undone: {committed}."
    assert error["hint"].endswith(told)
