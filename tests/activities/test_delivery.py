"""Delivery to and from files and addresses: what the operator allows, what is refused, what stops it."""

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.server import ThreadingHTTPServer
from pathlib import Path

import psutil
import pytest

from dai.config import Config, DeliveryConfig, LimitsConfig
from dai.config import parse as configured
from dai.drivers.memory import Memory, Script
from dai.errors import (
    CancelledError,
    ConfigurationError,
    DaiError,
    DataError,
    DeniedError,
    LimitError,
    NotFoundError,
    ParameterError,
    TruncatedError,
    UnreachableError,
)
from dai.perform.delivery import addresses
from dai.perform.parser import parse
from dai.perform.pipeline import Environment, Running
from dai.perform.response import document
from dai.streams.cancellation import Cancellation
from tests.activities.odd_answers import Handler, Quiet
from tests.documents import Ends, query, results, table, to_csv, written
from tests.pipelines import begun
from tests.processes import until
from tests.servers.certificates import self_signed

ROWS = 50_000
ROWS_AS_CSV = "id,name\r\n" + "".join(f"{n},name {n}\r\n" for n in range(ROWS))


def work_of(
    body: str, delivery: DeliveryConfig, driver: Memory | None = None, stop: Cancellation | None = None
) -> Running:
    driver = driver or Memory({"q": Script(table(ROWS))})
    if 'from="csv"' in body:
        body = query("q", "q", "t") + to_csv("c", "t", "csv") + body
    config = Config(delivery=delivery, limits=LimitsConfig(block_bytes=10_000))
    return Running(parse(written(body)), Environment(driver, Ends(), stop or Cancellation(), config=config))


def done(body: str, delivery: DeliveryConfig) -> list[bytes]:
    """What the end points give; the cause of a failure is raised."""
    with work_of(body, delivery) as work:
        work.open()
        ends = [source.read() for _, source in work.end_points()]
        work.raise_cause()
    return ends


def to_file(name: str) -> str:
    return f'<deliverToFile name="d"><fromLocal from="csv"/><toFile>{name}</toFile></deliverToFile>'


def from_file(name: str) -> str:
    return f'<deliverFromFile name="d"><fromFile>{name}</fromFile><toLocal name="e"/></deliverFromFile>'


def to_url(url: str) -> str:
    return f'<deliverToURL name="d"><fromLocal from="csv"/><toURL>{url}</toURL></deliverToURL>'


def from_url(url: str, size: str = "") -> str:
    return f'<deliverFromURL name="d"><fromURL{size}>{url}</fromURL><toLocal name="e"/></deliverFromURL>'


# --- files ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "secret").write_text("the secret")
    allowed = tmp_path / "allowed"
    allowed.mkdir()
    (allowed / "there").write_text("before")
    (allowed / "out").symlink_to(tmp_path)
    return allowed


NAMES = ["new", "there", "./new", "{directory}/new"]
URLS = ["file:///new", "file:/there", "file://localhost/new", "file://{directory}/new", "FILE:///ne%77"]


@pytest.mark.parametrize(
    ("write", "read", "name"), [(to_file, from_file, n) for n in NAMES] + [(to_url, from_url, n) for n in URLS]
)
def test_files(directory, write, read, name):
    delivery = DeliveryConfig(directory=directory)
    name = name.format(directory=directory)
    assert done(write(name), delivery) == []
    assert done(read(name), delivery)[0].decode() == ROWS_AS_CSV
    assert (directory / ("there" if name.endswith("there") else "new")).read_bytes().decode() == ROWS_AS_CSV
    assert not list(directory.glob(".*"))


OUTSIDE = ["../secret", "{directory}/../secret", "/etc/passwd", "out/secret", "x/../../secret", "{directory}x/y"]
URLS_OUTSIDE = ["file:///../secret", "file:///%2e%2e/secret", "file:///out/secret", "file://{directory}/../secret"]


