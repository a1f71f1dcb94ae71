"""A one-row query by callers who say who they are: no identity, a token, a JSON Web Token, a signed request, a signed
document, TLS, TLS with a client certificate, side by side.

A service a case, and one more without identity, which shows what two processes differ by; all over the same database.
The requests take turns. The client signs nothing anew that it could keep. A signed document is compared with the same
document that nobody signs.
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from dai.client.http.signed_documents import DocumentSigner
from dai.client.http.signing import Signer
from perf.harness import Report, shown
from perf.world import World
from tests.processes import ROOT, ServiceProcess
from tests.servers.certificates import self_signed

BODY = json.dumps({"sql": "select id, name from littleblackbook where id = 42"}).encode()
BULK, BULK_ROUNDS = json.dumps({"sql": "select g.* from protein_goterm g, generate_series(1, 60)"}).encode(), 7
PATH, DOCUMENTS = "/resources/pg/query", "/resources/pg/perform?output=rows&format=arrow"
XML = {"Content-Type": "application/xml"}
WARM, REQUESTS = 50, 400
NONE, ANOTHER = "none", "none, another process"
GOALS = {"token": 1.05, "JSON Web Token": 1.1, "signature": 1.5, "TLS": 1.2}
DOCUMENT = b"""<gridDataServicePerform xmlns="http://ogsadai.org.uk/namespaces/2003/07/gds/types">
<sqlQueryStatement name="q"><expression>select id, name from littleblackbook where id = 42</expression>
<webRowSetStream name="rows"/></sqlQueryStatement></gridDataServicePerform>"""
PUBLISHED = 100.0, 1000.0
"""Milliseconds that a signature or an encrypted conversation was published to add to a request of the Grid Data
Service: "hundreds", without a figure for each case."""
SIDES = (
    ("first call, with its connection", "o", False),
    ("later calls, p50", "o", True),
    ("of that the client, to say who it is", "^", True),
    ("processor time of the service", "s", False),
)
NONE_DOCUMENT, XML_SIGNATURE = "none, a document", "XML Signature"
PEERS = {XML_SIGNATURE: NONE_DOCUMENT}
"""What a case is compared with, where that is not NONE."""
Request = tuple[str, bytes, dict[str, str]]
"""Path, body, headers."""
Requests = Callable[[], Request]
"""What the client sends, with what it says of its caller."""


def query(headers: Mapping[str, str] | None = None, body: bytes = BODY) -> Request:
    return PATH, body, {"Content-Type": "application/json", **(headers or {})}


@dataclass
class Case:
    service: ServiceProcess
    connection: http.client.HTTPConnection
    requests: Requests
    first: float = 0.0
    """Seconds of the first call, with its connection."""
    seconds: list[float] = field(default_factory=list)
    prepared: list[float] = field(default_factory=list)
    """Seconds that the client takes to say who it is."""
    began: float = 0.0
    """Processor time of the service when it was warm."""

    def call(self) -> tuple[float, float]:
        """Seconds of all, and of the client's own part."""
        began = time.perf_counter()
        request = self.requests()
        prepared = time.perf_counter() - began
        self.answered(*request)
        return time.perf_counter() - began, prepared

    def bulk(self) -> float:
        began = time.perf_counter()
        self.answered(*query(body=BULK))
        return time.perf_counter() - began

    def answered(self, path: str, body: bytes, headers: dict[str, str]) -> None:
        self.connection.request("POST", path, body, headers)
        reply = self.connection.getresponse()
        content = reply.read()
        assert reply.status == 200, content

    def processor(self) -> float:
        assert self.service.process is not None
        times = self.service.process.cpu_times()
        return float(times.user + times.system)


