"""Role maps: callers are users of the database, who see what the database shows them and nothing of each other."""

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

import dqp  # noqa: F401 - federations
from dai.__main__ import main
from dai.api.scheduling.turns import Small
from dai.drivers import driver_for
from dai.errors import DeniedError
from dai.perform.activity import ACTIVITIES
from dai.security.identity import Caller
from dai.service import resources as resources_module
from dai.service.state.store import Store
from dai.streams.cancellation import Cancellation
from tests.activities.test_conformance import completed
from tests.api.conftest import DOCUMENT, XML, statement
from tests.api.role_maps import CALLERS, ENVIRONMENT, SECRETS, Lab, config, served
from tests.api.test_policies import PATHS
from tests.documents import written
from tests.drivers.statements import table, update
from tests.processes import until

USERS = {"alice": "alice_db", "bob": "staff_db", "": "guest_db"}
SETUP = {
    "postgresql": (
        *(f"CREATE ROLE {user} LOGIN PASSWORD '{secret}'" for user, secret in SECRETS.items()),
        "CREATE TABLE notes (owner text, body text)",
        "ALTER TABLE notes ENABLE ROW LEVEL SECURITY",
        "CREATE POLICY own ON notes USING (owner = current_user)",
        "CREATE TABLE alices (n integer, secret text)",
        "INSERT INTO alices SELECT i, 'known to alice' FROM generate_series(1, 20000) i",
        "GRANT SELECT, INSERT, UPDATE ON notes TO alice_db, staff_db, guest_db",
        "GRANT SELECT ON alices TO alice_db",
        "ANALYZE",
    ),
    "mariadb": (
        *(f"CREATE USER {user} IDENTIFIED BY '{secret}'" for user, secret in SECRETS.items()),
        "CREATE TABLE of_all (owner varchar(100), body text)",
        "CREATE VIEW notes AS SELECT owner, body FROM of_all WHERE owner = SUBSTRING_INDEX(USER(), '@', 1)",
        "CREATE TABLE alices (n integer, secret text)",
        "INSERT INTO alices SELECT seq, 'known to alice' FROM seq_1_to_20000",
        *(f"GRANT SELECT, INSERT, UPDATE ON notes TO {user}" for user in ("alice_db", "staff_db", "guest_db")),
        "GRANT SELECT ON alices TO alice_db",
    ),
}
OF_ALL = {"postgresql": "notes", "mariadb": "of_all"}
WHO = {"postgresql": "select current_user as who", "mariadb": "select substring_index(user(), '@', 1) as who"}
DATABASES = [pytest.param("postgresql", marks=pytest.mark.server), pytest.param("mariadb", marks=pytest.mark.server)]


@pytest.fixture(scope="module")
def databases(postgres_module_url: str, mariadb_module_url: str) -> Iterator[dict[str, str]]:
    """URLs of databases with users of their own."""
    made = {"postgresql": postgres_module_url, "mariadb": mariadb_module_url}
    for kind, url in made.items():
        with closing(driver_for(url)) as driver:
            for sql in SETUP[kind]:
                update(driver, sql)
            for user in USERS.values():
                update(driver, f"INSERT INTO {OF_ALL[kind]} VALUES ('{user}', 'of {user}')")
    yield made
    for kind, url in made.items():
        with closing(driver_for(url)) as driver:
            for user in SECRETS:
                if kind == "postgresql":
                    update(driver, f"DROP OWNED BY {user}")
                update(driver, f"DROP {'ROLE' if kind == 'postgresql' else 'USER'} {user}")


@pytest.fixture(scope="module")
def labs(databases: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Lab]]:
    made: dict[str, Lab] = {}
    with ExitStack() as stack:

        def of(kind: str) -> Lab:
            if kind not in made:
                made[kind] = served(stack, kind, tmp_path_factory.mktemp(kind), databases[kind])
            return made[kind]

        yield of


@pytest.fixture(params=DATABASES)
def lab(request: pytest.FixtureRequest, labs: Callable[[str], Lab]) -> Lab:
    return labs(request.param)


@pytest.fixture(params=DATABASES)
def own(request: pytest.FixtureRequest, databases: dict[str, str], tmp_path: Path) -> Iterator[Callable[..., Lab]]:
    """Starts a service of the test's own, whose map it may change."""
    with ExitStack() as stack:
        yield lambda **more: served(stack, request.param, tmp_path, databases[request.param], **more)


# --- who sees what


