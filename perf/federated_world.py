"""The databases of the federated benchmarks, made on running servers.

``big10`` and ``small2`` stand in both PostgreSQL and MariaDB; TPC-H is spread by a placement. Keys are declared and
statistics taken, there is no other index. ``python -m perf.federated_world`` starts servers of its own, makes all of
them, prints where they are and stays until it is stopped: for work on a single query.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa

from dai.drivers import Driver, driver_for
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Stream
from examples.demo.data import GOTERM_ROWS, littleblackbook, mixed_in_pieces
from examples.demo.tables import mixed
from perf.world import SETTINGS, service
from tests.servers.mariadb import MariaServer
from tests.servers.postgresql import PostgresServer
from tests.tpch import PLACEMENTS, Placement, create, fill, tables, take_statistics
from tests.tpch import load as load_tpch

BIG_ROWS = 2_000_000
SMALL_ROWS = GOTERM_ROWS
TPCH = ("facts_in_postgres", "facts_in_maria")
"""The placements that are measured."""

Urls = Mapping[str, str]
"""Alias to the SQLAlchemy URL of a database."""

_METADATA = sa.MetaData()
big10 = mixed.to_metadata(_METADATA, name="big10")
small2 = sa.Table(
    "small2",
    _METADATA,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("name", sa.String(64), nullable=False),
)


def small_content(rows: int = SMALL_ROWS) -> pa.Table:
    """``small2``: an id from 1 and people's names, many of them more than once, some with letters beyond ASCII."""
    return littleblackbook(rows).select(["id", "name"])


def big_content(rows: int = BIG_ROWS) -> Iterator[pa.Table]:
    """``big10`` in pieces: ``mixed``, but with the digits of ``s1`` in front, so that its first letters tell values
    apart."""
    for piece in mixed_in_pieces(rows):
        digits = pc.utf8_slice_codeunits(piece["s1"], len("label-"))
        turned = pc.binary_join_element_wise(digits, pa.scalar("-label"), "")
        yield piece.set_column(piece.column_names.index("s1"), "s1", turned)


def make_big(postgres: PostgresServer, mariadb: MariaServer, rows: int = BIG_ROWS) -> Urls:
    """Databases ``big`` with ``big10`` and ``small2``; aliases ``pg`` and ``maria``."""
    urls = {"pg": postgres.create_database("big"), "maria": mariadb.create_database("big")}
    fill_big(urls, rows)
    return urls


def fill_big(urls: Urls, rows: int = BIG_ROWS) -> None:
    """The two tables in each of these empty databases."""
    for url in urls.values():
        with _driver(url) as driver:
            create(driver, big10)
            for piece in big_content(rows):
                driver.load("big10", Stream.of(piece), cancellation=Cancellation())
            take_statistics(driver, big10)
            fill(driver, small2, small_content())
    _vacuum(urls["pg"])


def make_tpch(
    postgres: PostgresServer, mariadb: MariaServer, name: str, content: Mapping[str, pa.Table], directory: Path
) -> Urls:
    """Databases ``tpch_NAME`` (files in ``directory``) with the tables where the placement of that name says."""
    placement: Placement = PLACEMENTS[name]
    makers = {
        "pg": lambda: postgres.create_database(f"tpch_{name}"),
        "maria": lambda: mariadb.create_database(f"tpch_{name}"),
        "lite": lambda: f"sqlite:///{directory / f'tpch_{name}.sqlite'}",
        "duck": lambda: f"duckdb:///{directory / f'tpch_{name}.duckdb'}",
    }
    urls = {alias: makers[alias]() for alias in sorted(set(placement.values()))}
    load_tpch(placement, urls, content)
    if "pg" in urls:
        _vacuum(urls["pg"])
    return urls


@contextmanager
def services(urls: Urls) -> Iterator[Urls]:
    """A data service of its own in front of each database: alias to the URL of its resource."""
    with ExitStack() as stack:
        yield {alias: f"{stack.enter_context(service({alias: url}))[0]}/{alias}" for alias, url in urls.items()}


@contextmanager
def _driver(url: str) -> Iterator[Driver]:
    driver = driver_for(url)
    try:
        yield driver
    finally:
        driver.close()


def _vacuum(url: str) -> None:
    # What autovacuum, off in these servers, does after a load.
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("VACUUM ANALYZE")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m perf.federated_world", description=__doc__)
    parser.add_argument("--rows", type=int, default=BIG_ROWS)
    parser.add_argument("--scale", type=float, default=0, help="of TPC-H; without it there is none")
    parser.add_argument("--placement", nargs="*", choices=[*PLACEMENTS], default=TPCH)
    options = parser.parse_args()
    with (
        PostgresServer(SETTINGS["postgresql"]) as postgres,
        MariaServer(SETTINGS["mariadb"]) as mariadb,
        tempfile.TemporaryDirectory() as directory,
    ):
        print("big", make_big(postgres, mariadb, options.rows), flush=True)
        if options.scale:
            content = tables(options.scale)
            for name in options.placement:
                print(name, make_tpch(postgres, mariadb, name, content, Path(directory)), flush=True)
            del content
        threading.Event().wait()


if __name__ == "__main__":
    main()
