"""Views: what breaks one disturbs nobody who does not read it."""

import contextlib
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import dqp
from dai.errors import DatabaseUnavailableError, StatementError
from dqp.binding.binder import bind
from dqp.catalog.catalog import Catalog
from tests.dqp.scripted import Scripted, info


def test_a_view_may_be_called_like_a_table_that_it_reads(catalog_of: Callable[..., Catalog]) -> None:
    catalog = catalog_of(Scripted("pg", info("orders")), views={"Orders": "select orders.id from pg.orders"})
    assert catalog.describe("from orders") == (("id", "INTEGER"),)
    assert [name for name, _ in catalog.describe("from pg.orders")] == ["id", "name"]
    assert not catalog.problems


def test_views_that_mention_each_other_and_do_not_read_each_other(catalog_of: Callable[..., Catalog]) -> None:
    names = [f"v{number}" for number in range(12)]
    views = {each: f"select {', '.join(f'id as {other}' for other in names)} from pg.t" for each in names}
    catalog = catalog_of(Scripted("pg", info("t")), views=views)
    assert [name for name, _ in catalog.describe("select v3.* from v3, v7")] == names
    assert catalog.shapes_of_views().keys() == set(names)


@pytest.mark.parametrize("name", ["lost", "above", "round", "gone", "file"])
def test_a_column_may_be_called_like_a_broken_view(catalog_of: Callable[..., Catalog], name: str) -> None:
    away = Scripted("away", info("t"))
    away.away = True
    views = {
        "lost": "select nix from pg.t",
        "above": "select * from lost",
        "round": "select * from round",
        "gone": "from away.t",
        "file": "from read_csv('/etc/hosts')",
        "holds": f"select id as {name} from pg.t",
    }
    catalog = catalog_of(Scripted("pg", info("t")), away, views=views)
    assert catalog.describe(f"select id as {name} from pg.t") == ((name, "INTEGER"),)
    assert catalog.describe("from holds") == ((name, "INTEGER"),)
    assert catalog.describe(f"with {name} as (select 1 as x) from {name}") == (("x", "INTEGER"),)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("lost", "The view 'lost' is wrong: There is no column 'nix' in pg.t."),
        ("Above", "The view 'lost' is wrong: There is no column 'nix' in pg.t."),
        ("round", "The view 'round' reads itself: round → round."),
        ("one", "The view 'one' reads itself: one → two → one."),
        ("file", "The view 'file' is wrong: The statement is not allowed here"),
    ],
)
def test_who_reads_a_broken_view_is_told_why(catalog_of: Callable[..., Catalog], name: str, says: str) -> None:
    views = {
        "lost": "select nix from pg.t",
        "above": "select * from lost",
        "round": "select * from round",
        "one": "select * from two",
        "two": "select * from one",
        "file": "from read_csv('/etc/hosts')",
    }
    catalog = catalog_of(Scripted("pg", info("t")), views=views)
    for sql in (f"from {name}", f"select (select count(*) from {name}) from pg.t"):
        with pytest.raises(StatementError) as caught:
            catalog.describe(sql)
        assert says in str(caught.value)
    catalog.shapes_of_views()
    assert catalog.problems.keys() == views.keys()


@pytest.mark.parametrize(
    ("sql", "given", "place"),
    [
        ("from broken", {}, "line 1: from broken\n             ^"),
        (
            "select 1,\n * from broken b where id = $x",
            {"x": 1},
            "line 2:  * from broken b where id = $x\n                ^",
        ),
        ("explain from broken", {}, "line 1: explain from broken\n                     ^"),
    ],
)
def test_the_mistake_is_shown_in_the_view_and_in_the_query(
    catalog_of: Callable[..., Catalog], sql: str, given: dict[str, int], place: str
) -> None:
    catalog = catalog_of(Scripted("pg", info("t")), views={"broken": "select id,\n nix from pg.t"})
    said = "The view 'broken' is wrong: There is no column 'nix' in pg.t.\n  line 2:  nix from pg.t\n           ^"
    with pytest.raises(StatementError) as caught:
        bind(sql, catalog, given)
    assert str(caught.value) == f"{said}\n{place}\nKnown: id, name."
    catalog.shapes_of_views()
    assert catalog.problems == {"broken": f"{said}\nKnown: id, name."}


def test_a_view_of_a_source_that_is_away(catalog_of: Callable[..., Catalog]) -> None:
    away = Scripted("away", info("t"))
    away.away = True
    catalog = catalog_of(away, views={"gone": "from away.t", "above": "from gone"})
    with pytest.raises(DatabaseUnavailableError, match="'away' is not available"):
        catalog.describe("from above")


def test_a_view_of_a_new_table_holds_at_once(
    catalog_of: Callable[..., Catalog], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dqp.catalog.reflection.FRESH_SECONDS", 0.0)
    source = Scripted("pg", info("t"))
    catalog = catalog_of(source, views={"new": "from pg.u"})
    with pytest.raises(StatementError, match=r"The view 'new' is wrong: There is no table pg\.u"):
        catalog.describe("from new")
    source.infos = (*source.infos, info("u"))
    assert [name for name, _ in catalog.describe("from new")] == ["id", "name"]


def test_a_mistake_in_a_column_of_a_view_or_an_upload(catalog_of: Callable[..., Catalog]) -> None:
    catalog = catalog_of(Scripted("pg", info("t")), views={"busy": "select name as title, id from pg.t"})
    for sql, says in (
        ("select titel from busy", "There is no column 'titel' in busy.\nDid you mean 'title'?"),
        ("select wieght from mine", "There is no column 'wieght' in mine.\nDid you mean 'weight'?"),
    ):
        catalog.upload("mine", pa.table({"weight": [1.5]}))
        with pytest.raises(StatementError) as caught:
            catalog.describe(sql)
        assert f"{caught.value.detail}\n{caught.value.hint}" == says


@pytest.mark.parametrize("query", ["SELECT a FROM v", "SELECT 1 FROM v", "SELECT b FROM v", "SELECT a, b FROM v"])
def test_a_view_of_distinct_rows_has_them_all_whatever_is_read_of_it(tmp_path: Path, query: str) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / "s.db")) as connection:
        connection.execute("CREATE TABLE t (a integer, b integer)")
        connection.executemany("INSERT INTO t VALUES (?, ?)", [(1, 1), (1, 2), (2, 1), (2, 1)])
        connection.commit()
    views = {"v": "SELECT DISTINCT a, b FROM s.t"}
    with dqp.connect({"sources": {"s": f"sqlite:///{tmp_path / 's.db'}"}, "views": views}) as lab:
        assert lab.sql(query).arrow().num_rows == 3
        as_written = f"WITH RECURSIVE r(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM r WHERE i < 2) {query}"
        assert lab.sql(as_written).arrow().num_rows == 3