@pytest.mark.parametrize("who", USERS)
def test_each_caller_sees_the_rows_of_a_database_user(lab: Lab, who: str) -> None:
    assert lab.csv(who, "select body from notes") == [f"of {USERS[who]}"]
    assert lab.csv(who, WHO[lab.kind]) == [USERS[who]]


def test_whoever_is_in_no_entry_is_refused_everywhere(lab: Lab) -> None:
    """Also where the policy lets her in."""
    documents = [
        DOCUMENT.format(statement("select 1 as a")),
        *(written(completed(name)) for name in sorted(ACTIVITIES)),
    ]
    with lab.client("carol") as carol:
        for method, path in PATHS:
            body: dict[str, Any] = {"json": {"sql": "select 1 as a"}} if path.endswith("query") else {}
            if path.endswith("perform"):
                body = {"content": documents[0], "headers": XML}
            if path.endswith("statistics"):
                body = {"params": {"table": "notes"}}
            answer = carol.request(method, path.format(resource="notes"), **body)
            assert (answer.status_code, answer.json()["type"]) == (403, "denied"), path
            assert "role map" in answer.json()["hint"]
        for document in documents:
            answer = carol.post("/resources/notes/perform?phase=PENDING", content=document, headers=XML)
            assert answer.status_code == 403, answer.text
        assert [each["name"] for each in carol.get("/resources").json()["resources"]] == ["all"]
    with lab.client("alice") as alice:
        assert {each["name"] for each in alice.get("/resources").json()["resources"]} == {"all", "notes"}


def test_writing_is_the_database_users_too(lab: Lab) -> None:
    body = '<sqlUpdateStatement name="u"><expression>insert into notes values (?, ?)</expression>'
    body += '<sqlParameter position="1">{}</sqlParameter><sqlParameter position="2">forged</sqlParameter>'
    body += '<resultStream name="n"/></sqlUpdateStatement>'
    with lab.client("bob") as bob:
        for table in ("alices", "nowhere"):
            document = DOCUMENT.format(body.format("staff_db").replace("into notes", f"into {table}"))
            assert bob.post("/resources/notes/perform", content=document, headers=XML).status_code == 400
        if lab.kind == "postgresql":  # row level security
            answer = bob.post("/resources/notes/perform", content=DOCUMENT.format(body.format("alice_db")), headers=XML)
            assert answer.status_code == 400
    assert lab.csv("alice", "select body from notes") == ["of alice_db"]


def test_a_federation_reads_by_its_own_right(lab: Lab) -> None:
    sql = f"select count(*) as n from here.{OF_ALL[lab.kind]}"
    for who in ("alice", "carol"):
        with lab.client(who) as client:
            answer = client.post("/resources/all/query", json={"sql": sql}, headers={"Accept": "text/csv"})
        assert answer.text.split() == ["n", "3"], answer.text


# --- what is kept of a resource


def test_nothing_that_is_kept_shows_another_users(lab: Lab) -> None:
    """Schema, statistics, descriptions of statements, small and large: asked by who may see it, then by who may not."""
    with lab.client("alice") as alice, lab.client("bob") as bob:
        for sql in (
            "select n, secret from alices where n = 7",
            "select n, secret from alices",
            "select max(n) from alices",
        ):
            for _ in range(2):
                assert alice.post("/resources/notes/query", json={"sql": sql}).status_code == 200
                refused = bob.post("/resources/notes/query", json={"sql": sql})
                assert refused.status_code == 400, refused.text
                assert "known to alice" not in refused.text
        for _ in range(2):
            hers = alice.get("/resources/notes/statistics?table=alices").json()
            his = bob.get("/resources/notes/statistics?table=alices")
            if lab.kind == "postgresql":
                assert hers["columns"]["secret"]["distinct"] == 1
            assert hers["rows"] > 1000
            assert his.status_code in (400, 404) or his.json()["columns"].get("secret", {}).get("distinct") is None
        schemas = [client.get("/resources/notes/schema") for client in (alice, bob, alice, bob)]
        assert [each.status_code for each in schemas] == [200] * 4
        names = [{table["name"] for table in each.json()["tables"]} for each in schemas]
        assert names[:2] == names[2:]
        if lab.kind == "mariadb":  # PostgreSQL shows its catalog to everybody
            assert names[:2] == [{"alices", "notes"}, {"notes"}]
            assert schemas[0].headers["etag"] != schemas[1].headers["etag"]


