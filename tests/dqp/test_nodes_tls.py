"""Nodes that know each other by certificates or tokens: services, evaluators, their exchanges, federations."""

from __future__ import annotations

import datetime
import ipaddress
import os
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from dai.api.server.serve import Background, background
from dai.config import RoleConfig, TlsConfig, parse
from dai.drivers import driver_for
from dai.errors import ConfigurationError, DaiError, DatabaseUnavailableError, DeniedError
from dai.security.identity.tokens import new
from dai.service.resources import ROLES
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Stream
from dqp.coordinator import Coordinator
from dqp.errors import EvaluatorLostError
from dqp.planning.distribution.spreading import Thresholds
from dqp.runtimes.flight import server
from dqp.runtimes.flight.client import fetch, health, reached
from dqp.runtimes.flight.server import FlightPort, Ticket, new_token
from dqp.runtimes.service import Service
from dqp.settings import TlsSettings, load
from tests.processes import SECONDS, until

SQL = "SELECT count(*) AS n FROM one.t a JOIN two.t b ON a.k = b.k"
ALWAYS = Thresholds(split_rows=0.0, broadcast_bytes=1, spread_seconds=0.0)


def made(
    directory: Path, name: str, *, by: str | None = None, expired: bool = False, address: str = "127.0.0.1"
) -> None:
    """``NAME.pem`` with ``NAME.key`` beside it, of an authority ``by`` in the directory; without one an authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    issuer, signing = subject, key
    if by is not None:
        issuer = x509.load_pem_x509_certificate((directory / f"{by}.pem").read_bytes()).subject
        signing = serialization.load_pem_private_key((directory / f"{by}.key").read_bytes(), None)  # type: ignore[assignment]
    now = datetime.datetime.now(datetime.UTC)
    day = datetime.timedelta(days=1)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - 3 * day)
        .not_valid_after(now - day if expired else now + day)
        .add_extension(x509.BasicConstraints(ca=by is None, path_length=None), critical=True)
    )
    if by is not None:
        names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))])
        builder = builder.add_extension(names, critical=False)
    pem = serialization.Encoding.PEM
    kept = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (directory / f"{name}.pem").write_bytes(builder.sign(signing, hashes.SHA256()).public_bytes(pem))
    (directory / f"{name}.key").write_bytes(kept)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with two authorities, and certificates of them."""
    directory = tmp_path_factory.mktemp("authority")
    for name in ("nodes", "strangers"):
        made(directory, name)
    made(directory, "node", by="nodes")
    made(directory, "stranger", by="strangers")
    return directory


def tls_of(authority: Path, name: str = "node", **more: Any) -> TlsSettings:
    given: dict[str, Any] = {
        "certificate": authority / f"{name}.pem",
        "key": authority / f"{name}.key",
        "client_ca": authority / "nodes.pem",
        "ca": authority / "nodes.pem",
    }
    return TlsSettings(**{**given, **more})


@pytest.fixture(scope="module")
def port(authority: Path) -> Iterator[FlightPort]:
    with FlightPort(tls=tls_of(authority)) as port:
        yield port


TICKET = Ticket("query", 1, "f", 0, new_token())


def read(port: FlightPort, tls: TlsSettings | None, ticket: Ticket = TICKET) -> int:
    with fetch(port.address, ticket, cancellation=Cancellation(), timeout=2.0, tls=tls) as stream:
        return int(stream.table().num_rows)


# --- exchanges


def test_an_exchange_by_mutual_tls(port: FlightPort, authority: Path) -> None:
    ticket = Ticket("whole", 1, "f", 0, new_token())
    port.publish(ticket, lambda _: Stream.of(pa.table({"a": range(1000)})))
    assert read(port, tls_of(authority), ticket) == 1000
    told = health(port.address, timeout=SECONDS, tls=tls_of(authority))
    assert told == {"status": "ok", "instance": port.health()["instance"]}, "what is under way is nobody's business"


