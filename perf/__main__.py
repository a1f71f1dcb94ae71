"""``python -m perf [NAME …] [--rounds N] [--rows N] [--scale S] [--blocksize N …]``: runs benchmarks, reports."""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from importlib import import_module

from perf.world import world

BENCHMARKS = {
    "bulk": "1 M rows x 10 columns: Arrow and WebRowSet against the bare drivers",
    "frames": "pandas.read_sql through the SQLAlchemy dialect against query().to_pandas() and psycopg",
    "tls": "many rows from PostgreSQL behind TLS against those without",
    "goterm": "protein_goterm whole, and pulled in blocks, against psycopg",
    "latency": "a one-row query against a bare FastAPI handler; validation of a document",
    "identity": "a one-row query by callers who say who they are, in each way, against one that asks nobody",
    "tracing": "a one-row query with and without traces",
    "codecs": "encoding and decoding alone, every format, against lxml and pyarrow",
    "stages": "queries of 100 to 1 M rows: time per stage",
    "blocks": "the block-size curve in seven access modes and three formats, four of them through a federation, too",
    "gdt": "deliverToGDT between two services against one service to a client",
    "wire": "bytes on the wire per format and compression",
    "contexts": "blocks without their static part, and the store of their contexts",
    "contexts_link": "blocks and control messages over slow links, by the published method",
    "memory": "memory against rows and block sizes",
    "replicas": "a replica catalog and index by the published method",
    "registry": "a registry by the published method",
    "xml": "an XPath over all documents of a collection against lxml over the same files in a loop",
    "users": "concurrent users: percentiles and saturation",
    "workers": "N processes as one service against one",
    "fairness": "a one-row query beside thirty clients who ask for more",
    "exchange": "the exchange between two evaluators against a plain socket",
    "operations": "operation calls of 50 ms a row on 1, 2, 4 and 8 evaluators",
    "federation": "four joins of PostgreSQL with MariaDB against DuckDB, chDB and foreign tables",
    "federated_overhead": "protein_goterm through a federation against the data service alone",
    "federated_memory": "a join whose build side is three times the memory limit",
    "tpch": "TPC-H over PostgreSQL and MariaDB against DuckDB with its scanners and chDB",
    "tpcds": "the 99 queries of TPC-DS over up to four products against DuckDB with its scanners and chDB",
    "laboratory": "80 queries over science and business data, for which nobody tuned, against DuckDB with its scanners",
    "regret": "each query of TPC-DS and TPC-H: our plan against forced ones, and with wrong statistics",
    "tpch_runtimes": "TPC-H on each runtime: are the answers right?",
    "planning": "binding and rules of the TPC-H queries",
    "moved": "bytes that leave the sources a query, against the least",
}
SCALES = {"moved": 0.1}
"""Of TPC-H, where it is not 1."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m perf", description=__doc__)
    parser.add_argument(
        "names", nargs="*", choices=[[], *BENCHMARKS], help="; ".join(map(" - ".join, BENCHMARKS.items()))
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of the large table")
    parser.add_argument(
        "--blocksize", type=int, nargs="+", default=[100, 1_000], help="rows a block that concurrent users ask for"
    )
    parser.add_argument(
        "--scale", type=float, help="of TPC-H, TPC-DS and the laboratory (default: 1; where only bytes are counted 0.1)"
    )
    parser.add_argument(
        "--placement",
        nargs="+",
        default=[],
        help="of TPC-DS, TPC-H and the laboratory (default: all); a random one of TPC-DS and the laboratory: random1",
    )
    parser.add_argument("--query", nargs="+", default=[], help="of these, such as q01 (default: all)")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="processes (default: the cores)")
    parser.add_argument("--documents", type=int, default=100_000, help="of the XML collection")
    options = parser.parse_args()
    missed = []
    with world(options.rows, tuple(options.blocksize)) as running:
        for name in options.names or BENCHMARKS:
            scaled = replace(
                running,
                scale=options.scale or SCALES.get(name, 1.0),
                placements=tuple(options.placement),
                queries=tuple(options.query),
                workers=options.workers,
                documents=options.documents,
            )
            report = import_module(f"perf.{name}").run(scaled, options.rounds)
            print(report.write(), flush=True)
            missed += [
                f"{name}: {what} is {value:.3g}, the goal {limit:g}"
                for what, value, limit, met in report.goals
                if not met
            ]
    print("\n".join(missed) or "every goal met")


if __name__ == "__main__":
    main()
