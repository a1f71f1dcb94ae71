"""Policies: every kind of work by every caller under every policy. What is not granted is refused, changing nothing."""

import base64
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pyarrow as pa
import pytest

from dai.api.server.serve import background
from dai.config import Config, PolicyConfig, parse
from dai.errors import ConfigurationError
from dai.perform.activity import ACTIVITIES
from dai.security.identity import ANONYMOUS, Caller
from dai.security.identity.tokens import new
from dai.security.policies import matches, narrowed
from dai.service.resources import Resources
from tests.activities.test_conformance import completed
from tests.api.conftest import DOCUMENT, ENDLESS, XML, configured, statement
from tests.api.test_identity import OPERATIONS
from tests.documents import written
from tests.processes import until

WRITE = set(
    "sqlUpdateStatement sqlStoredProcedure sqlBag sqlBulkLoadRowSet relationalResourceManagement fileWritingActivity "
    "fileManipulation xmlCollectionManagement xmlResourceManagement xUpdateStatement deliverToResourceProperty".split()
)
DELIVER = set(
    "deliverToFile deliverFromFile deliverToURL deliverFromURL deliverToGFTP deliverFromGFTP deliverToSMTP "
    "deliverToGDT deliverFromGDT".split()
)
READ = set(
    "sqlQueryStatement sqlResilient sqlResultsToXML sqlResultsToCSV sqlResultsToArrow extractDatabaseSchema "
    "extractPhysicalSchema fileAccessActivity directoryAccess xPathStatement xQueryStatement runFragments "
    "deliverToResponse inputStream outputStream dataStore blockAggregator stringTokenizer gzipCompression "
    "zstdCompression zipArchive xslTransform TupleProjection TupleSelect TupleArithmeticProjection TupleUnionAll "
    "TupleMergeJoin TupleSplit TupleSort TupleGroupBy Head Tee Echo Sleep Counter".split()
)
PATHS = {
    ("GET", "/resources/{resource}"): "read",
    ("GET", "/resources/{resource}/alive"): "read",
    ("GET", "/resources/{resource}/schema"): "read",
    ("GET", "/resources/{resource}/statistics"): "statistics",
    ("GET", "/resources/{resource}/query"): "read",
    ("POST", "/resources/{resource}/query"): "read",
    ("POST", "/resources/{resource}/perform"): "read",
}
"""What each operation on a resource needs, whatever is in its body."""
POLICIES: dict[str, dict[str, list[str]] | None] = {
    "unsaid": None,
    "empty": {},
    "staff": {
        "read": ["alice", "group:staff"],
        "write": ["alice"],
        "statistics": ["alice"],
        "deliver": ["group:staff"],
    },
    "writers": {"read": ["*"], "write": ["*"], "load": ["alice"]},
    "closed": {"read": []},
    "public": {"read": ["*", "anonymous"], "write": ["group:staff", "anonymous"], "load": []},
    "narrow": {"read": ["alice"], "write": ["alice", "bob", "anonymous"]},
}  # fmt: skip
CALLERS = {
    "alice": set[str](),
    "bob": {"staff"},
    "group:staff": set[str](),
    "*": set[str](),
    "root": set[str](),
    "": set(),
}
"""Groups by name; two of the names look like entries of a policy."""


def granted(policy: str, work: str, caller: str) -> bool:
    """Written down once more, from the documentation."""
    said = POLICIES[policy]
    if said is None:
        return work != "write"
    read = said.get("read", ["*", "anonymous"])
    lists = [read, [] if work == "write" else read]
    if work in said:
        lists[1] = said[work]
    names = {"anonymous"} if not caller else {"*", *(f"group:{each}" for each in CALLERS[caller])}
    if caller in ("alice", "bob", "root"):
        names.add(caller)
    return all(names & set(each) for each in lists)


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory, book: str) -> Iterator[dict[str, httpx.Client]]:
    directory = tmp_path_factory.mktemp("policies")
    resources = {}
    for name, policy in POLICIES.items():
        shutil.copy(book.removeprefix("sqlite:///"), directory / f"{name}.db")
        resources[name] = {"url": f"sqlite:///{directory / name}.db"} | ({} if policy is None else {"policy": policy})
    resources["limited"] = {"url": book, "policy": {"rows": 10, "seconds": 0.2, "activities": ["sqlQueryStatement"]}}
    resources["echo"] = {"url": book, "policy": {"activities": ["Echo"]}}
    resources["seen"] = {"url": book, "policy": {"activities": ["Echo"], "statistics": ["alice"]}}
    resources["few"] = {"url": book, "policy": {"read": ["alice"], "jobs": 1}}
    federations = {
        "unsaid-federation": {"sources": [{"alias": "a", "resource": "public"}]},
        "loading": {"sources": [{"alias": "a", "resource": "public"}], "policy": {"load": ["alice"]}},
    }
    identity = {"methods": ["token"], "anonymous": True}
    with background(configured(directory, resources, identity=identity, federations=federations)) as running:
        clients = {}
        for name, groups in CALLERS.items():
            headers = {}
            if name:
                token, stored = new(name, 3600, groups=tuple(groups), administrator=name == "root")
                running.service.store.add_token(stored)
                headers = {"Authorization": f"Bearer {token}"}
            clients[name] = httpx.Client(base_url=running.url, headers=headers, timeout=60)
        yield clients
        for each in clients.values():
            each.close()


