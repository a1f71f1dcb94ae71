"""2,000 generated queries over PostgreSQL, MariaDB, SQLite and DuckDB: the answers are those of one DuckDB database."""

import importlib
from collections.abc import Iterator

import duckdb
import pytest

from tests.dqp.generated import differential
from tests.dqp.generated.differential import EAGER, Connected, difference
from tests.dqp.generated.grammar import query
from tests.dqp.generated.oracle import Oracle
from tests.dqp.generated.report import report
from tests.servers.hostile import hostile
from tests.servers.mariadb import MariaServer, MySQLServer
from tests.servers.postgresql import PostgresServer

BATCH = 100
SHOWN = 2
"""Failures of a batch that are made small; the others are named."""
EVERYWHERE, EAGERLY, HOSTILE, SPREAD = 70_000_000, 71_000_000, 72_000_000, 90_000_000
"""The first seeds of what follows."""


@pytest.fixture(scope="module")
def oracles() -> Iterator[tuple[Oracle, Oracle]]:
    with Oracle() as forwards, Oracle(backwards=True) as backwards:
        yield forwards, backwards


@pytest.fixture(scope="module")
def spread(generated: Connected, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connected]:
    """The same databases, all that can be spread over two evaluators. Its files are its own: one process at a time has
    a DuckDB file."""
    files = differential.files(tmp_path_factory.mktemp("spread"))
    differential.load(files)
    with (
        differential.served(tmp_path_factory.mktemp("served"), {**generated.urls, **files}) as (urls, evaluators),
        Connected(urls, evaluators) as made,
    ):
        yield made


def failures(seeds: range, oracles: tuple[Oracle, Oracle], federation: Connected) -> str:
    """What is to be said of the seeds whose answers differ; nothing where none does."""
    found = {}
    for seed in seeds:
        made = difference(query(seed), oracles[0], federation)
        if made is not None:
            found[seed] = made
    return "\n".join(
        report(seed, query(seed), made, oracles, federation, seconds=15.0)
        if at < SHOWN
        else f"== seed {seed}: {made.kind}\n{query(seed)}"
        for at, (seed, made) in enumerate(found.items())
    )


def test_hostile_settings_of_the_servers_change_no_answer(
    oracles: tuple[Oracle, Oracle], generated: Connected, postgres: PostgresServer, mariadb: MariaServer
) -> None:
    names = {source: generated.urls[source].rpartition("/")[2] for source in ("pg", "maria")}
    with (
        hostile(postgres, names["pg"]),
        hostile(mariadb, names["maria"]),
        Connected(generated.urls) as federation,
    ):
        found = failures(range(HOSTILE, HOSTILE + BATCH), oracles, federation)
    assert not found, f"\n{found}"


@pytest.mark.parametrize("batch", range(20))
def test_the_answers_of_one_database(batch: int, oracles: tuple[Oracle, Oracle], generated: Connected) -> None:
    first = EVERYWHERE + batch * BATCH
    found = failures(range(first, first + BATCH), oracles, generated)
    assert not found, found


@pytest.mark.parametrize("batch", range(5))
def test_steps_that_are_to_pay_change_no_answer(
    batch: int, oracles: tuple[Oracle, Oracle], generated: Connected, monkeypatch: pytest.MonkeyPatch
) -> None:
    for (module, name), value in EAGER.items():
        monkeypatch.setattr(importlib.import_module(module), name, value)
    seeds = range(EAGERLY + batch * BATCH, EAGERLY + (batch + 1) * BATCH)
    found = failures(seeds, oracles, generated)
    assert not found, found
    explained = (generated.lab.explain(query(seed), analyze=True).text for seed in seeds if runs(seed, oracles[0]))
    assert any("reduced by" in text for text in explained)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("batch", range(3))
def test_on_evaluators(batch: int, oracles: tuple[Oracle, Oracle], spread: Connected) -> None:
    seeds = range(SPREAD + 50 * batch, SPREAD + 50 * (batch + 1))
    found = failures(seeds, oracles, spread)
    assert not found, found
    explained = [spread.lab.explain(query(seed), analyze=True).text for seed in seeds[:10] if runs(seed, oracles[0])]
    assert any("Exchange hash" in text for text in explained)


if MySQLServer.found():

    @pytest.fixture(scope="module")
    def with_mysql(
        generated: Connected, mysql_module_url: str, tmp_path_factory: pytest.TempPathFactory
    ) -> Iterator[Connected]:
        own = {"maria": mysql_module_url, **differential.files(tmp_path_factory.mktemp("with_mysql"))}
        differential.load(own)
        with Connected({**generated.urls, **own}) as made:
            yield made

    @pytest.mark.parametrize("batch", range(4))
    def test_with_mysql_for_mariadb(
        batch: int, oracles: tuple[Oracle, Oracle], with_mysql: Connected, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if batch % 2:
            for (module, name), value in EAGER.items():
                monkeypatch.setattr(importlib.import_module(module), name, value)
        seeds = range(100_000 + 50 * batch, 100_000 + 50 * (batch + 1))
        found = failures(seeds, oracles, with_mysql)
        assert not found, found
        explained = (with_mysql.lab.explain(query(seed)).text for seed in seeds if runs(seed, oracles[0]))
        assert any("Remote maria (mysql)" in text for text in explained)


@pytest.mark.parametrize("seed", range(EVERYWHERE, EVERYWHERE + 100))
def test_explained_and_asked_again(seed: int, oracles: tuple[Oracle, Oracle], generated: Connected) -> None:
    """The plan that is kept is not changed by showing it or running it."""
    if not runs(seed, oracles[0]):
        return
    for analyze in (False, True):
        assert generated.lab.explain(query(seed), analyze=analyze).text
    found = difference(query(seed), oracles[0], generated)
    assert found is None, f"{query(seed)}\n{found}"


def runs(seed: int, oracle: Oracle) -> bool:
    try:
        oracle.answer(query(seed))
    except duckdb.Error:
        return False
    return True
