"""What somebody who had never seen the project ran into in an hour, beside ``test_first_errors``: one short message
that says what to type."""

import sqlite3
import time
import tomllib
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import httpx
import pandas as pd
import pyarrow as pa
import pytest
import sqlalchemy as sa

import dai
import dqp
import dqp.__main__
from dai import dbapi
from dai.__main__ import main
from dai.api.server.serve import background
from dai.client import Resource
from dai.commands import start
from dai.config import parse
from dai.errors import (
    ConfigurationError,
    DaiError,
    DatabaseUnavailableError,
    DataError,
    DocumentError,
    NotFoundError,
    ParameterError,
    RequestError,
    StatementError,
    UnreachableError,
)
from tests.processes import WRITABLE

TABLES = """
create table birds (id integer, name text, "order" integer, "a""b" real, day date, mixed integer);
insert into birds values (1, 'Pica', 5, 1.5, '2024-01-01', 1), (2, 'Corvus', 6, 2.5, '2024-02-01', 'many');
create table items (tags text, value integer);
insert into items values ('["a", "z"]', 1);
create view gone as select * from nowhere;
create view named as select name as id from birds;
create table none (id integer);
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("hour")
    connection = sqlite3.connect(path / "field.db")
    connection.executescript(TABLES)
    connection.close()
    return path


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[str]:
    config = {
        "service": {"port": 0, "state": "sqlite://", "grace": 0.2},
        "resources": {"field": {"url": "sqlite:///field.db"}},
    }
    with background(parse(config, folder, {})) as running:
        yield running.url


@pytest.fixture
def resource(url: str) -> Iterator[Resource]:
    with dai.connect(f"{url}/field") as opened:
        yield opened


def shown(error: BaseException) -> list[str]:
    """What a notebook shows."""
    lines: list[str] = error._render_traceback_()  # type: ignore[attr-defined]
    return "\n".join(lines).split("\n")


@pytest.mark.parametrize(
    ("sql", "values", "says"),
    [
        ("select * from birds where id < 'ten'", (), r"CAST\(id AS TEXT\)"),
        (
            "select * from birds b where b.id >= ?",
            ("ten",),
            "SQLite sorts every number before every text, such as 'ten' here",
        ),
        ("select * from birds where 'ten' > birds.\"order\"", (), "'order' has numbers"),
        ("select id, from birds", (), "comma before from"),
        ("select * from birds where id = :x", (1,), r"query\(…, x=…\).*-p x=…"),
        ("select nmae from birds", (), "'name'"),
        ("select * from birds where id = :block_size", (), "block_size=…"),
    ],
)
def test_statements(resource: Resource, sql: str, values: tuple[Any, ...], says: str) -> None:
    with pytest.raises((StatementError, ParameterError), match=f"(?s){says}"):
        resource.query(sql, *values)


@pytest.mark.parametrize(
    ("sql", "rows"),
    [
        ('select "a""b", "order" from birds where id = 1', [(1.5, 5)]),
        ("select id from birds where id < '2'", [(1,)]),
        ("select id from birds where day < '2024-01-02'", [(1,)]),
        ("select id from birds where name < 'D'", [(2,)]),
        ("select id from birds where mixed >= 'm'", [(2,)]),
        ("select id from birds where lower(id) < 'ten' and id <> 'ten' and 'ten' || id > 'a' limit 1", [(1,)]),
        ("select id from (select name as id from birds) where id < 'D'", [("Corvus",)]),
        ("select j.value from items, json_each(items.tags) j where j.value > 'm'", [("z",)]),
        ("select named.id from named join birds b on b.name = named.id where named.id < 'D'", [("Corvus",)]),
        ("select id from birds where id >= ''", []),
        ("select id from none where id > 'a'", []),
        ("with d(id) as (values ('z')) select d.id from d, birds where d.id > 'm' limit 1", [("z",)]),
    ],
)
def test_statements_that_mean_what_they_say(resource: Resource, sql: str, rows: list[Any]) -> None:
    assert resource.query(sql).rows() == rows


def test_a_large_table_is_not_read_before_a_statement(resource: Resource, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dai.drivers.sqlite.checks.MOST_READ", 1)
    assert resource.query("select id from birds where id < 'ten'").rows() == [(1,), (2,)]


def test_options_that_other_libraries_have(resource: Resource, url: str) -> None:
    with pytest.raises(ParameterError, match="Did you mean 'blocksize'"):
        resource.query("select 1", block_size=10)
    for option, says in (("timeout", "read= or connect="), ("password", "token="), ("conect", "'connect'")):
        with pytest.raises(ParameterError, match=says):
            dai.connect(url, **{option: "x"})
    with pytest.raises(sa.exc.ArgumentError, match=r"dai://:TOKEN@host"):
        sa.create_engine(f"dai://{url.partition('//')[2]}/field?token=secret")


def test_addresses(url: str) -> None:
    for wrong in ("resources/field/query", "field/birds", "resources/field/birds"):
        with pytest.raises((RequestError, NotFoundError), match=rf"Did you mean '{url}/(resources/)?field'"):
            dai.connect(f"{url}/{wrong}")
    with pytest.raises(UnreachableError, match=r"no port: `dai serve` listens on 8080, http://127\.0\.0\.2:8080"):
        dai.connect("http://127.0.0.2/field", retries=0)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda each: each.qeury, "Did you mean 'query'?"),
        (lambda each: each.load, "frame.to_sql("),
        (lambda each: each.query("select 1 as a").to_csv, 'Write .save("result.csv")'),
        (lambda each: len(each.query("select 1 as a")), "How many rows there are"),
        (lambda each: each.perform(Path("nowhere.xml")), "nowhere.xml cannot be read: No such file"),
        (lambda each: dbapi.connect(each.url).execute("selct 1"), "ProgrammingError: Syntax error at 'selct'"),
        (lambda each: sa.create_engine(each.url.replace("http", "dai").replace("resources/", "") + "x"), "no resource"),
    ],
)
def test_a_notebook_shows_the_callers_line_and_the_message(
    resource: Resource, wrong: Callable[[Resource], Any], says: str
) -> None:
    with pytest.raises(Exception, match=r".") as caught:
        wrong(resource)
    lines = shown(caught.value)
    assert says in "\n".join(lines)
    assert not [each for each in lines if "/dai/client/" in each or "site-packages" in each]
    assert "instead" not in dir(resource)


def test_a_script_shows_few_lines_of_the_library(folder: Path, resource: Resource) -> None:
    wrong: tuple[Callable[[], Any], ...] = (
        lambda: lab.sql("selct 1").arrow(),
        lambda: lab.sql("select zz from field.birds").arrow(),
        lambda: lab.sql("describe field.brids").arrow(),
        lambda: resource.query("select zz from birds").arrow(),
        lambda: dai.connect(f"{resource.url.rpartition('/')[0]}/filed"),
    )
    with dqp.connect(folder / "field.db") as lab:
        for each in wrong:
            with pytest.raises(DaiError) as caught:
                each()
            lines = traceback.format_exception(caught.value)
            assert sum(line.startswith("Traceback") for line in lines) == 1
            assert sum(line.startswith("  File ") for line in lines) <= 9, "".join(lines)


def test_a_table_is_described_without_its_source_where_one_has_it(folder: Path, tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "other.db") as connection:
        connection.executescript('create table birds (id integer); create table "two words" (x integer)')
    connection.close()
    sources = {"field": str(folder / "field.db"), "other": str(tmp_path / "other.db")}
    with dqp.connect({"sources": sources, "views": {"items": "select 1 as one"}}) as lab:
        assert lab.sql("describe none").arrow() == lab.sql("describe field.none").arrow()
        assert lab.sql('DESCRIBE "Two words";').arrow()["column_name"].to_pylist() == ["x"]
        assert lab.sql("summarize none").arrow() == lab.sql("summarize field.none").arrow()
        assert lab.sql("describe items").arrow()["column_name"].to_pylist() == ["one"]
        for sql, says in (
            ("describe birds", r"Did you mean 'field\.birds' or 'other\.birds'"),
            ("describe nowhere", "no table 'nowhere'"),
            ("select * from none", r"Did you mean 'field\.none'"),
        ):
            with pytest.raises(StatementError, match=says):
                lab.sql(sql).rows()


def test_frames_that_are_no_tables(folder: Path) -> None:
    odd, twice = pd.DataFrame({"a": [1, "x"]}), pd.DataFrame([[1, 2]], columns=["b", "b"])
    with dqp.connect(folder / "field.db") as lab:
        with pytest.raises(
            StatementError, match=r"odd is a DataFrame here, but cannot be a table: The column 'a' holds int"
        ):
            lab.sql("select * from odd").rows()
        with pytest.raises(StatementError, match=r"twice is a DataFrame here.*same name: b"):
            lab.sql("select * from twice").rows()
        assert lab.sql("select count(*) as odd from field.birds").rows() == [(2,)], (odd, twice)
        with pytest.raises(ParameterError, match=r"Give the name first: lab\.upload\('mine', frame\)"):
            lab.upload(odd, "mine")


def test_numbers_of_one_query(folder: Path, url: str, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    sql = "select 1.50::decimal(10,2) as d, $numeric as n"
    with dqp.connect(folder / "field.db") as lab:
        assert lab.sql(sql, {"numeric": 7}, numeric="double").arrow().to_pylist() == [{"d": 1.5, "n": 7}]
        assert lab.sql("select 1.50 as d", numeric="text").rows() == [("1.50",)]
        with pytest.raises(ParameterError, match="Give one of 'double'"):
            lab.sql("select 1", numeric="float")
    words = ["query", str(folder / "field.db"), "select 1.50 as d", "--format", "json", "--numeric", "text"]
    assert dqp.__main__.main(words) == 0
    assert capfdbinary.readouterr().out == b'{"d":"1.50"}\n'
    service = ["query", f"{url}/field", "select cast(null as decimal(5,2)) as d", "--format", "json"]
    assert main([*service, "--numeric", "text"]) == 0


def test_a_folder_with_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "good.csv").write_text("id,name\n1,Jörg\n")
    (tmp_path / "latin.csv").write_bytes("id;name\n1;Jörg\n".encode("latin-1"))
    (tmp_path / "fake.parquet").write_text("no Parquet")
    with dqp.connect(str(tmp_path)) as lab:
        alias = next(iter(lab.coordinator.catalog.sources))
        assert lab.sql(f"from {alias}.good").rows() == [(1, "Jörg")]
        for table, says in (("latin", "'latin' cannot be read: it is not UTF-8"), ("fake", r"fake\.parquet")):
            with pytest.raises(StatementError, match=says):
                lab.sql(f"from {alias}.{table}").rows()
            with pytest.raises(StatementError, match=says):  # although no column is read
                lab.sql(f"select count(*) from {alias}.{table}").rows()
    with dqp.connect(str(tmp_path / "latin.csv")) as lab:
        with pytest.raises(DaiError, match=r"(?s)is not UTF-8.*iconv"):
            lab.sql("from latin").rows()
        with pytest.raises(AttributeError, match=r"'latin' is not available: .*is not UTF-8"):
            lab.latin.df()
    with dqp.connect(str(tmp_path / "good.csv")) as lab:
        assert lab.good.rows() == lab.good.good.rows() == [(1, "Jörg")]


def test_commands(
    url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["query", f"{url}/field", "select 1", "--fromat", "csv"])
    assert "unrecognized arguments: --fromat csv. Did you mean '--format'?" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["perform", f"{url}/field", "document.xml", "another.xml"])
    assert "unrecognized arguments: another.xml. Type dai perform --help" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["perform", f"{url}/field", "--async", "document.xml"])
    assert "unrecognized arguments: document.xml. Put the options behind" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["--verbose", "resources"])
    assert "unrecognized arguments: --verbose" in capsys.readouterr().err
    monkeypatch.setenv("DAI_PROFILES", str(tmp_path / "profiles.toml"))
    monkeypatch.setenv("DAI_PROFILE", "lba")
    assert main(["resources"]) == 2
    assert capsys.readouterr().err.startswith("dai: There is no profile 'lba'")
    monkeypatch.delenv("DAI_PROFILE")
    monkeypatch.chdir(tmp_path)
    assert dqp.__main__.main(["explain", f"{url}/field", "select 1", "--output", "plan.png"]) == 2
    assert "A plan is text, JSON or SVG, not .png" in capsys.readouterr().err
    assert not (tmp_path / "plan.png").exists()


@pytest.mark.parametrize("command", [start.dai, start.dqp])
def test_ctrl_c_before_a_command_has_begun(
    command: Callable[[], int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def pressed(name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(start, "import_module", pressed)
    assert command() == 130
    assert capsys.readouterr().err == f"{command.__name__}: interrupted\n"


def test_an_unknown_table_of_duckdb(tmp_path: Path) -> None:
    with duckdb.connect(str(tmp_path / "lake.duckdb")) as connection:
        connection.execute("create table birds (id integer); create view seen as from birds")
    (tmp_path / "traits.csv").write_text("id,name\n1,Pica\n")
    config = {
        "service": {"port": 0, "state": "sqlite://", "grace": 0.2},
        "resources": {"lake": {"url": "duckdb:///lake.duckdb"}, "traits": {"files": "traits.csv"}},
        **WRITABLE,
    }
    with background(parse(config, tmp_path, {})) as running:
        lake = dai.connect(f"{running.url}/lake")
        for sql, says in (("from nowhere", r"Known: birds, seen\."), ("from bird", r'Did you mean "birds"\?')):
            with pytest.raises(StatementError, match=f"{says}\n"):
                lake.query(sql)
        with pytest.raises(StatementError, match=r"Known: birds, seen\.\n"):
            lake.execute("insert into nowhere values (1)")
        with pytest.raises(StatementError, match=r"Known: traits\.\n"):
            dai.connect(f"{running.url}/traits").query("from nowhere")


def test_many_rows_for_one_statement(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "field.db") as connection:
        connection.execute("create table birds (id integer, name text)")
    connection.close()
    config = {
        "service": {"port": 0, "state": "sqlite://", "grace": 0.2},
        "resources": {"field": {"url": "sqlite:///field.db"}},
        **WRITABLE,
    }
    with background(parse(config, tmp_path, {})) as running:
        field = dai.connect(f"{running.url}/field")
        named = [{"id": 1, "name": "Pica"}, {"id": 2, "name": None}]
        assert field.execute("insert into birds values (:id, :name)", named) == 2
        assert field.execute("insert into birds values (:id, :name)", named[:1]) == 1
        assert field.execute("insert into birds values (?, ?)", [(3, "Corvus"), [4, "Parus"]]) == 2
        assert field.execute("delete from birds where id in :ids", {"ids": [1, 2]}) == 3
        assert field.execute("delete from birds where id in ?", [3]) == 1
        assert field.query("select * from birds").rows() == [(4, "Parus")]


def test_a_table_that_was_dropped_and_created_again(tmp_path: Path) -> None:
    def run(sql: str) -> None:
        connection = sqlite3.connect(tmp_path / "field.db")
        connection.executescript(sql)
        connection.close()

    run("create table birds (id integer); create table sites (id integer)")
    with dqp.connect(tmp_path / "field.db") as lab:
        assert lab.sql("from field.birds").rows() == []
        run("drop table birds")
        with pytest.raises(StatementError, match=r"no table field\.birds"):
            lab.sql("from field.birds").rows()
        run("create table birds (id integer, name text); insert into birds values (1, 'Pica')")
        assert lab.sql("from field.birds").rows() == [(1, "Pica")]


def test_a_file_of_sqlite_that_another_program_has_locked(tmp_path: Path) -> None:
    """It is waited for once: not by each statement of the driver, and not again by the client."""
    config = {
        "service": {"port": 0, "state": "sqlite://", "grace": 0.2},
        "resources": {"field": {"url": "sqlite:///field.db", "connect_wait": 1.0}},
    }
    says = r"(?s)Another program or request has locked the SQLite file\..*WAL"
    with background(parse(config, tmp_path, {})) as running, sqlite3.connect(tmp_path / "field.db") as other:
        other.execute("create table birds (id integer)")
        other.commit()
        field = dai.connect(f"{running.url}/field")
        for journal in (False, True):
            other.execute("begin exclusive")
            if journal:
                other.execute("insert into birds values (1)")
                assert (tmp_path / "field.db-journal").exists()
            began = time.monotonic()
            with pytest.raises(DatabaseUnavailableError, match=says):
                field.query('select "id" from birds where id > 0')
            assert time.monotonic() - began < 1.9
            other.rollback()
            assert field.query("select * from birds").rows() == []


def test_documents(resource: Resource) -> None:
    head = '<gridDataServicePerform xmlns="http://ogsadai.org.uk/namespaces/2003/07/gds/types">'
    query = (
        '<sqlQueryStatement name="s"><expression>select id from birds where id {} 2</expression>'
        '<webRowSetStream name="t"/></sqlQueryStatement></gridDataServicePerform>'
    )
    with pytest.raises(DocumentError, match="write &lt; for <"):
        resource.perform(head + query.format("<"))
    with pytest.raises(DocumentError, match=f"starts with {head}"):
        resource.perform("<x/>")
    response = resource.perform(head + query.format("&lt;"))
    assert repr(response.results) == "<Results: none yet, more may come>"
    assert response.results["t"].rows() == [(1,)]


def test_dates_that_pandas_cannot_hold() -> None:
    from dai.client.results import frames

    table = pa.table({"d": pa.array([-800_000], pa.date32())})
    with pytest.raises(DataError, match=r"(?s)out of range.*years 1 to 9999"):
        frames.to_pandas(lambda: table, False)


def test_functions_of_other_products_and_words_before_the_sql(folder: Path, resource: Resource) -> None:
    with dqp.connect(folder / "field.db") as lab:
        for sql, says in (("select to_char(now(), 'YYYY')", "strftime"), ("select nvl(1, 2)", "coalesce")):
            with pytest.raises(StatementError, match=f"Write {says}"):
                lab.sql(sql).rows()
    for sql, says in (
        ("select id::text from birds", r"CAST\(… AS TEXT\)"),
        ("select concat(id, 'x') from birds", r"a \|\| b"),
        ("select id from birds where id = 1 and", "ends too early"),
    ):
        with pytest.raises(StatementError, match=says):
            resource.query(sql)


def test_a_damaged_file_of_a_database(tmp_path: Path) -> None:
    (tmp_path / "junk.db").write_text("no database")
    with pytest.raises(ConfigurationError, match="not a file of SQLite or DuckDB either"):
        dqp.connect(tmp_path / "junk.db")


def test_a_body_with_another_name_of_the_sql(url: str) -> None:
    answer = httpx.post(f"{url}/resources/field/query", json={"query": "select 1"})
    assert (answer.status_code, answer.json()["detail"]) == (400, "There is no parameter 'query' here.")
    assert "sql" in answer.json()["hint"]
    answer = httpx.get(f"{url}/resources/field/query", params={"sql": "select id from birds where id = :x", "x": "1"})
    assert 'stands in parameters={"x": …}' in answer.json()["hint"]


def test_a_clone_beside_a_script_is_not_taken_for_the_package() -> None:
    """setuptools makes an editable installation of a path where this says that packages are in the root."""
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["tool"]["setuptools"]["package-dir"] == {"": "."}
