"""The registry by the published method: services are published over UDDI, and found by their names, while it grows.

At each size 100 services are published one after the other, and 100, chosen by chance, are inquired: by a name, and by
metadata, over SOAP; and in JSON and SPARQL; in three rounds, of which the quietest counts: others that use the machine
only add. The services between two sizes are published in bulk. Three sides: durable
(each publication is on the disk when it is answered), in memory (the same on a file system in memory), and signed
(WS-Security by X.509 with RSA of 2,048 bits, durable). By itself: ``python -m perf.registry``, where no database is
needed.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import http.client
import os
import random
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import orjson
import psutil
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from lxml import etree

from dai.client.http import signing
from perf.harness import Report, legend_below, median
from perf.world import World
from tests.processes import ServiceProcess

SIZES = (500, 1_000, 2_000, 5_000, 10_000, 20_000)
TWO_THOUSAND, TWENTY_THOUSAND = 2_000, 20_000
ASKED, FEW, WARM, ROUNDS = 100, 20, 10, 3
TYPE = "http://example.org/terms#subject"
PUBLISHED = {
    ("durable", "publish"): 62.4,
    ("durable", "inquire"): 42.7,
    ("in memory", "publish"): 37.8,
    ("in memory", "inquire"): 56.9,
    ("in memory", "inquire by metadata"): 80.5,
    ("signed", "publish"): 1532.0,
    ("signed", "inquire"): 987.0,
}
"""ms at 2,000 services (J. Papay et al.): in a file, in memory, and with signed messages."""
GOALS = {
    ("in memory", "publish"): 2.5,
    ("in memory", "inquire"): 1.5,
    ("in memory", "inquire by metadata"): 1.5,
    ("durable", "publish"): 8.0,
}
SIGNATURE_GOAL, GROWTH_GOAL = 6.0, 1.5
KINDS = ("publish", "inquire", "inquire by metadata", "inquire by metadata in JSON", "SPARQL")
SOAP = "http://schemas.xmlsoap.org/soap/envelope/"
_SERVICE = (
    '<save_service xmlns="urn:uddi-org:api_v2" generic="2.0"><businessService serviceKey="" businessKey="">'
    "<name>Service {0:06}</name><description>measured</description><bindingTemplates>"
    '<bindingTemplate bindingKey="" serviceKey=""><accessPoint URLType="http">http://host/{0}</accessPoint>'
    "</bindingTemplate></bindingTemplates></businessService></save_service>"
)
_FIND = '<find_service xmlns="urn:uddi-org:api_v2" generic="2.0"><name>Service {0:06}</name></find_service>'
_BY_METADATA = (
    '<find_service xmlns="http://www.grimoires.org/metadata.xsd" generic="2.0"><metadataQueryBag><metadataQuery>'
    f"<metadataType>{TYPE}</metadataType><metadataValue><stringValue>subject {{0}}</stringValue></metadataValue>"
    "</metadataQuery></metadataQueryBag></find_service>"
)
Figures = dict[tuple[str, int], float]


class Signer:
    """Signs messages by WS-Security: the body and a time."""

    def __init__(self, directory: Path) -> None:
        self._key = rsa.generate_private_key(65537, 2048)
        public = self._key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        (directory / "caller.pem").write_bytes(public)
        (directory / "caller.key").write_bytes(
            self._key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        )
        self.of_requests = signing.Signer(directory / "caller.key", "caller")
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "caller")])
        now = datetime.datetime.now(datetime.UTC)
        builder = x509.CertificateBuilder(name, name, self._key.public_key(), 1)
        builder = builder.not_valid_before(now).not_valid_after(now + datetime.timedelta(1))
        certificate = builder.sign(self._key, SHA256()).public_bytes(Encoding.DER)
        self._certificate = base64.b64encode(certificate).decode()

    def signed(self, call: str) -> bytes:
        oasis = "http://docs.oasis-open.org/wss/2004/01/oasis-200401-wss"
        wsse, wsu = f"{oasis}-wssecurity-secext-1.0.xsd", f"{oasis}-wssecurity-utility-1.0.xsd"
        ds, exclusive = "http://www.w3.org/2000/09/xmldsig#", "http://www.w3.org/2001/10/xml-exc-c14n#"
        token = f"{oasis}-x509-token-profile-1.0#X509v3"
        now, id = datetime.datetime.now(datetime.UTC), secrets.token_hex(8)
        when = now.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        body = f'<s:Body xmlns:s="{SOAP}" xmlns:wsu="{wsu}" wsu:Id="b{id}">{call}</s:Body>'
        body = etree.tostring(etree.fromstring(body), method="c14n", exclusive=True).decode()
        stamp = f'<wsu:Timestamp xmlns:wsu="{wsu}" wsu:Id="t{id}"><wsu:Created>{when}</wsu:Created></wsu:Timestamp>'
        references = "".join(
            f'<ds:Reference URI="#{at}{id}"><ds:Transforms><ds:Transform Algorithm="{exclusive}"></ds:Transform>'
            '</ds:Transforms><ds:DigestMethod Algorithm="http://www.w3.org/2001/04/xmlenc#sha256"></ds:DigestMethod>'
            f"<ds:DigestValue>{base64.b64encode(hashlib.sha256(said.encode()).digest()).decode()}</ds:DigestValue>"
            "</ds:Reference>"
            for at, said in (("b", body), ("t", stamp))
        )
        info = (
            f'<ds:SignedInfo xmlns:ds="{ds}"><ds:CanonicalizationMethod Algorithm="{exclusive}">'
            "</ds:CanonicalizationMethod>"
            '<ds:SignatureMethod Algorithm="http://www.w3.org/2001/04/xmldsig-more#rsa-sha256"></ds:SignatureMethod>'
            f"{references}</ds:SignedInfo>"
        )
        value = base64.b64encode(self._key.sign(info.encode(), padding.PKCS1v15(), SHA256())).decode()
        return (
            f'<s:Envelope xmlns:s="{SOAP}"><s:Header><wsse:Security xmlns:wsse="{wsse}" xmlns:wsu="{wsu}">'
            f'<wsse:BinarySecurityToken wsu:Id="k{id}" ValueType="{token}">{self._certificate}'
            f'</wsse:BinarySecurityToken>{stamp}<ds:Signature xmlns:ds="{ds}">{info}'
            f"<ds:SignatureValue>{value}</ds:SignatureValue><ds:KeyInfo><wsse:SecurityTokenReference>"
            f'<wsse:Reference URI="#k{id}" ValueType="{token}"/></wsse:SecurityTokenReference></ds:KeyInfo>'
            f"</ds:Signature></wsse:Security></s:Header>{body}</s:Envelope>"
        ).encode()


class Client:
    """Over one connection. ``envelope``: how a call becomes a message; ``busy``: seconds of processor time that the
    service has taken; ``signer``: of requests that are no SOAP (RFC 9421)."""

    def __init__(
        self,
        base: str,
        envelope: Callable[[str], bytes],
        busy: Callable[[], float],
        signer: signing.Signer | None = None,
    ) -> None:
        split = urlsplit(base)
        self.envelope, self.busy, self._signer, self._base = envelope, busy, signer, base
        self._connection = http.client.HTTPConnection(str(split.hostname), split.port, timeout=120)

    def ask(self, method: str, path: str, body: bytes | None = None, media_type: str = "application/json") -> bytes:
        headers = {"Content-Type": media_type} if body else {}
        if self._signer is not None and media_type != "text/xml":
            headers |= self._signer.headers(method, f"{self._base}/registry{path}", headers, body)
        self._connection.request(method, f"/registry{path}", body, headers)
        answer = self._connection.getresponse()
        data = answer.read()
        if answer.status != 200:
            raise AssertionError(data[:500])
        return data

    def call(self, part: str, message: bytes) -> bytes:
        return self.ask("POST", f"/uddi/{part}", message, "text/xml")

    def grow(self, first: int, last: int) -> None:
        for at in range(first, last, 1000):
            entries = []
            for each in range(at, min(at + 1000, last)):
                key, said = f"urn:bulk:{each}", {"type": TYPE, "value": f"subject {each}"}
                entries += [
                    {"key": key, "kind": "service", "name": f"Service {each:06}", "description": "of the measurement"},
                    {"key": f"{key}:m", "kind": "metadata", "parent": key, "metadata": said},
                ]
            self.ask("POST", "/entries", orjson.dumps({"entries": entries}))


def plain(call: str) -> bytes:
    return f'<e:Envelope xmlns:e="{SOAP}"><e:Body>{call}</e:Body></e:Envelope>'.encode()


def timed(work: Callable[[Any], bytes], asked: Sequence[Any], expected: bytes = b"") -> float:
    """The median in ms. ``expected``: what each answer has."""
    took = []
    for each in asked:
        began = time.perf_counter()
        data = work(each)
        took.append((time.perf_counter() - began) * 1000)
        if expected not in data:
            raise AssertionError(data[:500])
    return median(took)


def grown(client: Client, sizes: Sequence[int]) -> tuple[Figures, Figures]:
    """At each size the medians, and the processor time of the service a request, in ms."""
    chance, there = random.Random(17), 0
    bulk: list[int] = []
    took: Figures = {}
    busy: Figures = {}

    def measured(kind: str, work: Callable[[Any], bytes], asked: Sequence[Any], expected: bytes) -> None:
        began = client.busy()
        now = timed(work, asked, expected), (client.busy() - began) * 1000 / len(asked)
        for figures, figure in zip((took, busy), now, strict=True):
            figures[kind, size] = min(figure, figures.get((kind, size), figure))

    def by_json(each: int) -> bytes:
        return client.ask("GET", f"/metadata?type={quote(TYPE, safe='')}&value=subject%20{each}")

    def sparql(each: int) -> bytes:
        query = f'select ?s {{ ?s <{TYPE}> "subject {each}" }}'
        return client.ask("POST", "/sparql", query.encode(), "application/sparql-query")

    def soap(kind: str, part: str, call: str, asked: Sequence[int], expected: bytes) -> None:
        messages = [client.envelope(call.format(each)) for each in asked]
        measured(kind, lambda message: client.call(part, message), messages, expected)

    for size in sizes:
        first = size - ROUNDS * ASKED
        client.grow(there, first)
        bulk += range(there, first)
        there = size
        for at in range(ROUNDS):
            soap("publish", "publication", _SERVICE, range(first + at * ASKED, first + (at + 1) * ASKED), b"serviceDet")
            asked = chance.choices(bulk, k=ASKED)
            for work in (by_json, sparql):
                for each in asked[:WARM]:  # the process for SPARQL takes over what was published
                    work(each)
            soap("inquire", "inquiry", _FIND, asked, b"serviceKey")
            soap("inquire by metadata", "metadata", _BY_METADATA, asked, b"serviceKey")
            measured("inquire by metadata in JSON", by_json, asked, b"urn:bulk")
            measured("SPARQL", sparql, asked[:FEW], b"urn:bulk")
    return took, busy


@contextmanager
def served(parent: str | None, *, signed: bool = False) -> Iterator[Client]:
    """A registry whose files are in a new directory below ``parent``."""
    with tempfile.TemporaryDirectory(dir=parent) as name:
        more, envelope, signer = '[registry]\nstore = "sqlite:///registry.db"\n', plain, None
        if signed:
            signer = Signer(Path(name))
            envelope = signer.signed
            more += '[registry.policy]\nwrite = ["caller"]\n'
            more += '[identity.signatures.keys.caller]\nname = "caller"\nkey = "caller.pem"\n'
        methods = ("ws-security", "signature") if signed else ()
        running = ServiceProcess(Path(name), {}, identity=methods, more=more).start()
        try:
            yield Client(running.url, envelope, busy_of(running), None if signer is None else signer.of_requests)
        finally:
            running.stop()


def signatures() -> dict[str, tuple[float, float, float]]:
    """Of a message that is not signed, and of one that is: the medians in ms, and that of what the second takes longer.
    Two services of 2,000 take turns."""
    found = {}
    with served(None) as bare, served(None, signed=True) as signed:
        for client in (bare, signed):
            client.grow(0, TWO_THOUSAND)
        for kind, part, call in (
            ("publish", "publication", _SERVICE),
            ("inquire", "inquiry", _FIND),
            ("inquire by metadata", "metadata", _BY_METADATA),
        ):
            took: list[list[float]] = [[], []]
            for each in range(WARM + ASKED):
                for at, client in enumerate((bare, signed)):
                    message = client.envelope(call.format(each))
                    began = time.perf_counter()
                    client.call(part, message)
                    took[at].append((time.perf_counter() - began) * 1000)
            without, with_one = (each[WARM:] for each in took)
            more = [b - a for a, b in zip(without, with_one, strict=True)]
            found[kind] = median(without), median(with_one), median(more)
    return found


def busy_of(running: ServiceProcess) -> Callable[[], float]:
    assert running.process is not None
    process = psutil.Process(running.process.pid)

    def busy() -> float:
        times = process.cpu_times()
        return times.user + times.system

    return busy


def measure(report: Report) -> None:
    measured = {}
    for side, parent in {"durable": None, "in memory": "/dev/shm"}.items():
        with served(parent) as client:
            measured[side] = grown(client, SIZES)
    found = {side: took for side, (took, _) in measured.items()}
    costs = signatures()
    load = ", ".join(f"{each:.0f}" for each in os.getloadavg())
    report.text(
        f"Medians of {ASKED} requests one after the other over one connection (of {FEW} in SPARQL), the least of "
        f"{ROUNDS} rounds, in ms, with the client's own work in them. Durable: each publication is on the disk when it "
        "is answered. Published: the figures of Grimoires at 2,000 services. Load of the machine at the end (1, 5, 15 "
        f"minutes): {load}."
    )
    for side in ("durable", "in memory"):
        rows = [
            [what, *(f"{found[side][what, size]:.2f}" if (what, size) in found[side] else "" for size in SIZES),
             PUBLISHED.get((side, what), "")]
            for what in KINDS
        ]  # fmt: skip
        report.table([side, *(f"{size:,} services" for size in SIZES), "published, 2,000"], rows)
    rows = [[what, *(f"{each:.2f}" for each in costs[what]), PUBLISHED.get(("signed", what), "")] for what in costs]
    report.text("Signed by WS-Security, beside the same that is not signed, in turns:")
    report.table(["2,000 services, durable", "not signed", "signed", "longer by", "published, signed"], rows)
    busy = [
        [what, *(f"{measured[side][1][what, size]:.2f}" if (what, size) in measured[side][1] else ""
                 for side in ("durable", "in memory") for size in (TWO_THOUSAND, TWENTY_THOUSAND))]
        for what in KINDS
    ]  # fmt: skip
    report.text("Processor time of the service a request, in ms; that of the process that answers SPARQL is not in it:")
    places = ("durable, 2,000", "durable, 20,000", "in memory, 2,000", "in memory, 20,000")
    report.table(["", *places], busy)
    report.plot("registry", lambda axes: _drawn(axes, found), "latency by services, beside the published", (1, 2))
    for (side, what), limit in GOALS.items():
        report.goal(f"{side}: {what}, ms at 2,000 services", found[side][what, TWO_THOUSAND], limit)
    for what in KINDS[:2]:
        report.goal(f"signature of a message to {what}, ms", costs[what][2], SIGNATURE_GOAL)
    for side in ("durable", "in memory"):
        for what in KINDS[:3]:
            growth = found[side][what, TWENTY_THOUSAND] / found[side][what, TWO_THOUSAND]
            report.goal(f"{side}: {what}, 20,000 services over 2,000", growth, GROWTH_GOAL)


def _drawn(panels: Any, found: dict[str, Figures]) -> None:
    for axes, side in zip(panels, ("durable", "in memory"), strict=True):
        for number, what in enumerate(KINDS):
            sizes = [size for size in SIZES if (what, size) in found[side]]
            figures = [found[side][what, size] for size in sizes]
            axes.plot(sizes, figures, marker="o", color=f"C{number}", label=what)
            if (side, what) in PUBLISHED:
                axes.plot([TWO_THOUSAND], [PUBLISHED[side, what]], marker="x", markersize=9, color=f"C{number}")
        axes.set(xscale="log", yscale="log", xlabel="services", ylabel="ms (less is better)", title=side)
        axes.grid(alpha=0.3)
    panels[0].figure.suptitle("Publishing and inquiry take as long in a registry that has grown; crosses: as published")
    legend_below(panels[0])


def run(world: World, rounds: int) -> Report:
    report = Report("registry", "A registry by the published method")
    measure(report)
    return report


if __name__ == "__main__":
    alone = Report("registry", "A registry by the published method")
    measure(alone)
    print(alone.write())