def test_what_a_statement_was_like_is_learnt_for_each_user(lab: Lab) -> None:
    sql = "select n from alices where n = 1"
    small = lab.running.service.small

    def learnt() -> bool:
        """A statement that took long on a busy machine is not small."""
        lab.csv("alice", sql)
        return Small.key(("notes", "alice_db"), sql.encode()) in small

    until(learnt)
    assert Small.key(("notes", "staff_db"), sql.encode()) not in small


def test_what_is_published_is_everybodys(lab: Lab) -> None:
    publish = statement("select 'for all' as a") + (
        '<sqlResultsToCSV name="c"><resultSet from="rows"/><csv name="text"/></sqlResultsToCSV>'
        '<deliverToResourceProperty name="d"><input from="text"/><resourceProperty name="news"/>'
        "</deliverToResourceProperty>"
    )
    with lab.client("alice") as alice, lab.client("bob") as bob:
        answer = alice.post("/resources/notes/perform", content=DOCUMENT.format(publish), headers=XML)
        assert answer.status_code == 202, answer.text
        until(lambda: "for all" in bob.get("/resources/notes").json()["published"].get("news", ""))


# --- jobs


def pending(client: httpx.Client, sql: str = "select body from notes") -> str:
    made = client.post("/resources/notes/query?phase=PENDING", json={"sql": sql})
    assert made.status_code == 202, made.text
    return str(made.headers["location"])


def run(client: httpx.Client, job: str) -> httpx.Response:
    return client.post(f"{job}/phase", data={"PHASE": "RUN"})


def result(client: httpx.Client, job: str) -> str:
    until(lambda: client.get(job).json()["phase"] not in ("QUEUED", "EXECUTING"))
    assert client.get(job).json()["phase"] == "COMPLETED", client.get(job).text
    return client.get(f"{job}/outputs/result", headers={"Accept": "text/csv"}).text


def test_a_job_runs_as_its_makers_user(lab: Lab) -> None:
    with lab.client("alice") as alice, lab.client("bob") as bob, lab.client("root") as root:
        for client, user in ((alice, "alice_db"), (bob, "staff_db")):
            made = client.post(
                "/resources/notes/query", json={"sql": "select body from notes"}, headers={"Prefer": "respond-async"}
            )
            assert result(client, made.headers["location"]).splitlines()[1] == f"of {user}"
        waits = pending(bob)
        assert run(alice, waits).status_code == 404
        assert run(root, waits).status_code == 200
        assert result(bob, waits).splitlines()[1] == "of staff_db"
    id = waits.rpartition("/")[2]
    until(lambda: any(each["event"] == "job" and each["job"] == id for each in lab.records()))
    (ended,) = [each for each in lab.records() if each["event"] == "job" and each["job"] == id]
    assert (ended["caller"], ended["database_user"]) == ("bob", "staff_db")


@pytest.mark.server
def test_a_job_runs_as_its_makers_user_after_a_restart(databases: dict[str, str], tmp_path: Path) -> None:
    jobs = {}
    with ExitStack() as stack:
        first = served(stack, "postgresql", tmp_path, databases["postgresql"])
        for who in ("alice", "bob"):
            with first.client(who) as client:
                jobs[who] = pending(client), pending(client)
    with ExitStack() as stack:
        again = served(stack, "postgresql", tmp_path, databases["postgresql"])
        with again.client("alice") as alice, again.client("bob") as bob, again.client("root") as root:
            for client, who in ((alice, "alice"), (bob, "bob")):
                for runs, job in zip((client, root), jobs[who], strict=True):
                    assert run(runs, job).status_code == 200
                    assert result(client, job).splitlines()[1] == f"of {USERS[who]}"


def test_a_job_that_waits_gains_and_keeps_no_rights(own: Callable[..., Lab]) -> None:
    """Its maker has another user by now, or the map has that user no more."""
    lab = own()
    with lab.client("alice") as alice, lab.client("bob") as bob, lab.client("root") as root:
        hers, his = pending(alice), pending(bob)
        changed(lab, lambda text: text.replace("alice_db", "guest_db").replace("ALICE_DB", "GUEST_DB"))
        assert run(alice, hers).status_code == 403
        assert run(root, hers).status_code == 403
        assert "role map" in run(root, hers).text
        assert alice.get(hers).json()["phase"] == "PENDING"
        changed(lab, lambda text: text.replace("group:staff", "group:others"))
        assert run(bob, his).status_code == 403
        assert lab.csv("alice", "select body from notes") == ["of guest_db"]