def run(world: World, rounds: int) -> Report:
    report = Report("identity", "A one-row query by callers who say who they are")
    starts = {
        NONE: (anybody, ()),
        ANOTHER: (anybody, ()),
        NONE_DOCUMENT: (document, ()),
        "token": (_token, ("token",)),
        "JSON Web Token": (_json_web_token, ("jwt",)),
        "signature": (_signature, ("signature",)),
        XML_SIGNATURE: (_xml_signature, ("xml-signature",)),
        "TLS": (_tls, ()),
        "TLS, client certificate": (_mutual_tls, ("certificate",)),
    }
    requests = REQUESTS * max(1, rounds // 5)
    bulk: dict[str, list[float]] = {NONE: [], "TLS": []}
    with ExitStack() as stack:
        cases = {
            name: stack.enter_context(started(world.postgres.url, start, methods))
            for name, (start, methods) in starts.items()
        }
        processor = take_turns(cases, requests)
        for _ in range(BULK_ROUNDS):
            for name, seconds in bulk.items():
                seconds.append(cases[name].bulk())
    usual = {name: statistics.median(case.seconds) for name, case in cases.items()}
    ratios = {name: usual[name] / usual[PEERS.get(name, NONE)] for name in cases}
    report.text(
        f"{requests} requests each, taking turns, a process and a kept-alive connection a service, warm but for the "
        "first call, which opens the connection. The ratio of a signed document is that to the same document that "
        "nobody signs, all others are ratios to `none`. Client: the time to say who calls, which is a part of p50. "
        "Processor time is the service's, a request. Published for the Grid Data Service: hundreds of milliseconds "
        "more for a signature or an encrypted conversation; the plot shows that as a range: "
        "figures of its cases were not found."
    )
    report.table(
        ["caller", "first call", "p50", "p95", "ratio of p50", "client", "processor time", "ratio"],
        [
            [
                name,
                shown(case.first),
                shown(usual[name]),
                shown(statistics.quantiles(case.seconds, n=20)[18]),
                f"{ratios[name]:.3f}",
                shown(statistics.median(case.prepared)),
                shown(processor[name]),
                f"{processor[name] / processor[PEERS.get(name, NONE)]:.3f}",
            ]
            for name, case in cases.items()
        ],
    )
    times = {
        name: (1e3 * case.first, 1e3 * usual[name], 1e3 * statistics.median(case.prepared), 1e3 * processor[name])
        for name, case in cases.items()
        if name != ANOTHER
    }
    report.plot("identity", lambda axes: draw(axes, times), "milliseconds of a one-row query by caller, and published")
    for name, goal in GOALS.items():
        report.goal(f"one-row query, {name} / none, p50", ratios[name], goal)
    plain, encrypted = (statistics.median(each) for each in bulk.values())
    report.text(
        f"A million rows (protein_goterm sixty times) as Arrow, {BULK_ROUNDS} times in turn: {shown(plain)} plain, "
        f"{shown(encrypted)} over TLS."
    )
    report.goal("bulk, seconds over TLS / plain (0.7 of the throughput)", encrypted / plain, 1 / 0.7)
    return report


def take_turns(cases: Mapping[str, Case], requests: int) -> dict[str, float]:
    """Processor time of the services, a request."""
    for case in cases.values():
        case.connection.close()  # its service may have lost patience while the others started
    for number in range(WARM + requests):
        for case in cases.values():
            if number == WARM:
                case.began = case.processor()
            took, prepared = case.call()
            if number >= WARM:
                case.seconds.append(took)
                case.prepared.append(prepared)
    return {name: (case.processor() - case.began) / requests for name, case in cases.items()}


def draw(axes: Any, times: Mapping[str, tuple[float, float, float, float]]) -> None:
    """Of each case in milliseconds: the first call, a later one, the client's part of that, the service's processor."""
    names = list(times)[::-1]
    low, high = PUBLISHED
    axes.axvspan(low, high, color="tab:red", alpha=0.12, linewidth=0)
    said = (
        "published for the",
        "Grid Data Service:",
        "a signature or an",
        "encrypted conver-",
        "sation takes",
        "“hundreds of ms”",
        "more (a range)",
    )
    axes.text(
        (low * high) ** 0.5, len(names) - 0.6, "\n".join(said), ha="center", va="top", fontsize="small", color="red"
    )
    for number, (label, marker, filled) in enumerate(SIDES):
        values = [times[name][number] for name in names]
        face = None if filled else "none"
        axes.plot(values, names, marker, label=label, color=f"C{number}", markerfacecolor=face or f"C{number}")
    for at, name in enumerate(names):
        later = times[name][1]
        axes.annotate(f"{later:.1f} ms", (later, at), (0, 6), textcoords="offset points", ha="center", fontsize=7)
    axes.set(
        xscale="log",
        xlim=(1e-3, high * 1.5),
        xlabel="milliseconds of a one-row query, as a logarithm (less is better)",
        title="Whoever says who calls waits a few milliseconds, the first time some tens",
    )
    axes.grid(axis="x", alpha=0.3)
    axes.margins(y=0.08)
    axes.figure.legend(loc="outside lower center", ncols=2)


@contextmanager
def started(
    database: str, start: Callable[[ServiceProcess], Requests], methods: tuple[str, ...] = ()
) -> Iterator[Case]:
    """A service of its own, which ``start`` configures."""
    with tempfile.TemporaryDirectory() as directory:
        service = ServiceProcess(Path(directory), {"pg": database}, identity=methods, workers=1)
        requests = start(service)
        service.start()
        try:
            requests()  # makes what is kept
            began = time.perf_counter()
            connection = _connection(service)
            connection.connect()
            connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            case = Case(service, connection, requests)
            case.call()
            case.first = time.perf_counter() - began
            yield case
            connection.close()
        finally:
            service.stop()


def _connection(service: ServiceProcess) -> http.client.HTTPConnection:
    place = urlsplit(service.url).netloc
    if service.tls is None:
        return http.client.HTTPConnection(place)
    context = ssl.create_default_context(cafile=service.tls)
    if service.client_ca is not None:
        context.load_cert_chain(service.client_ca, service.client_ca.with_suffix(".key"))
    return http.client.HTTPSConnection(place, context=context)


def _tls(service: ServiceProcess) -> Requests:
    service.tls = self_signed(service.directory, "server")
    return query


def _mutual_tls(service: ServiceProcess) -> Requests:
    service.client_ca = self_signed(service.directory, "client")
    return _tls(service)


def anybody(service: ServiceProcess) -> Requests:
    return query


def document(service: ServiceProcess) -> Requests:
    return lambda: (DOCUMENTS, DOCUMENT, XML)


def _xml_signature(service: ServiceProcess) -> Requests:
    private = _own_key(service, ec.generate_private_key(ec.SECP256R1()))
    signer = DocumentSigner(private, "own")
    return lambda: (DOCUMENTS, signer.signed(DOCUMENT, service.url + DOCUMENTS), XML)


def _token(service: ServiceProcess) -> Requests:
    sent: dict[str, str] = {}

    def request() -> Request:
        if not sent:
            file = str(service.directory / "dai.toml")
            command = [sys.executable, "-m", "dai", "tokens", "create", "alice", "--config", file]
            token = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()
            sent["Authorization"] = f"Bearer {token}"
        return query(sent)

    return request


def _json_web_token(service: ServiceProcess) -> Requests:
    key = rsa.generate_private_key(65537, 2048)
    algorithm = jwt.get_algorithm_by_name("RS256")
    public = {**algorithm.to_jwk(key.public_key(), as_dict=True), "kid": "1"}
    (service.directory / "keys.json").write_text(json.dumps({"keys": [public]}))
    service.more = '[identity.jwt]\nissuer = "https://login.example.org"\naudience = ["dai"]\njwks = "keys.json"\n'
    claims = {"iss": "https://login.example.org", "aud": "dai", "sub": "alice", "exp": int(time.time()) + 86400}
    token = jwt.encode(claims, key, "RS256", {"kid": "1"})
    return lambda: query({"Authorization": f"Bearer {token}"})


def _signature(service: ServiceProcess) -> Requests:
    signer = Signer(_own_key(service, ed25519.Ed25519PrivateKey.generate()), "own")
    return lambda: query(signer.headers("POST", service.url + PATH, {"Content-Type": "application/json"}, BODY))


def _own_key(service: ServiceProcess, key: ed25519.Ed25519PrivateKey | ec.EllipticCurvePrivateKey) -> Path:
    """The private key's file; the service knows the public one as ``own``."""
    private, public = service.directory / "own.key", service.directory / "own.pem"
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    service.more = '[identity.signatures.keys.own]\nname = "alice"\nkey = "own.pem"\n'
    return private