def refused(answer: httpx.Response) -> bool:
    return answer.status_code == 403 and "policy." in answer.text


def test_every_operation_and_activity_has_a_rule() -> None:
    on_resources = {(method, path) for method, path in OPERATIONS if path.startswith("/resources/")}
    assert on_resources == set(PATHS)
    assert set(ACTIVITIES) == READ | WRITE | DELIVER
    assert len(READ) + len(WRITE) + len(DELIVER) == len(ACTIVITIES)


@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.parametrize("policy", POLICIES)
def test_operations(clients: dict[str, httpx.Client], policy: str, caller: str) -> None:
    client = clients[caller]
    for (method, path), work in PATHS.items():
        query = "?table=numbers" if work == "statistics" else ""
        if (method, path.endswith("query")) == ("GET", True):
            query = "?sql=select 1 as a"
        body = {"json": {"sql": "select 1 as a"}} if path.endswith("query") and method == "POST" else {}
        if path.endswith("perform"):
            body = {"content": DOCUMENT.format(statement("select 1 as a")), "headers": XML}
        answer = client.request(method, path.format(resource=policy) + query, **body)  # type: ignore[arg-type]
        assert answer.status_code == (200 if granted(policy, work, caller) else 403), (path, answer.text)
        assert refused(answer) is not granted(policy, work, caller)
    listed = {each["name"] for each in client.get("/resources").json()["resources"]}
    assert (policy in listed) is granted(policy, "read", caller)


@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.parametrize("policy", POLICIES)
def test_activities(clients: dict[str, httpx.Client], policy: str, caller: str) -> None:
    """Those that are granted are not run: their documents have an error, which is found later."""
    for name in ACTIVITIES:
        work = "write" if name in WRITE else "deliver" if name in DELIVER else "read"
        body = written(completed(name).replace("littleblackbook", "nowhere"))
        for query in ("", "?phase=PENDING") if work == "write" else ("",):
            if granted(policy, work, caller):
                continue
            answer = clients[caller].post(f"/resources/{policy}/perform{query}", content=body, headers=XML)
            assert refused(answer), (name, answer.text)
    if not granted(policy, "read", caller) or not granted(policy, "write", caller):
        return
    update = '<sqlUpdateStatement name="u"><expression>update numbers set s = s where i = 1</expression>'
    update += '<resultStream name="n"/></sqlUpdateStatement>'
    answer = clients[caller].post(f"/resources/{policy}/perform", content=DOCUMENT.format(update), headers=XML)
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.parametrize("policy", POLICIES)
def test_tables_of_a_query(clients: dict[str, httpx.Client], policy: str, caller: str) -> None:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.schema([("a", pa.int64())])) as writer:
        writer.write_table(pa.table({"a": [1, 2]}))
    tables = {"mine": base64.b64encode(sink.getvalue()).decode()}
    answer = clients[caller].post(
        f"/resources/{policy}/query", json={"sql": "select count(*) as n from mine", "tables": tables}
    )
    assert (answer.status_code == 200) is granted(policy, "load", caller), answer.text


def test_nothing_was_changed_by_those_who_may_not(clients: dict[str, httpx.Client], tmp_path: Path) -> None:
    update = '<sqlUpdateStatement name="u"><expression>update numbers set s = ?</expression>'
    update += '<sqlParameter position="1">forged</sqlParameter><resultStream name="n"/></sqlUpdateStatement>'
    for policy in POLICIES:
        for caller, client in clients.items():
            if granted(policy, "write", caller):
                continue
            answer = client.post(f"/resources/{policy}/perform", content=DOCUMENT.format(update), headers=XML)
            assert refused(answer)
            before_it = statement("select 1 as a", "q0", "r0") + update
            answer = client.post(f"/resources/{policy}/perform", content=DOCUMENT.format(before_it), headers=XML)
            assert refused(answer)
            for sql in ("update numbers set s = 'forged'", "insert into numbers values (-1, 'forged')"):
                answer = client.post(f"/resources/{policy}/query", json={"sql": sql})
                assert answer.status_code in (400, 403)
    reader = clients["alice"]
    for policy in POLICIES:
        if granted(policy, "read", "alice"):
            answer = reader.post(
                f"/resources/{policy}/query", json={"sql": "select count(*) as n from numbers where s = 'forged'"},
                headers={"Accept": "text/csv"},
            )  # fmt: skip
            assert answer.text.split() == ["n", "0"]


