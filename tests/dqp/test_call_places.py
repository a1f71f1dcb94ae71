"""Where operation calls may stand in a query, and for which rows they are made."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import dqp
from dai.drivers import driver_for
from dai.errors import StatementError
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Stream
from dqp.interfaces.lab import Lab

CALLS: list[tuple[str, int]] = []


def tenfold(number: int) -> int:
    CALLS.append(("tenfold", number))
    return number * 10


def after(number: int) -> int:
    CALLS.append(("after", number))
    return number + 1


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A table t of 1 to 9, and k, the rest of division by 3, in two sources."""
    directory = Path(tmp_path_factory.mktemp("calls"))
    sources = {"lite": f"sqlite:///{directory}/lite.db", "duck": f"duckdb:///{directory}/duck.db"}
    numbers = list(range(1, 10))
    rows = pa.table({"id": numbers, "k": [each % 3 for each in numbers]})
    for url in sources.values():
        driver = driver_for(url)
        driver.load("t", Stream.of(rows), cancellation=Cancellation(), create=True)
        driver.close()
    functions: dict[str, Any] = {
        name: {"python": f"{__name__}:{name}", "arguments": ["BIGINT"], "returns": "BIGINT"}
        for name in ("tenfold", "after")
    }
    views = {"tens": "select k, tenfold(id) as ten from lite.t where id < 4"}
    configuration = {"sources": sources, "functions": functions, "views": views}
    with dqp.connect(configuration) as lab:
        yield lab


def called(name: str) -> list[int]:
    return sorted(number for function, number in CALLS if function == name)