@pytest.mark.parametrize(
    ("tls", "reason"),
    [
        (None, "went away"),
        ({"name": "stranger"}, "went away"),
        ({"ca": "strangers.pem"}, "not from a trusted authority"),
    ],
    ids=["no TLS", "a certificate of another authority", "an authority that the port is not of"],
)
def test_who_does_not_fit_gets_nothing(
    port: FlightPort, authority: Path, tls: dict[str, str] | None, reason: str
) -> None:
    ticket = Ticket(f"refused {tls}", 1, "f", 0, new_token())
    port.publish(ticket, lambda _: Stream.of(pa.table({"a": [1]})))
    given = dict(tls or {})
    if "ca" in given:
        given["ca"] = authority / given["ca"]  # type: ignore[assignment]
    with pytest.raises(DaiError, match=reason):
        read(port, None if tls is None else tls_of(authority, **given), ticket)
    assert read(port, tls_of(authority), ticket) == 1, "the ticket was not used up"


def test_a_token_that_is_wrong(port: FlightPort, authority: Path) -> None:
    ticket = Ticket("denied", 1, "f", 0, new_token())
    port.publish(ticket, lambda _: Stream.of(pa.table({"a": [1]})))
    with pytest.raises(DeniedError):
        read(port, tls_of(authority), Ticket("denied", 1, "f", 0, new_token()))


def test_a_port_that_answers_plain(authority: Path) -> None:
    """Who has TLS does not speak without it: nothing that a port without TLS serves is read."""
    with FlightPort() as plain:
        plain.publish(TICKET, lambda _: Stream.of(pa.table({"a": [1]})))
        with pytest.raises(EvaluatorLostError):
            read(plain, tls_of(authority))
        told = plain.address, plain.health()["instance"]
        with pytest.raises(ConfigurationError, match="does not"):
            reached("x", lambda: told, timeout=SECONDS, tls=tls_of(authority))


@pytest.mark.parametrize(("which", "reason"), [("expired", "has expired"), ("elsewhere", "is for another name")])
def test_a_certificate_that_does_not_hold(authority: Path, which: str, reason: str) -> None:
    if which == "expired":
        made(authority, which, by="nodes", expired=True)
    else:
        made(authority, which, by="nodes", address="192.0.2.1")
    with FlightPort(tls=tls_of(authority, which)) as other:
        with pytest.raises(EvaluatorLostError, match=reason):
            health(other.address, timeout=SECONDS, tls=tls_of(authority))
        told = other.address, other.health()["instance"]
        with pytest.raises(ConfigurationError, match=f"exchanges do not: its certificate {reason}"):
            reached("x", lambda: told, timeout=SECONDS, tls=tls_of(authority))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", ""])
def test_an_address_that_nobody_could_be_told(authority: Path, host: str) -> None:
    with pytest.raises(ConfigurationError):
        FlightPort(host, tls=tls_of(authority))


def put(authority: Path, directory: Path, name: str, ca: str = "nodes") -> TlsSettings:
    """The files of a node, replaced as programs that renew certificates do."""
    for file, source in (("now.pem", f"{name}.pem"), ("now.key", f"{name}.key"), ("ca.pem", f"{ca}.pem")):
        shutil.copy(authority / source, directory / f"new {file}")
        os.replace(directory / f"new {file}", directory / file)
    return TlsSettings(certificate=directory / "now.pem", key=directory / "now.key", client_ca=directory / "ca.pem")


def trusts(port: FlightPort, authority: Path, ca: str, name: str = "node") -> bool:
    """Whether somebody who trusts this authority, with the certificate of that name, is answered."""
    try:
        health(port.address, timeout=SECONDS, tls=tls_of(authority, name, ca=authority / f"{ca}.pem"))
    except EvaluatorLostError:
        return False
    return True


def test_a_replaced_server_stays_until_its_reader_has_all(authority: Path, tmp_path: Path) -> None:
    """With its last call it closes its connections: what a slow reader had not received by then was lost."""
    with FlightPort(tls=put(authority, tmp_path, "node")) as port:
        ticket = Ticket("slow", 1, "f", 0, new_token())
        batches, go_on = pa.table({"a": range(200)}).to_batches(100), threading.Event()

        def held() -> Iterator[pa.RecordBatch]:
            yield batches[0]
            assert go_on.wait(SECONDS)
            yield batches[1]

        port.publish(ticket, lambda _: Stream(batches[0].schema, held()))
        with fetch(port.address, ticket, cancellation=Cancellation(), tls=tls_of(authority)) as stream:
            assert next(stream).num_rows == 100
            replaced = port._server
            replaced.replaced = True
            waiting = threading.Thread(target=replaced.shutdown)
            waiting.start()
            go_on.set()
            assert next(stream).num_rows == 100
            waiting.join(0.5)
            assert waiting.is_alive()
            assert next(stream, None) is None
        waiting.join(SECONDS)
        assert not waiting.is_alive()


