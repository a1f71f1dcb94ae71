"""What every activity must have, over the table of activities: a new one needs no new test here."""

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from lxml import etree

from dai.api.server.serve import background
from dai.config import AccountConfig, Config, DeliveryConfig, MailConfig, RoleConfig, ServiceConfig
from dai.drivers import Driver, driver_for
from dai.drivers.directory.driver import Directory
from dai.errors import ParameterError
from dai.formats import format_named
from dai.perform.activity import ACTIVITIES, ANY, Element, documentation, fields_of
from dai.perform.parser import DIALECTS, parse, xsd
from dai.perform.pipeline import Running
from dai.perform.response import document
from dai.service.resources import ROLES
from dai.streams.cancellation import Cancellation
from dai.streams.mailbox import Mailbox
from dai.streams.stream import Block, Stream
from examples.demo.load import load
from tests.collections import musicians
from tests.documents import Ends, environment, results, table, written
from tests.test_response import SCHEMAS

# Where an example takes an input from, and where it leaves an output raw, these stand around it.
BEFORE = {
    "tuples": '<sqlQueryStatement name="before"><expression>select * from littleblackbook where id &lt; 5</expression>'
    '<resultStream name="tuples"/></sqlQueryStatement>',
}
BEFORE["document"] = BEFORE["tuples"] + (
    '<sqlResultsToXML name="encode"><resultSet from="tuples"/><webRowSet name="document"/></sqlResultsToXML>'
)


def completed(name: str) -> str:
    """The example with producers for its inputs."""
    example = str(ACTIVITIES[name].example)
    sources = sorted(set(re.findall(r'from="(\w+)"', example)))
    assert set(sources) <= BEFORE.keys(), "an example takes its input from 'tuples' or 'document'"
    return "".join(BEFORE[source] for source in sources) + example


@pytest.mark.parametrize("name", ACTIVITIES)
def test_is_documented(name):
    declared = ACTIVITIES[name]
    paragraphs = documentation(declared)
    assert declared.__dict__.get("__doc__"), "an activity has a docstring of its own"
    assert 10 < len(" ".join(paragraphs[0].split())) < 200
    assert paragraphs[0].rstrip().endswith(".")
    assert name in (declared.__name__, declared.__name__[0].lower() + declared.__name__[1:])
    for spec in fields_of(declared):
        if isinstance(spec.kind, type) and issubclass(spec.kind, Element):
            assert spec.kind.__dict__.get("__doc__"), f"{spec.kind.__name__} has no docstring"


@pytest.mark.parametrize("name", ACTIVITIES)
def test_every_required_field_is_in_the_example(name):
    example = etree.fromstring(ACTIVITIES[name].example.strip())
    assert etree.QName(example).localname == name
    for spec in fields_of(ACTIVITIES[name]):
        if spec.required and spec.place.how != "attribute" and spec.place.names:
            assert any(example.find(each) is not None for each in spec.place.names)


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("name", ACTIVITIES)
def test_example_is_valid_in_both_dialects(name, dialect):
    content = written(completed(name), dialect)
    etree.XMLSchema(etree.fromstring(xsd(dialect))).assertValid(etree.fromstring(content))
    perform = parse(
        content,
    )
    (activity,) = [
        each for each in perform.activities if each.element == name and each.name not in ("before", "encode")
    ]
    assert type(activity) is ACTIVITIES[name]


@pytest.fixture(params=["sqlite", "duckdb", "postgres"])
def demo(request: pytest.FixtureRequest) -> Iterator[Driver]:
    url = request.getfixturevalue(f"{request.param}_url")
    load("sqlite:///" + url if "://" not in url else url, ["littleblackbook"], rows=100)
    driver = driver_for(url)
    yield driver
    driver.close()


@pytest.fixture
def closing() -> Iterator[Callable[[Any], Any]]:
    """Closes a driver, or leaves a context, when the test ends."""
    with ExitStack() as stack:

        def close(thing: Any) -> Any:
            if isinstance(thing, AbstractContextManager):
                return stack.enter_context(thing)
            stack.callback(thing.close)
            return thing

        yield close


