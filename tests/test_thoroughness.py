"""What a run searches, and that nothing is left out for ever."""

from collections.abc import Sequence
from itertools import chain

import pytest

from tests import thoroughness
from tests.thoroughness import PARTS, examples, part


@pytest.mark.parametrize("cases", [range(4), range(6), range(10_000, 10_121), range(0, 200, 50)])
def test_commits_together_have_all_cases(cases: Sequence[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thoroughness, "THOROUGH", False)
    parts = []
    for number in range(PARTS):
        monkeypatch.setattr(thoroughness, "commit", lambda number=number: 1000 + number)
        parts.append(part(cases))
    assert sorted(chain.from_iterable(parts)) == [*cases]
    assert all(len(each) in (len(cases) // PARTS, -(-len(cases) // PARTS)) for each in parts)


def test_a_thorough_run_has_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thoroughness, "THOROUGH", False)
    assert [examples(each) for each in (1, 20, 30, 100)] == [1, 5, 8, 25]
    monkeypatch.setattr(thoroughness, "THOROUGH", True)
    assert [examples(each) for each in (1, 20, 30, 100)] == [1, 20, 30, 100]
    assert part(range(10)) == range(10)