def test_a_certificate_that_changes(
    authority: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Who reads goes on, who waits is served, nobody who comes meanwhile is turned away; the authorities of clients are
    read again, too. Files that do not fit change nothing."""
    monkeypatch.setattr(server, "LOOK_SECONDS", 0.02)
    batches = pa.table({"a": range(10_000)}).to_batches(10)
    go_on = threading.Event()

    def held() -> Iterator[pa.RecordBatch]:
        yield batches[0]
        assert go_on.wait(SECONDS)
        yield from batches[1:]

    with FlightPort(tls=put(authority, tmp_path, "node")) as port, ThreadPoolExecutor(5) as pool:
        ticket = Ticket("long", 1, "f", 0, new_token())
        port.publish(ticket, lambda _: Stream(batches[0].schema, held()))
        with fetch(port.address, ticket, cancellation=Cancellation(), tls=tls_of(authority)) as stream:
            assert next(stream).num_rows == 10
            late = Ticket("late", 1, "f", 0, new_token())
            port.expect("late", 1)
            both = authority / "both.pem"
            both.write_bytes((authority / "nodes.pem").read_bytes() + (authority / "strangers.pem").read_bytes())
            waits = pool.submit(read, port, tls_of(authority, ca=both), late)
            stop = threading.Event()

            def come() -> int:
                count = 0
                while not stop.is_set():
                    health(port.address, timeout=SECONDS, tls=tls_of(authority, ca=both))
                    count += 1
                return count

            coming = [pool.submit(come) for _ in range(3)]
            assert not trusts(port, authority, "strangers")
            put(authority, tmp_path, "stranger")
            until(lambda: trusts(port, authority, "strangers"))
            assert not trusts(port, authority, "nodes")
            stop.set()
            assert all(each.result(SECONDS) for each in coming)
            put(authority, tmp_path, "node")
            until(lambda: trusts(port, authority, "nodes"))
            port.publish(late, lambda _: Stream.of(pa.table({"a": [1]})))
            assert waits.result(SECONDS) == 1
            (tmp_path / "now.key").write_text("nonsense")
            until(lambda: "the former one stays" in caplog.text)
            assert trusts(port, authority, "nodes")
            put(authority, tmp_path, "node", ca="strangers")
            until(lambda: not trusts(port, authority, "nodes"))
            assert trusts(port, authority, "nodes", "stranger")
            go_on.set()
            assert sum(each.num_rows for each in stream) == 9_990


# --- evaluators at their start


@pytest.mark.parametrize(
    ("keys", "starts"),
    [
        ({}, True),
        ({"host": "192.0.2.1"}, False),
        ({"host": "192.0.2.1", "identifies": True}, False),
        ({"host": "192.0.2.1", "tls": {}}, False),
        ({"host": "192.0.2.1", "tls": {}, "identifies": True}, True),
        ({"host": "192.0.2.1", "tls": {"client_ca": "nodes.pem"}}, True),
        ({"content": {"flight_host": "192.0.2.1"}}, False),
        ({"content": {"flight_host": "192.0.2.1"}, "tls": {}}, False),
    ],
)
def test_an_evaluator_beyond_loopback(authority: Path, keys: dict[str, Any], starts: bool) -> None:
    if "tls" in keys:
        files = {"certificate": "node.pem", "key": "node.key", **keys["tls"]}
        keys = {**keys, "tls": TlsConfig(**{name: authority / file for name, file in files.items()})}
    role = RoleConfig(name="evaluator", **keys)
    if starts:
        ROLES["evaluator"](role).close()
    else:
        with pytest.raises(ConfigurationError, match="needs TLS, and callers with certificates or tokens"):
            ROLES["evaluator"](role)


# --- whole federations


@contextmanager
def node(directory: Path, authority: Path, **sections: Any) -> Iterator[Background]:
    directory.mkdir()
    files = {"certificate": "node.pem", "key": "node.key", "ca": "nodes.pem"}
    tls = {name: str(authority / file) for name, file in files.items()} | sections.pop("tls", {})
    service = {"port": 0, "state": "sqlite:///state.db", "results_directory": "results", "grace": 0.2, "tls": tls}
    with background(parse({"service": service, **sections}, directory, {})) as running:
        yield running


def token_of(running: Background, name: str) -> str:
    """Made as ``dai tokens create`` does."""
    token, stored = new(name, seconds=3600.0)
    running.service.store.add_token(stored)
    return token


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, authority: Path) -> Iterator[dict[str, str]]:
    """A service with two sources, and two evaluators; all of them ask for certificates of the nodes."""
    directory = tmp_path_factory.mktemp("world")
    urls = {alias: f"duckdb:///{directory / alias}.duckdb" for alias in ("one", "two")}
    for url in urls.values():
        with closing(driver_for(url)) as driver:
            rows = pa.table({"k": pa.array(range(5000), pa.int64())})
            driver.load("t", Stream.of(rows), cancellation=Cancellation(), create=True)
    mutual = {"client_ca": str(authority / "nodes.pem")}
    resources = {name: {"url": url} for name, url in urls.items()}
    with ExitStack() as stack:
        data = stack.enter_context(node(directory / "data", authority, tls=mutual, resources=resources))
        evaluators = [
            stack.enter_context(node(directory / name, authority, tls=mutual, roles={"evaluator": {}}))
            for name in ("first", "second")
        ]
        yield {"data": data.url, "first": evaluators[0].url, "second": evaluators[1].url}


def federation(world: dict[str, str], authority: Path, tls: dict[str, str] | None = None, **more: Any) -> Coordinator:
    files = {"certificate": "node.pem", "key": "node.key", "client_ca": "nodes.pem", "ca": "nodes.pem", **(tls or {})}
    settings = load(
        {
            "sources": {alias: f"{world['data']}/resources/{alias}" for alias in ("one", "two")},
            "evaluators": [world["first"], world["second"]],
            "tls": {name: str(authority / file) for name, file in files.items() if file},
            **more,
        }
    )
    coordinator = Coordinator(settings)
    if settings.evaluators != ("local",):
        coordinator.runtime.close()
        coordinator.use(coordinator.catalog, Service(coordinator.catalog, settings, thresholds=ALWAYS))
    return coordinator


def answer(coordinator: Coordinator) -> Any:
    return coordinator.query(SQL, cancellation=Cancellation()).table().to_pylist()


def test_a_query_over_services_and_evaluators_with_certificates(world: dict[str, str], authority: Path) -> None:
    with closing(federation(world, authority)) as lab:
        assert answer(lab) == [{"n": 5000}]
        plan = lab.explain(SQL, analyze=True, cancellation=Cancellation())
        assert world["first"] in plan.text


@pytest.mark.parametrize(
    "tls",
    [{"certificate": "stranger.pem", "key": "stranger.key"}, {"ca": "strangers.pem"}],
    ids=["certificate of a stranger", "authority of strangers"],
)
def test_a_federation_that_nobody_knows(world: dict[str, str], authority: Path, tls: dict[str, str]) -> None:
    for evaluators in (["local"], [world["first"]]):
        with closing(federation(world, authority, tls, evaluators=evaluators)) as lab, pytest.raises(DaiError):
            answer(lab)


def test_a_source_with_a_certificate_of_its_own(world: dict[str, str], authority: Path) -> None:
    """Evaluators do not have it: the process of the federation reads this source, and sends the rows on."""
    own = {name: str(authority / file) for name, file in (("certificate", "node.pem"), ("key", "node.key"))}
    sources = {
        "one": {"url": f"{world['data']}/resources/one", **own},
        "two": f"{world['data']}/resources/two",
    }
    with closing(federation(world, authority, sources=sources)) as lab:
        assert answer(lab) == [{"n": 5000}]
    stranger = {"tls": {"certificate": "stranger.pem", "key": "stranger.key"}}
    alone = {"evaluators": ["local"], "sources": {**sources, "two": sources["one"]}}
    with closing(federation(world, authority, **stranger, **alone)) as lab:
        assert answer(lab) == [{"n": 5000}]


def test_evaluators_that_know_a_token(tmp_path: Path, world: dict[str, str], authority: Path) -> None:
    """Without ``client_ca``: who has no token, or a wrong one, is refused; that is no fault of the caller's."""
    known = {"identity": {"methods": ["token"]}, "roles": {"evaluator": {"policy": {"read": ["lab"]}}}}
    with node(tmp_path / "evaluator", authority, **known) as evaluator:
        for name, works in (("lab", True), ("other", False), (None, False), ("wrong", False)):
            given = "dai_0123456789abcdef_" + "x" * 43 if name == "wrong" else None
            if given is None and name is not None:
                given = token_of(evaluator, name)
            more = {} if given is None else {"token": given}
            with closing(federation(world, authority, evaluators=[evaluator.url], **more)) as lab:
                if works:
                    assert answer(lab) == [{"n": 5000}]
                else:
                    with pytest.raises(ConfigurationError, match=f"{evaluator.url} and this federation do not accept"):
                        answer(lab)


def test_an_evaluator_without_a_policy_works_for_nobody_who_is_known(
    tmp_path: Path, world: dict[str, str], authority: Path
) -> None:
    """It reads sources with the certificate of its node: whoever is known to it may not do that by default."""
    known: dict[str, Any] = {"identity": {"methods": ["token"]}, "roles": {"evaluator": {}}}
    with node(tmp_path / "evaluator", authority, **known) as evaluator:
        given = token_of(evaluator, "lab")
        with (
            closing(federation(world, authority, evaluators=[evaluator.url], token=given)) as lab,
            pytest.raises(ConfigurationError, match="do not accept"),
        ):
            answer(lab)


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({"evaluators": ["https://127.0.0.1:1", "http://127.0.0.1:2"]}, "some have https"),
        ({"evaluators": ["https://127.0.0.1:1"], "tls": {}}, "no certificate"),
        ({"evaluators": ["https://node.example.org:1"]}, "cannot read from 127.0.0.1"),
    ],
)
def test_evaluators_that_cannot_be(authority: Path, keys: dict[str, Any], text: str) -> None:
    tls = {"certificate": str(authority / "node.pem"), "key": str(authority / "node.key")}
    with pytest.raises(ConfigurationError, match=text):
        Coordinator(load({"sources": {}, "tls": tls, **keys}))


