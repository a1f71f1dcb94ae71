"""docs/federations/reference.md says what is so: its table of meanings is executed, its configuration is read."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import dqp
from dai.errors import DaiError
from dqp.catalog.catalog import Catalog
from dqp.execution.service_calls import operations_of
from dqp.interfaces.lab import Lab
from dqp.settings import FederationSettings
from dqp.settings import load as settings_of
from examples.demo.load import load

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "federations" / "reference.md").read_text()
ROWS = re.findall(r"^\| .*? \| `(select .*)` \| (?:`(.*)`|(error)) \|$", TEXT, re.MULTILINE)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    place = tmp_path_factory.mktemp("meanings")
    urls = {"lite": f"sqlite:///{place}/lite.db", "duck": f"duckdb:///{place}/duck.db"}
    load(urls["lite"], ["protein_goterm"], 10)
    load(urls["duck"], ["protein_goterm"], 10)
    with dqp.connect({"sources": urls}) as lab:
        yield lab


def test_there_are_rows() -> None:
    assert len(ROWS) >= 20


@pytest.mark.parametrize(("sql", "answer", "error"), ROWS, ids=[each[0] for each in ROWS])
def test_what_the_sql_means(lab: Lab, sql: str, answer: str, error: str) -> None:
    if error:
        with pytest.raises(DaiError):
            lab.sql(sql).arrow()
    else:
        assert str(lab.sql(sql).arrow().column(0)[0].as_py()) == answer


def test_the_configuration_is_one() -> None:
    written, *_ = re.findall(r"^```toml\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    settings = settings_of(tomllib.loads(written))
    assert [each.alias for each in settings.sources] == ["pg", "maria", "lite"]
    assert settings.upload_bytes == 256_000_000
    assert operations_of(settings)["complexity"].seconds > 0
    with closing(Catalog(FederationSettings(functions=settings.functions), sources=())) as catalog:
        assert catalog.describe("SELECT complexity('ACGT')")[0][1] == "DOUBLE"
    assert settings.views.keys() == {"busy"}


def test_the_example_federation(tmp_path: Path) -> None:
    (tmp_path / "examples").mkdir()
    (tmp_path / "examples" / "federation.toml").write_text((ROOT / "examples" / "federation.toml").read_text())
    load(f"sqlite:///{tmp_path}/demo.db")
    load(f"duckdb:///{tmp_path}/demo.duckdb")
    with dqp.connect(tmp_path / "examples" / "federation.toml") as lab:
        table = lab.sql("select count(*) as n from annotated where repeats > 2").arrow()
        assert table.to_pylist() == [{"n": 4_293}]
