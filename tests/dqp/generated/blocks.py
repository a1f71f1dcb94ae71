"""A block of questions in one world: the same texts with other values, and again when other tables have been uploaded.

What a federation keeps of a query asked before (its plan, what its names mean) must not reach the next answer.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.dqp.generated.differential import Connected, difference
from tests.dqp.generated.oracle import Oracle
from tests.dqp.generated.parameters import STYLES, Bound, Given, question, values
from tests.dqp.generated.report import report
from tests.dqp.generated.worlds import STATES, uploaded, world

BLOCK = 20
SHOWN = 2
"""Failures of a block that are made small; the others are named."""


@dataclass(frozen=True)
class Ask:
    """One question: which tables are uploaded, and the values of its parameters."""

    seed: int
    state: int
    sql: str
    values: Mapping[str, Any]

    @property
    def style(self) -> int:
        return self.seed % len(STYLES)


def asks(number: int) -> Iterator[Ask]:
    """All questions of a block in their order: with one kind of values and another, then, of what is uploaded, with the
    tables that come afterwards."""
    scene = world(number)
    own = re.compile("|".join(rf"\b{name}\b" for name in (*STATES[0], "lent", *(each.alias for each in scene.views))))
    texts = {seed: question(seed, scene) for seed in range(number * BLOCK, (number + 1) * BLOCK)}
    given = {
        seed: [values(sql, random.Random(f"values {seed} {at}")) for at in range(2)] for seed, sql in texts.items()
    }
    for state in range(len(STATES)):
        for seed, sql in texts.items():
            if state and not own.search(sql):
                continue
            for each in given[seed][: 2 if given[seed][0] and not state else 1]:
                yield Ask(seed, state, sql, each)


def _short(given: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} = {repr(value)[:120]}" for name, value in given.items())


def failures(
    number: int,
    oracles: tuple[Oracle, Oracle],
    urls: Mapping[str, str],
    evaluators: Sequence[str] = (),
    seconds: float = 15.0,
) -> list[str]:
    """What is to be said of each question of the block whose answer differs."""
    scene = world(number)
    actual: list[str] = []
    with Connected(urls, evaluators, scene.queries) as federation:
        state = -1
        for ask in asks(number):
            if ask.state != state:
                state = ask.state
                tables = uploaded(state)
                for name, rows in tables.items():
                    federation.lab.upload(name, rows)
                for oracle in oracles:
                    oracle.state(tables, scene.queries)
            right, other = (Bound(oracle, ask.values) for oracle in oracles)
            answers = Given(federation, ask.values, ask.style)
            wrong = difference(ask.sql, right, answers)
            if wrong is None:
                continue
            where = f"{ask.seed} (block {number}, state {state}, style {ask.style}) with {_short(ask.values)}"
            if len(actual) < SHOWN:
                actual.append(report(where, ask.sql, wrong, (right, other), answers, seconds))
            else:
                actual.append(f"== seed {where}: {wrong.kind}\n{ask.sql}\n")
    return actual
