"""What people get wrong in their first hour: each error says in one line what to type instead."""

import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import httpx
import pandas as pd
import pyarrow as pa
import pytest
import sqlalchemy as sa

import dai
import dqp
from dai.__main__ import main
from dai.api.server.serve import background
from dai.client import Options
from dai.client.results.interrupted import QueryInterrupted
from dai.config import parse
from dai.drivers import driver_for
from dai.errors import (
    ConfigurationError,
    DaiError,
    DatabaseUnavailableError,
    DataError,
    NotAQueryError,
    ParameterError,
    RequestError,
    StatementError,
    UnauthenticatedError,
    UnreachableError,
)
from dai.streams.cancellation import Cancellation
from tests.first_hour import files
from tests.processes import WRITABLE

Where = Callable[[str], Any]

__all__ = ["files"]


@pytest.mark.parametrize("product", ["postgres", "mariadb", "sqlite", "duckdb"])
def test_statements(product: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    url = request.getfixturevalue(f"{product}_url")
    quote = "`" if product == "mariadb" else '"'
    driver = driver_for(url)
    driver.update(f"create table samples (a int, {quote}order{quote} int)", cancellation=Cancellation())
    driver.close()
    config = {"service": {"port": 0, "state": "sqlite://", "grace": 0.2}, "resources": {"a": {"url": url}}}
    with background(parse(config, tmp_path, {})) as service:
        resource = dai.connect(service.url)
        for sql, says in (
            ("select order from samples", f"order is a keyword; write a column of that name {quote}order{quote}."),
            ("select a, order from samples", f"of that name {quote}order{quote}"),
            ("select a from samples where order = 1", f"of that name {quote}order{quote}"),
            ("selct a from samples", "Did you mean 'SELECT'?"),
            ("select a form samples", "Did you mean FROM?"),
            ("select a from samples wher zz = 1", "Did you mean WHERE?"),
            ("select a from sample", "samples"),
        ):
            with pytest.raises(StatementError) as caught:
                resource.query(sql)
            assert says in str(caught.value).splitlines()[-2], sql  # the last line is the correlation id
            assert "^" in str(caught.value)
        near = {"postgres": "coalesce", "mariadb": "IFNULL", "sqlite": "ifnull", "duckdb": "ifnull"}[product]
        for sql, says in (("select ifnul(a, 1) from samples", near), ("select conut(a) from samples", "count")):
            with pytest.raises(DaiError) as refused:
                resource.query(sql)
            assert says.casefold() in str(refused.value).splitlines()[-2].casefold()
            assert "Did you mean" in str(refused.value).splitlines()[-2]
        for sql in ("insert into samples values (1, 2)", "delete from samples"):
            with pytest.raises(NotAQueryError, match=r"resource\.execute\(…\)"):
                resource.query(sql)


def test_an_odd_value_is_named_with_its_column_and_a_cast() -> None:
    driver = driver_for("sqlite:///field.db")
    with pytest.raises(DataError, match=r"(?s)Column 'i'.*text \(row 2\).*CAST\(\"i\" AS TEXT\)"):
        driver.query("select * from samples", cancellation=Cancellation()).table()
    driver.close()


def test_options_are_known_and_explained() -> None:
    with pytest.raises(ParameterError, match=r"(?s)no option 'tokn'.*'token'"):
        dai.connect("http://127.0.0.1:1/a", tokn="x")
    with pytest.raises(ParameterError, match=r"(?s)no option 'numerc'.*'numeric'"):
        dqp.connect("field.db", numerc="double")
    for each in fields(Options):
        assert f"\n    {each.name} " in (dai.connect.__doc__ or ""), each.name
    with pytest.raises(UnreachableError, match=r"http://127\.0\.0\.1:1: is `dai serve` running"):
        dai.connect("http://127.0.0.1:1/a", retries=0)


def test_a_database_by_its_path() -> None:
    """Not an error any more."""
    with dqp.connect("field.db") as lab:
        assert lab.sql("select a from field.samples where a = 1").rows() == [(1,)]
    with dqp.connect(f"duckdb:///{Path('lake.duckdb').resolve()}") as lab:
        assert lab.sql("select count(*) from lake.samples").rows() == [(0,)]
    with pytest.raises(ConfigurationError, match=r"(?s)not a database URL.*postgresql://user@host/database") as caught:
        dqp.connect("://me:secret@localhost/lab")
    assert "secret" not in str(caught.value)


@pytest.fixture(scope="module")
def field_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("field")
    with sqlite3.connect(folder / "field.db") as connection:
        connection.execute('create table sites (id integer, name text, "height above sea" real)')
    connection.close()
    config = {
        "service": {"port": 0, "state": "sqlite://", "grace": 0.2},
        "resources": {"a": {"url": "sqlite:///field.db"}},
    }
    with background(parse(config | WRITABLE, folder, {})) as service:
        yield service.url


@pytest.mark.parametrize(
    ("sql", "values", "named", "says"),
    [
        ("select * from sites where id = %s", (3,), {}, "? (in order) or :name, not %s"),
        ("select * from sites where id = %(id)s", (), {"id": 3}, "not %(id)s"),
        ("select * from sites where id = {wanted}", (), {}, "not {wanted}"),
        ("select * from sites where name = 'O'Brien'", (), {}, "Write '' for a ' within a text"),
        ("select height above sea from sites", (), {}, 'Write a name with spaces "height above sea"'),
        ("select * from sites where id in [:ids]", (), {"ids": [1]}, "IN :ids"),
        ("select * from sites where id = ?", ([3],), {}, "without brackets"),
        ("select * from sites where id = ? and name = ?", ([3, "a"],), {}, "one after the other"),
        ("select * from sites where id = :Id", (), {}, 'parameters {"Id": …} over HTTP'),
        ("select * from sites where id in :ids", (), {"ids": "1,2"}, "IN needs a list"),
        ("select top 5 * from sites", (), {}, "LIMIT 5"),
        ("select * from sites fetch first 5 rows only", (), {}, "LIMIT 5"),
        ("select count(* from sites", (), {}, "A ( has no )"),
        ("select * from sites where name = 'Z", (), {}, "The ' before 'Z' has no closing one"),
        ("select * from sites where name = “Z”", (), {}, "straight quotes"),
        ('select * from sites where name = "Kyiv"', (), {}, "in single quotes: 'Kyiv'"),
        ("select now()", (), {}, "SQLite has CURRENT_TIMESTAMP."),
        ("select * from public.sites", (), {}, "Write sites alone: SQLite has no schema 'public'."),
        ("describe sites", (), {}, "resource.schema()"),
        (Path("sites.sql"), (), {}, "query(path.read_text())"),
        ('select "nmae" from sites where id = ?', (1,), {}, "Did you mean 'name'?"),
    ],
)
def test_values_that_are_written_in_another_way(
    field_service: str, sql: str, values: tuple[Any, ...], named: dict[str, Any], says: str
) -> None:
    with pytest.raises(RequestError) as caught:
        dai.connect(field_service).query(sql, *values, **named)
    assert says in str(caught.value)


def test_a_token_from_a_file_has_the_end_of_its_line_and_is_never_printed(field_service: str) -> None:
    assert dai.connect(field_service, token="secret\n").query("select 1").rows() == [(1,)]
    with pytest.raises(RequestError, match="token has characters") as caught:
        dai.connect(field_service, token="sec\nret")
    assert "ret" not in str(caught.value).replace("characters", "")


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(RequestError, match=r"There is no file 'none\.db'"):
        dai.connect("none.db")
    with pytest.raises(ConfigurationError, match=r"field: there is no file 'fild\.db'"):
        dqp.connect({"sources": {"field": "fild.db"}})
    with pytest.raises(ConfigurationError, match="Put the sources under the key 'sources'"):
        dqp.connect({"field": "field.db"})
    with pytest.raises(ConfigurationError, match=r"http://127\.0\.0\.1:8080/data"):
        dqp.connect({"sources": {"field": "127.0.0.1:8080/data"}})


def test_tables_of_a_lab_say_which_sources_are_away() -> None:
    with dqp.connect({"sources": {"gone": "http://127.0.0.1:1/a", "field": "field.db"}}) as lab:
        listed = lab.tables()
        assert "gone: " in repr(listed)
        assert "gone: " in listed._repr_html_()
        assert listed.to_pylist()[0]["rows"] is None, "SQLite has not counted"


def test_a_missing_word_of_a_command_is_named_alone(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["query", "select 1"])
    assert capsys.readouterr().err.endswith("required: sql\n")


def test_what_a_federation_does_not_run() -> None:
    wanted, several = {"a": [1]}, [1, 2]
    assert len(wanted) < len(several)
    with dqp.connect("field.db") as lab:
        for sql, values, says in (
            ("insert into field.samples values (1, 2)", (), "Send INSERT to the resource"),
            ("with a as (select 1) insert into field.samples select 1, 2", (), "Send INSERT to the resource"),
            ("/* all */ delete from field.samples", (), "Send DELETE to the resource"),
            ("merge into field.samples using a on false when matched then delete", (), "Send MERGE to the resource"),
            ("update extensions", (), "This is not a single query"),
            ("select * from read_csv('traits.csv')", (), "make them a source"),
            ("select * from field.samples where a = %s", (3,), "not %s"),
            ("select * from field.samples where a = {wanted}", (), "not {wanted}"),
            ("select * form field.samples", (), "Did you mean FROM?"),
            ("slect * from field.samples", (), "Did you mean SELECT?"),
            ("select order from field.samples", (), 'of that name "order"'),
            ("select height above sea from field.samples", (), 'Write a name with spaces "height above sea"'),
            ("select * from field.samples where a = 'O'Brien'", (), "Write '' for a ' within a text"),
            ('select * from field.samples where a = "Kyiv"', (), "in single quotes: 'Kyiv'"),
            ("select * from field.samples where a = “Kyiv”", (), "straight quotes"),
            ("select count(* from field.samples", (), "A ( has no )"),
            ("select a from field.samples where a = ?", ([1, 2],), "list of values with IN"),
            (5, (), "SQL must be text, not int"),
            ("show tables from field", (), "DESCRIBE source.table"),
            ("show databases", (), "DESCRIBE source.table"),
            ("select * from wanted", (), "lab.upload('wanted', wanted) makes a table of it"),
            ("select * from several", (), "lab.upload('several', {\"value\": several})"),
        ):
            with pytest.raises(RequestError) as caught:
                lab.sql(sql, *values).arrow()  # type: ignore[arg-type]
            assert says in str(caught.value)


def test_a_line_of_a_csv_file_that_does_not_fit_is_shown() -> None:
    Path("traits.csv").write_text("species,mass\n" + "Parus,1\n" * 30_000 + "Corvus,heavy\n")
    with dqp.connect("traits.csv") as lab, pytest.raises(DataError) as caught:
        lab.sql("select max(mass) from traits.traits").arrow()
    for each in ("traits.csv: ", "Line: 30002", "Corvus,heavy", '"mass"', "Correct the line"):
        assert each in str(caught.value)


def test_a_parameter_keeps_the_letters_of_its_name(field_service: str) -> None:
    with pytest.raises(ParameterError, match=r"Give it: query\(…, siteId=…\)"):
        dai.connect(field_service).query("select * from sites where id = :siteId")


def test_what_is_given_to_results_and_queries_in_another_way(field_service: str, tmp_path: Path) -> None:
    resource = dai.connect(field_service)
    with pytest.raises(RequestError, match="Two columns have the name 'x'"):
        resource.query("select 1 as x, 2 as x").pl()
    Path("folder.csv").mkdir()
    with pytest.raises(RequestError, match=r"'folder\.csv' is a folder\.\nName a file: save\('folder\.csv/result"):
        resource.query("select 1 as x").save("folder.csv")
    with pytest.warns(UserWarning, match=r"a SELECT changes none\. To get rows: resource\.query\(…\)") as warned:
        assert resource.execute("select 1") == 0
    assert warned[0].filename == __file__
    with pytest.raises(RequestError, match="There is no folder"):
        resource.query("select 1 as x").save(tmp_path / "none" / "x.csv")
    with pytest.raises(RequestError, match="tables have no names"):
        resource.query("select * from t", tables=pa.table({"x": [1]}))  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="mapping of columns"):
        resource.query("select * from t", tables={"t": [{"x": 1}]})


