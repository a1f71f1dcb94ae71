"""What columns mean reaches clients: in the schema, and in the forms of results that can say it."""

import html
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import httpx
import pytest
from lxml import etree

import dai
import dai.client
from dai.api.server.serve import background
from dai.config import parse
from dai.errors import ConfigurationError
from dai.formats import format_named
from dai.streams.meaning import Meaning
from tests.api.conftest import DOCUMENT, XML, configured
from tests.interop.java import java
from tests.processes import ROOT

pytestmark = pytest.mark.server
COMMENT = "flux <?> \"peak\" & 'more'"
FLUX = {"unit": "mJy", "ucd": "phot.flux.density", "quantity": "qk:Flux", "description": COMMENT}
SQL = "select id, flux, flux * 2 as twice from galaxies"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("meanings")
    with duckdb.connect(str(directory / "sky.duckdb")) as connection:
        connection.execute("create table galaxies as select 1 as id, 5.5::double as flux")
        connection.execute(f"comment on column galaxies.flux is '{COMMENT.replace(chr(39), chr(39) * 2)}'")
    columns = {"galaxies.flux": {name: FLUX[name] for name in ("unit", "ucd", "quantity")}}
    resources = {"sky": {"url": f"duckdb:///{directory / 'sky.duckdb'}", "columns": columns}}
    with background(configured(directory, resources)) as running:
        yield f"{running.url}/resources/sky"


@pytest.fixture(scope="module")
def sky(url: str) -> dai.client.Resource:
    return dai.connect(url)


def test_the_schema_says_it(sky: dai.client.Resource) -> None:
    schema = sky.schema()
    flux = schema["galaxies"]["columns"][1]
    assert (flux["unit"], flux["ucd"], flux["quantity"], flux["comment"]) == tuple(FLUX.values())
    assert "flux double [mJy, phot.flux.density, qk:Flux]" in repr(schema)


def test_the_schema_document_says_it(url: str) -> None:
    work = '<extractDatabaseSchema name="s"><getTables name="%"/><output name="o"/></extractDatabaseSchema>'
    answer = httpx.post(f"{url}/perform?output=o", content=DOCUMENT.format(work), headers=XML)
    read = etree.fromstring(answer.content)
    (flux,) = (each for each in read.iter("{*}column") if each.get("name") == "flux")
    assert {name: flux.get(name) for name in ("unit", "ucd", "quantity", "comment")} == {
        "comment": COMMENT,
        **{name: each for name, each in FLUX.items() if name != "description"},
    }
    etree.XMLSchema(etree.parse(ROOT / "schemas" / "database-schema.xsd")).assertValid(read)


def encoded(url: str, media_type: str) -> bytes:
    answer = httpx.post(f"{url}/query", json={"sql": SQL}, headers={"Accept": media_type})
    assert answer.status_code == 200, answer.text
    return answer.content


@pytest.mark.parametrize("form", ["arrow", "parquet", "webrowset", "votable"])
def test_forms_that_can_say_it_do(url: str, form: str) -> None:
    data = encoded(url, format_named(form).media_type)
    table = format_named(form).decode([data]).table()
    assert [Meaning.of(each.metadata).said for each in table.schema] == [{}, FLUX, {}]
    assert table.to_pylist() == [{"id": 1, "flux": 5.5, "twice": 11.0}]


def test_a_votable_says_it_to_others(url: str) -> None:
    read = etree.fromstring(encoded(url, "application/x-votable+xml"))
    flux = read.findall(".//{*}FIELD")[1]
    assert (flux.get("unit"), flux.get("ucd"), flux.findtext("{*}DESCRIPTION")) == ("mJy", FLUX["ucd"], COMMENT)


def test_java_reads_a_webrowset_with_meanings(url: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.xml"
    path.write_bytes(encoded(url, "application/vnd.webrowset+xml"))
    read = etree.parse(path)
    etree.XMLSchema(etree.parse(ROOT / "schemas" / "webrowset.xsd")).assertValid(read)
    (said,) = read.xpath("//processing-instruction('column-meaning')")
    assert {name: html.unescape(each) for name, each in said.attrib.items()} == {"index": "2", **FLUX}
    lines = [line.split("\x1f") for line in java("ReadWebRowSet", path).split("\n") if line]
    assert [line[1] for line in lines if line[0] == "column"] == ["id", "flux", "twice"]
    assert lines[-1] == ["rows", "1"]


def test_data_frames_say_it(sky: dai.client.Resource) -> None:
    frame = sky.query(SQL).to_pandas()
    assert frame.attrs == {"flux": FLUX}
    assert frame["flux"].attrs["flux"]["unit"] == "mJy"


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"flux": {"unit": "mJy"}}, "with the name of a column"),
        ({"galaxies.flux": "mJy"}, "must be a section"),
        ({"galaxies.flux": {"units": "mJy"}}, "Did you mean 'unit'"),
        ({"galaxies.flux": {"unit": 1}}, "must be text"),
        ("mJy", "must be a section"),
    ],
)
def test_a_configuration_that_cannot_be(columns: Any, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        parse({"resources": {"sky": {"url": "sqlite://", "columns": columns}}}, Path(), {})
    with pytest.raises(ConfigurationError, match="for a database"):
        parse({"resources": {"d": {"directory": ".", "columns": {"a.b": {"unit": "m"}}}}}, Path(), {})
