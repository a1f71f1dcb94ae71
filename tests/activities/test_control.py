"""sqlResilient, Echo, Sleep, Counter."""

import pytest

from dai.config import Config, LimitsConfig, parse
from dai.drivers.memory import Memory, Script
from dai.errors import CancelledError, DatabaseUnavailableError, DataError, LimitError, ParameterError, StatementError
from dai.perform import parser
from dai.perform.pipeline import Running
from dai.perform.response import document
from dai.service.resources import Resources
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Stream
from examples.demo.load import load
from tests.documents import environment, query, results, running, statuses, table, to_csv, written
from tests.pipelines import begun

DOWN = Script(refused=DatabaseUnavailableError("no connection"))
LOST = Script(table(0), fails=DatabaseUnavailableError("lost"))
LATER = Script(table(4), batch_rows=2, fails=DatabaseUnavailableError("lost half-way"))
HANGS = Script(table(0), blocks=True)
GOOD = Script(table(5), batch_rows=2)


def resilient(timeout: str = "", sql: str = "q") -> str:
    return f'<sqlResilient name="r"><sqlStatement value="{sql}"/>{timeout}<sqlResilientOutput name="e"/></sqlResilient>'


def replicated(*scripts: Script) -> tuple[Memory, list[Memory]]:
    drivers = [Memory({"q": script}) for script in scripts]
    drivers[0].replicas = tuple(drivers[1:])
    return drivers[0], drivers


@pytest.mark.parametrize(
    ("scripts", "asked", "timeout"),
    [
        ((GOOD, GOOD), [1, 0], ""),
        ((DOWN, GOOD), [1, 1], ""),
        ((LOST, DOWN, GOOD, GOOD), [1, 1, 1, 0], ""),
        ((HANGS, GOOD), [1, 1], "<timeout>100</timeout>"),
        ((GOOD,), [1], "<timeout>60000</timeout>"),
    ],
)
def test_the_next_replica_answers(scripts, asked, timeout):
    driver, drivers = replicated(*scripts)
    with running(resilient(timeout), driver) as work:
        (actual,) = [source.table() for _, source in work.end_points() if isinstance(source, Stream)]
        work.raise_cause()
    assert actual.equals(table(5))
    assert [len(each.executed) for each in drivers] == asked
    assert [each.open_streams for each in drivers] == [0] * len(drivers)


@pytest.mark.parametrize(
    ("scripts", "error", "says", "asked"),
    [
        ((DOWN, LOST), DatabaseUnavailableError, "lost", [1, 1]),
        ((LATER, GOOD), DatabaseUnavailableError, "half-way", [1, 0]),
        ((Script(refused=StatementError("no such table")), GOOD), StatementError, "no such table", [1, 0]),
        ((Script(table(0), fails=DataError("odd")), GOOD), DataError, "odd", [1, 0]),
    ],
)
def test_what_no_replica_mends(scripts, error, says, asked):
    driver, drivers = replicated(*scripts)
    with pytest.raises(error, match=says), running(resilient(), driver) as work:
        work.finish()
    assert [len(each.executed) for each in drivers] == asked
    assert [each.open_streams for each in drivers] == [0] * len(drivers)


@pytest.mark.parametrize(("timeout", "error"), [(-1, ParameterError), (100_000_000, LimitError)])
def test_timeouts(timeout, error):
    with (
        pytest.raises(error, match="timeout"),
        running(resilient(f"<timeout>{timeout}</timeout>"), Memory({})),
    ):
        pass


@pytest.mark.parametrize("timeout", ["", "<timeout>60000</timeout>"])
def test_cancelled_while_a_database_hangs(timeout):
    driver, drivers = replicated(HANGS, GOOD)
    cancellation = Cancellation()
    body = query("other", "fine", "t") + to_csv("csv", "t", "x") + resilient(timeout)
    driver.scripts["fine"] = GOOD
    work = Running(parser.parse(written(body)), environment(driver, cancellation=cancellation))
    thread, raised = begun(work)
    assert driver.blocked.wait(60)
    cancellation.cancel(CancelledError("Enough."))
    thread.join(60)
    assert [type(each) for each in raised] == [CancelledError]
    assert [each.open_streams for each in drivers] == [0, 0]
    assert drivers[1].executed == []


