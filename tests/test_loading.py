import difflib
import sys

import pytest

from dai.errors import ConfigurationError, MissingDependencyError
from dai.plugins import COMPARED, LONGEST, Table, nearest


def test_loads_when_first_used():
    sys.modules.pop("wave", None)
    table = Table("thing", "dai.test", {"wave": "wave:Wave_read"})
    assert list(table) == ["wave"]
    assert len(table) == 1
    assert "wave" in table
    assert "wave" not in sys.modules
    assert table["wave"].__name__ == "Wave_read"
    assert table["wave"] is table["wave"]


def test_unknown_names():
    table = Table("thing", "dai.test", {"arrow": "wave:Wave_read"})
    with pytest.raises(KeyError):
        table["arow"]
    with pytest.raises(ConfigurationError, match="There is no thing 'arow'") as raised:
        table.named("arow")
    assert raised.value.hint == "Did you mean 'arrow'?"


def test_missing_package_names_its_extra():
    table = Table("thing", "dai.test", {"x": "no_such_package_at_all:X"}, extras={"x": "more"})
    with pytest.raises(MissingDependencyError, match="no_such_package_at_all") as raised:
        table["x"]
    assert raised.value.hint == "In the folder of the project: pip install -e '.[more]'"


@pytest.mark.parametrize("group", ["dai.activities", "dai.drivers", "dai.formats"])
def test_own_entries_win_over_entry_points(group, monkeypatch):
    class Point:
        name, value = "own", "os:getcwd"

    class Other:
        name, value = "other", "os:getpid"

    monkeypatch.setattr("dai.plugins.entry_points", lambda group: [Point, Other])
    table = Table("thing", group, {"own": "os:getppid"})
    assert table["own"].__name__ == "getppid"
    assert table["other"].__name__ == "getpid"


def test_nearest_lists_no_more_than_can_be_read():
    hint = nearest("x", [f"table_{number:04}" for number in range(1000)])
    assert hint.startswith("Known: table_0000, ")
    assert hint.endswith("table_0029 and 970 more.")


def test_long_names_are_not_compared(monkeypatch):
    """To compare two of a million characters would take hours."""

    def compared(word, possibilities, n, cutoff):
        assert all(len(each) <= LONGEST for each in (word, *possibilities))
        assert len(possibilities) <= COMPARED
        return []

    monkeypatch.setattr(difflib, "get_close_matches", compared)
    short = [f"name {number}" for number in range(2000)]
    assert nearest("a" * 1000, [*short, "b" * 1000]).startswith("Known: b")
    assert len(nearest("name", [*short, "b" * 1000])) < 1000


def test_nearest():
    assert nearest("sqlQuery", ["sqlQueryStatement", "other"]) == "Did you mean 'sqlQueryStatement'?"
    assert nearest("ORDRES", ["people", "orders"]) == "Did you mean 'orders'?"
    assert nearest("Orders", ["orders", "ORDERS"]) == "Did you mean 'orders'?"
    assert nearest("zzz", ["b", "a"]) == "Known: a, b."
