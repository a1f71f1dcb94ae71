"""SQLAlchemy's engines by the URLs of services and of federations, and what is said of wrong ones."""

import sqlite3
from decimal import Decimal
from pathlib import Path

import pandas as pd
import psycopg
import pytest
import sqlalchemy as sa

from dai import dbapi
from dai.api.server.serve import background
from dai.client.sqlalchemy.served import address
from dai.client.testing import ScriptedServer
from dai.config import parse
from tests.client.conftest import databases  # noqa: F401 - a fixture
from tests.client.replies import problem, said

pytestmark = pytest.mark.server


def test_a_federation_in_this_process(tmp_path: Path, postgres_url: str) -> None:
    with psycopg.connect(postgres_url) as connection:
        connection.execute("create table t (id integer primary key, n numeric(5,2))")
        connection.execute("insert into t values (1, 1.5)")
    (tmp_path / "federation.toml").write_text(f'[[sources]]\nalias = "pg"\ndatabase = "{postgres_url}"\n')
    made = sa.create_engine(f"dai+lab:///{tmp_path}/federation.toml")
    try:
        table = sa.Table("t", sa.MetaData(), autoload_with=made, schema="pg")
        with made.connect() as connection:
            assert connection.execute(sa.select(table).where(table.c.id == 1)).all() == [(1, Decimal("1.50"))]
            for name in sa.inspect(made).get_table_names("pg"):
                assert pd.read_sql_table(name, connection, "pg")["id"].to_list() == [1]
            with pytest.raises(sa.exc.NotSupportedError, match="read-only"):
                connection.execute(table.insert(), {"id": 3})
    finally:
        made.dispose()


def test_connections_of_an_engine_share_a_federation_in_this_process(tmp_path: Path, postgres_url: str) -> None:
    (tmp_path / "federation.toml").write_text(f'[[sources]]\nalias = "pg"\ndatabase = "{postgres_url}"\n')
    made = sa.create_engine(f"dqp:///{tmp_path}/federation.toml")
    with made.connect() as first, made.connect() as second:
        federations = {each.connection.dbapi_connection.source._federation for each in (first, second)}
        assert len(federations) == 1
        assert first.execute(sa.text("select 1")).scalar() == second.execute(sa.text("select 1")).scalar() == 1
    made.dispose()
    with made.connect() as connection:
        assert connection.connection.dbapi_connection.source._federation not in federations
        assert connection.execute(sa.text("select 2")).scalar() == 2
    made.dispose()


def test_a_federation_whose_sources_are_in_the_url(tmp_path: Path) -> None:
    for name, value in (("field", "a"), ("lab", "b")):
        with sqlite3.connect(tmp_path / f"{name}.db") as connection:
            connection.execute("create table t (id integer, name text)")
            connection.execute("insert into t values (1, ?)", (value,))
        connection.close()
    served_lab = {"service": {"port": 0, "state": "sqlite://"}, "resources": {"lab": {"url": "sqlite:///lab.db"}}}
    with background(parse(served_lab, tmp_path, {})) as service:
        made = sa.create_engine(f"dai+lab:///?field={tmp_path}/field.db&lab={service.url}/lab")
        joined = "select a.name || b.name as both from field.t a join lab.t b on b.id = a.id"
        assert pd.read_sql(sa.text(joined), made)["both"].to_list() == ["ab"]
        made.dispose()


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("dai+lab://federation.toml", "dai+lab:///federation.toml"),
        ("dai+lab://me:sesame@host/lab", "dai://host:8080/NAME"),
        ("dai+lab://", "dai+lab:///federation.toml, or sources"),
        ("dai+lab://?a=postgresql://me:sesame@h/x", "dai+lab:///?ALIAS=ADDRESS"),
        ("dai+lab:///?a=x.db&a=y.db", "names the source 'a' twice"),
        ("dai+lab:///?a=postgresql://me:sesame@h/x", 'password = "env:NAME"'),
    ],
)
def test_urls_of_federations_that_are_wrong(url: str, says: str) -> None:
    with pytest.raises(sa.exc.ArgumentError) as caught:
        sa.create_engine(url)
    assert says in str(caught.value)
    assert "sesame" not in str(caught.value)


def test_no_engine_while_the_database_is_away() -> None:
    """Its version decides what SQL is compiled."""
    described = said({"name": "book", "dialect": "postgres", "product": None})
    with ScriptedServer(described) as server:
        made = sa.create_engine(server.url.replace("http", "dai") + "/book")
        with pytest.raises(sa.exc.OperationalError, match="cannot reach its database"):
            made.connect()


@pytest.mark.parametrize(
    ("url", "wanted"),
    [
        ("dai://h/book", "http://h:8080/book"),
        ("dai://h:81/book", "http://h:81/book"),
        ("dai+https://h/book", "https://h/book"),
        ("dai+https://h:8443/a/resources/book", "https://h:8443/a/resources/book"),
        ("dai://[::1]:81/book", "http://[::1]:81/book"),
    ],
)
def test_addresses(url: str, wanted: str) -> None:
    assert address(sa.make_url(url)) == wanted


def test_tokens_are_sent_and_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    described = said({"name": "book", "dialect": "sqlite", "product": "SQLite 3.40.1"})
    with ScriptedServer(described) as server:
        base = server.url.removeprefix("http://")
        shown = [repr(sa.create_engine(f"dai://:dai_url@{base}/book"))]
        monkeypatch.setenv("DAI_TOKEN", "dai_environment")
        shown.append(repr(sa.create_engine(f"dai://{base}/book")))
        monkeypatch.delenv("DAI_TOKEN")
        made = sa.create_engine(f"dai://{base}/book?dialect=sqlite", connect_args={"token": "dai_argument"})
        assert len(server.requests) == 2  # the database was said, so nothing was asked
        shown.append(repr(made))
        with made.connect():
            pass
        sent = [each.headers.get("authorization") for each in server.requests]
    assert sent == [f"Bearer dai_{each}" for each in ("url", "environment", "argument")]
    assert not any("dai_" in each for each in shown)


def test_an_engine_without_credentials_says_how_to_give_them() -> None:
    refusal = problem(401, type="unauthenticated", detail="Who are you?")
    with ScriptedServer(refusal) as server, pytest.raises(dbapi.OperationalError, match="Who are you") as caught:
        sa.create_engine(server.url.replace("http", "dai") + "/book")
    assert "DAI_TOKEN" in caught.value.__notes__[0]


def test_an_option_and_a_database_that_are_not_known() -> None:
    with pytest.raises(sa.exc.ArgumentError, match=r"'timeout'.*Known are: numeric"):
        sa.create_engine("dai://h/book?timeout=3")
    with pytest.raises(sa.exc.ArgumentError, match=r"no dialect for oracle\. There are postgresql"):
        sa.create_engine("dai://h/book?dialect=oracle")