def test_limits_and_activities_of_a_resource(clients: dict[str, httpx.Client]) -> None:
    client = clients["alice"]
    many = client.post("/resources/limited/query", json={"sql": "select * from numbers limit 11"})
    assert (many.status_code, many.json()["limit"]) == (422, "limits.rows")
    assert client.post("/resources/limited/query", json={"sql": "select * from numbers limit 10"}).status_code == 200
    long = client.post("/resources/limited/query", json={"sql": f"select count(*) as n from ({ENDLESS})"})
    assert (long.status_code, long.json()["limit"]) == (422, "limits.seconds")
    for sql in ("select * from numbers limit 11", f"select count(*) as n from ({ENDLESS})"):
        job = client.post("/resources/limited/query", json={"sql": sql}, headers={"Prefer": "respond-async"})
        until(lambda job=job: client.get(job.headers["location"]).json()["phase"] == "ERROR")  # type: ignore[misc]
        assert client.get(job.headers["location"]).json()["error"]["type"] == "limit-exceeded"
    echo = '<Echo name="e"><input>x</input><output name="o"/></Echo>'
    answer = client.post("/resources/limited/perform", content=DOCUMENT.format(echo), headers=XML)
    assert answer.status_code == 403
    assert "sqlQueryStatement" in answer.text


def test_statistics_are_for_those_who_may_query_or_are_named(clients: dict[str, httpx.Client]) -> None:
    """They have values of the table: where no query may run, nobody sees them unless the policy says so."""
    for name, who in (("limited", {"alice", "bob", ""}), ("echo", set()), ("seen", {"alice"})):
        for caller in ("alice", "bob", ""):
            answer = clients[caller].get(f"/resources/{name}/statistics?table=numbers")
            assert answer.status_code == (200 if caller in who else 403), (name, caller, answer.text)
            assert refused(answer) is (caller not in who)
            assert clients[caller].get(f"/resources/{name}/schema").status_code == 200


def test_jobs_of_a_resource(clients: dict[str, httpx.Client]) -> None:
    """Those that wait to be run do not count; who must wait keeps what there was."""
    client, path = clients["alice"], "/resources/few/query"
    endless = {"sql": f"select count(*) as n from ({ENDLESS})"}
    runs = client.post(path, json=endless, headers={"Prefer": "respond-async"}).headers["location"]
    waits = client.post(f"{path}?phase=PENDING", json={"sql": "select 7 as a"}).headers["location"]
    before = len(client.get("/jobs").json()["jobs"])
    for answer in (
        client.post(path, json={"sql": "select 1 as a"}, headers={"Prefer": "respond-async"}),
        client.post(f"{waits}/phase", data={"PHASE": "RUN"}),
    ):
        assert (answer.status_code, answer.json()["type"]) == (503, "busy")
        assert "policy.jobs" in answer.text
        assert answer.headers["retry-after"] == "30"
    assert client.get(waits).json()["phase"] == "PENDING"
    assert len(client.get("/jobs").json()["jobs"]) == before
    assert client.post(path, json={"sql": "select 1 as a"}).status_code == 200
    client.delete(runs)
    assert client.post(f"{waits}/phase", data={"PHASE": "RUN"}).status_code == 200
    until(lambda: client.get(waits).json()["phase"] == "COMPLETED")


def test_federations(clients: dict[str, httpx.Client]) -> None:
    """They read their sources by their own right, and load tables for those who may."""
    load = (
        '<inputStream name="in"><toLocal name="data"/></inputStream>'
        '<sqlBulkLoadRowSet name="load"><webRowSetStream from="data"/><loadIntoTable tableName="t"/>'
        '<resultStream name="n"/></sqlBulkLoadRowSet>'
    )
    for name, who in (("unsaid-federation", {"alice", "bob", ""}), ("loading", {"alice"})):
        for caller in ("alice", "bob", ""):
            rows = clients[caller].post(
                f"/resources/{name}/query", json={"sql": "select count(*) as n from a.numbers"},
                headers={"Accept": "text/csv"},
            )  # fmt: skip
            assert rows.text.split() == ["n", "30000"], rows.text
            session = clients[caller].post("/sessions", json={}).json()["id"]
            answer = clients[caller].post(
                f"/resources/{name}/perform?session={session}&phase=PENDING",
                content=DOCUMENT.format(load), headers=XML,
            )  # fmt: skip
            assert refused(answer) is (caller not in who), answer.text


