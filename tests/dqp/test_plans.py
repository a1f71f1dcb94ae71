"""The golden plans are what the rules make today; a change that is meant is written by
``python -m tests.dqp.plans``."""

import pytest

from tests.dqp.plans import DIRECTORY, DRAWING, PUBLISHED, catalog, drawing, plans
from tests.tpch import QUERIES


@pytest.fixture(scope="module")
def made() -> dict[str, str]:
    return plans()


@pytest.mark.parametrize("name", [*QUERIES, *PUBLISHED])
def test_plan(made: dict[str, str], name: str) -> None:
    assert made[name] == (DIRECTORY / f"{name}.txt").read_text()


def test_the_plan_in_the_documentation() -> None:
    assert drawing() == DRAWING.read_text()


def test_no_plan_without_a_query() -> None:
    assert {path.stem for path in DIRECTORY.glob("*.txt")} == {*QUERIES, *PUBLISHED}


def test_tables_are_described() -> None:
    assert catalog().table("pg", "lineitem").rows > 6_000_000