ALL = list(range(1, 10))
NEEDED: dict[str, tuple[list[Any], list[int], list[int]]] = {
    # the query: its last column in the order of the first, what tenfold and after were called with
    "select id, case when id < 3 then tenfold(id) end from lite.t where id < 5": ([10, 20, None, None], [1, 2], []),
    "select id, case when id > 8 then 0 else tenfold(id) end from lite.t where id > 7": ([80, 0], [8], []),
    "select id, case when id > 8 then tenfold(id) else tenfold(id) + 1 end from lite.t where id > 7": (
        [81, 90],
        [8, 9],
        [],
    ),
    "select id, case when id = 1 then tenfold(id) when id = 3 then tenfold(id) + 1 end from lite.t where id < 4": (
        [10, None, 31],
        [1, 3],
        [],
    ),
    "select id, case k when 1 then tenfold(id) when 2 then after(id) else 0 end from lite.t": (
        [10, 3, 0, 40, 6, 0, 70, 9, 0],
        [1, 4, 7],
        [2, 5, 8],
    ),
    "select id, case when tenfold(id) > 70 then after(id) end from lite.t where id > 6": (
        [None, 9, 10],
        [7, 8, 9],
        [8, 9],
    ),
    "select id, case when id < 6 then case when k = 1 then tenfold(id) end end from lite.t where id > 3": (
        [40, None, None, None, None, None],
        [4],
        [],
    ),
    "select id, if(id = 2, tenfold(id), k) from lite.t where id < 4": ([1, 20, 0], [2], []),
    # for the rows that LIMIT leaves, where their order needs no call
    "select id, tenfold(id) from lite.t order by k, id desc limit 2": ([60, 90], [6, 9], []),
    "select id, k, tenfold(id) + k from lite.t where id > 2 order by id limit 2 offset 1": ([41, 52], [3, 4, 5], []),
    "select id, after(id) from (select id, k from lite.t where tenfold(id) > 20) order by k, id limit 2": (
        [4, 7],
        ALL,
        [3, 6],
    ),
    "select id, tenfold(id) from lite.t order by tenfold(id) limit 2": ([10, 20], ALL, []),
    # what needs no call comes first, though it stands above a join
    "select a.id from lite.t a left join duck.t b on a.id = b.id + 1 "
    "where coalesce(b.id, 5) > 4 and tenfold(a.id) > 20": (
        [6, 7, 8, 9],
        [1, 6, 7, 8, 9],
        [],
    ),
    # one call in two places whose guards need calls themselves: for the rows that pass what both have in common
    "select id, case when tenfold(id) > 80 then after(id) when tenfold(id) > 70 and k = 2 then after(id) end "
    "from lite.t where id > 6": ([None, 9, 10], [7, 8, 9], [7, 8, 9]),
    "select k, sum(x) from (select k, tenfold(id) x from lite.t union all select k, after(id) from duck.t) "
    "group by k": (
        [21 + 180, 15 + 120, 18 + 150],
        ALL,
        ALL,
    ),
    "select a.id, tenfold(a.id), b.k from lite.t a left join duck.t b on a.id = b.id order by a.id limit 2": (
        [1, 2],
        [1, 2],
        [],
    ),
    "select id, coalesce(nullif(k, 0), tenfold(id)) from lite.t": ([1, 2, 30, 1, 2, 60, 1, 2, 90], [3, 6, 9], []),
    "select id, tenfold(id) > 10 and id < 3 from lite.t where id < 4": ([False, True, False], [1, 2], []),
    "select id, tenfold(id) > 10 or id < 3 from lite.t where id < 4": ([True, True, True], [3], []),
    "select id from lite.t where id < 3 or tenfold(id) > 80": ([1, 2, 9], [3, 4, 5, 6, 7, 8, 9], []),
    "select id, tenfold(id) from lite.t where id < 3 or tenfold(id) > 80": ([10, 20, 90], ALL, []),
    "select id from lite.t where tenfold(id) > 50 and after(id) > 8 and id < 9": ([8], ALL[:-1], [6, 7, 8]),
    "select 1, sum(tenfold(id)) filter (where k = 1) from lite.t": ([120], [1, 4, 7], []),
    "select id, case when row_number() over (order by id desc) < 3 then tenfold(id) end from lite.t where id > 6": (
        [None, 80, 90],
        [8, 9],
        [],
    ),
    "select id, case when sum(tenfold(id)) over (order by id) < 50 then after(id) end from lite.t where id < 4": (
        [2, 3, None],
        [1, 2, 3],
        [1, 2],
    ),
    "select id, case when exists (select 1 from lite.t u where u.id = t.id + 7) then tenfold(id) end from lite.t "
    "where id < 4": ([10, 20, None], [1, 2], []),
    "select a.id from lite.t a join lite.t b on a.id = b.id and (b.k = 1 or tenfold(a.id) > 70)": (
        [1, 4, 7, 8, 9],
        [2, 3, 5, 6, 8, 9],
        [],
    ),
    # in ON, for the rows that WHERE and the other conditions of the ON leave
    "select a.id from lite.t a join duck.t b on tenfold(a.id) = b.id * 10 where a.id < 4": ([1, 2, 3], [1, 2, 3], []),
    "select a.id from lite.t a join duck.t b on tenfold(a.id) = b.id * 10 and after(b.id) < 4 and b.id > 1 "
    "where a.id < 4": ([2], [1, 2, 3], [2, 3, 4, 5, 6, 7, 8, 9]),
    "select a.id, b.id from lite.t a left join duck.t b on a.id = b.id and b.id < 3 and tenfold(b.id) > 10 "
    "where a.id < 4": ([None, 2, None], [1, 2], []),
    "select a.id, b.id from lite.t a left join duck.t b on a.id = b.id and a.id < 3 and tenfold(a.id) > 10 "
    "where a.id < 4": ([None, 2, None], [1, 2], []),
    "select a.id, b.id from lite.t a left join duck.t b on a.id = b.id and a.id < 4 and tenfold(a.id) > 10 "
    "and after(a.id) > 3": ([None, None, 3, *[None] * 6], [1, 2, 3], [2, 3]),
    "select coalesce(a.id, b.id + 10), b.id from lite.t a full join duck.t b on a.id = b.id and a.id < 3 "
    "and b.id < 5 and tenfold(a.id) > 10 and after(b.id) < 9 where a.id < 3 or b.id < 2": (
        [None, 2, 1],
        [1, 2],
        [1, 2, 3, 4],
    ),
    "select a.id from lite.t a left join duck.t b on a.id = b.id and tenfold(b.id) > 20 where b.k = 0 and a.id < 7": (
        [3, 6],
        [3, 6],
        [],
    ),
    "select k, case when count(*) > 2 then tenfold(k) end from lite.t where id > 2 group by k": (
        [0, None, None],
        [0],
        [],
    ),
    "select id from lite.t where id > 7 order by case when id > 8 then tenfold(id) end, id": ([8, 9], [9], []),
    "select id, tenfold(id) in (select 10 union all select 90) from lite.t where id > 7": ([False, True], [8, 9], []),
    "select distinct on (k) k, tenfold(id) from lite.t order by k, id": ([30, 10, 20], [1, 2, 3], []),
    "select t.id, l.x from lite.t, lateral (select tenfold(t.k) x where t.id > 8) l": ([0], [0], []),
    # in what is taken as it is written, a query of its own makes its calls
    "select unnest([id]) i, x from (select id, tenfold(id) as x from lite.t where id < 3)": ([10, 20], [1, 2], []),
    "with c as (select id, tenfold(id) x from lite.t where id < 3) select unnest([id]) i, x from c": (
        [10, 20],
        [1, 2],
        [],
    ),
    "select unnest([k]) k, ten from tens": ([30, 10, 20], [1, 2, 3], []),
    "with recursive r as (select tenfold(id) as x from lite.t where id < 3 union all select x + 1 from r where x < 12) "
    "select x, x from r": ([10, 11, 12, 20], [1, 2], []),
    "select k, tenfold(k) from (select distinct on (k) k, id from lite.t order by k, id)": ([0, 10, 20], [0, 1, 2], []),
}