@pytest.mark.parametrize("name", [*OUTSIDE, *URLS_OUTSIDE])
def test_no_file_outside_the_directory(directory, name):
    write, read = (to_url, from_url) if name.startswith("file:") else (to_file, from_file)
    for body in (write, read):
        with pytest.raises((DeniedError, NotFoundError)):
            done(body(name.format(directory=directory)), DeliveryConfig(directory=directory))
    assert (directory.parent / "secret").read_text() == "the secret"
    assert sorted(path.name for path in directory.iterdir()) == ["out", "there"]


@pytest.mark.parametrize("body", [to_file("x"), from_file("x"), to_url("file:///x"), from_url("file:///x")])
def test_no_file_unless_the_operator_allows_it(body):
    with pytest.raises(DeniedError, match=r"does not deliver|Nothing can be delivered"):
        done(body, DeliveryConfig())


def test_a_file_on_another_machine(directory):
    with pytest.raises(ParameterError, match="other machine"):
        done(from_url("file://other/x"), DeliveryConfig(directory=directory))


def test_a_query_that_fails_leaves_the_file_as_it_was(directory):
    driver = Memory({"q": Script(table(10), batch_rows=1, fails=DataError("half-way"))})
    with work_of(to_file("there"), DeliveryConfig(directory=directory), driver) as work:
        response = results(b"".join(document(work.open(), "s", "r")))
    assert {name: each.get("status") for name, each in response.items()} == {
        "q": "ERROR", "c": "TERMINATED", "d": "TERMINATED", "request": "ERROR",
    }  # fmt: skip
    assert (directory / "there").read_text() == "before"
    assert sorted(path.name for path in directory.iterdir()) == ["out", "there"]


# --- addresses ------------------------------------------------------------------------------------------------------


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    with Quiet(("127.0.0.1", 0), Handler) as server:
        server.files, server.asked, server.silent = {"/in/file": b"data"}, [], threading.Event()  # type: ignore[attr-defined]
        server.url = f"http://127.0.0.1:{server.server_port}"  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join(60)


def allowing(server: ThreadingHTTPServer, **more: object) -> DeliveryConfig:
    return DeliveryConfig(urls=(f"{server.url}/in/",), private=True, **{"silence": 30.0, **more})  # type: ignore[arg-type,attr-defined]


def test_there_and_back(server):
    assert done(to_url(f"{server.url}/in/new"), allowing(server)) == []
    assert server.files["/in/new"].decode() == ROWS_AS_CSV
    assert done(from_url(f"{server.url}/in/new"), allowing(server))[0].decode() == ROWS_AS_CSV


@pytest.mark.parametrize("size", [1000, 7])
def test_blocks_have_the_size_asked_for(server, size):
    server.files["/in/x"] = bytes(range(250)) * 100
    with work_of(from_url(f"{server.url}/in/x", f' blockSizeInBytes="{size}"'), allowing(server)) as work:
        work.open()
        ((_, blocks),) = [(end, list(source)) for end, source in work.end_points()]
    assert {len(block) for block in blocks[:-1]} == {size}
    assert b"".join(block.data for block in blocks) == server.files["/in/x"]


@pytest.mark.parametrize("size", [0, -1, 10_001])
def test_block_sizes_refused(server, size):
    with pytest.raises(ParameterError, match="blockSizeInBytes"):
        done(from_url(f"{server.url}/in/file", f' blockSizeInBytes="{size}"'), allowing(server))


@pytest.mark.parametrize(
    ("path", "error", "more"),
    [
        ("/in/nothing", DataError, {}),
        ("/in/redirect", DeniedError, {}),
        ("/in/short", TruncatedError, {}),
        ("/in/cut", TruncatedError, {}),
        ("/in/endless", LimitError, {"bytes": 100_000}),
        ("/in/endless", LimitError, {"seconds": 0.2}),
        ("/in/silent", LimitError, {"silence": 0.2}),
        ("/in/silent", LimitError, {"seconds": 0.2}),
    ],
)
def test_answers_that_are_none(server, path, error, more):
    with pytest.raises(error) as raised:
        done(from_url(f"{server.url}{path}"), allowing(server, **more))
    assert "the page of an error" not in str(raised.value)
    assert "/in/file" not in server.asked


