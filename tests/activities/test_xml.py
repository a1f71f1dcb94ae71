"""Statements over XML documents: what they give, what they refuse, and that they can be stopped."""

import threading
from collections.abc import Iterator

import psutil
import pytest
from lxml import etree

from dai.drivers.collections import store
from dai.drivers.collections.driver import Collections
from dai.errors import CancelledError, DaiError, LimitError
from dai.perform.parser import parse
from dai.perform.pipeline import Running
from dai.perform.xml import process, worker
from dai.streams.cancellation import Cancellation
from tests.collections import ALLY, BEE, PEOPLE, musicians
from tests.documents import environment, written
from tests.processes import until


@pytest.fixture
def driver(sqlite_url: str) -> Iterator[Collections]:
    driver = musicians(sqlite_url)
    yield driver
    state = driver.pool_state()
    driver.close()
    assert state["open"] == state["idle"]


def statement(element: str, expression: str, collection: str = PEOPLE, more: str = "") -> str:
    return (
        f'<{element} name="q"><collection>{collection}</collection>{more}<expression>{expression}</expression>'
        f'<resourceSetStream name="e"/></{element}>'
    )


def blocks(body: str, driver: Collections, cancellation: Cancellation | None = None) -> list[bytes]:
    with Running(parse(written(body)), environment(driver, cancellation=cancellation)) as work:
        ((_, source),) = work.open().end_points()
        return [bytes(memoryview(block.data)) for block in source]


def found(body: str, driver: Collections) -> list[str]:
    """What stands in the resources."""
    first, *resources, last = blocks(body, driver)
    assert (first, last) == (b"<resourceSet>\n", b"</resourceSet>\n")
    etree.fromstring(first + b"".join(resources) + last)
    return [each.decode().removeprefix("<resource>").removesuffix("</resource>\n") for each in resources]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("/entry/phone", ["<phone>01670</phone>", "<phone>01671</phone>", "<phone>01672</phone>"]),
        ("/entry[@id &lt; 2]/name", ["<name>Ally</name>"]),
        ("/entry/@id", ["1", "2"]),
        ("name/text()", ["Ally", "Bee"]),
        ("count(//phone)", ["1", "2"]),
        ("count(//phone) div 4", ["0.25", "0.5"]),
        ("1 div 0", ["Infinity", "Infinity"]),
        ("name = 'Bee'", ["false", "true"]),
        ("/x", []),
        ("/entry[2]", []),
        ("re:replace(name, 'l+', '', '-')", ["A-y", "Bee"]),
        ("/", [ALLY.decode(), BEE.decode()]),
    ],
)
def test_xpath(expression: str, expected: list[str], driver: Collections) -> None:
    assert found(statement("xPathStatement", expression), driver) == expected


def test_one_document(driver: Collections) -> None:
    body = statement("xPathStatement", "/entry/name", more="<resourceId>bee</resourceId>")
    assert found(body, driver) == ["<name>Bee</name>"]


def test_namespaces(driver: Collections) -> None:
    with driver.store.transaction(Cancellation(), write=True) as transaction:
        transaction.add(transaction.collection("musicians"), [("n", b'<a xmlns="urn:n"><b>1</b></a>')])
    body = statement("xPathStatement", "/c:a/c:b", "musicians", '<namespace prefix="c">urn:n</namespace>')
    assert found(body, driver) == ['<b xmlns="urn:n">1</b>']
    assert found(statement("xPathStatement", "/a/b", "musicians"), driver) == []


@pytest.mark.parametrize(
    ("body", "code", "says"),
    [
        (statement("xPathStatement", "/a["), "bad-parameter", "Invalid expression"),
        (statement("xPathStatement", "/c:a"), "bad-parameter", "Undefined namespace prefix"),
        (statement("xPathStatement", "document('file:///etc/hostname')"), "bad-parameter", "Unregistered function"),
        (statement("xPathStatement", "/a", "x"), "not-found", "no collection 'x'"),
        (statement("xPathStatement", "/a", more="<resourceId>x</resourceId>"), "not-found", "no document 'x'"),
        (statement("xPathStatement", "/a", more='<namespace prefix="">x</namespace>'), "bad-parameter", "prefix"),
    ],
)
def test_refused_before_it_runs(body: str, code: str, says: str, driver: Collections) -> None:
    with Running(parse(written(body)), environment(driver)) as work:
        with pytest.raises(DaiError, match=says) as raised:
            work.open()
        assert raised.value.code == code


def many(driver: Collections, count: int, document: bytes = b"<a><b>1</b></a>") -> None:
    with driver.store.transaction(Cancellation(), write=True) as transaction:
        transaction.create_collection("", "many")
        transaction.add(transaction.collection("many"), [(f"d{number}", document) for number in range(count)])


def test_every_document_is_searched_once(driver: Collections) -> None:
    """Whatever their sizes are to those of the portions they travel in."""
    many(driver, 2_500)
    with driver.store.transaction(Cancellation(), write=True) as transaction:
        for number in range(0, 2_500, 500):
            content = b"<a><b>1</b>" + b"<c/>" * (store.CHUNK_BYTES // 4) + b"</a>"
            transaction.put(transaction.collection("many"), f"d{number}", content)
    assert found(statement("xPathStatement", "/a/b", "many"), driver) == ["<b>1</b>"] * 2_500


NEVER = "//*[count(//*[count(//*[count(//*) &gt; 1]) &gt; 1]) &gt; 1]"


GROWS = "string(b)"
for _ in range(4):  # 60 ** 5 characters
    GROWS = f"re:replace({GROWS}, 'x', 'g', string(b))"


def workers() -> list[psutil.Process]:
    """The processes of expressions that have begun to work hard."""
    return [
        each
        for each in psutil.Process().children()
        if worker.__name__ in each.cmdline() and each.cpu_times().user > 0.3
    ]


def test_an_expression_that_does_not_end_is_stopped(driver: Collections) -> None:
    many(driver, 1, b"<a>" + b"<b/>" * 3_000 + b"</a>")
    cancellation = Cancellation()
    body = statement("xPathStatement", NEVER, "many")
    with Running(parse(written(body)), environment(driver, cancellation=cancellation)) as work:
        ((_, source),) = work.open().end_points()
        assert bytes(memoryview(next(source).data)) == b"<resourceSet>\n"

        def stop() -> None:
            until(workers)
            cancellation.cancel(CancelledError("stop"))

        stopper = threading.Thread(target=stop)
        stopper.start()
        with pytest.raises(CancelledError):
            next(source)
        stopper.join()
    assert not workers()


@pytest.mark.parametrize(
    ("expression", "bound"),
    [
        (NEVER, "SECONDS"),
        ("re:test(string(b), '(x+x+)+y')", "SECONDS"),
        (GROWS, "MEMORY_BYTES"),
    ],
)
def test_bounds(expression: str, bound: str, driver: Collections, monkeypatch: pytest.MonkeyPatch) -> None:
    many(driver, 1, b"<a><b>" + b"x" * 60 + b"</b>" + b"<b/>" * 3_000 + b"</a>")
    monkeypatch.setattr(process, bound, {"SECONDS": 0.5, "MEMORY_BYTES": 1 << 28}[bound])
    with pytest.raises(LimitError, match={"SECONDS": "0.5 seconds", "MEMORY_BYTES": "256 MiB"}[bound]):
        blocks(statement("xPathStatement", expression, "many"), driver)