@pytest.mark.parametrize("sql", NEEDED)
def test_calls_are_made_for_the_rows_that_need_them(lab: Lab, sql: str) -> None:
    answer, tens, nexts = NEEDED[sql]
    CALLS.clear()
    table = lab.sql(sql).arrow()
    first, last = table.column(0).to_pylist(), table.column(table.num_columns - 1).to_pylist()
    assert [each for _, each in sorted(zip(first, last, strict=True), key=lambda row: row[0])] == answer
    assert (called("tenfold"), called("after")) == (tens, nexts)


@pytest.mark.parametrize(
    "sql",
    [
        "select k, unnest([tenfold(id)]) from lite.t order by k, id",
        "with recursive r as (select 1 as x union all select tenfold(x) from r where x < 99) from r",
        "from lite.t pivot (sum(tenfold(id)) for k in (0, 1))",
        "explain select k, tenfold(id), unnest([1]) from lite.t",
    ],
)
def test_where_a_call_cannot_stand_there_is_a_caret(lab: Lab, sql: str) -> None:
    with pytest.raises(StatementError, match="tenfold cannot run inside this query") as caught:
        lab.sql(sql).arrow()
    assert caught.value.position == sql.index("tenfold") + 1
    assert "^" in str(caught.value)
    assert "FROM (SELECT" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("sql", "says"),
    [
        ("select list_transform([1, 2], lambda x: tenfold(x))", "elements of a list"),
        ("explain select $1, list_transform([1, 2], lambda x: tenfold(x))", "elements of a list"),
        (
            "select a.id, b.id from lite.t a left join lite.t b on tenfold(a.id + b.id) > 3",
            "columns of both sides",
        ),
    ],
)
def test_where_the_rules_find_no_place_there_is_a_caret(lab: Lab, sql: str, says: str) -> None:
    with pytest.raises(StatementError, match=says) as caught:
        lab.sql(sql, *(["a long text"] if "$1" in sql else [])).arrow()
    assert caught.value.position == sql.index("tenfold") + 1
    assert "^" in str(caught.value)


@pytest.mark.parametrize(
    "sql",
    [
        "select id, (select max(tenfold(u.id)) from lite.t u where u.id < t.id) from lite.t t",
        "select id, exists (select 1 from lite.t u where u.id = t.id and tenfold(u.id) > 20) from lite.t t",
    ],
)
def test_a_call_in_a_subquery_that_uses_columns_around_it_is_refused(lab: Lab, sql: str) -> None:
    with pytest.raises(StatementError, match="uses columns of the query around it") as caught:
        lab.sql(sql).arrow()
    assert caught.value.hint == "Write the subquery as a join."