def test_a_job_that_waits_is_checked_when_it_is_run(tmp_path: Path, book: str) -> None:
    """The policy changed meanwhile; a service that is started again knows its jobs."""
    shutil.copy(book.removeprefix("sqlite:///"), tmp_path / "own.db")
    update = '<sqlUpdateStatement name="u"><expression>delete from numbers</expression><resultStream name="n"/>'
    update = DOCUMENT.format(update + "</sqlUpdateStatement>")
    token, stored = new("alice", 3600)
    headers = {"Authorization": f"Bearer {token}"}
    jobs = []
    for policy, expected in (({"write": ["*"]}, 200), ({}, 403), ({"read": []}, 403)):
        resources = {"own": {"url": f"sqlite:///{tmp_path / 'own.db'}", "policy": policy}}
        with (
            background(configured(tmp_path, resources, identity={"methods": ["token"]})) as running,
            httpx.Client(base_url=running.url, headers=headers, timeout=60) as alice,
        ):
            if not jobs:
                running.service.store.add_token(stored)
                for _ in range(3):
                    made = alice.post("/resources/own/perform?phase=PENDING", content=update, headers=XML)
                    jobs.append(made.headers["location"])
            answer = alice.post(f"{jobs.pop()}/phase", data={"PHASE": "RUN" if expected != 200 else "ABORT"})
            assert answer.status_code == expected, answer.text
    with closing(sqlite3.connect(tmp_path / "own.db")) as connection:
        assert connection.execute("select count(*) from numbers").fetchone() == (30_000,)


def test_a_token_for_one_resource_reaches_nothing_of_another(tmp_path: Path, book: str) -> None:
    """Though it has the name of who made it: jobs, results, sessions, streams."""
    resources = {"book": {"url": book}, "other": {"url": book}}
    with background(configured(tmp_path, resources, identity={"methods": ["token"]})) as running:
        clients = []
        for allowed in ((), ("other",), ("book",)):
            token, stored = new("alice", 3600, resources=allowed)
            running.service.store.add_token(stored)
            headers = {"Authorization": f"Bearer {token}"}
            clients.append(httpx.Client(base_url=running.url, headers=headers, timeout=60))
        all_of_it, other, of_book = clients
        session = all_of_it.post("/sessions", json={}).headers["location"]
        body = DOCUMENT.format(
            statement("select 1 as a") + '<outputStream name="o"><fromLocal from="rows"/></outputStream>'
        )
        path = f"/resources/book/perform?session={session.rpartition('/')[2]}"
        job = all_of_it.post(path, content=body, headers=XML).headers["location"]
        done = all_of_it.post(
            "/resources/book/query", json={"sql": "select 2 as b"}, headers={"Prefer": "respond-async"}
        )
        result = done.headers["location"]
        until(lambda: all_of_it.get(result).json()["phase"] == "COMPLETED")
        for path in (job, result, f"{result}/outputs/result", session, f"{session}/streams/o/blocks/0?wait=0"):
            assert other.get(path).status_code == 404, path
            assert of_book.get(path).is_success, path
        assert other.get("/jobs").json()["jobs"] == []
        assert len(of_book.get("/jobs").json()["jobs"]) == 2
        assert other.delete(result).status_code == other.delete(session).status_code == 404
        assert all_of_it.get(result).is_success
        for each in clients:
            each.close()


def test_what_no_grant_could_change_says_so_itself(tmp_path: Path) -> None:
    """Files are read: whoever is told to ask for the right to write would be refused again with it."""
    (tmp_path / "birds.csv").write_text("i,s\n1,wren\n")
    answers = []
    for policy in (None, {"write": ["anonymous"]}):
        config = configured(tmp_path, {"birds": {"files": "birds.csv"}}, policy=policy)
        with background(config) as running, httpx.Client(base_url=running.url, timeout=60) as client:
            for name in ("sqlUpdateStatement", "sqlBag", "sqlBulkLoadRowSet", "relationalResourceManagement"):
                document = completed(name).replace("littleblackbook", "birds").replace("id", "i")
                answer = client.post("/resources/birds/perform", content=DOCUMENT.format(document), headers=XML)
                assert "read-only" in answer.text, answer.text
                assert "--write" not in answer.text
                answers.append((name, answer.status_code))
            document = completed("deliverToResourceProperty").replace("littleblackbook", "birds").replace("id", "i")
            answer = client.post("/resources/birds/perform", content=DOCUMENT.format(document), headers=XML)
            assert (answer.status_code == 403) is (policy is None), answer.text
    assert answers[:4] == answers[4:]
    assert (tmp_path / "birds.csv").read_text() == "i,s\n1,wren\n"


