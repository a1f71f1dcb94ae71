"""XML documents in collections: what is stored, listed, read and removed, in SQLite and PostgreSQL."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
from lxml import etree

from dai.config import Config, LimitsConfig
from dai.drivers import DriverOptions
from dai.drivers.collections.driver import Collections
from dai.drivers.collections.store import Store
from dai.drivers.memory import Memory
from dai.errors import BusyError, CancelledError, DaiError, DatabaseUnavailableError, NotFoundError, RequestError
from dai.perform.parser import parse
from dai.perform.pipeline import Environment, Running
from dai.perform.response import document
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Block
from tests.collections import ALLY, PEOPLE, contents, musicians
from tests.documents import Ends, query, results, running, statuses, written
from tests.servers import free_port

HERE = f"<collection>{PEOPLE}</collection>"


@pytest.fixture(params=["sqlite", "postgres"])
def driver(request: pytest.FixtureRequest) -> Iterator[Collections]:
    driver = musicians(request.getfixturevalue(f"{request.param}_url"))
    yield driver
    state = driver.pool_state()
    driver.close()
    assert state["open"] == state["idle"]


@pytest.fixture
def local(sqlite_url: str) -> Iterator[Collections]:
    driver = musicians(sqlite_url)
    yield driver
    driver.close()


def collections(operation: str, collection: str = "") -> str:
    return (
        f'<xmlCollectionManagement name="m"><collection>{collection}</collection>{operation}<outputStream name="e"/>'
        "</xmlCollectionManagement>"
    )


def resources(operation: str, collection: str = PEOPLE) -> str:
    return (
        f'<xmlResourceManagement name="m"><collection>{collection}</collection>{operation}<outputStream name="e"/>'
        "</xmlResourceManagement>"
    )


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_many_may_use_a_new_database_first(request: pytest.FixtureRequest, tmp_path: Path, database: str) -> None:
    """As the workers of a service do: each has a pool of its own."""
    for number in range(6):
        url = f"sqlite:///{tmp_path}/{number}.db"
        if database == "postgres":
            url = request.getfixturevalue("postgres_url")
            with psycopg.connect(url) as connection:
                connection.execute("drop table if exists dai_xml_documents, dai_xml_collections")
        stores = [Store(url, DriverOptions()) for _ in range(6)]
        ready = threading.Barrier(len(stores))

        def first(store: Store, ready: threading.Barrier = ready) -> list[str]:
            ready.wait()
            with store.transaction(Cancellation()) as transaction:
                return transaction.collections(transaction.collection(""))

        with ThreadPoolExecutor(len(stores)) as threads:
            assert list(threads.map(first, stores)) == [[]] * len(stores)
        for store in stores:
            store.close()


def test_a_first_reader_waits_for_no_writer(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """A process that begins while another changes a collection for long: what is there need not be made."""
    url = f"sqlite:///{tmp_path}/notes.db"
    first, second = Store(url, DriverOptions()), Store(url, DriverOptions(pool_wait=0.5))
    with first.transaction(Cancellation()) as transaction:
        transaction.collection("")
    with first.transaction(Cancellation(), write=True) as changing:
        changing.collection("", lock=True)
        with second.transaction(Cancellation()) as transaction:
            assert transaction.collections(transaction.collection("")) == []
    first.close()
    second.close()


def outcome(body: str, driver: Collections, config: Config = Config()) -> str:
    """What stands in the end point ``e``; what went wrong is raised."""
    with Running(parse(written(body)), Environment(driver, Ends(), Cancellation(), config=config)) as work:
        response = b"".join(document(work.open(), "s", "r"))
        work.raise_cause()
    return results(response)["e"].text or ""


@pytest.mark.parametrize(
    ("body", "answer"),
    [
        (
            collections("<listCollections/>"),
            '<collectionNames count="1">\n<name>musicians</name>\n</collectionNames>\n',
        ),
        (collections("<listCollections/>", PEOPLE), '<collectionNames count="0">\n</collectionNames>\n'),
        (collections('<createCollection name="jazz"/>', "/musicians/"), '<createdCollection name="jazz"/>\n'),
        (
            collections('<removeCollection name="folksingers"/>', "musicians"),
            '<removedCollection name="folksingers"/>\n',
        ),
        (
            resources("<listResources/>"),
            '<resourceNames count="2">\n<name>ally</name>\n<name>bee</name>\n</resourceNames>\n',
        ),
        (resources('<getResource name="ally"/>'), ALLY.decode()),
        (resources('<removeResource name="ally"/>'), '<removedResource name="ally"/>\n'),
        (resources('<createResource name="ally"><a/></createResource>'), '<createdResource name="ally"/>\n'),
    ],
)
def test_management(body: str, answer: str, driver: Collections) -> None:
    assert outcome(body, driver) == answer


def test_a_removed_collection_takes_what_is_in_it(driver: Collections) -> None:
    outcome(collections('<removeCollection name="musicians"/>'), driver)
    outcome(collections('<createCollection name="musicians"/>'), driver)
    outcome(collections('<createCollection name="folksingers"/>', "musicians"), driver)
    assert contents(driver) == {}


def stored(operation: str, driver: Collections, before: str = "") -> bytes:
    outcome(before + resources(operation), driver)
    return contents(driver)["n"]


@pytest.mark.parametrize(
    ("inside", "content"),
    [
        ("<a><b>1</b></a>", "<a><b>1</b></a>"),
        ('<a xmlns="urn:a"><b>1</b></a>', '<a xmlns="urn:a"><b>1</b></a>'),
        ('<c:a xmlns:c="urn:c" d="c:e"/>', '<c:a xmlns:c="urn:c" d="c:e"/>'),
        ("\n  <a>&lt;</a>\n", "<a>&lt;</a>"),
        ("<![CDATA[<?xml version='1.0'?>\n<!-- c --><a/>]]>", "<?xml version='1.0'?>\n<!-- c --><a/>"),
        ("&lt;a&gt;é&lt;/a&gt;", "<a>é</a>"),
        ("<![CDATA[<?xml version='1.0' encoding='ASCII'?>\n<a/>]]>", "<?xml version='1.0' encoding='ASCII'?>\n<a/>"),
    ],
)
def test_a_document_in_the_perform_document(inside: str, content: str, local: Collections) -> None:
    assert stored(f'<createResource name="n">{inside}</createResource>', local).decode() == content


def test_a_document_from_an_output(local: Collections) -> None:
    echo = '<Echo name="x"><input>&lt;a>1&lt;/a></input><output name="o"/></Echo>'
    assert stored('<createResource name="n" from="o"/>', local, echo) == b"<a>1</a>"


@pytest.mark.parametrize(
    ("declared", "coding"),
    [
        (None, "utf-8"),
        (None, "utf-8-sig"),
        (None, "utf-16"),
        (None, "utf-32"),
        ("UTF-8", "utf-8-sig"),
        ("UTF-16", "utf-16"),
        ("ISO-8859-1", "latin-1"),
        ("UTF-7", "utf-7"),
    ],
)
def test_documents_are_stored_in_utf_8(declared: str | None, coding: str, local: Collections) -> None:
    text = f"<?xml version='1.0' encoding='{declared}'?>" if declared else ""
    session = Ends()
    session.input("in").put(Block(f"{text}<!--é--><a>é</a>".encode(coding), 1), Cancellation())
    session.input("in").finish()
    body = '<inputStream name="in"><toLocal name="o"/></inputStream>'
    body += resources('<createResource name="n" from="o"/>')
    with running(body, local, session=session) as work:
        assert statuses(b"".join(document(work, "s", "r")))["request"] == "COMPLETED"
    content = contents(local)["n"].decode()
    assert content.startswith("<")
    assert content.endswith("<!--é--><a>é</a>")
    assert etree.fromstring(content.encode()).text == "é"


def test_several_documents_or_none(local: Collections) -> None:
    two = '<createResource name="n"><a/></createResource><createResource name="m"><b/></createResource>'
    before = contents(local)
    with pytest.raises(DaiError, match="document 'bad'"):
        outcome(resources(f'{two}<createResource name="bad">text</createResource>'), local)
    assert contents(local) == before
    answer = outcome(resources(two), local)
    assert answer == '<createdResource name="n"/>\n<createdResource name="m"/>\n'
    assert contents(local) == {**before, "n": b"<a/>", "m": b"<b/>"}


def test_a_document_without_a_name_gets_one(local: Collections) -> None:
    answer = outcome(resources("<createResource><a/></createResource>"), local)
    (name,) = contents(local).keys() - {"ally", "bee"}
    assert answer == f'<createdResource name="{name}"/>\n'


BOMB = "<!DOCTYPE a [<!ENTITY b 'bbbbbbbbbb'><!ENTITY c '&b;&b;&b;&b;&b;&b;&b;&b;'>]><a>&c;</a>"


def create(content: str, name: str = "n") -> str:
    return resources(f'<createResource name="{name}"><![CDATA[{content}]]></createResource>')


@pytest.mark.parametrize(
    ("body", "code", "says"),
    [
        (create("<a>"), "bad-data", r"not well-formed XML.*document 'n'"),
        (create(""), "bad-data", "not well-formed XML"),
        (create(BOMB), "bad-data", "DTD"),
        (create("<!DOCTYPE a SYSTEM 'file:///etc/hostname'><a/>"), "bad-data", "DTD"),
        (create("<!DOCTYPE a [<!ENTITY b SYSTEM 'file:///etc/hostname'>]><a>&b;</a>"), "bad-data", "DTD"),
        (create("<a>" * 3_000 + "</a>" * 3_000), "bad-data", "not well-formed XML"),
        (create(f"<a>{'x' * 70_000}</a>"), "limit-exceeded", "65,536 bytes"),
        (create("<a/>", "a/b"), "bad-parameter", "not a name for a collection or a document"),
        (create("<a/>", ".."), "bad-parameter", "not a name"),
        (create("<a/>", "n" * 256), "bad-parameter", "not a name"),
        (resources('<getResource name="x"/>'), "not-found", "no document 'x'"),
        (resources('<removeResource name="x"/>'), "not-found", "no document 'x'"),
        (resources("<listResources/>", "musicians/folksinger"), "not-found", "Did you mean 'musicians/folksingers'"),
        (resources('<createResource name="n"><a/></createResource>', "x"), "not-found", "no collection 'x'"),
        (resources(""), "bad-parameter", "0 operations.*createResource"),
        (resources('<getResource name="x"/><listResources/>'), "bad-parameter", "2 operations"),
        (resources('<createResource name="n"><a/><b/></createResource>'), "invalid-document", "more than one element"),
        (resources('<createResource name="n">x<a/></createResource>'), "invalid-document", "more than one element"),
        (collections('<createCollection name="musicians"/>'), "conflict", "already a collection 'musicians'"),
        (collections('<createCollection name="a/b"/>'), "bad-parameter", "not a name"),
        (collections('<removeCollection name="x"/>'), "not-found", "no collection 'x'"),
        (collections("<listCollections/>", "x"), "not-found", "no collection 'x'"),
        (collections(""), "bad-parameter", "0 operations"),
    ],
)
def test_refused_and_nothing_changes(body: str, code: str, says: str, local: Collections) -> None:
    before = contents(local)
    with pytest.raises(DaiError, match=rf"(?s){says}") as raised:
        outcome(body, local, Config(limits=LimitsConfig(transform_bytes=1 << 16)))
    assert raised.value.code == code
    assert contents(local) == before


@pytest.mark.parametrize(
    "body",
    [
        query("q", "select 1", "o", "webRowSetStream"),
        '<sqlUpdateStatement name="q"><expression>drop</expression><resultStream name="o"/></sqlUpdateStatement>',
        '<extractDatabaseSchema name="q"><output name="o"/></extractDatabaseSchema>',
        '<directoryAccess name="q"><output name="o"/></directoryAccess>',
    ],
)
def test_activities_of_other_resources_are_refused(body: str, local: Collections) -> None:
    with pytest.raises(RequestError, match=r"XML collections|not a directory"), running(body, local) as work:
        work.finish()


@pytest.mark.parametrize("body", [collections("<listCollections/>"), resources("<listResources/>"), create("<a/>")])
def test_a_database_has_no_collections(body: str) -> None:
    with pytest.raises(RequestError, match="has no XML collections"), running(body, Memory({})) as work:
        work.finish()


def test_a_search_sees_one_moment(driver: Collections) -> None:
    with driver.store.transaction(Cancellation()) as reading:
        names = reading.names(reading.collection(PEOPLE))
        assert next(names) == "ally"
        outcome(resources('<createResource name="n"><a/></createResource>'), driver)
        assert list(names) == ["bee"]
        assert reading.count(reading.collection(PEOPLE)) == 2
    assert len(contents(driver)) == 3


def test_writers_take_turns_and_can_be_stopped(driver: Collections) -> None:
    """The second waits for the first, until somebody stops it."""
    cancellation, errors = Cancellation(), []
    begun = threading.Event()

    def write() -> None:
        begun.set()
        try:
            with driver.store.transaction(cancellation, write=True) as transaction:
                transaction.collection(PEOPLE, lock=True)
        except DaiError as error:
            errors.append(error)

    with driver.store.transaction(Cancellation(), write=True) as first:
        first.put(first.collection(PEOPLE, lock=True), "n", b"<a/>")
        second = threading.Thread(target=write)
        second.start()
        begun.wait()
        cancellation.cancel(CancelledError("stop"))
        second.join()
    assert [type(error) for error in errors] == [CancelledError]
    assert contents(driver)["n"] == b"<a/>"


def test_a_failure_undoes_everything(driver: Collections) -> None:
    before = contents(driver)

    def change() -> None:
        with driver.store.transaction(Cancellation(), write=True) as transaction:
            collection = transaction.collection(PEOPLE)
            transaction.put(collection, "n", b"<a/>")
            transaction.remove(collection, "ally")
            transaction.remove(collection, "x")

    with pytest.raises(NotFoundError, match="'x'"):
        change()
    assert contents(driver) == before


@pytest.fixture(params=["sqlite", "postgres"])
def impatient(request: pytest.FixtureRequest) -> Iterator[Collections]:
    """With two connections, for which nobody waits long."""
    url = request.getfixturevalue(f"{request.param}_url")
    musicians(url).close()
    driver = Collections.connect(url, DriverOptions(pool_size=2, pool_wait=0.1))
    yield driver
    driver.close()


def test_who_waits_too_long_for_a_writer_is_refused(impatient: Collections) -> None:
    with impatient.store.transaction(Cancellation(), write=True) as first:
        first.put(first.collection(PEOPLE, lock=True), "n", b"<a/>")
        with pytest.raises(BusyError, match="Another request changes"):
            outcome(create("<b/>"), impatient)
    assert contents(impatient)["n"] == b"<a/>"


def test_who_waits_too_long_for_a_connection_is_refused(impatient: Collections) -> None:
    reading = [impatient.store.transaction(Cancellation()) for _ in range(2)]
    for each in reading:
        each.__enter__()
    with pytest.raises(BusyError, match="No connection came free"):
        outcome(resources("<listResources/>"), impatient)
    for each in reading:
        each.__exit__(None, None, None)
    assert "ally" in outcome(resources("<listResources/>"), impatient)


@pytest.mark.parametrize("url", ["sqlite:////", "sqlite:////proc/none/notes.db", "postgresql://u@127.0.0.1:{port}/d"])
def test_a_database_that_is_not_there(url: str) -> None:
    driver = Collections.connect(url.replace("{port}", str(free_port())), DriverOptions(connect_wait=1))
    with pytest.raises(DatabaseUnavailableError, match="cannot be read or written"):
        driver.check()
    with pytest.raises(DatabaseUnavailableError):
        outcome(resources("<listResources/>"), driver)
    driver.close()