@pytest.mark.parametrize(("path", "error"), [("/in/error", DataError), ("/in/full", DaiError)])
def test_deliveries_that_fail_stop_the_query(server, path, error):
    driver = Memory({"q": Script(table(ROWS), batch_rows=10)})
    with work_of(to_url(f"{server.url}{path}"), allowing(server), driver) as work:
        response = results(b"".join(document(work.open(), "s", "r")))
        assert isinstance(work.cause, error)
    assert response["d"].get("status") == "ERROR"
    assert response["request"].get("status") == "ERROR"
    assert driver.open_streams == 0


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return self_signed(tmp_path_factory.mktemp("certificate"), "files")


@pytest.fixture
def secure(server: ThreadingHTTPServer, certificate: Path) -> Iterator[ThreadingHTTPServer]:
    """By HTTPS, on every address of loopback."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, certificate.with_suffix(".key"))
    with Quiet(("0.0.0.0", 0), Handler) as wrapped:
        wrapped.files, wrapped.asked = server.files, server.asked  # type: ignore[attr-defined]
        wrapped.socket = context.wrap_socket(wrapped.socket, server_side=True)
        thread = threading.Thread(target=wrapped.serve_forever, args=(0.01,))
        thread.start()
        yield wrapped
        wrapped.shutdown()
        thread.join(60)


@pytest.mark.parametrize(
    ("host", "trusted", "says"),
    [
        ("127.0.0.1", True, None),
        ("localhost", True, None),
        ("127.0.0.1", False, "self-signed certificate"),
        ("127.0.0.2", True, "IP address mismatch"),
    ],
)
def test_certificates(secure, server, certificate, host, trusted, says):
    url = f"https://{host}:{secure.server_port}/in/"
    delivery = DeliveryConfig(urls=(url,), private=True, authorities=certificate if trusted else None)
    if says is None:
        assert done(to_url(url + "new"), delivery) == []
        assert done(from_url(url + "new"), delivery)[0].decode() == ROWS_AS_CSV
        return
    for body in (to_url(url + "new"), from_url(url + "file")):
        with pytest.raises(
            UnreachableError, match=rf"certificate of '{host}' is not valid: (?s:.*){says}(?s:.*)authorities"
        ):
            done(body, delivery)
    assert (list(server.files), server.asked) == (["/in/file"], [])


def test_nobody_there():
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    delivery = DeliveryConfig(urls=(f"http://127.0.0.1:{port}",), private=True)
    for body in (from_url(f"http://127.0.0.1:{port}/x"), to_url(f"http://127.0.0.1:{port}/x")):
        with pytest.raises(UnreachableError):
            done(body, delivery)


def test_cancelled_while_nothing_comes(server):
    stop = Cancellation()
    thread, raised = begun(work_of(from_url(f"{server.url}/in/silent"), allowing(server), stop=stop))
    assert server.silent.wait(60)
    stop.cancel(CancelledError("Enough."))
    thread.join(60)
    assert not thread.is_alive()
    assert [type(each) for each in raised] == [CancelledError]


@contextmanager
def _looking_up(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Callable[[], object]]]:
    """A name server that does not answer."""
    asked, ended = threading.Event(), threading.Event()
    original = socket.getaddrinfo

    def look_up(host: str, *arguments: object, **options: object) -> object:
        if host != "name.test":
            return original(host, *arguments, **options)  # type: ignore[call-overload]
        asked.set()
        ended.wait(60)
        raise socket.gaierror

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    try:
        yield "http://name.test/in/", asked.is_set
    finally:
        ended.set()


@contextmanager
def _connecting(_: pytest.MonkeyPatch) -> Iterator[tuple[str, Callable[[], object]]]:
    """A host whose queue of connections is full."""
    with ExitStack() as stack:
        full = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        port = full.getsockname()[1]
        ours = set()
        for _each in range(2):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(("127.0.0.1", port))
            ours.add(waiting.getsockname()[1])

        def connecting() -> bool:
            mine = [each for each in psutil.Process().net_connections() if each.laddr.port not in ours and each.raddr]
            return any(each.raddr.port == port and each.status == psutil.CONN_SYN_SENT for each in mine)

        yield f"http://127.0.0.1:{port}/in/", connecting


@contextmanager
def _shaking_hands(_: pytest.MonkeyPatch) -> Iterator[tuple[str, Callable[[], object]]]:
    """A host that says nothing to the greeting of TLS."""
    with socket.create_server(("127.0.0.1", 0)) as mute:
        accepted: list[socket.socket] = []
        greeted = threading.Event()

        def listen() -> None:
            accepted.append(mute.accept()[0])
            accepted[0].recv(1)
            greeted.set()

        thread = threading.Thread(target=listen)
        thread.start()
        try:
            yield f"https://127.0.0.1:{mute.getsockname()[1]}/in/", greeted.is_set
        finally:
            thread.join(60)
            for each in accepted:
                each.close()


@pytest.mark.parametrize("host", [_looking_up, _connecting, _shaking_hands])
def test_cancelled_before_it_is_connected(monkeypatch, host):
    stop = Cancellation()
    with host(monkeypatch) as (base, reached):
        delivery = DeliveryConfig(urls=(base,), private=True, silence=120.0)
        thread, raised = begun(work_of(from_url(f"{base}x"), delivery, stop=stop))
        until(reached)
        stop.cancel(CancelledError("Enough."))
        thread.join(60)
        assert not thread.is_alive()
        assert [type(each) for each in raised] == [CancelledError]


BASE = "http://data.example.org/in/"


@pytest.mark.parametrize(
    ("url", "error"),
    [
        ("http://data.example.org/in/x", None),
        ("http://data.example.org:80/in/", None),
        ("HTTP://DATA.example.org./in/x?y=1", None),
        ("http://data.example.org/inside", DeniedError),
        ("http://data.example.org/", DeniedError),
        ("https://data.example.org/in/x", DeniedError),
        ("http://data.example.org:8080/in/x", DeniedError),
        ("http://data.example.org.evil.org/in/x", DeniedError),
        ("http://data.example.org/in/../secret", DeniedError),
        ("http://data.example.org/in/%2e%2e/secret", DeniedError),
        ("http://data.example.org/in/..;/secret", DeniedError),
        ("http://data.example.org/in/..%3bx=1/secret", DeniedError),
        ("http://data.example.org/in/..%2fsecret", DeniedError),
        ("http://data.example.org/in/.%2e/secret", DeniedError),
        ("http://user:password@data.example.org/in/x", ParameterError),
        ("http://data.example.org@evil.org/in/x", ParameterError),
        ("http://evil.org/http://data.example.org/in/", DeniedError),
        ("http://data.example.org\\@evil.org/in/", ParameterError),
        ("http://data.example.org/in/\r\nX: y", ParameterError),
        ("http://data.example.org/in/a b", ParameterError),
        ("http://data.example.org/in/é", ParameterError),
        ("ftp://data.example.org/in/x", DeniedError),
        ("gopher://data.example.org/in/x", DeniedError),
        ("data.example.org/in/x", DeniedError),
        ("//data.example.org/in/x", DeniedError),
        ("http:///in/x", ParameterError),
        ("http://data.example.org:99999/in/x", ParameterError),
        ("http://[::1/in/x", ParameterError),
        ("http://data.example.org/in/%ff", ParameterError),
        ("http://data..example.org/in/x", ParameterError),
        (f"http://{'a' * 300}/in/x", ParameterError),
        ("http://./in/x", ParameterError),
        ("", DeniedError),
    ],
)
def test_which_addresses_are_allowed(url, error):
    config = DeliveryConfig(urls=(BASE,))
    if error is None:
        assert addresses.allowed(url, config).host == "data.example.org"
        return
    with pytest.raises((error, ParameterError)) as raised:
        addresses.allowed(url, config)
    assert isinstance(raised.value, error)


@pytest.mark.parametrize(
    "number",
    ["127.0.0.1", "10.1.2.3", "192.168.1.1", "169.254.169.254", "0.0.0.0", "100.64.0.1", "224.0.0.1", "::1", "fe80::1",
     "fc00::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "2002:7f00:1::", "::", "::127.0.0.1", "::8.8.8.8", "fec0::1",
     "::ffff:0:127.0.0.1", "64:ff9b::7f00:1", "64:ff9b::a00:1", "64:ff9b:1::a00:1", "2001:0:7f00:1::", "5f00::1",
     "2002:808:808::1", "192.88.99.1", "3fff::1", "2001:db8::1", "ff0e::1"],
)  # fmt: skip
def test_private_addresses(monkeypatch, number):
    """Whatever name leads there, and if only one of several addresses is private."""
    resolved: Callable[..., object] = lambda *_, **__: [(0, 0, 0, "", (each, 80)) for each in ("8.8.8.8", number)]  # noqa: E731
    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    monkeypatch.setattr("dai.perform.delivery.calls.Call.connect_to", lambda *_: pytest.fail("It was called."))
    with pytest.raises(DeniedError, match="private address"):
        done(from_url("http://data.example.org/in/x"), DeliveryConfig(urls=(BASE,)))


@pytest.mark.parametrize("number", ["8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"])
def test_public_addresses(monkeypatch, number):
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [(0, 0, 0, "", (number, 80))])
    assert addresses.resolved("data.example.org", 80, DeliveryConfig(), Cancellation()) == number


@pytest.mark.parametrize("url", ["http://[", "file://[x/a", "http://data.example.org/in/%ff", "http://a..b/in/x"])
@pytest.mark.parametrize("body", [to_url, from_url])
def test_what_is_no_url(body, url):
    with pytest.raises(ParameterError):
        done(body(url), DeliveryConfig(urls=(BASE,)))


def test_what_was_looked_at_is_what_is_called(monkeypatch, server):
    """A name that leads elsewhere when it is asked again."""
    asked = []

    def resolved(host: str, port: int, **_: object) -> list[object]:
        asked.append(host)
        number = "127.0.0.1" if len(asked) == 1 else "127.0.0.9"
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (number, port))]

    original = socket.getaddrinfo
    monkeypatch.setattr(
        socket,
        "getaddrinfo",
        lambda host, port, *a, **k: resolved(host, port) if host == "name.test" else original(host, port, *a, **k),
    )
    base = f"http://name.test:{server.server_port}/in/"
    assert done(from_url(f"{base}file"), DeliveryConfig(urls=(base,), private=True)) == [b"data"]
    assert asked == ["name.test"]


@pytest.mark.parametrize("body", [to_url("http://data.example.org/in/x"), from_url("http://data.example.org/in/x")])
def test_no_address_unless_the_operator_allows_it(body):
    with pytest.raises(DeniedError, match=r"does not deliver|Nothing can be delivered"):
        done(body, DeliveryConfig())


@pytest.mark.parametrize(
    ("section", "says"),
    [
        ({"urls": ["gopher://x/"]}, "not an address"),
        ({"urls": "http://x"}, "list"),
        ({"url": "x"}, "no key"),
        ({"seconds": 0}, "more than 0"),
    ],
)
def test_configuration(section, says, tmp_path):
    with pytest.raises(ConfigurationError, match=says):
        configured({"delivery": section}, tmp_path, {})
    assert configured({"delivery": {"directory": "x"}}, tmp_path, {}).delivery.directory == tmp_path / "x"