def test_a_job_in_the_queue_is_refused_when_its_user_is_gone(lab: Lab) -> None:
    service = lab.running.service
    with pytest.raises(DeniedError, match="no longer"):
        service.resources.named("notes").by("former_db")
    for nobody in (None, ""):
        with pytest.raises(DeniedError):
            service.resources.named("notes").by(nobody)


def test_a_state_database_of_before_is_used_on(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'state.db'}"
    Store(url, "here").close()
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE dai_jobs DROP COLUMN database_user")
    engine.dispose()
    with closing(Store(url, "here")) as store:
        assert store.listed() == []


# --- changes of the map


def changed(lab: Lab, change: Callable[[str], str]) -> None:
    """As an operator does, and what the service does within a second."""
    before = lab.map.stat()
    lab.map.write_text(change(lab.map.read_text()))
    os.utime(lab.map, ns=(before.st_atime_ns, before.st_mtime_ns + 1_000_000))
    lab.running.service.resources.tidy()


def test_the_map_is_read_again_when_it_changes(own: Callable[..., Lab], caplog: pytest.LogCaptureFixture) -> None:
    lab = own()
    assert lab.csv("bob", "select body from notes") == ["of staff_db"]
    changed(lab, lambda text: text.replace("group:staff", "carol"))
    with lab.client("bob") as bob:
        assert bob.post("/resources/notes/query", json={"sql": "select 1 as a"}).status_code == 403
    assert lab.csv("carol", "select body from notes") == ["of staff_db"]
    right = lab.map.read_text()
    for wrong in (
        "<",
        right.replace("caller =", "callers =").replace("dn=", "name="),
        right.replace("OF_", "NOT_"),
    ):
        changed(lab, lambda _, wrong=wrong: wrong)  # type: ignore[misc]
        assert lab.csv("carol", "select body from notes") == ["of staff_db"]
        assert "the former one stays" in caplog.text
        caplog.clear()
    changed(lab, lambda _: right.replace("notes", "other"))
    with lab.client("carol") as carol:
        assert carol.get("/resources/notes").status_code == 403


def test_what_a_former_user_runs_is_stopped(own: Callable[..., Lab]) -> None:
    lab = own()
    running = {
        "postgresql": "select 1 as a from pg_stat_activity where usename = 'alice_db' and state = 'active'",
        "mariadb": "select 1 as a from information_schema.processlist where user = 'alice_db' and info is not null",
    }[lab.kind]
    endless = "select count(*) as n from alices a, alices b, alices c where a.n + b.n + c.n < 0"
    with lab.client("alice") as alice, lab.client("root") as root, closing(driver_for(lab.url)) as driver:
        job = alice.post("/resources/notes/query", json={"sql": endless}, headers={"Prefer": "respond-async"})
        until(lambda: table(driver, running).num_rows == 1)
        changed(lab, lambda text: text.replace('"alice"', '"nobody-else"').replace("alice_db", "guest_db")
                .replace("ALICE_DB", "GUEST_DB"))  # fmt: skip
        until(lambda: root.get(job.headers["location"]).json()["phase"] == "ERROR")
        until(lambda: table(driver, running).num_rows == 0)


def test_a_password_in_a_file_may_change(own: Callable[..., Lab]) -> None:
    """New connections have the new one; those with the former are closed."""
    lab = own()
    assert lab.csv("bob", "select body from notes") == ["of staff_db"]
    (lab.directory / "staff.secret").write_text("wrong")
    lab.running.service.resources.tidy()
    with lab.client("bob") as bob:
        answer = bob.post("/resources/notes/query", json={"sql": "select 1 as a"})
        assert (answer.status_code, answer.json()["type"]) == (503, "database-unavailable")
        assert answer.json()["detail"] == "The database refused the user name or the password.", "not that of the URL"
        assert bob.get("/resources/notes").json()["available"] is False
        assert "wrong" not in answer.text
    assert lab.csv("alice", "select body from notes") == ["of alice_db"]
    (lab.directory / "staff.secret").write_text(SECRETS["staff_db"])
    lab.running.service.resources.tidy()
    assert lab.csv("bob", "select body from notes") == ["of staff_db"]


# --- connections


