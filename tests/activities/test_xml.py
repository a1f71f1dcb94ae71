"""Statements over XML documents: what they give, what they refuse, and that they can be stopped."""

import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib.util import find_spec

import psutil
import pytest
from lxml import etree

from dai.drivers.collections import store
from dai.drivers.collections.driver import Collections
from dai.errors import CancelledError, DaiError, DataError, LimitError, MissingDependencyError, RequestError
from dai.perform.activities.xml import statements
from dai.perform.parser import parse
from dai.perform.pipeline import Running
from dai.perform.xml import process, worker
from dai.streams.cancellation import Cancellation
from tests.activities.xupdates import ITEM, instructions
from tests.collections import ALLY, BEE, PEOPLE, contents, musicians
from tests.documents import environment, written
from tests.processes import until

GROWS = "string(b)"
for _ in range(4):  # 60 ** 5 characters
    GROWS = f"re:replace({GROWS}, 'x', 'g', string(b))"


def workers(seconds: float = 0.0) -> list[psutil.Process]:
    """The processes of expressions that have worked for so long."""
    found = []
    for each in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):  # a child of another test has ended
            if worker.__name__ in each.cmdline() and each.cpu_times().user >= seconds:
                found.append(each)
    return found


@pytest.fixture
def driver(request: pytest.FixtureRequest) -> Iterator[Collections]:
    """In SQLite, where ``both`` does not ask for PostgreSQL, too."""
    driver = musicians(request.getfixturevalue(f"{getattr(request, 'param', 'sqlite')}_url"))
    yield driver
    state = driver.pool_state()
    driver.close()
    assert state["open"] == state["idle"]


both = pytest.mark.parametrize("driver", ["sqlite", "postgres"], indirect=True)


def statement(element: str, expression: str, collection: str = PEOPLE, more: str = "") -> str:
    return (
        f'<{element} name="q"><collection>{collection}</collection>{more}<expression>{expression}</expression>'
        f'<resourceSetStream name="e"/></{element}>'
    )


def blocks(body: str, driver: Collections, cancellation: Cancellation | None = None) -> list[bytes]:
    with Running(parse(written(body)), environment(driver, cancellation=cancellation)) as work:
        ((_, source),) = work.open().end_points()
        return [bytes(memoryview(block.data)) for block in source]


def resources(body: str, driver: Collections) -> list[str]:
    """What stands in the resources."""
    first, *inside, last = blocks(body, driver)
    assert (first, last) == (b"<resourceSet>\n", b"</resourceSet>\n")
    etree.fromstring(first + b"".join(inside) + last)
    return [each.decode().removeprefix("<resource>").removesuffix("</resource>\n") for each in inside]


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
        ("re:match(string(name), '[A-Z]')", ["<match>A</match>", "<match>B</match>"]),
        ("/", [ALLY.decode(), BEE.decode()]),
    ],
)
def test_xpath(expression: str, expected: list[str], driver: Collections) -> None:
    assert resources(statement("xPathStatement", expression), driver) == expected


needs_saxon = pytest.mark.skipif(find_spec("saxonche") is None, reason="of the extra xquery")


@needs_saxon
@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("for $p in //phone return &lt;r&gt;{$p/text()}&lt;/r&gt;", ["<r>01670</r>", "<r>01671</r>", "<r>01672</r>"]),
        ("/entry/@id", ["1", "2"]),
        ("//name/text()", ["Ally", "Bee"]),
        ("/", [ALLY.decode(), BEE.decode()]),
        ("string-join(/entry[@id = 2]/phone, '&lt;')", ["", "01671&lt;01672"]),
        ("if (//phone[2]) then (true(), 1.5, [1, 2], map { 'a': 1 }) else ()", ["true", "1.5", "[1,2]", 'map{"a":1}']),
        ("()", []),
    ],
)
def test_xquery(expression: str, expected: list[str], driver: Collections) -> None:
    assert resources(statement("xQueryStatement", expression), driver) == expected


@needs_saxon
def test_xquery_keeps_white_space(driver: Collections) -> None:
    content = b"<a> <b/>\n<b>1</b> </a>"
    many(driver, 1, content)
    assert resources(statement("xQueryStatement", "/a", "many"), driver) == [content.decode()]
    namespace = '<namespace prefix="n">urn:n</namespace>'
    assert resources(statement("xQueryStatement", "count(//n:b)", "many", namespace), driver) == ["0"]