@contextmanager
def other_service(directory: Path) -> Iterator[str]:
    """The address of a session of a running service, with a stream to pull and one that somebody reads."""
    service = ServiceConfig(port=0, state=f"sqlite:///{directory / 'state.db'}", results_directory=directory)
    with background(Config(service=service)) as other:
        session = other.service.sessions.create()
        session.output("results").put(DATA, Cancellation())
        session.output("results").finish()
        uploaded = session.input("upload").blocks(Cancellation())
        reader = threading.Thread(target=list, args=(uploaded,))
        reader.start()
        yield f"{other.url}/sessions/{session.id}"
        session.input("upload").finish()
        reader.join()


DATA = Block(format_named("webrowset").encode(Stream.of(table(3))).__next__().data, 3)
PROCEDURE = """create function people_in(place text) returns table (id integer, name text) language sql as
$$ select id, name from littleblackbook where address like '%' || place || '%' $$"""


@pytest.mark.parametrize("name", ACTIVITIES)
def test_example_runs(name, demo, closing, tmp_path):
    """On the demo data; where the database cannot do it (SQLite and DuckDB have no procedures), it says so. What
    belongs to a role runs on the resource of that role."""
    role = ACTIVITIES[name].role
    if role == "directory":
        (tmp_path / "notes").mkdir()
        (tmp_path / "notes/first.txt").write_text("line 1\nline 2\nline 3\n")
        demo = closing(Directory(tmp_path))
    elif role == "collections":
        if name == "xQueryStatement":
            pytest.importorskip("saxonche", reason="of the extra xquery")
        demo = closing(musicians(f"sqlite:///{tmp_path / 'notes.db'}"))
    elif role not in (None, ANY):
        demo = closing(ROLES[role](RoleConfig(name=role)))
    if name == "sqlBulkLoadRowSet":
        kinds = "(id integer, name varchar(60), address varchar(120), phone varchar(40))"
        demo.update(f"create table copy_of_book {kinds}", cancellation=Cancellation())
    if name == "sqlStoredProcedure" and demo.dialect.startswith("postgres"):
        demo.update(PROCEDURE, cancellation=Cancellation())
    session = Ends(capacity=100)
    upload = session.input("upload")
    upload.put(DATA, Cancellation())
    upload.finish()
    (tmp_path / "data.xml").write_text("<data/>")
    content, delivery = completed(name), DeliveryConfig(directory=tmp_path)
    if name == "deliverToSMTP":
        from tests.servers.delivery import mail_server

        server = closing(mail_server())
        mail = MailConfig(
            host="127.0.0.1", port=server.port, tls="none", senders=("@example.org",), recipients=("@example.org",)
        )
        delivery = replace(delivery, mail=mail, private=True)
    if "GDT" in name:
        url = closing(other_service(tmp_path))
        content = content.replace("http://127.0.0.1:8080/sessions/ID", url)
        delivery = DeliveryConfig(urls=(url,), private=True)
    if "GFTP" in name:
        from tests.servers.delivery import PASSWORD, USER, sftp_server

        server = closing(sftp_server(tmp_path))
        for each in ("incoming", "outgoing"):
            (server.root / each).mkdir()
        (server.root / "outgoing/data.xml").write_text("<data/>")
        url = f"sftp://127.0.0.1:{server.port}/"
        account = AccountConfig(name="files", url=url, user=USER, password=PASSWORD)
        delivery = replace(
            delivery, urls=(url,), private=True, known_hosts=server.known_hosts, accounts={"files": account}
        )
        content = content.replace('host="files.example.org" port="22"', f'host="127.0.0.1" port="{server.port}"')
    work = Running(parse(written(content)), replace(environment(demo, session), config=Config(delivery=delivery)))
    with work:
        if name == "sqlStoredProcedure" and not demo.dialect.startswith("postgres"):
            with pytest.raises(ParameterError, match="procedure"):
                work.open()
            return
        response = b"".join(document(work.open(), "s", "r"))
    SCHEMAS[work.perform.dialect].assertValid(etree.fromstring(response))
    assert results(response)["request"].get("status") == "COMPLETED", response.decode()
    for box in session.outputs.values():
        assert isinstance(box, Mailbox)
        assert b"".join(bytes(memoryview(block.data)) for block in box.blocks(Cancellation()))
    state = demo.pool_state()
    assert state["open"] == state["idle"]
