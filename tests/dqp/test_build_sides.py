"""Of a join here the smaller side is built."""

from __future__ import annotations

from collections.abc import Iterator

import duckdb
import pyarrow as pa
import pytest

from dqp.algebra.operators import Join, JoinKind, Names, Operator
from dqp.algebra.trees import identifiers, walk
from dqp.binding.binder import bind
from dqp.interfaces.lab import Lab
from dqp.planning.context import Context
from dqp.planning.costing.cost import Estimator
from dqp.planning.rules import optimise
from dqp.planning.rules.build_sides import smaller_built
from dqp.planning.semijoins.adaptive import adapt
from tests.dqp.catalogs import catalog_of
from tests.dqp.duckdb_files import Both, federated

CATALOG = catalog_of(
    pg={"large": "id int not null, k int"},
    duck={"small": "id int not null, name varchar"},
    rows={"pg.large": 1e6, "duck.small": 1e3},
)
LARGE, SMALL = "pg.large l", "duck.small s"


class Many:
    """A reading of more bytes than a build may have."""

    arrived = False

    def whole(self, limit: int) -> pa.Table | None:
        return None


def _tree(sql: str, read: bool = False) -> tuple[Operator, Estimator]:
    """A query's tree as DuckDB gets it, and estimates. ``read``: what was expected to be small was read, and has many
    rows."""
    tree = bind(sql, CATALOG).tree
    context = Context(CATALOG, Estimator(), Names(identifiers(tree)))
    before = optimise(tree, context)
    if read:
        assert adapt(before, context, lambda _: Many(), 16 << 20) is before
    after = smaller_built(before, context.estimator)
    assert after.columns == before.columns
    return after, context.estimator


def _kinds(tree: Operator) -> list[JoinKind]:
    return [each.kind for each in walk(tree) if isinstance(each, Join)]


def _join(sql: str) -> tuple[Join, Estimator]:
    tree, estimator = _tree(sql)
    (join,) = (each for each in walk(tree) if isinstance(each, Join))
    return join, estimator


@pytest.mark.parametrize(
    ("written", "kind"),
    [
        (f"{LARGE} join {SMALL} on l.k = s.id", "inner"),
        (f"{SMALL} join {LARGE} on l.k = s.id", "inner"),
        (f"{SMALL} left join {LARGE} on l.k = s.id", "right"),
        (f"{LARGE} left join {SMALL} on l.k = s.id", "left"),
        (f"{LARGE} right join {SMALL} on l.k = s.id", "right"),
        (f"{SMALL} right join {LARGE} on l.k = s.id", "left"),
        (f"{SMALL} full join {LARGE} on l.k = s.id", "full"),
        (f"{LARGE} full join {SMALL} on l.k = s.id", "full"),
    ],
)
def test_the_smaller_side_stands_right(written: str, kind: JoinKind) -> None:
    join, estimator = _join(f"select l.id, l.k, s.name from {written}")
    assert join.kind == kind
    assert estimator.rows(join.right) < estimator.rows(join.left)


@pytest.mark.parametrize("on", ["l.k < s.id", "l.k = s.id or s.name = 'x'"])
def test_a_join_without_an_equality_stays_as_it_is(on: str) -> None:
    join, estimator = _join(f"select l.id, s.name from {SMALL} left join {LARGE} on {on}")
    assert join.kind == "left"
    assert estimator.rows(join.right) > estimator.rows(join.left)


@pytest.mark.parametrize("joins", [1, 2])
def test_what_turned_out_large_is_not_built(joins: int) -> None:
    written = "".join(f" left join pg.large l{each} on l{each}.id = s.id" for each in range(joins))
    sql = f"select s.name, l0.k from {SMALL}{written}"
    assert _kinds(_tree(sql)[0]) == ["right"] * joins
    assert _kinds(_tree(sql, read=True)[0]) == ["left"] * joins


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    large = pa.table({"id": range(5000), "k": [each % 90 for each in range(5000)]})
    small = pa.table({"id": range(30, 130), "name": [f"n{each}" for each in range(100)]})
    with federated(tmp_path_factory.mktemp("files"), {("a", "large"): large, ("b", "small"): small}) as made:
        yield made


@pytest.fixture
def lab(both: Both) -> Lab:
    return both[0]


@pytest.fixture
def right(both: Both) -> duckdb.DuckDBPyConnection:
    return both[1]


@pytest.mark.parametrize("kind", ["join", "left join", "right join", "full join"])
@pytest.mark.parametrize("sides", [("a.large l", "b.small s"), ("b.small s", "a.large l")])
def test_it_is_built_and_the_rows_are_the_same(
    kind: str, sides: tuple[str, str], lab: Lab, right: duckdb.DuckDBPyConnection
) -> None:
    sql = f"select l.id, s.id, l.k, s.name from {sides[0]} {kind} {sides[1]} on l.k = s.id order by 1, 2"
    assert lab.sql(sql).arrow().to_pylist() == right.sql(sql).to_arrow_table().to_pylist()
    _, probed, built = str(lab.sql(sql).explain(analyze=True)).split("Hash join")[1].split("Input")
    assert ("name" in probed, "name" in built) == (False, True)