def test_a_source_that_answers_plain(tmp_path: Path, authority: Path) -> None:
    """A source whose address says https is never asked without TLS."""
    service = {"port": 0, "state": "sqlite:///state.db", "results_directory": "results", "grace": 0.2}
    resources = {"one": {"url": "sqlite://"}}
    with background(parse({"service": service, "resources": resources}, tmp_path, {})) as plain:
        url = plain.url.replace("http:", "https:") + "/resources/one"
        settings = load({"sources": {"one": url}, "tls": {"ca": str(authority / "nodes.pem")}})
        with closing(Coordinator(settings)) as lab, pytest.raises(DatabaseUnavailableError, match="'one'"):
            lab.query("select * from one.t", cancellation=Cancellation())


def test_a_token_is_not_sent_in_the_clear() -> None:
    settings = load({"sources": {"one": {"url": "http://192.0.2.1/resources/one", "token": "dai_1_2"}}})
    with pytest.raises(DaiError, match="https"):
        Coordinator(settings)


@pytest.mark.parametrize("name", ["ca", "certificate", "key"])
def test_files_go_with_services(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"a {name} goes with"):
        load({"sources": {"one": {"database": "sqlite://", name: "x.pem"}}})


def test_a_federation_of_a_service_has_the_tls_of_the_service(tmp_path: Path, authority: Path) -> None:
    content = {"tls": {"ca": "x.pem"}, "sources": {}}
    with (
        pytest.raises(ConfigurationError, match=r"\[service.tls\]"),
        node(tmp_path / "n", authority, federations={"lab": content}),
    ):
        pass