def test_a_database_that_is_not_there(postgres_url, sqlite_url, tmp_path):
    """The first address is nobody's; the replica is a database."""
    load(postgres_url, ["littleblackbook"], rows=10)
    nobody = "postgresql://nobody@127.0.0.1:1/none"
    config = parse(
        {"resources": {"book": {"url": nobody, "replicas": [postgres_url], "connect_wait": 2.0}}}, tmp_path, {}
    )
    resources = Resources(config)
    try:
        body = resilient(sql="select id from littleblackbook where id &lt; 4 order by id")
        with running(body, resources["book"].driver) as work:
            (table,) = [source.table() for _, source in work.end_points() if isinstance(source, Stream)]
        assert table["id"].to_pylist() == [1, 2, 3]
    finally:
        resources.close()


PASSED = {
    "Echo": '<Echo name="a"><input from="c"/><output name="e"/></Echo>',
    "Sleep": '<Sleep name="a"><sleepTime>1</sleepTime><input from="c"/><output name="e"/></Sleep>',
}


@pytest.mark.parametrize("body", list(PASSED.values()), ids=list(PASSED))
def test_passes_on(body):
    driver = Memory({"q": GOOD})
    with running(query("q", "q", "t") + to_csv("csv", "t", "c") + body, driver) as work:
        text = results(b"".join(document(work, "s", "r")))["e"].text
    assert text.splitlines()[:2] == ["id,name", "0,name 0"]


def test_echo_of_a_text():
    body = '<Echo name="a"><input>one &amp; two</input><output name="e"/></Echo>'
    with running(body, None) as work:
        assert [end.tabular for end in work.perform.end_points] == [False]
        assert results(b"".join(document(work, "s", "r")))["e"].text == "one & two"


def test_counter():
    body = '<Echo name="a"><input>12345</input><output name="b"/></Echo>'
    body += '<Counter name="c"><input from="b"/><output name="e"/></Counter>'
    with running(body, None) as work:
        assert results(b"".join(document(work, "s", "r")))["e"].text == '<counter blocks="1" rows="1" bytes="5"/>'


@pytest.mark.parametrize("output", ["", '<output name="e"/>'])
def test_sleep_can_be_stopped(output):
    cancellation = Cancellation()
    with running(
        f'<Sleep name="a"><sleepTime>3600000</sleepTime>{output}</Sleep>', None, cancellation=cancellation
    ) as work:
        thread, raised = begun(work)
        cancellation.cancel(CancelledError("Enough."))
        thread.join(60)
        assert not thread.is_alive()
    assert [type(each) for each in raised] == [CancelledError]


def test_sleep_without_output_is_done_when_it_has_waited():
    with running('<Sleep name="a"><sleepTime>50</sleepTime></Sleep>', None) as work:
        assert set(statuses(b"".join(document(work, "s", "r"))).values()) == {"COMPLETED"}


@pytest.mark.parametrize(
    ("times", "error"), [((-1,), ParameterError), ((3_600_001,), LimitError), ((1_800_001, 1_800_001), LimitError)]
)
def test_sleep_has_a_bound_a_document(times, error):
    body = "".join(
        f'<Sleep name="a{i}"><sleepTime>{each}</sleepTime><output name="e{i}"/></Sleep>' for i, each in enumerate(times)
    )
    with pytest.raises(error, match="sleepTime"), running(body, None):
        pass


def test_the_operator_says_how_long_a_document_may_wait():
    config = Config(limits=LimitsConfig(wait_seconds=1))
    body = '<Sleep name="a"><sleepTime>1001</sleepTime><output name="e"/></Sleep>'
    with pytest.raises(LimitError, match="wait_seconds"), running(body, None, config=config):
        pass


def test_no_limit_error_is_taken_for_a_lost_database():
    driver, drivers = replicated(Script(refused=LimitError("too much")), GOOD)
    with pytest.raises(LimitError), running(resilient(), driver):
        pass
    assert drivers[1].executed == []