@needs_saxon
@pytest.mark.parametrize(
    "expression",
    [
        "doc('file:///etc/hostname')",
        "doc('http://127.0.0.1:1/')",
        "collection('file:///etc')",
        "unparsed-text('file:///etc/hostname')",
        "json-doc('file:///etc/hostname')",
        "transform(map { 'stylesheet-location': 'file:///etc/hostname' })",
        "import module namespace a = 'b' at 'file:///etc/hostname'; 1",
        "parse-xml('&lt;!DOCTYPE a [&lt;!ENTITY b SYSTEM \"file:///etc/hostname\"&gt;]&gt;&lt;a&gt;&amp;b;&lt;/a&gt;')",
    ],
)
def test_xquery_reads_nothing_else(expression: str, driver: Collections) -> None:
    with pytest.raises(RequestError, match=r"may read nothing but the document|character reference"):
        blocks(statement("xQueryStatement", expression), driver)


@needs_saxon
def test_xquery_sees_no_environment(driver: Collections, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAI_SECRET", "secret")
    body = statement("xQueryStatement", "environment-variable('DAI_SECRET'), doc-available('file:///etc/hostname')")
    assert resources(body, driver) == ["false", "false"]


@needs_saxon
@pytest.mark.parametrize(
    ("expression", "code", "says"),
    [
        ("for $x", "bad-parameter", "XPST0003"),
        ("f()", "bad-parameter", "Cannot find a 0-argument function"),
        ("c:f()", "bad-parameter", "prefix"),
        ("Q{java:java.lang.System}exit(0)", "bad-parameter", "Cannot find"),
        ("1 idiv 0", "bad-data", "FOAR0001.*document 'ally'"),
    ],
)
def test_xquery_refuses(expression: str, code: str, says: str, driver: Collections) -> None:
    with pytest.raises(DaiError, match=rf"(?s){says}") as raised:
        blocks(statement("xQueryStatement", expression), driver)
    assert raised.value.code == code


@needs_saxon
@pytest.mark.parametrize(
    ("expression", "bound"),
    [
        ("count(for $i in 1 to 100000, $j in 1 to 100000 return $i)", "SECONDS"),
        ("matches(string-join(((1 to 60) ! 'x', 'zy')), '^(x+x+)+y$')", "SECONDS"),
        ("string-length(fold-left(1 to 30, 'aaaaaaaaaa', function($a, $b) { $a || $a }))", "MEMORY_BYTES"),
    ],
)
def test_xquery_has_bounds(expression: str, bound: str, driver: Collections, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, bound, {"SECONDS": 0.5, "MEMORY_BYTES": 1 << 28}[bound])
    with pytest.raises(LimitError, match={"SECONDS": "0.5 seconds", "MEMORY_BYTES": "256 MiB"}[bound]):
        blocks(statement("xQueryStatement", expression), driver)


def test_without_saxon_it_says_what_to_install(driver: Collections, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statements, "find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match=r"saxonche(?s:.*)pip install -e '\.\[xquery\]'"):
        blocks(statement("xQueryStatement", "1"), driver)


@both
def test_one_document(driver: Collections) -> None:
    body = statement("xPathStatement", "/entry/name", more="<resourceId>bee</resourceId>")
    assert resources(body, driver) == ["<name>Bee</name>"]


def test_namespaces(driver: Collections) -> None:
    with driver.store.transaction(Cancellation(), write=True) as transaction:
        transaction.add(transaction.collection("musicians"), [("n", b'<a xmlns="urn:n"><b>1</b></a>')])
    body = statement("xPathStatement", "/c:a/c:b", "musicians", '<namespace prefix="c">urn:n</namespace>')
    assert resources(body, driver) == ['<b xmlns="urn:n">1</b>']
    assert resources(statement("xPathStatement", "/a/b", "musicians"), driver) == []


@pytest.mark.parametrize(
    ("body", "code", "says"),
    [
        (statement("xPathStatement", "/a["), "bad-parameter", "Invalid expression"),
        (statement("xPathStatement", "/c:a"), "bad-parameter", "Undefined namespace prefix"),
        (statement("xPathStatement", "document('file:///etc/hostname')"), "bad-parameter", "Unregistered function"),
        (statement("xPathStatement", "re:test('a', '(')"), "bad-parameter", "unterminated subpattern"),
        (statement("xPathStatement", "(" * 9_000 + "1" + ")" * 9_000), "bad-parameter", "Recursion limit"),
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


@both
def test_a_reader_that_leaves_frees_everything(driver: Collections) -> None:
    many(driver, 2_500)
    body = statement("xPathStatement", "/a/b", "many")
    with Running(parse(written(body)), environment(driver)) as work:
        ((_, source),) = work.open().end_points()
        assert len([block for block, _ in zip(source, range(10), strict=False)]) == 10
        assert driver.pool_state()["open"] > driver.pool_state()["idle"]
        source.close()
        assert driver.pool_state()["open"] == driver.pool_state()["idle"]
        assert not workers()


def test_a_large_result_is_refused(driver: Collections) -> None:
    """The service would have it in memory."""
    many(driver, 1, b"<a><b>" + b"x" * (8 << 20) + b"</b></a>")
    with pytest.raises(DataError, match="more than 64 MiB"):
        blocks(statement("xPathStatement", f"concat({', '.join('b' * 9)})", "many"), driver)


def many(driver: Collections, count: int, document: bytes = b"<a><b>1</b></a>") -> None:
    with driver.store.transaction(Cancellation(), write=True) as transaction:
        transaction.create_collection("", "many")
        transaction.add(transaction.collection("many"), [(f"d{number}", document) for number in range(count)])


@both
def test_every_document_is_searched_once(driver: Collections) -> None:
    """Whatever their sizes are to those of the portions they travel in."""
    many(driver, 2_500)
    with driver.store.transaction(Cancellation(), write=True) as transaction:
        for number in range(0, 2_500, 500):
            content = b"<a><b>1</b>" + b"<c/>" * (store.CHUNK_BYTES // 4) + b"</a>"
            transaction.put(transaction.collection("many"), f"d{number}", content)
    assert resources(statement("xPathStatement", "/a/b", "many"), driver) == ["<b>1</b>"] * 2_500


NEVER = "//*[count(//*[count(//*[count(//*) &gt; 1]) &gt; 1]) &gt; 1]"


def test_an_expression_that_does_not_end_is_stopped(driver: Collections) -> None:
    many(driver, 1, b"<a>" + b"<b/>" * 3_000 + b"</a>")
    cancellation = Cancellation()
    body = statement("xPathStatement", NEVER, "many")
    with Running(parse(written(body)), environment(driver, cancellation=cancellation)) as work:
        ((_, source),) = work.open().end_points()
        assert bytes(memoryview(next(source).data)) == b"<resourceSet>\n"

        def stop() -> None:
            until(lambda: workers(0.3))
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


def update(modifications: str, collection: str = "one", more: str = "") -> str:
    return (
        f'<xUpdateStatement name="u"><collection>{collection}</collection>{more}<expression>'
        f'{instructions(modifications)}</expression><resultStream name="e"/></xUpdateStatement>'
    )


@pytest.fixture
def one(driver: Collections) -> Collections:
    """With a collection ``one`` of one document."""
    with driver.store.transaction(Cancellation(), write=True) as transaction:
        transaction.create_collection("", "one")
        transaction.add(transaction.collection("one"), [("item", ITEM.encode())])
    return driver


def updated(modifications: str, driver: Collections) -> tuple[int, str]:
    """The count, and the document."""
    (block,) = blocks(update(modifications), driver)
    return int(etree.fromstring(block).text), contents(driver, "one")["item"].decode()


@pytest.mark.parametrize(
    ("modifications", "count", "document"),
    [
        ('<xu:remove select="/a/b[1]"/>', 1, '<a id="1">xy<b c="2">2</b>z<!--k--></a>'),
        ('<xu:remove select="/x"/>', 0, ITEM),
    ],
)
def test_xupdate_of_a_collection(modifications: str, count: int, document: str, one: Collections) -> None:
    assert updated(modifications, one) == (count, document)


@pytest.mark.parametrize(
    ("modifications", "says"),
    [
        ('<xu:remove select="/a["/>', "Invalid expression"),
        ('<xu:remove select="$v"/>', "Undefined variable"),
        ('<xu:append select="/a"><xu:element/></xu:append>', "element lacks the attribute 'name'"),
        ('<xu:remove select="/a/b"/><xu:remove select="/a"/>', "root element.*cannot be removed"),
    ],
)
def test_what_xupdate_refuses_changes_nothing(modifications: str, says: str, one: Collections) -> None:
    with pytest.raises(RequestError, match=rf"(?s){says}"):
        updated(modifications, one)
    assert contents(one, "one")["item"].decode() == ITEM


@pytest.mark.parametrize(
    ("select", "bound"),
    [
        (f"/a[{NEVER}]", "SECONDS"),
        ("/a[re:test(string(b), '(x+x+)+y')]", "SECONDS"),
        (f"/a[{GROWS}]", "MEMORY_BYTES"),
    ],
)
def test_xupdate_has_bounds(select: str, bound: str, one: Collections, monkeypatch: pytest.MonkeyPatch) -> None:
    content = b"<a><b>" + b"x" * 60 + b"</b>" + b"<b/>" * 3_000 + b"</a>"
    with one.store.transaction(Cancellation(), write=True) as transaction:
        transaction.put(transaction.collection("one"), "item", content)
    monkeypatch.setattr(process, bound, {"SECONDS": 0.5, "MEMORY_BYTES": 1 << 28}[bound])
    with pytest.raises(LimitError, match={"SECONDS": "0.5 seconds", "MEMORY_BYTES": "256 MiB"}[bound]):
        updated(f'<xu:append select="/a"><n/></xu:append><xu:remove select="{select}"/>', one)
    assert contents(one, "one")["item"] == content


def test_modifications_as_text(one: Collections) -> None:
    body = re.sub(
        r"<expression>(.*)</expression>",
        r"<expression><![CDATA[\1]]></expression>",
        update('<xu:remove select="//b"/>'),
    )
    assert b"".join(blocks(body, one)) == b"<modifications>2</modifications>\n"


@both
def test_all_documents_or_none(driver: Collections) -> None:
    """The last document is refused: those before it stay as they were."""
    many(driver, 1_500)
    with driver.store.transaction(Cancellation(), write=True) as transaction:
        transaction.put(transaction.collection("many"), "last", b"<b/>")
    before = contents(driver, "many")
    with pytest.raises(DataError, match="document 'last'"):
        blocks(update('<xu:remove select="//b"/>', "many"), driver)
    assert contents(driver, "many") == before
    assert blocks(update('<xu:remove select="/a/b"/>', "many"), driver) == [b"<modifications>1500</modifications>\n"]
    assert set(contents(driver, "many").values()) == {b"<a/>", b"<b/>"}


def test_a_document_does_not_grow_without_bounds(one: Collections) -> None:
    """Neither in size nor so deep that nobody reads it again."""
    doubled = '<xu:append select="//*"><xu:value-of select="/a"/></xu:append>'

    def grow() -> None:
        for _ in range(12):
            updated(doubled, one)

    with pytest.raises(DaiError, match=r"bytes|MiB|well-formed"):
        grow()
    resources(statement("xPathStatement", "count(//*)", "one"), one)


@both
def test_changes_at_the_same_time_are_all_there(driver: Collections) -> None:
    """They take turns: none is lost, none is done twice."""
    with driver.store.transaction(Cancellation(), write=True) as transaction:
        transaction.create_collection("", "one")
        transaction.add(transaction.collection("one"), [("item", b"<a/>"), ("other", b"<a/>")])
    body = update('<xu:append select="/a"><b/></xu:append>')
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: blocks(body, driver), range(8)))
    assert answers == [[b"<modifications>2</modifications>\n"]] * 8
    assert set(contents(driver, "one").values()) == {b"<a>" + b"<b/>" * 8 + b"</a>"}


@both
def test_a_search_beside_a_change(driver: Collections) -> None:
    """A search that has begun sees what was there; the change does not wait for it."""
    many(driver, 2_500)
    body = statement("xPathStatement", "/a/*", "many")
    with Running(parse(written(body)), environment(driver)) as work:
        ((_, source),) = work.open().end_points()
        next(source)
        assert blocks(update('<xu:rename select="/a/b">c</xu:rename>', "many"), driver) == [
            b"<modifications>2500</modifications>\n"
        ]
        assert [bytes(memoryview(block.data)) for block in source][:-1] == [b"<resource><b>1</b></resource>\n"] * 2_500
    assert resources(body, driver) == ["<c>1</c>"] * 2_500
