"""Generated queries over PostgreSQL, MariaDB, SQLite and DuckDB: the answers are those of one DuckDB database.

Some are others for each commit (``seeds``), some are a part of those that are always the same
(``tests.thoroughness``); ``make fuzz`` asks as many as there is time for.
"""

import importlib
import re
from collections.abc import Iterator, Sequence
from itertools import chain

import duckdb
import pytest
from sqlglot import exp, parse_one

from dqp.coordinator import running
from tests.dqp.generated import differential, seeds
from tests.dqp.generated.differential import EAGER, Connected, Difference, difference
from tests.dqp.generated.grammar import query
from tests.dqp.generated.oracle import Oracle
from tests.dqp.generated.report import report
from tests.servers.hostile import hostile
from tests.servers.mariadb import MariaServer, MySQLServer
from tests.servers.postgresql import PostgresServer
from tests.thoroughness import examples, part

BATCH = 50
SHOWN = 2
"""Failures of a batch that are made small; the others are named."""
EVERYWHERE, EAGERLY, HOSTILE, MYSQL, SPREAD = 70_000_000, 71_000_000, 72_000_000, 100_000, 90_000_000
FORCED, OVERTAKEN, REPEATED = 73_000_000, 74_000_000, 75_000_007
"""The first seeds of those that are always the same."""


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
        Connected(urls, evaluators) as connected,
    ):
        yield connected


def check(
    seeds: Sequence[int], oracles: tuple[Oracle, Oracle], federation: Connected, sources: Sequence[str] = ()
) -> list[str]:
    """Asks the queries of these seeds, or those of them that read one of the ``sources``. Fails where answers differ,
    and says how."""
    asked = {seed: query(seed) for seed in seeds}
    if sources:
        reads = re.compile(rf"\b({'|'.join(sources)})[._]")
        asked = {seed: sql for seed, sql in asked.items() if reads.search(sql)}
    assert len(asked) > len(seeds) / 4
    differences = {seed: difference(sql, oracles[0], federation) for seed, sql in asked.items()}
    wrong = {seed: each for seed, each in differences.items() if each and not is_left_out(each, asked[seed])}
    reports = [
        report(seed, asked[seed], each, oracles, federation, seconds=15.0)
        if at < SHOWN
        else f"== seed {seed}: {each.kind}\n{asked[seed]}"
        for at, (seed, each) in enumerate(wrong.items())
    ]
    assert not reports, "\n".join(["", *reports])
    return [*asked.values()]


def is_left_out(difference: Difference, sql: str) -> bool:
    """A row whose value is out of range raises an error in DuckDB, while a source may have left that row out before it
    computed the value: SQL says nothing of the order of conditions. Nor does a database have to compute what an EXISTS
    does not need, its select list before all (ISO/IEC 9075-1, rule evaluation order); DuckDB computes some of it, and
    raises an error if a subquery there has several rows. ``make fuzz`` reports these, too."""
    if difference.kind != "no error":
        return False
    if "More than one row" in difference.detail:
        subqueries = (each.find_all(exp.Subquery) for each in parse_one(sql, read="duckdb").find_all(exp.Exists))
        return any(not isinstance(each.parent, exp.From | exp.Join) for each in chain.from_iterable(subqueries))
    return "out of range" in difference.detail.lower() and " WHERE " in sql


def eagerly(monkeypatch: pytest.MonkeyPatch) -> None:
    for (module, name), value in EAGER.items():
        monkeypatch.setattr(importlib.import_module(module), name, value)


def test_hostile_settings_of_the_servers_change_no_answer(
    oracles: tuple[Oracle, Oracle], generated: Connected, postgres: PostgresServer, mariadb: MariaServer
) -> None:
    names = {source: generated.urls[source].rpartition("/")[2] for source in ("pg", "maria")}
    with (
        hostile(postgres, names["pg"]),
        hostile(mariadb, names["maria"]),
        Connected(generated.urls) as federation,
    ):
        check(part(range(HOSTILE, HOSTILE + 2 * BATCH)), oracles, federation, sources=("pg", "maria"))


@pytest.mark.parametrize("batch", range(examples(6)))
def test_the_answers_of_one_database(batch: int, oracles: tuple[Oracle, Oracle], generated: Connected) -> None:
    """Queries of this commit: where one fails, ask the same of the commit before, too."""
    print(f"To ask the same again: SEED={seeds.first()} .venv/bin/python -m pytest {__file__} -k one_database")
    first = seeds.first() + batch * BATCH
    check(range(first, first + BATCH), oracles, generated)


def test_steps_that_are_to_pay_change_no_answer(
    oracles: tuple[Oracle, Oracle], generated: Connected, monkeypatch: pytest.MonkeyPatch
) -> None:
    eagerly(monkeypatch)
    asked = check(part(range(EAGERLY, EAGERLY + 3 * BATCH)), oracles, generated)
    assert any("reduced by" in generated.lab.explain(sql, analyze=True).text for sql in those_that_run(asked, oracles))


