"""A one-row query by callers who say who they are: no identity, a token, a JSON Web Token, a signature, TLS, TLS with a
client certificate, side by side.

A service a case, and one more without identity, which shows what two processes differ by; all over the same database.
The requests take turns. The client signs nothing anew that it could keep.
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
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from dai.client.http.signing import Signer
from perf.harness import Report, shown
from perf.world import World
from tests.processes import ROOT, ServiceProcess
from tests.servers.certificates import self_signed

BODY = json.dumps({"sql": "select id, name from littleblackbook where id = 42"}).encode()
BULK, BULK_ROUNDS = json.dumps({"sql": "select g.* from protein_goterm g, generate_series(1, 60)"}).encode(), 7
PATH = "/resources/pg/query"
WARM, REQUESTS = 50, 400
NONE = "none"
GOALS = {"token": 1.05, "JSON Web Token": 1.1, "signature": 1.5, "TLS": 1.2}
Headers = Callable[[], dict[str, str]]
"""What a request says of its caller."""


@dataclass
class Case:
    service: ServiceProcess
    connection: http.client.HTTPConnection
    headers: Headers
    first: float
    seconds: list[float]
    began: float
    """Processor time of the service when it was warm."""

    def call(self, body: bytes = BODY) -> float:
        began = time.perf_counter()
        self.connection.request("POST", PATH, body, {"Content-Type": "application/json", **self.headers()})
        reply = self.connection.getresponse()
        content = reply.read()
        took = time.perf_counter() - began
        assert reply.status == 200, content
        return took

    def processor(self) -> float:
        assert self.service.process is not None
        times = self.service.process.cpu_times()
        return float(times.user + times.system)


def run(world: World, rounds: int) -> Report:
    report = Report("identity", "A one-row query by callers who say who they are")
    starts = {
        NONE: (_anybody, ()),
        "none, another process": (_anybody, ()),
        "token": (_token, ("token",)),
        "JSON Web Token": (_json_web_token, ("jwt",)),
        "signature": (_signature, ("signature",)),
        "TLS": (_tls, ()),
        "TLS, client certificate": (_mutual_tls, ()),
    }
    requests = REQUESTS * max(1, rounds // 5)
    bulk: dict[str, list[float]] = {NONE: [], "TLS": []}
    with ExitStack() as stack:
        cases = {
            name: stack.enter_context(_case(world.postgres.url, start, methods))
            for name, (start, methods) in starts.items()
        }
        for number in range(WARM + requests):
            for case in cases.values():
                if number == WARM:
                    case.began = case.processor()
                took = case.call()
                if number >= WARM:
                    case.seconds.append(took)
        processor = {name: (case.processor() - case.began) / requests for name, case in cases.items()}
        for _ in range(BULK_ROUNDS):
            for name, seconds in bulk.items():
                seconds.append(cases[name].call(BULK))
    peer, peer_processor = statistics.median(cases[NONE].seconds), processor[NONE]
    report.text(
        f"{requests} requests each, taking turns, a process and a kept-alive connection a service, warm but for the "
        "first call. Processor time is the service's, a request. Published for the Grid Data Service: hundreds of "
        "milliseconds more for a signature or an encrypted conversation."
    )
    report.table(
        ["caller", "first call", "p50", "p95", "ratio of p50", "processor time", "ratio"],
        [
            [
                name,
                shown(case.first),
                shown(statistics.median(case.seconds)),
                shown(statistics.quantiles(case.seconds, n=20)[18]),
                f"{statistics.median(case.seconds) / peer:.3f}",
                shown(processor[name]),
                f"{processor[name] / peer_processor:.3f}",
            ]
            for name, case in cases.items()
        ],
    )
    for name, goal in GOALS.items():
        report.goal(f"one-row query, {name} / none, p50", statistics.median(cases[name].seconds) / peer, goal)
    plain, encrypted = (statistics.median(each) for each in bulk.values())
    report.text(
        f"A million rows (protein_goterm sixty times) as Arrow, {BULK_ROUNDS} times in turn: {shown(plain)} plain, "
        f"{shown(encrypted)} over TLS."
    )
    report.goal("bulk, seconds over TLS / plain (0.7 of the throughput)", encrypted / plain, 1 / 0.7)
    return report


@contextmanager
def _case(database: str, start: Callable[[ServiceProcess], Headers], methods: tuple[str, ...]) -> Iterator[Case]:
    with tempfile.TemporaryDirectory() as directory:
        service = ServiceProcess(Path(directory), {"pg": database}, identity=methods, workers=1)
        headers = start(service)
        service.start()
        try:
            connection = _connection(service)
            connection.connect()
            connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            headers()  # makes what is kept
            case = Case(service, connection, headers, 0.0, [], 0.0)
            case.first = case.call()
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


def _tls(service: ServiceProcess) -> Headers:
    service.tls = self_signed(service.directory, "server")
    return dict


def _mutual_tls(service: ServiceProcess) -> Headers:
    service.client_ca = self_signed(service.directory, "client")
    return _tls(service)


def _anybody(service: ServiceProcess) -> Headers:
    return dict


def _token(service: ServiceProcess) -> Headers:
    sent: dict[str, str] = {}

    def headers() -> dict[str, str]:
        if not sent:
            file = str(service.directory / "dai.toml")
            command = [sys.executable, "-m", "dai", "tokens", "create", "alice", "--config", file]
            token = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()
            sent["Authorization"] = f"Bearer {token}"
        return sent

    return headers


def _json_web_token(service: ServiceProcess) -> Headers:
    key = rsa.generate_private_key(65537, 2048)
    algorithm = jwt.get_algorithm_by_name("RS256")
    public = {**algorithm.to_jwk(key.public_key(), as_dict=True), "kid": "1"}
    (service.directory / "keys.json").write_text(json.dumps({"keys": [public]}))
    service.more = '[identity.jwt]\nissuer = "https://login.example.org"\naudience = ["dai"]\njwks = "keys.json"\n'
    claims = {"iss": "https://login.example.org", "aud": "dai", "sub": "alice", "exp": int(time.time()) + 86400}
    token = jwt.encode(claims, key, "RS256", {"kid": "1"})
    return lambda: {"Authorization": f"Bearer {token}"}


def _signature(service: ServiceProcess) -> Headers:
    key = ed25519.Ed25519PrivateKey.generate()
    private, public = service.directory / "own.key", service.directory / "own.pem"
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    service.more = '[identity.signatures.keys.own]\nname = "alice"\nkey = "own.pem"\n'
    signer = Signer(private, "own")
    return lambda: signer.headers("POST", service.url + PATH, {"Content-Type": "application/json"}, BODY)
