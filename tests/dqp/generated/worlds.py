"""What else a federation has than tables of sources: views, and uploaded tables that others of their names replace.

The wide ones have the columns of a wide table, so that every form reads them; each world has a few views of its own
besides, whose queries the grammar writes over everything before them.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from tests.dqp.generated.forms import WIDE as WIDE_TABLES
from tests.dqp.generated.grammar import Grammar
from tests.dqp.generated.relations import WEIGHTS, Relation
from tests.dqp.generated.schema import TABLES, WIDE, Table, data, described

STATES: tuple[Mapping[str, Table], ...] = (
    {
        "mine": described("", "mine", 28, WIDE, (1, 40), k="BIGINT"),
        "tag": described("", "tag", 9, "id k code amt d huge", (0, 9)),
    },
    {
        "mine": described("", "mine", 17, " ".join(reversed(WIDE.split())), (10, 60), s="INTEGER"),
        "tag": described("", "tag", 0, "huge d id k code amt", (0, 9), k="SMALLINT"),
    },
)
"""The uploaded tables, one state after the other. Another table has other rows, types, and another order of columns."""
_WHOLE = {"id": "BIGINT", "k": "BIGINT", "s": "BIGINT"}
WIDE_VIEWS: Mapping[str, tuple[str, Table]] = {
    # called like the table that it reads
    "item": (
        "SELECT * FROM pg.item WHERE k IS NOT NULL OR id < 20",
        described("", "item", 40, WIDE, (1, 45)),
    ),
    "Gauge": ("FROM duck_gauge", described("", "gauge", 25, WIDE, (1, 25))),
    "both parts": (
        "SELECT e.* FROM maria.event e SEMI JOIN Item i ON e.k = i.id",
        described("", '"both parts"', 35, WIDE, (20, 60), ok="TINYINT"),
    ),
    "crowd": (
        'WITH note AS (FROM lite.note) SELECT * FROM note n WHERE EXISTS (FROM "both parts" b WHERE b.id >= n.id)',
        described("", "crowd", 30, WIDE, (-5, 30), **_WHOLE),
    ),
    "lent": (
        "SELECT id, k, s, big, x, y, amt, name, code, d, ts, ok FROM mine WHERE id > 3 ORDER BY id DESC LIMIT 20",
        described("", "lent", 20, WIDE, (1, 60), k="BIGINT", s="INTEGER"),
    ),
}
"""Query and columns."""
NAMES = ("order", "code", "cs", "Sort", "e")
"""Of the views of a world: a word of SQL, a column, a table, and names that a CTE may have too."""


@dataclass(frozen=True)
class World:
    """``queries`` of all views by name, each after those that it reads; ``views``: those of this world alone."""

    queries: Mapping[str, str]
    tables: Sequence[Table]
    weights: Sequence[float]
    wide: Sequence[str]
    views: Sequence[Relation]


def world(seed: int) -> World:
    rng = random.Random(f"world {seed}")
    wide = [table for _, table in WIDE_VIEWS.values()]
    tables = (*TABLES, *STATES[0].values(), *wide)
    weights = (*(each / 2 for each in WEIGHTS), 5, 2, *(2 for _ in wide))
    queries = {name: sql for name, (sql, _) in WIDE_VIEWS.items()}
    views: list[Relation] = []
    for name in rng.sample(NAMES, 3):
        grammar = Grammar(rng, tables, weights, views)
        made = grammar.view()
        queries[name] = made.sql
        views.append(grammar.derived(name, made, f'"{name}"'))
    return World(queries, tables, weights, [*WIDE_TABLES, *(each.where for each in (STATES[0]["mine"], *wide))], views)


def uploaded(state: int) -> dict[str, pa.Table]:
    """The tables of a state as somebody has them: in pieces, in a part of a larger one, in other types for texts."""
    urls = {}
    for name, table in STATES[state].items():
        rows = data(table, f" {state}")
        code = rows.column_names.index("code")
        if state:
            rows = pa.concat_tables([rows.slice(0, 2), rows]).slice(min(2, rows.num_rows))
            rows = rows.set_column(code, "code", rows["code"].cast(pa.string_view()))
        else:
            rows = pa.concat_tables([rows.slice(0, 1), rows.slice(1, 0), rows.slice(1)])
            rows = rows.set_column(code, "code", rows["code"].dictionary_encode())
        urls[name] = rows
    return urls