def test_connections_are_bounded_in_sum_and_none_has_all(own: Callable[..., Lab]) -> None:
    lab = own(pool_size=4, pool_wait=0.2)
    with ExitStack() as stack:
        open_ones = []
        for who, allowed in (("alice", 2), ("bob", 2)):
            user = lab.running.service.resources.named("notes").of(Caller(who, groups=frozenset(CALLERS[who])))
            for _ in range(allowed):
                sql = "select n, secret from alices" if who == "alice" else "select body from notes"
                open_ones.append(
                    stack.enter_context(user.driver.transaction(cancellation=Cancellation(), read_only=True))
                )
                open_ones[-1].query(sql).close()
            with lab.client(who) as client:
                busy = client.post("/resources/notes/query", json={"sql": "select 1 as a"})
                assert (busy.status_code, busy.json()["type"]) == (503, "busy"), who
        state = lab.running.service.resources["notes"].driver.pool_state()
        assert (state["open"], state["limit"]) == (4, 4)
        with lab.client("") as anonymous:
            assert anonymous.post("/resources/notes/query", json={"sql": "select 1 as a"}).status_code == 503
    for who in ("alice", "bob", ""):  # what lies idle makes room
        assert lab.csv(who, "select 1 as a") == ["1"]
    assert lab.running.service.resources["notes"].driver.pool_state()["open"] <= 4


def test_connections_that_nobody_uses_are_closed(own: Callable[..., Lab], monkeypatch: pytest.MonkeyPatch) -> None:
    lab = own()
    for who in USERS:
        lab.csv(who, "select 1 as a")
    resource = lab.running.service.resources["notes"]
    assert resource.driver.pool_state()["open"] >= 3
    lab.running.service.resources.tidy()
    assert resource.driver.pool_state()["open"] >= 3
    monkeypatch.setattr(resources_module, "IDLE_SECONDS", -1.0)
    until(lambda: resource.driver.pool_state()["open"] == 0)
    assert lab.csv("bob", "select 1 as a") == ["1"]


# --- records and secrets


def test_the_audit_names_the_user_and_nothing_shows_a_password(
    own: Callable[..., Lab], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    lab = own()
    told = []
    for who in CALLERS:
        with lab.client(who) as client:
            for path in ("", "/schema", "/statistics?table=notes", "/statistics?table=nowhere", "/alive"):
                told.append(client.get(f"/resources/notes{path}"))
            for sql in ("select body from notes", "select nothing", WHO[lab.kind], "select * from alices"):
                told.append(client.post("/resources/notes/query", json={"sql": sql}))
            told += [client.get(path) for path in ("/resources", "/metrics", "/jobs", "/health/ready", "/openapi.json")]
    until(lambda: len([each for each in lab.records() if each.get("caller") == "root"]) >= 8)
    users = {
        (each.get("caller"), each.get("database_user"))
        for each in lab.records()
        if each["route"] in ("/resources/{resource}/query", "/resources/{resource}/schema")
    }
    assert users == {("alice", "alice_db"), ("bob", "staff_db"), (None, "guest_db"), ("carol", None), ("root", None)}
    resource = lab.running.service.resources["notes"]
    texts = [caplog.text, *(repr(vars(each)) for each in caplog.records), repr(vars(resource)), repr(resource.config)]
    texts += [repr(vars(resource.users)), repr(resource.users and resource.users.map.users)]
    texts += [text for each in told for text in (each.text, repr(each.headers))]
    texts += [path.read_bytes().decode("latin-1") for path in lab.directory.rglob("*") if path.name != "staff.secret"
              and path.is_file()]  # fmt: skip
    for secret in SECRETS.values():
        assert not [text for text in texts if secret in text]


@pytest.mark.parametrize("kind", DATABASES)
def test_check_config(
    databases: dict[str, str], kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    for name, secret in ENVIRONMENT.items():
        monkeypatch.setenv(name, secret)
    config(kind, tmp_path, databases[kind])
    name = "roles.xml" if kind == "postgresql" else "roles.toml"
    file = tmp_path / "dai.toml"

    def said(status: int, resource: str = "notes") -> str:
        file.write_text(f'[resources.{resource}]\nurl = "{databases[kind]}"\nroles = "{name}"\n')
        assert main(["check-config", str(file)]) == status
        told = "".join(capsys.readouterr())
        assert not [secret for secret in (*SECRETS.values(), "wrong-Zx9") if secret in told]
        return told

    told = said(0)
    for user in USERS.values():
        assert f"notes as {user}: " in told
    assert "resources.notes.roles.alice_db.password: from the environment variable OF_ALICE_DB" in told
    assert "resources.notes.roles.staff_db.password: from the file staff.secret" in told
    assert "all_db" not in told
    (tmp_path / "staff.secret").write_text("wrong-Zx9")
    assert "notes as staff_db: " in said(1)
    assert "no entry" in said(1, "unsaid")
    (tmp_path / "staff.secret").unlink()
    assert "staff.secret" in said(2)
