"""Documents over real databases."""

from collections.abc import Iterator

import pytest

from dai.drivers import Driver, driver_for
from dai.perform.parser import parse
from dai.perform.pipeline import Running
from dai.streams.cancellation import Cancellation
from examples.demo.load import load
from tests.documents import answer, environment, query, results, running, statuses, written
from tests.pipelines import begun, reports

# --- real databases --------------------------------------------------------------------------------------------------


@pytest.fixture(params=["sqlite", "duckdb", "postgres", "mariadb"])
def driver(request: pytest.FixtureRequest) -> Iterator[Driver]:
    url = request.getfixturevalue(f"{request.param}_url")
    load(url, ["littleblackbook"], rows=20_000)
    driver = driver_for(url)
    yield driver
    driver.close()


def free(driver: Driver) -> bool:
    state = driver.pool_state()
    return state["open"] == state["idle"]


BOOK_UPDATE = (
    "<sqlUpdateStatement name=\"u\">{}<expression>update littleblackbook set phone = 'x' where id = {}</expression>"
    '<resultStream name="n"/></sqlUpdateStatement>'
)


def test_documents_that_read_and_change_the_same_table(driver):
    """In either order, side by side, and one feeding the other."""
    alone, fed = BOOK_UPDATE.format("", "1"), BOOK_UPDATE.format('<sqlParameter position="1" from="t"/>', "?")
    every = query("q", "select * from littleblackbook order by id", "e", "webRowSetStream")
    few = query("few", "select id from littleblackbook where id between 10 and 19", "t")
    for body, count in ((every + alone, "1"), (alone + every, "1"), (few + fed, "10"), (fed + every + few, "10")):
        response = answer(body, driver)
        assert statuses(response)["request"] == "COMPLETED", response[-2000:]
        assert results(response)["n"][0].get("updateCount") == count
        assert free(driver)


def test_a_query_for_each_tuple_of_another(driver):
    body = query("few", "select id, name from littleblackbook where id between 10 and 19 order by id", "t") + (
        '<sqlQueryStatement name="q"><sqlParameter position="1" from="t"/><sqlParameter position="2" from="t"/>'
        "<expression>select id from littleblackbook where id = ? and name = ?</expression>"
        '<webRowSetStream name="e"/></sqlQueryStatement>'
    )
    with running(body, driver) as work:
        ((_, table),) = [(end, source.table()) for end, source in work.end_points()]
    assert table.column("id").to_pylist() == list(range(10, 20))
    assert free(driver)


def test_cancelling_stops_the_statement(driver):
    endless = "select count(*) from littleblackbook a, littleblackbook b, littleblackbook c where a.id + b.id &lt; c.id"
    cancellation = Cancellation()
    work = Running(parse(written(query("q", endless, "e", "webRowSetStream"))), environment(driver, None, cancellation))
    thread, raised = begun(work)
    while free(driver) and thread.is_alive():
        pass  # until the statement has its connection
    cancellation.cancel()
    thread.join(60)
    assert not thread.is_alive()
    assert raised == [cancellation.cause]
    assert {status for status, _ in reports(work).values()} == {"TERMINATED"}
    assert free(driver)


def test_what_fails_in_the_database_half_way_changes_nothing(driver):
    """The second of three tuples breaks the key."""
    taken = query("t", "select 30000 as id, 'a' as name union all select 1, 'b' union all select 30001, 'c'", "t")
    body = taken + (
        '<sqlUpdateStatement name="u"><sqlParameter position="1" from="t"/><sqlParameter position="2" from="t"/>'
        "<expression>insert into littleblackbook (id, name, address, phone) values (?, ?, '', '')</expression>"
        '<resultStream name="n"/></sqlUpdateStatement>'
    )
    response = answer(body, driver)
    assert statuses(response)["u"] == statuses(response)["request"] == "ERROR"
    counted = driver.query("select count(*) from littleblackbook", cancellation=Cancellation()).table()
    assert counted.column(0).to_pylist() == [20_000]
    assert free(driver)