@pytest.mark.parametrize("pushdown", ["all", "none"])
def test_whatever_sources_compute(pushdown: str, oracles: tuple[Oracle, Oracle], generated: Connected) -> None:
    with Connected(generated.urls, pushdown=pushdown) as federation:
        check(part(range(FORCED, FORCED + 2 * BATCH)), oracles, federation)


@pytest.mark.parametrize("pushdown", ["cost", "all", "none"])
def test_a_source_need_not_compute_what_exists_does_not_need(
    pushdown: str, oracles: tuple[Oracle, Oracle], generated: Connected
) -> None:
    """Where it needs a subquery that has several rows, that is an error."""
    exists = "SELECT id FROM pg.item p WHERE EXISTS (SELECT {} FROM pg.item q WHERE q.id = p.id{})"
    with Connected(generated.urls, pushdown=pushdown) as federation:
        assert difference(exists.format("1", " AND q.id > (SELECT k FROM pg.item)"), oracles[0], federation) is None
        unneeded = exists.format("(SELECT k FROM pg.item r WHERE r.id >= p.id)", "")
        found = difference(unneeded, oracles[0], federation)
        assert found is not None
        assert is_left_out(found, unneeded)
        assert federation.answer(unneeded).num_rows == federation.answer(exists.format("1", "")).num_rows > 0
        elsewhere = "SELECT (SELECT k FROM pg.item) AS v FROM pg.item WHERE EXISTS (SELECT 1 FROM (SELECT 1))"
        assert not is_left_out(found, elsewhere)


@pytest.mark.parametrize("pushdown", ["cost", "all", "none"])
def test_the_same_rows_several_times(
    pushdown: str, oracles: tuple[Oracle, Oracle], generated: Connected, monkeypatch: pytest.MonkeyPatch
) -> None:
    if pushdown == "cost":
        eagerly(monkeypatch)
    with Connected(generated.urls, pushdown=pushdown) as federation:
        asked = check(part(range(REPEATED, REPEATED + 25 * 40, 25)), oracles, federation)
    assert len([*those_that_run(asked, oracles)]) > len(asked) * 3 / 4


def test_overtaken_at_random_moments(
    oracles: tuple[Oracle, Oracle], generated: Connected, monkeypatch: pytest.MonkeyPatch
) -> None:
    # a statement that was overtaken once is planned otherwise where queries take long, as on a busy machine
    monkeypatch.setattr(running, "LEAST_SECONDS", float("inf"))
    with Connected(generated.urls, overtaking=True) as federation:
        asked = [*those_that_run(check(part(range(OVERTAKEN, OVERTAKEN + BATCH)), oracles, federation), oracles)]
        missing = {"was overtaken", "gave its first row itself"}
        for sql in asked * 20:  # which of the two is first is chance
            explained = federation.lab.explain(sql, analyze=True).text
            missing = {each for each in missing if each not in explained}
            if not missing:
                break
        assert not missing
        assert not federation.running()


@pytest.mark.timeout(400)
def test_on_evaluators(oracles: tuple[Oracle, Oracle], spread: Connected, patient: None) -> None:
    asked = check(part(range(SPREAD, SPREAD + BATCH)), oracles, spread)
    run = those_that_run(asked, oracles)
    assert any("Exchange hash" in spread.lab.explain(sql, analyze=True).text for sql in run)


if MySQLServer.found():

    @pytest.fixture(scope="module")
    def with_mysql(
        generated: Connected, mysql_module_url: str, tmp_path_factory: pytest.TempPathFactory
    ) -> Iterator[Connected]:
        own = {"maria": mysql_module_url, **differential.files(tmp_path_factory.mktemp("with_mysql"))}
        differential.load(own)
        with Connected({**generated.urls, **own}) as connected:
            yield connected

    @pytest.mark.parametrize("eager", [False, True])
    def test_with_mysql_for_mariadb(
        eager: bool, oracles: tuple[Oracle, Oracle], with_mysql: Connected, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if eager:
            eagerly(monkeypatch)
        first = MYSQL + eager * BATCH
        asked = check(part(range(first, first + BATCH)), oracles, with_mysql, sources=("maria",))
        run = those_that_run(asked, oracles)
        assert any("Remote maria (mysql)" in with_mysql.lab.explain(sql).text for sql in run)


@pytest.mark.parametrize("number", part(range(40)))
def test_explained_and_asked_again(number: int, oracles: tuple[Oracle, Oracle], generated: Connected) -> None:
    """The plan that is kept is not changed by showing it or running it."""
    sql = query(EVERYWHERE + number)
    if not runs(sql, oracles[0]):
        return
    for analyze in (False, True):
        assert generated.lab.explain(sql, analyze=analyze).text
    wrong = difference(sql, oracles[0], generated)
    assert wrong is None, f"{sql}\n{wrong}"


def those_that_run(asked: Sequence[str], oracles: tuple[Oracle, Oracle]) -> Iterator[str]:
    return (sql for sql in asked if runs(sql, oracles[0]))


def runs(sql: str, oracle: Oracle) -> bool:
    try:
        oracle.answer(sql)
    except duckdb.Error:
        return False
    return True
