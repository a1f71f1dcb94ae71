"""Science and business data at any scale, 80 queries over them, and placements over four databases.

Nobody tuned the planner for these queries or tables, so that they say how it does on what it does not know: they have
skew, NULLs, keys that lead nowhere, long texts, letters beyond ASCII, and few indexes. ``genomics``, ``weather``,
``sky``, ``shop`` and ``papers`` say what their tables are like; the same scale always gives the same rows. A query that
shows a fault gets a smaller test where the fault is; it is not tuned for here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow.parquet as pq

from tests.laboratory import genomics, papers, shop, sky, weather
from tests.laboratory.columns import Tables
from tests.tpcds import Generated
from tests.tpch import Placement, spread

QUERIES: Mapping[str, str] = {
    name: sql.strip()
    for name, sql in re.findall(
        r"^-- (n\d\d) .*\n((?:(?!--).*\n)+)", (Path(__file__).parent / "queries.sql").read_text(), re.MULTILINE
    )
}
"""``n01`` … ``n80``, in DuckDB's dialect; table names without prefix. From scale 0.1 on, all have rows."""

KEYS = {
    "genotype_call": "sample_id variant_id",
    "order_line": "order_id line_no",
    "paper_author": "paper_id author_pos",
    "paper_cites": "citing_id cited_id",
    "gene_mention": "gene_symbol paper_id",
}
INDEXES = {
    "order_line": "product_id",
    "shop_order": "customer_id",
    "source_detection": "source_id",
    "paper_author": "author_id",
    "variant_site": "gene_id",
    "calibration_run": "station_id",
}
"""A column of each of these tables, beside the primary key; the others have that alone."""
TABLES = (
    "gene_catalog biosample variant_site genotype_call weather_station calibration_run station_reading sky_source "
    "exposure_log source_detection shop_customer shop_product shop_order order_line paper_index author_index "
    "paper_author paper_cites gene_mention"
).split()

PLACEMENTS: Mapping[str, Placement] = {seed: spread(TABLES, seed) for seed in ("n1", "n2")}


def tables(scale: float) -> Tables:
    """All tables at this scale (1: 5.5 M rows)."""
    symbols: list[str] = []
    for name, rows in genomics.tables(scale):
        if name == "gene_catalog":
            symbols = rows["symbol"].to_pylist()
        yield name, rows
    for subject in (weather, sky, shop):
        yield from subject.tables(scale)
    yield from papers.tables(scale, symbols)


@contextmanager
def generated(scale: float) -> Iterator[Generated]:
    """Files of all tables, until the block ends."""
    with TemporaryDirectory(prefix="laboratory") as directory:
        for name, rows in tables(scale):
            pq.write_table(rows, Path(directory) / f"{name}.parquet")
        yield Generated(Path(directory), QUERIES, KEYS, INDEXES)