def test_a_resource_ends_like_a_lab_and_rows_are_a_table(field_service: str) -> None:
    """Not errors any more."""
    with dai.connect(f"{field_service}/a") as resource:
        assert resource.query("select 1").rows() == [(1,)]
    with dqp.connect("field.db") as lab:
        lab.upload("seen", [{"a": 1}, {"a": 2, "b": "x"}])
        assert lab.sql("select * from seen order by a").rows() == [(1, None), (2, "x")]


def test_ctrl_c_is_one_line(field_service: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a notebook, wherever the query is."""

    def pressed(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    resource = dai.connect(f"{field_service}/a")
    for place in ("dai.client.results.result.Result._count", "dai.client.http.transport.Transport.send"):
        monkeypatch.setattr(place, pressed)
        with pytest.raises(KeyboardInterrupt) as caught:
            resource.query("select 1").rows()
        monkeypatch.undo()
        assert isinstance(caught.value, QueryInterrupted)
        assert caught.value._render_traceback_()[-1].startswith("Interrupted: the query")
    assert resource.query("select 1").rows() == [(1,)]


def test_addresses_that_are_none(field_service: str) -> None:
    with pytest.raises(RequestError, match=r"dai serve field\.db"):
        dai.connect(Path("field.db"))
    with pytest.raises(RequestError, match="There is no address"):
        dai.connect("")
    for scheme in ("dai", "htp"):
        with pytest.raises(RequestError) as caught:
            dai.connect(f"{scheme}://127.0.0.1:8080/data")
        assert caught.value.hint == "An address looks like http://127.0.0.1:8080/data"
    with dqp.connect(field_service + "/a") as lab, pytest.raises(RequestError, match="is a resource, not a federation"):
        lab.tables()
    for sql in ("from a.sites", "select * from a.sites"):
        with dqp.connect(field_service + "/a") as lab:
            with pytest.raises(RequestError, match="is a resource, not a federation"):
                lab.sql(sql).arrow()
            with pytest.raises(RequestError, match="nmae"):
                lab.sql("select nmae from (select 1 as name)").arrow()


STATEMENTS = {
    "copy t to 'x.csv'": "save",
    "set timezone = 'UTC'": "no settings",
    "install httpfs": "no settings",
    "attach 'a.duckdb'": "Databases are sources",
    "pivot t on a using count(*)": "PIVOT t ON a IN",
    "select 1; select 2": "more than one",
}


@pytest.mark.parametrize("sql", STATEMENTS)
def test_statements_that_are_no_query_say_what_does_it(sql: str) -> None:
    with dqp.connect({"sources": {}}) as lab:
        lab.upload("t", {"a": [1]})
        with pytest.raises(RequestError, match=STATEMENTS[sql]) as caught:
            lab.sql(sql).arrow()
    assert ("PIVOT" in str(caught.value)) == ("pivot" in sql)


def test_an_address_without_its_sql(field_service: str) -> None:
    answer = httpx.get(f"{field_service}/resources/a/query")
    assert (answer.status_code, answer.json()["hint"]) == (400, "Add it to the address: ?sql=…")


def test_names_of_other_libraries(field_service: str) -> None:
    resource = dai.connect(field_service)
    for each, name, says in (
        (resource, "sql", r"Write \.query\(sql\)"),
        (resource, "tables", r"Write \.schema\(\)"),
        (resource.query("select 1 as x"), "fetchdf", r"Write \.df\(\)"),
        (resource.submit("select 1 as x"), "columns", r"Write \.arrow\(\)\.column_names"),
        (resource.query("select 1 as x"), "plot", r"Write \.df\(\)"),
    ):
        with pytest.raises(AttributeError, match=says):
            getattr(each, name)
        assert not hasattr(each, "none")
    with dqp.connect("field.db") as lab, pytest.raises(AttributeError, match=r"no 'query'\. Write sql\(…\)"):
        lab.query("select 1")
    with dqp.connect("field.db") as lab, pytest.raises(AttributeError, match=r'Write sql\("SUMMARIZE'):
        lab.summarize("field.samples")


def test_names_on_the_command_line_that_are_nearly_right(
    field_service: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, says in (
        (["serve", "feild.db"], "Did you mean 'field.db'?"),
        (["query", "a", "select", "1", "--server", field_service], 'Put it in quotes: dai query NAME "select'),
        (["query", "select 1", "a", "--server", field_service], "give the name of the resource first. Known: a."),
        (["query", "a", "select 1 where 'a' ilike 'A'", "--server", field_service], "no ILIKE; write lower(name) LIKE"),
    ):
        assert main(words) in (1, 2)
        assert says in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["querry", "a", "select 1"])
    assert capsys.readouterr().err.endswith("There is no command 'querry'. Did you mean 'query'?\n")
    with pytest.raises(SystemExit):
        main(["tables", "a"])
    assert capsys.readouterr().err.endswith("There is no command 'tables'. Type: dai resources NAME\n")
    with pytest.raises(ConfigurationError, match=r'dqp\.connect\(\{"sources"'):
        dqp.connect(["field.db"])
    with pytest.raises(ConfigurationError, match=r"Did you mean 'lake\.duckdb'\?"):
        dqp.connect("lakes.duckdb")


def test_pandas_is_told_that_a_change_is_no_query(tmp_path: Path) -> None:
    config = {"service": {"port": 0, "state": "sqlite://"}, "resources": {"a": {"url": "sqlite:///field.db"}}}
    with background(parse(config | WRITABLE, tmp_path, {})) as service:
        engine = sa.create_engine(service.url.replace("http", "dai") + "/a")
        with pytest.raises(sa.exc.ResourceClosedError, match=r"returns no rows.*resource\.execute\(…\)"):
            pd.read_sql(sa.text("insert into samples values (3, 3)"), engine)
        assert dai.connect(service.url).query("select count(*) from samples where a = 3").rows() == [(1,)]
        with pytest.raises(sa.exc.ArgumentError, match=r"has a user.*dai://:TOKEN@host") as caught:
            sa.create_engine(f"dai://dai_secret@127.0.0.1:{service.url.rpartition(':')[2]}/a")
        assert "dai_secret" not in str(caught.value)
        engine.dispose()


def test_a_source_that_wants_to_know_who_asks() -> None:
    config = {
        "service": {"port": 0, "state": "sqlite:///state.db", "grace": 0.2},
        "identity": {"methods": ["token"]},
        "resources": {"a": {"url": "sqlite:///field.db"}},
    }
    with background(parse(config, Path.cwd(), {})) as service:
        lab = dqp.connect({"sources": {"field": f"{service.url}/a"}})
        with lab, pytest.raises(DatabaseUnavailableError, match='token = "env:NAME"'):
            lab.sql("select * from field.samples").arrow()
        for token, says in (("dai_wrong_one", "dai tokens create"), ("wrong", "Was the whole token copied")):
            with pytest.raises(UnauthenticatedError, match=says):
                dai.connect(f"{service.url}/a", token=token).query("select 1")


def test_a_database_beside_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Before, the database was "no table", and the hint a list of suffixes."""
    with sqlite3.connect(tmp_path / "field.db") as connection:
        connection.execute("create table birds (id integer)")
    connection.close()
    (tmp_path / "more.csv").write_text("id\n1\n")
    for database, named in ((tmp_path / "field.db", tmp_path / "field.db"), ("postgresql://me:secret@h/d", "URL")):
        assert main(["serve", str(database), str(tmp_path / "more.csv")]) == 2
        said = capsys.readouterr().err
        assert "Only one database can be served" in said
        assert f"dai serve {named}." in said
        assert "secret" not in said


def test_resources_are_looked_at_by_their_address(field_service: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Before, the address was the name of a resource of another service."""
    for address, says in ((field_service, "SQLite"), (f"{field_service}/a", "height above sea")):
        assert main(["resources", address]) == 0
        assert says in capsys.readouterr().out


def test_an_address_that_is_only_a_path() -> None:
    with pytest.raises(dai.DaiError, match=r"Did you mean 'http://127\.0\.0\.1:8080/field'\?"):
        dai.connect("/field")
