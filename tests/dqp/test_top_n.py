"""Which query is preceded by a top-N probe, and what that asks. Answers with probes: test_coordinator."""

import pytest

from dqp.algebra.operators import Names
from dqp.algebra.trees import identifiers
from dqp.binding.binder import bind
from dqp.catalog.catalog import Catalog
from dqp.planning.context import Context
from dqp.planning.costing.cost import Estimator
from dqp.planning.rules import optimise
from dqp.planning.top_n import Probe, probe_for
from dqp.sql import dialects
from tests.dqp.catalogs import table_of

SOURCES = {"maria": "mariadb", "pg": "postgresql", "duck": "duckdb"}
EVENTS = "id int not null, person int not null, label varchar not null, seconds double not null"
LATEST = "select e.{0}, p.name from {1}.events e join duck.people p on e.person = p.id order by e.{0} desc limit 100"


def _probe(source: str, key: str, different: float, keys: tuple[tuple[str, ...], ...] = (("id",),)) -> Probe | None:
    events = table_of(source, "events", EVENTS, rows=1e6, keys=keys, **{key: {"distinct": different}})
    people = table_of("duck", "people", "id int not null, name varchar", rows=1e5)
    catalog = Catalog.of([events, people], dialects=SOURCES)
    tree = bind(LATEST.format(key, source), catalog).tree
    context = Context(catalog, Estimator(), Names(identifiers(tree)))
    return probe_for(optimise(tree, context), context)


@pytest.mark.parametrize("source", ["maria", "pg"])
def test_values_that_few_rows_share_are_not_made_distinct(source: str) -> None:
    probe = _probe(source, "id", 1e6)
    assert probe is not None
    sql = dialects.statement(probe.remote.tree, SOURCES[source]).sql.replace("`", '"')
    assert sql == 'SELECT t1."id" AS "bound" FROM "events" AS t1 ORDER BY t1."id" DESC LIMIT 200'  # an index does that


def test_a_probe_that_takes_as_long_as_the_query_is_not_sent() -> None:
    assert _probe("pg", "seconds", 9.9e5) is not None
    assert _probe("maria", "seconds", 9.9e5) is None  # the query takes hardly longer than one more look at each row
    assert _probe("maria", "label", 1e5, keys=(("label", "person"),)) is None  # no index has the order of bytes
    assert _probe("maria", "person", 1e5, keys=(("person", "label"),)) is not None
    assert _probe("maria", "person", 1e5) is None
