"""What one attempt reads: each statement once, whatever the columns are called."""

import pytest

from dqp.algebra.operators import Remote
from dqp.execution.fetch import Lost
from dqp.execution.readings import Readings, Renamed
from tests.dqp.doubles import Double, batch, catalog_of, execution, numbers, remote
from tests.dqp.test_fetch import answer

X, Y = remote(numbers("pg"), "x_"), remote(numbers("pg"), "y_")
IDS, VALUES = [1, 2, 3], [10, 20, 30]


def source() -> Double:
    return Double("pg", answer(batch(1, 3)))


def test_equal_statements_are_asked_once_under_the_names_of_each() -> None:
    pg = source()
    with execution() as running:
        readings = Readings(catalog_of(pg), running, Lost())
        first, second = readings.read(X), readings.read(Y)
        assert readings.read(Y) is second
        assert isinstance(second, Renamed)
        assert second.remote is first.remote is X
        assert [name for name, _ in second.columns] == second.schema.names == ["y_id", "y_v"]
        assert first.whole(1 << 20).to_pydict() == {"x_id": IDS, "x_v": VALUES}
        assert second.whole(1 << 20).to_pydict() == {"y_id": IDS, "y_v": VALUES}
        assert second.whole(1) is None
    assert len(pg.asked) == 1


@pytest.mark.parametrize("order", [(X, Y), (Y, X), (X, X)])
def test_rows_that_another_reader_takes_are_fetched_again(order: tuple[Remote, Remote]) -> None:
    pg = source()
    with execution() as running:
        readings = Readings(catalog_of(pg), running, Lost())
        for each in (X, Y):
            readings.read(each)
        taken = [readings.take(each) for each in order]
        tables = [each.stream().table() for each in taken]
    assert [each.to_pydict() for each in tables] == [
        dict(zip([name for name, _ in each.tree.items], (IDS, VALUES), strict=True)) for each in order
    ]
    assert len(pg.asked) == 2


def test_as_inputs_of_fragments() -> None:
    other = remote(numbers("maria"), "x_")
    maria = Double("maria", answer(batch(1, 3)), dialect="mariadb")
    with execution() as running:
        readings = Readings(catalog_of(source(), maria), running, Lost())
        begun = [readings.begin("input", each) for each in (X, other, Y)]
        assert [[name for name, _ in each.columns] for each in begun] == [
            ["x_id", "x_v"],
            ["x_id", "x_v"],
            ["y_id", "y_v"],
        ]
        assert set(readings.begun) == {X, Y, other}
