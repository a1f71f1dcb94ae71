"""Tables that stand in several sources: names of the configuration, as SQL reads them, and those that are wrong."""

from collections.abc import Callable
from pathlib import Path

import duckdb
import pytest

import dqp
from dqp.catalog.catalog import Catalog
from tests.dqp.scripted import Scripted, info


@pytest.mark.parametrize(
    ("schema", "key", "found"),
    [
        ("public", "s.t", True),
        ("public", "s.public.t", True),
        ("other", "s.other.t", True),
        ("other", "s.t", True),
        ("other", "s.public.t", False),
        (None, "S.T", True),
    ],
)
def test_a_table_is_named_as_in_sql(
    catalog_of: Callable[..., Catalog], schema: str | None, key: str, found: bool
) -> None:
    replicas = {key: ("other.u",)}
    catalog = catalog_of(Scripted("s", info("t", schema=schema)), Scripted("other", info("u")), replicas=replicas)
    assert catalog.table("s", "t").replicas == ((("other", None, "u"),) if found else ())


def test_a_place_is_named_as_in_sql(catalog_of: Callable[..., Catalog]) -> None:
    copies = Scripted("Other", info("U", schema="Copies"), info("a.b"))
    catalog = catalog_of(Scripted("s", info("t")), copies, replicas={"s.t": ("OTHER.copies.u", "other.A.B", "other.u")})
    # As it is written, while nobody knows better.
    written = (("Other", "copies", "u"), ("Other", "A", "B"), ("Other", None, "u"))
    assert catalog.table("s", "t").replicas == written
    assert copies.asked == []
    catalog.tables()
    known = (("Other", "Copies", "U"), ("Other", None, "a.b"), ("Other", "Copies", "U"))
    assert catalog.table("s", "t").replicas == known


@pytest.mark.parametrize(
    ("schema", "name", "expected"), [("sales", "t", "sales"), ("public", "t", None), (None, "a.b", None)]
)
def test_the_replica_of_a_source_has_its_schemas(
    catalog_of: Callable[..., Catalog], schema: str | None, name: str, expected: str | None
) -> None:
    tables = info(name, schema=schema)
    catalog = catalog_of(Scripted("s", tables), Scripted("s@1", tables, replica_of="s"))
    assert catalog.table("s", name).replicas == (("s@1", expected, name),)


def test_names_that_stand_for_nothing_are_told(catalog_of: Callable[..., Catalog]) -> None:
    away = Scripted("away", info("t"))
    away.away = True
    catalog = catalog_of(
        Scripted("s", info("people"), info("orders")),
        Scripted("other", info("copy", "id:int:int32")),
        away,
        replicas={"s.poeple": ("other.copy",), "s.orders": ("away.nix", "other.kopy", "other.copy"), "away.x": ()},
    )
    assert not catalog.problems, "No source has been asked yet."
    assert catalog.table("s", "orders").replicas == (
        ("away", None, "nix"),
        ("other", None, "kopy"),
        ("other", None, "copy"),
    )
    assert catalog.problems == {'replicas."s.poeple"': "There is no table s.poeple. Did you mean 's.people'?"}
    catalog.tables()
    assert {name: why for name, why in catalog.problems.items() if name != "away"} == {
        'replicas."s.poeple"': "There is no table s.poeple. Did you mean 's.people'?",
        'replicas."s.orders"': "There is no table other.kopy. Did you mean 'other.copy'?\n"
        "The table other.copy has no column name.",
    }
    # What is known not to be there is not asked.
    assert catalog.table("s", "orders").replicas == (("away", None, "nix"), ("other", None, "copy"))


def test_a_plan_says_it_of_its_sources(tmp_path: Path) -> None:
    for name in ("one", "two"):
        with duckdb.connect(str(tmp_path / f"{name}.db")) as connection:
            connection.execute("create table people as select 1 as id")
    document = {
        "sources": {name: f"duckdb:///{tmp_path / name}.db" for name in ("one", "two")},
        "replicas": {"one.people": ["two.poeple"]},
    }
    with dqp.connect(document) as lab:
        assert not lab.explain("from one.people").remarks
        joined = "select count(*) as n from one.people join two.people using (id)"
        for analyze in (False, True):
            remark = "replicas.\"one.people\": There is no table two.poeple. Did you mean 'two.people'?"
            assert remark in lab.explain(joined, analyze=analyze).remarks
        assert not lab.explain("from two.people").remarks
