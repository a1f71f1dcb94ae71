"""LIKE patterns of names, which callers choose."""

import re
from types import SimpleNamespace

import pytest

from dai.drivers.sql import ddl
from dai.drivers.sql.ddl import MOST_PATTERN, like


@pytest.mark.parametrize(
    ("pattern", "fitting", "others"),
    [
        ("%", ["", "a", "a\nb"], []),
        ("a%", ["a", "Ab"], ["", "ba"]),
        ("%a", ["a", "bA"], ["ab"]),
        ("%a%b%", ["ab", "xaxbx", "aab"], ["ba", "a"]),
        ("a%a", ["aa", "aba"], ["a"]),
        ("_%_", ["ab", "abc"], ["a", ""]),
        ("%_b", ["ab", "xxb"], ["b"]),
        (r"a\%", ["a%"], ["ab"]),
        (r"%\_%", ["a_b"], ["ab"]),
        ("a.b", ["a.b"], ["axb"]),
        ("%" * MOST_PATTERN, ["a"], []),
        ("%" * (MOST_PATTERN + 1), [], ["a"]),
    ],
)
def test_like(pattern: str, fitting: list[str], others: list[str]) -> None:
    assert all(like(pattern, each) for each in fitting)
    assert not any(like(pattern, each) for each in others)


def test_nothing_is_tried_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """The places of many % are found one after the other: trying all of them would keep the process for ever."""
    compiled: list[str] = []

    def fullmatch(expression: str, name: str, flags: int) -> None:
        compiled.append(expression)

    own = SimpleNamespace(
        fullmatch=fullmatch, **{each: getattr(re, each) for each in ("findall", "escape", "DOTALL", "IGNORECASE")}
    )
    monkeypatch.setattr(ddl, "re", own)
    assert not like("%a%" * 20 + "z", "pgbench_accounts")
    (expression,) = compiled
    assert len(re.findall(r"(?<!\(\?>)\.\*", expression)) == 1
