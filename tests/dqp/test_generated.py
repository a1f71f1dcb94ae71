"""2,000 generated queries over PostgreSQL, MariaDB, SQLite and DuckDB: the answers are those of one DuckDB database."""

from collections.abc import Iterator

import pytest

from tests.dqp.generated import differential
from tests.dqp.generated.differential import Federation, difference
from tests.dqp.generated.grammar import query
from tests.dqp.generated.oracle import Oracle
from tests.dqp.generated.report import report

BATCH = 100
SHOWN = 2
"""Failures of a batch that are made small; the others are named."""


@pytest.fixture(scope="module")
def federation(
    postgres_module_url: str, mariadb_module_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Federation]:
    urls = {"pg": postgres_module_url, "maria": mariadb_module_url}
    urls |= differential.files(tmp_path_factory.mktemp("generated"))
    differential.load(urls)
    with differential.federation(urls) as made:
        yield made


@pytest.fixture(scope="module")
def oracles() -> Iterator[tuple[Oracle, Oracle]]:
    with Oracle() as forwards, Oracle(backwards=True) as backwards:
        yield forwards, backwards


@pytest.mark.parametrize("batch", range(20))
def test_the_answers_of_one_database(batch: int, oracles: tuple[Oracle, Oracle], federation: Federation) -> None:
    found = {}
    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        made = difference(query(seed), oracles[0], federation)
        if made is not None:
            found[seed] = made
    texts = [
        report(seed, query(seed), made, oracles, federation, seconds=15.0)
        if at < SHOWN
        else f"== seed {seed}: {made.kind}\n{query(seed)}"
        for at, (seed, made) in enumerate(found.items())
    ]
    assert not found, "\n".join(texts)