@pytest.mark.parametrize("granted", [None, {}, {"write": ["*"]}, {"write": ["anonymous"]}], ids=str)
def test_writing_is_granted_also_where_nobody_is_identified(tmp_path: Path, granted: dict[str, object] | None) -> None:
    """By ``[policy]``, for what has no policy of its own. Nothing changes otherwise, and the error says what to do."""
    resources = {}
    for name, policy in (("unsaid", None), ("closed", {"write": ["*"]}), ("open", {"write": ["anonymous"]})):
        with closing(sqlite3.connect(tmp_path / f"{name}.db")) as connection:
            connection.execute("create table t (i integer)")
        resources[name] = {"url": f"sqlite:///{name}.db"} | ({"policy": policy} if policy is not None else {})
    federations = {"lab": {"sources": [{"alias": "a", "resource": "open"}]}}
    update, create = (
        f'<{element} name="u">{content}<resultStream name="r"/></{element}>'
        for element, content in (
            ("sqlUpdateStatement", "<expression>insert into t values (1)</expression>"),
            (
                "relationalResourceManagement",
                '<createTable tableName="n"><column name="a" type="integer"/></createTable>',
            ),
        )
    )
    config = configured(tmp_path, resources, federations=federations, policy=granted)
    with background(config) as running, httpx.Client(base_url=running.url, timeout=60) as client:
        for name in resources:
            may = name == "open" or (name == "unsaid" and granted == {"write": ["anonymous"]})
            for change in (update, create):
                answer = client.post(f"/resources/{name}/perform", content=DOCUMENT.format(change), headers=XML)
                assert answer.status_code == (200 if may else 403), answer.text
                assert may or "dai serve --write" in answer.text
            with closing(sqlite3.connect(tmp_path / f"{name}.db")) as connection:
                assert connection.execute("select count(*) from t").fetchone() == (int(may),)
                assert bool(connection.execute("select * from sqlite_master where name = 'n'").fetchall()) is may
        for change in (update, create):
            answer = client.post("/resources/lab/perform", content=DOCUMENT.format(change), headers=XML)
            assert answer.status_code not in (403, 500), answer.text
            assert "only" in answer.text
        policy = running.service.resources["unsaid"].policy
        for work in ("read", "load", "statistics", "deliver"):
            policy.check(work, ANONYMOUS, work)


@pytest.mark.parametrize(
    ("who", "caller", "expected"),
    [
        ((), Caller("a"), False),
        (("a",), Caller("a"), True),
        (("a",), Caller("A"), False),
        (("",), ANONYMOUS, False),
        (("*",), ANONYMOUS, False),
        (("anonymous",), Caller("anonymous"), False),
        (("group:",), Caller("a", groups=frozenset({""})), False),
        (("group:g",), Caller("group:g"), False),
        (("group:g",), Caller("a", groups=frozenset({"g"})), True),
        (("g",), Caller("a", groups=frozenset({"g"})), False),
        (("group:g",), Caller("", groups=frozenset({"g"})), False),
    ],
)
def test_who_is_meant(who: tuple[str, ...], caller: Caller, expected: bool) -> None:
    assert matches(who, caller) is expected


@pytest.mark.parametrize(
    "policy",
    [{"read": [""]}, {"read": [1]}, {"reads": ["a"]}, {"read": "a"}, {"rows": -1}, {"activities": ["sqlQuery"]}, 3],
)
def test_policies_that_cannot_be(tmp_path: Path, book: str, policy: object) -> None:
    with pytest.raises(ConfigurationError):
        Resources(configured(tmp_path, {"a": {"url": book, "policy": policy}})).close()


def test_what_stands_in_place_of_the_services_own() -> None:
    config = parse({"delivery": {"urls": ["https://a.example/"], "bytes": 5}, "limits": {"rows": 3}}, ".", {})
    policy = PolicyConfig(urls=("https://b.example/",), directory=Path("/b"), bytes=7)
    narrow = narrowed(config, policy)
    assert (narrow.delivery.urls, narrow.delivery.directory) == (("https://b.example/",), Path("/b"))
    assert (narrow.delivery.bytes, narrow.limits.rows, narrow.limits.bytes) == (5, 3, 7)
    assert narrowed(Config(), None) == Config()
