"""dataStore and deliverToResourceProperty."""

import threading

import httpx
import pytest

from dai.api.server.serve import background
from dai.drivers.memory import Memory, Script
from dai.drivers.published import MOST, MOST_BYTES, Published
from dai.errors import CancelledError, DataError, LimitError, ParameterError
from dai.perform.response import document
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Stream
from tests.api.conftest import configured
from tests.documents import Ends, query, results, running, table, to_csv, written
from tests.pipelines import begun
from tests.processes import until

ITEMS = '<dataStore name="s"><item>name 1</item><item>name 3</item><itemCursor name="v"/></dataStore>'


def kept(source: str = "c") -> str:
    return f'<dataStore name="s"><input from="{source}"/><itemCursor name="e"/></dataStore>'


def test_items_are_parameters(sqlite_url):
    from dai.drivers import driver_for
    from examples.demo.load import load

    load(sqlite_url, ["littleblackbook"], rows=10)
    driver = driver_for(sqlite_url)
    body = '<dataStore name="s"><item>3</item><item>5</item><itemCursor name="v"/></dataStore>'
    body += (
        '<sqlQueryStatement name="q"><sqlParameter position="1" from="v"/><expression>select id from littleblackbook '
        'where id = cast(? as integer)</expression><webRowSetStream name="e"/></sqlQueryStatement>'
    )
    try:
        with running(body, driver) as work:
            (found,) = [source.table() for _, source in work.end_points() if isinstance(source, Stream)]
            work.raise_cause()
    finally:
        driver.close()
    assert found["id"].to_pylist() == [3, 5]


def test_items_are_a_result():
    with running(ITEMS, None) as work:
        assert [end.tabular for end in work.perform.end_points] == [True]
        (found,) = [source.table() for _, source in work.end_points()]
    assert found.to_pydict() == {"item": ["name 1", "name 3"]}


def test_the_input_is_read_before_anybody_wants_it():
    """The query has ended although its only reader, a stream of the session, is never read."""
    driver = Memory({"q": Script(table(1000), batch_rows=10)})
    body = query("q", "q", "t") + to_csv("csv", "t", "c") + kept() + (
        '<outputStream name="o"><fromLocal from="e"/></outputStream>'
    )  # fmt: skip
    cancellation = Cancellation()
    with running(body, driver, session=Ends(capacity=1), cancellation=cancellation) as work:
        thread, raised = begun(work)
        while driver.open_streams:
            thread.join(0.01)
            assert thread.is_alive()
        cancellation.cancel(CancelledError("Enough."))
        thread.join(60)
    assert [type(each) for each in raised] == [CancelledError]


@pytest.mark.parametrize("script", [Script(table(5)), Script(table(5), fails=DataError("half-way"))])
def test_what_is_kept_is_what_came(script):
    status, failure = "", None
    try:
        with running(query("q", "q", "t") + to_csv("csv", "t", "c") + kept(), Memory({"q": script})) as work:
            ends = results(b"".join(document(work, "s", "r")))
        status = ends["request"].get("status")
    except DataError as error:
        failure = error  # The store reads beside the request: it may fail before the response begins.
    if script.fails is None:
        assert ends["e"].text.splitlines()[1] == "0,name 0"
    assert (status, failure) in (
        [("COMPLETED", None)] if script.fails is None else [("ERROR", None), ("", script.fails)]
    )
    assert not [each for each in threading.enumerate() if each.name == "data store"]


@pytest.mark.parametrize(
    "body",
    [
        '<dataStore name="s"><itemCursor name="e"/></dataStore>',
        ITEMS.replace("<item>", '<input from="c"/><item>', 1)
        + '<Echo name="a"><input>x</input><output name="c"/></Echo>',
    ],
)
def test_items_or_an_input(body):
    with pytest.raises(ParameterError, match="either items or an input"), running(body, None):
        pass


def publish(name: str, text: str = "x", more: str = "") -> str:
    return (
        f'<Echo name="a"><input>{text}</input><output name="c"/></Echo><deliverToResourceProperty name="d">'
        f'<input from="c"/><resourceProperty name="{name}"{more}/></deliverToResourceProperty>'
    )


@pytest.mark.parametrize(
    ("more", "name"),
    [("", "p"), (' ns="http://my"', "{http://my}p"), (' sessionSpecific="true"', "p-session-1"), (' ns=""', "p")],
)
def test_published(more, name):
    driver = Memory({})
    for text in ("first", "second"):
        with running(publish("p", text, more), driver) as work:
            work.finish()
    assert driver.published.texts() == {name: "second"}


def test_a_property_has_bounds():
    driver = Memory({})
    with pytest.raises(LimitError, match="at most"), running(publish("p", "x" * (MOST_BYTES + 1)), driver) as work:
        work.finish()
    published = Published()
    for number in range(MOST):
        published.put(str(number), "")
    published.put("0", "again")
    with pytest.raises(LimitError, match="already"):
        published.put("one more", "")


def test_a_property_is_read_at_the_resource(tmp_path):
    config = configured(tmp_path, {"book": {"url": "sqlite:///book.db"}})
    headers = {"Content-Type": "application/xml"}
    with background(config) as service, httpx.Client(base_url=service.url, timeout=60) as client:
        assert client.get("/resources/book").json()["published"] == {}
        started = client.post("/resources/book/perform", content=written(publish("latest", "42")), headers=headers)
        assert started.status_code == 202
        until(lambda: client.get(started.headers["Location"]).json()["phase"] == "COMPLETED")
        assert client.get("/resources/book").json()["published"] == {"latest": "42"}
