"""Files as tables: what a driver reads, and that a query reads nothing else."""

from __future__ import annotations

import gzip
import http.server
import threading
import tracemalloc
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as parquet
import pytest

import dai
import dqp
from dai.api.server.serve import background
from dai.config import data_files, parse
from dai.drivers import Driver, driver_for
from dai.drivers.duckdb import files as module
from dai.drivers.duckdb import headers
from dai.errors import ConfigurationError, DaiError, DatabaseUnavailableError, DataError, NotAQueryError, StatementError
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Stream
from tests.servers import delivery

DAYS = [pa.table({"id": [2 * day, 2 * day + 1], "v": [0.5, float(day)]}) for day in range(3)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    (folder / "days").mkdir()
    for number, day in enumerate(DAYS):
        parquet.write_table(day, folder / "days" / f"{number}.parquet")
    (folder / "people.csv").write_text("id;name\n1;Ada\n2;Grace\n")
    with gzip.open(folder / "more.csv.gz", "wt") as file:
        file.write("id,name\n3,Mary\n")
    (folder / "lines.jsonl").write_text('{"id": 1, "tags": ["a"]}\n')
    feather.write_feather(DAYS[0], folder / "kept.arrow", compression="zstd")
    with pa.OSFile(str(folder / "streamed.arrow"), "wb") as sink, pa.ipc.new_stream(sink, DAYS[1].schema) as writer:
        writer.write_table(DAYS[1])
    (folder / "notes.txt").write_text("secret")
    return folder


def opened(files: Any, base: Path) -> Driver:
    return driver_for(data_files.url(files, "files", base, "own"))


def rows(driver: Driver, sql: str) -> list[tuple[Any, ...]]:
    return [tuple(each.values()) for each in driver.query(sql, cancellation=Cancellation()).table().to_pylist()]


@pytest.mark.parametrize(
    ("name", "text", "count"),
    [("a.csv", "a,b\n1,2\n", 1), ("a.csv", "a,b\n1,2", 1), ("a.csv", "a,b\n", 0), ("a.jsonl", '{"a": 1}\n', 1)],
)
def test_the_header_of_a_file_is_no_row(tmp_path: Path, name: str, text: str, count: int) -> None:
    (tmp_path / name).write_text(text)
    (table,) = opened(str(tmp_path / name), tmp_path).tables()
    assert table.rows == count


def test_a_folder_has_a_table_for_each_file(folder: Path) -> None:
    driver = opened(str(folder), folder)
    tables = {each.name: each for each in driver.tables()}
    assert sorted(tables) == ["days", "kept", "lines", "more", "people", "streamed"]
    assert [each.name for each in tables["people"].columns] == ["id", "name"]
    assert tables["days"].rows == 6
    assert driver.statistics("days").rows == 6
    assert rows(driver, "select count(*), sum(v) from days where id > 1") == [(4, 4.0)]
    assert rows(driver, "select name from people join kept using (id)") == [("Ada",)]
    assert rows(driver, "select * from more union all from people order by 1")[-1] == (3, "Mary")
    assert rows(driver, "from streamed") == [(2, 0.5), (3, 1.0)]
    assert rows(driver, "select tags from lines") == [(["a"],)]
    driver.close()


def test_what_is_named(folder: Path) -> None:
    driver = opened({"early": ["days/0.parquet", "days/1.parquet"], "p": "people.csv"}, folder)
    assert rows(driver, "select count(*) from early, p") == [(8,)]
    driver.close()
    driver = opened("days/*.parquet", folder)
    assert rows(driver, "select count(*) from own") == [(6,)]
    driver.close()


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ("nothing.csv", "there is no file 'nothing.csv'"),
        ("notes.txt", "is not a file with a table"),
        ("none/*.csv", "no file fits 'none/\\*.csv'"),
        (["people.csv", "people.csv"], "two files for the table 'people'"),
        ([], "must be a path"),
        ({"t": 3}, "files.t must be a path"),
    ],
)
def test_mistakes(folder: Path, files: Any, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        opened(files, folder)


def test_links_lead_out_of_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever may write into a folder that is served had any file of the machine served."""
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.0)
    secret, folder = tmp_path / "secret.csv", tmp_path / "served"
    secret.write_text("id,name\n9,secret\n")
    (folder / "days").mkdir(parents=True)
    (tmp_path / "others").mkdir()
    (tmp_path / "others" / "1.csv").write_text("id\n9\n")
    for name in ("a.csv", "days/1.csv"):
        (folder / name).write_text("id,name\n1,Ada\n")
    (folder / "b.csv").symlink_to("a.csv")
    (folder / "out.csv").symlink_to(secret)
    (folder / "days" / "2.csv").symlink_to(secret)
    (folder / "days" / "3").symlink_to(tmp_path / "others")
    (folder / "others").symlink_to(tmp_path / "others")
    driver = opened("served", tmp_path)
    assert sorted(each.name for each in driver.tables()) == ["a", "b", "days"]
    assert rows(driver, "select count(*) from a, b, days") == [(1,)]
    (folder / "a.csv").unlink()
    (folder / "a.csv").symlink_to(secret)
    with pytest.raises(DatabaseUnavailableError):
        rows(driver, "select * from a")
    driver.close()
    driver = opened("served/o*.csv", tmp_path)
    with pytest.raises(DatabaseUnavailableError) as caught:
        rows(driver, "select * from own")
    assert "Symbolic links" in str(caught.value.hint)
    driver.close()
    driver = opened("served/out.csv", tmp_path)
    assert rows(driver, "select name from out") == [("secret",)]
    driver.close()


ODD_NAMES = [f"{each}.csv" for each in ("x[1]", "x1", "?", "*", "\u6570\u636e", "-", "[]", "]!", "it's", "{a,b}")]


@pytest.mark.parametrize("form", ["csv", "parquet", "jsonl", "arrow"])
def test_names_of_files_are_no_patterns(tmp_path: Path, form: str) -> None:
    """DuckDB read x1.csv as the table of x[1].csv."""
    (tmp_path / "in [brackets]").mkdir()
    (tmp_path / "in b").mkdir()
    tables = {"[a].csv": ["1"], "a.csv": ["2"]}
    for name in [*ODD_NAMES, *(f"in [brackets]/{each}" for each in tables), "in b/other.csv"]:
        table, path = pa.table({"k": [name], "n": [1]}), (tmp_path / name).with_suffix(f".{form}")
        match form:
            case "csv":
                path.write_text(f'k,n\n"{name}",1\n')
            case "jsonl":
                path.write_text(f'{{"k": "{name}", "n": 1}}\n')
            case "parquet":
                parquet.write_table(table, path)
            case _:
                feather.write_feather(table, path)
    driver = opened(str(tmp_path), tmp_path)
    for name in ODD_NAMES:
        quoted = name.removesuffix(".csv").replace('"', '""')
        assert rows(driver, f'select k from "{quoted}"') == [(name,)]
    inner = [(f"in [brackets]/{each}",) for each in tables]
    assert rows(driver, 'select k from "in [brackets]" order by k') == inner
    alone = opened({"one": f"x[1].{form}", "other": f"in [brackets]/[a].{form}"}, tmp_path)
    assert [rows(alone, f"select k from {each}") for each in ("one", "other")] == [[("x[1].csv",)], [inner[0]]]
    within = opened(str(tmp_path / "in [brackets]"), tmp_path)
    assert rows(within, 'select k from "[a]"') == [inner[0]]


def test_compressed_files_in_a_folder_of_a_folder(tmp_path: Path) -> None:
    """They kept the whole folder from being served."""
    (tmp_path / "days").mkdir()
    for name in ("a.csv.gz", "b.CSV.GZ"):
        with gzip.open(tmp_path / "days" / name, "wt") as file:
            file.write("k,n\n1,2\n")
    for name in ("csv", "all.tar.gz"):
        (tmp_path / "days" / name).write_text("secret")
    assert rows(opened(str(tmp_path), tmp_path), "select count(*) from days") == [(2,)]


def test_names_that_differ_by_case_are_one_table(tmp_path: Path) -> None:
    """As DuckDB has it, which showed neither."""
    for name in ("days.csv", "DAYS.parquet"):
        (tmp_path / name).write_text("k,n\n1,2\n")
    with pytest.raises(ConfigurationError, match="two files for the table"):
        opened(str(tmp_path), tmp_path)


@pytest.mark.parametrize("name", ["b.arrow", "b.parquet", "b.csv", "b.jsonl"])
@pytest.mark.parametrize("content", [b"", b"damaged\0\xff"])
def test_a_file_that_cannot_be_read_hides_no_other(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / "a.csv").write_text("k,n\n1,2\n")
    (tmp_path / name).write_bytes(content)
    driver = opened(str(tmp_path), tmp_path)
    assert "a" in {each.name for each in driver.tables()}
    assert rows(driver, "select k from a") == [(1,)]
    driver.statistics("b")


@pytest.mark.parametrize("folder", ["data", "data [1]"])
def test_a_link_out_of_a_folder_with_any_name(tmp_path: Path, folder: str) -> None:
    (tmp_path / folder).mkdir()
    (tmp_path / folder / "k?.csv").write_text("k,n\n1,2\n")
    driver = opened(str(tmp_path / folder), tmp_path)
    (tmp_path / "secret.csv").write_text("k,n\n3,4\n")
    (tmp_path / folder / "k?.csv").unlink()
    (tmp_path / folder / "k?.csv").symlink_to(tmp_path / "secret.csv")
    with pytest.raises(DatabaseUnavailableError):
        rows(driver, 'from "k?"')


def test_a_name_that_is_a_pattern_shows_no_columns_of_other_files(tmp_path: Path) -> None:
    """Where such a pattern fits a link out of the folder."""
    (tmp_path / "data").mkdir()
    (tmp_path / "secret.csv").write_text("secret,other\n1,2\n")
    (tmp_path / "data" / "link.csv").symlink_to(tmp_path / "secret.csv")
    (tmp_path / "data" / "l?nk.csv").write_text("k,n\n1,2\n")
    (table,) = opened(str(tmp_path / "data"), tmp_path).tables()
    assert [each.name for each in table.columns] == ["k", "n"]


def test_a_file_that_is_damaged_is_named_without_its_path(tmp_path: Path) -> None:
    for name in ("a.parquet", "b.arrow"):
        (tmp_path / name).write_bytes(b"no table at all")
        with pytest.raises(DataError) as caught:
            opened(name, tmp_path).tables()
        assert name in str(caught.value) or "'a'" in str(caught.value)
        assert str(tmp_path) not in str(caught.value)


@pytest.mark.parametrize(
    "sql",
    [
        "from '{folder}/people.csv'",
        "from '{folder}/days/1.parquet'",
        "select * from read_text('{folder}/notes.txt')",
        "from read_csv('{folder}/people.csv')",
        "from glob('{folder}/*')",
        "from parquet_metadata('{folder}/days/1.parquet')",
        "from sniff_csv('{folder}/people.csv')",
        "select sql from duckdb_views()",
        "select * from json_execute_serialized_sql(json_serialize_sql('select sql from duckdb_vi' || 'ews()'))",
        "select json_serialize_plan('select current_sett' || 'ing(''allowed_paths'')', optimize := true)",
        "select * from register_external_resource('a', 'b', MAP(['a'], ['b']))",
        "explain /* */ analyze from people",
        "EXPLAIN (FORMAT json, ANALYZE) FROM people",
        "select sql from sqlite_master",
        "from information_schema.views",
        "select definition from pg_views",
        'select filename from "0"',
        "from duckdb_settings()",
    ],
)
def test_a_query_reads_no_other_file_and_sees_no_path(folder: Path, sql: str) -> None:
    driver = opened("days/0.parquet", folder)
    assert rows(driver, 'select count(*) from "0"') == [(2,)]
    with pytest.raises(StatementError) as caught:
        rows(driver, sql.format(folder=folder))
    assert str(folder) not in caught.value.detail
    driver.close()


def test_files_are_never_changed(folder: Path) -> None:
    driver = opened("people.csv", folder)
    for sql in ("insert into people values (3, 'x')", "create table t(a int)", f"copy people to '{folder}/out.csv'"):
        with pytest.raises(NotAQueryError, match="read-only"):
            driver.update(sql, cancellation=Cancellation())
    with pytest.raises(NotAQueryError, match="read-only"):
        driver.load("people", Stream.of(DAYS[0]), cancellation=Cancellation())
    driver.close()
    assert not (folder / "out.csv").exists()


def test_new_files_of_a_pattern_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.0)
    parquet.write_table(DAYS[0], tmp_path / "0.parquet")
    driver = opened("*.parquet", tmp_path)
    assert rows(driver, "select count(*) from own") == [(2,)]
    old = driver.query("from own", cancellation=Cancellation())
    parquet.write_table(DAYS[1], tmp_path / "1.parquet")
    assert rows(driver, "select count(*) from own") == [(4,)]
    assert old.table().num_rows == 2
    driver.close()


HEADERS: dict[str, tuple[str, list[str] | tuple[int, str, str]]] = {
    "more": ("id,name\n1,a\n2,b,c\n3,d\n", (3, "3 cells", "(line 1) has 2")),
    "fewer": ("id;name;mass\n1;a;2.5\n2;b\n3;c;4\n", (3, "2 cells", "(line 1) has 3")),
    "first": ("id,name\n1,a,b\n2,c\n", (2, "3 cells", "(line 1) has 2")),
    "all": ("id,name\n1,a,x\n2,b,y\n", (2, "3 cells", "(line 1) has 2")),
    "texts": ("code,name\nx,a,r\ny,b,q\nz,d,w\n", (2, "3 cells", "(line 1) has 2")),
    "rows_lost": ("\ufeffid\tname\r\n1\ta\r\n2\tb\tc\r\n", (3, "3 cells", "(line 1) has 2")),
    "quoted": ('id,name\n1,"a,\nb"\n2,"c",d\n', (4, "3 cells", "(line 1) has 2")),
    "comment": ("# made by X\n\nid,name\n1,a\n2,b,c\n", (5, "3 cells", "(line 3) has 2")),
    "last": ("id,name\n1,a\n2,b\nTotal 2\n", (4, "1 cell,", "(line 1) has 2")),
    "late": ("id,name\n" + "1,a\n" * 9000 + "2,b,c\n" + "1,a\n" * 99, (9002, "3 cells", "(line 1) has 2")),
    "plain": ("id,name\n1,a\n\n2,b\n", ["id", "name"]),
    "ends": ("id,name\n1,a,\n2,b,\n", ["id", "name"]),
    "twice": ("id,id\n1,2\n", ["id", "id_1"]),
    "unnamed": ("id,,x\n1,2,3\n", ["id", "column1", "x"]),
    "one": ("id\n1\n2\n", ["id"]),
    "one_of_lists": ("tags\nred;blue\ngreen\nred;yellow\n", ["tags"]),
    "one_of_decimals": ("mass\n1,5\n2\n3,5\n", ["mass"]),
    "sentence_first": ("Station: Oslo, Norway\nid,name,town\nx,a,b\ny,b,c\n", ["id", "name", "town"]),
    "instrument": ("Device,X-12\nDate,2024-01-01\n\nt,mass,h\n0,1.5,2\n1,1.6,2\n", ["t", "mass", "h"]),
    "spectrum": ("Spectrum 12\n400,0.1\n401,0.2\n", ["column0", "column1"]),
    "no_header": ("1,a\n2,b\n", ["column0", "column1"]),
}


@pytest.mark.parametrize("case", HEADERS)
def test_a_header_is_not_lost_silently(tmp_path: Path, case: str) -> None:
    """DuckDB takes another column or leaves out rows where rows have more or fewer cells than the header."""
    text, wanted = HEADERS[case]
    with gzip.open(tmp_path / "c.csv.gz", "wt", newline="") as file:
        file.write(text)
    (tmp_path / "a.csv").write_text(text, newline="")
    (tmp_path / "b.csv").write_text("id\n7\n")
    for files, table in ((str(tmp_path), "a"), ("a.csv", "a"), ("c.csv.gz", "c")):
        driver = opened(files, tmp_path)
        if isinstance(wanted, list):
            named = next(each.columns for each in driver.tables() if each.name == table)
            assert [each.name for each in named] == wanted
        else:
            line, cells, header = wanted
            with pytest.raises((DataError, StatementError)) as caught:
                rows(driver, f"from {table}")
            for each in (f"{table}.csv", f"line {line} has {cells}", header, "Give each line as many cells"):
                assert each in str(caught.value)
            if files == str(tmp_path):
                assert rows(driver, "from b") == [(7,)]
            else:
                with dqp.connect(tmp_path / files) as lab, pytest.raises(DaiError, match="Give each line") as caught:
                    lab.sql(f"from {table}").rows()
                assert "url" not in str(caught.value)
        driver.close()


def test_a_header_is_not_lost_beside_another_file_that_has_its_names(tmp_path: Path) -> None:
    (tmp_path / "1.csv").write_text("id,name\n1,a\n")
    (tmp_path / "2.csv").write_text("id,name\n1,a\n2,b,c\n")
    driver = opened({"both": "*.csv"}, tmp_path)
    with pytest.raises(DataError, match=r"2\.csv: line 3 has 3 cells, the header \(line 1\) has 2"):
        rows(driver, "from both")
    driver.close()


@pytest.mark.parametrize("texts", [(",name\n1,a\n", ",name\n7,b\n"), ("id,name\n1,a\n", "ID,Mass\n7,2.5\n")])
def test_files_whose_headers_fit_are_sniffed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, texts: tuple[str, str]
) -> None:
    """By DuckDB, for its view: that takes most of the time that it takes to open many files."""
    monkeypatch.setattr(headers, "_check", pytest.fail)
    for year, text in enumerate(texts):
        (tmp_path / f"year={year}").mkdir()
        (tmp_path / f"year={year}" / "a.csv").write_text(text)
    driver = opened({"years": "year=*/*.csv"}, tmp_path)
    assert rows(driver, "select distinct year from years order by 1") == [(0,), (1,)]
    driver.close()


def test_of_a_long_line_little_is_in_memory(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,name\n1," + "x" * (16 << 20))
    driver = opened("a.csv", tmp_path)
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match="cannot be read"):
            rows(driver, "from a")
        assert tracemalloc.get_traced_memory()[1] < 12 << 20
    finally:
        tracemalloc.stop()
        driver.close()


def test_a_file_of_utf_16(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,name\n1,Ada\n", encoding="utf-16")
    driver = opened("a.csv", tmp_path)
    with pytest.raises(DataError, match=r"it is not UTF-8.*\nConvert it to UTF-8: iconv -f utf16 -t utf8"):
        rows(driver, "from a")
    driver.close()


@pytest.mark.parametrize("look", [0.0, 1000.0])
@pytest.mark.parametrize(("file", "table"), [("a.csv", "a"), ("p.parquet", "p"), ("k.arrow", "k")])
def test_a_file_that_was_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, table: str, look: float
) -> None:
    """Also within the time for which the list of the files is taken to be right. An Arrow file is a copy until then."""
    monkeypatch.setattr(module, "LOOK_SECONDS", look)
    (tmp_path / "a.csv").write_text("id,name\n1,Ada\n")
    (tmp_path / "b.csv").write_text("id\n7\n")
    parquet.write_table(DAYS[0], tmp_path / "p.parquet")
    feather.write_feather(DAYS[0], tmp_path / "k.arrow")
    whole, alone = opened(str(tmp_path), tmp_path), opened(file, tmp_path)
    for driver in (whole, alone):
        columns = [each.columns for each in driver.tables() if each.name == table]
        (before,) = rows(driver, f"select count(*) from {table}")
        kept = (tmp_path / file).read_bytes()
        (tmp_path / file).unlink()
        for _ in range(2):
            if look and file == "k.arrow":
                assert rows(driver, f"select count(*) from {table}") == [before]
                continue
            with pytest.raises(DatabaseUnavailableError, match=rf"^The file {file} of the table '{table}' is gone\.$"):
                rows(driver, f"select id from {table}")
        if driver is whole:
            assert rows(driver, "from b") == [(7,)]
            assert [each.columns for each in driver.tables() if each.name == table] == columns
            assert driver.statistics(table).size_bytes is not None
            with pytest.raises(StatementError, match="no_such"):
                rows(driver, "select no_such from b")
        (tmp_path / file).write_bytes(kept)
        assert rows(driver, f"select count(*) from {table}") == [before]
        driver.close()


def test_a_federation_of_a_file_that_was_deleted(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.csv").write_text("id,name\n1,Ada\n")
    with dqp.connect({"sources": {"all": str(tmp_path), "own": str(tmp_path / "a.csv")}}) as lab:
        assert lab.sql("select all_a.name from all_a join own.a using (id)").rows() == [("Ada",)]
        (tmp_path / "a.csv").unlink()
        for sql in ("select name from all_a", "select id from own.a", "select count(*) from all_a", "from own.a"):
            with pytest.raises(DatabaseUnavailableError, match=r"file a\.csv of the table 'a' is gone"):
                lab.sql(sql).rows()
        assert lab.sql("select name from all_b").rows() == [("Ada",)]


@pytest.fixture
def address(folder: Path) -> Iterator[str]:
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_file_at_an_address(address: str, tmp_path: Path) -> None:
    driver = opened(f"{address}/people.csv", tmp_path)
    assert rows(driver, "select count(*) from people") == [(2,)]
    driver.close()
    with pytest.raises(DaiError, match="table 'none' cannot be fetched from its address: 404"):
        opened(f"{address}/none.csv", tmp_path).tables()
    with dqp.connect(f"{address}/people.csv") as lab:
        assert lab.sql("select name from people.people where id = 1").rows() == [("Ada",)]


def test_objects_of_a_store(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", delivery.USER)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", delivery.PASSWORD)
    with delivery.object_store("sky") as (endpoint, client):
        for key, file in (("y=1/0.parquet", "days/0.parquet"), ("y=2/1.parquet", "days/1.parquet")):
            client.put_object(Bucket="sky", Key=f"days/{key}", Body=(folder / file).read_bytes())
        client.put_object(Bucket="sky", Key="people.csv", Body=(folder / "people.csv").read_bytes())
        at = f"?region=us-east-1&scheme=http&endpoint_override={endpoint.partition('://')[2]}"
        sources = {"days": f"s3://sky/days/**/*.parquet{at}", "p": f"s3://sky/people.csv{at}"}
        with dqp.connect({"sources": sources}) as lab:
            query = lab.sql("select name, y from p.people join days.days using (id) where v > 0.1")
            assert query.rows() == [("Grace", 2)]
            assert lab.sql("select sum(id), max(y) from days.days").rows() == [(6, 2)]
            assert 'WHERE t1."id" > 3' in lab.explain("from days.days where id > 3").text
        with pytest.raises(DatabaseUnavailableError, match="'own' cannot be fetched from its address: there is none"):
            opened(f"s3://sky/none/*.csv{at}", tmp_path).tables()
        with pytest.raises(ConfigurationError, match=r"(?s)is not a file with a table.*s3://sky/days/\*\.parquet"):
            opened(f"s3://sky/days/{at}", tmp_path)


def test_a_service_and_federations(folder: Path, tmp_path: Path) -> None:
    document: dict[str, Any] = {
        "service": {"port": 0, "state": "sqlite:///state.db", "results_directory": "results", "grace": 0.2},
        "resources": {"observations": {"files": str(folder / "days" / "*.parquet")}, "all": {"files": [str(folder)]}},
        "federations": {"lab": {"sources": [{"alias": "observations", "resource": "observations"}]}},
    }
    with background(parse(document, tmp_path, {})) as running:
        resource = dai.connect(f"{running.url}/observations")
        assert resource.query("select sum(id) as s from observations").arrow().num_rows == 1
        with pytest.raises(StatementError):
            resource.query(f"from '{folder}/people.csv'").arrow()
        with dqp.connect(f"{running.url}/lab") as lab:
            assert lab.sql("select count(*) from observations where id > 1").rows() == [(4,)]
    sources = {"observations": str(folder / "days" / "*.parquet"), "people": str(folder / "people.csv")}
    with dqp.connect({"sources": sources}) as lab:
        query = lab.sql("select name, v from people join observations using (id) where v > 0.1 order by 1")
        assert query.rows() == [("Grace", 0.5)]
        assert 'WHERE t1."id" > 3' in lab.explain("from observations where id > 3").text
    for place, name in ((folder, f"{folder.name.replace('-', '_')}.people"), (folder / "people.csv", "people")):
        with dqp.connect(place) as lab:
            assert lab.sql(f"select count(*) from {name}").rows() == [(2,)]
