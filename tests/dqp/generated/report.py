"""What a failing query prints."""

from __future__ import annotations

import duckdb

from tests.dqp.generated.differential import Difference, Federation, compared, difference
from tests.dqp.generated.shrink import shrunk


def report(
    seed: int | str,
    sql: str,
    found: Difference,
    oracles: tuple[Federation, Federation],
    federation: Federation,
    seconds: float = 30.0,
) -> str:
    """Seed, query, both answers, and the smallest query found in ``seconds`` that fails in the same way."""
    oracle, _ = oracles

    def fails(text: str) -> bool:
        made = difference(text, oracle, federation)
        return made is not None and made.kind == found.kind and determined(text, oracles)

    small = shrunk(sql, fails, seconds) if determined(sql, oracles) else sql
    last = difference(small, oracle, federation) or found
    undetermined = (
        "" if determined(sql, oracles) else "\nThe two oracles differ: the query does not determine its answer."
    )
    return f"== seed {seed}: {found.kind}{undetermined}\n{sql}\n-- smaller:\n{small}\n{last.detail}\n"


def determined(sql: str, oracles: tuple[Federation, Federation]) -> bool:
    """Whether both oracles answer alike, or fail alike."""
    try:
        expected = oracles[0].answer(sql)
    except duckdb.Error:
        try:
            oracles[1].answer(sql)
        except duckdb.Error:
            return True
        return False
    try:
        return compared(expected, oracles[1].answer(sql)) is None
    except duckdb.Error:
        return False
