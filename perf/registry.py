"""The registry by the published method: services are published over UDDI, and found by their names, while it grows.

At each size 100 services are published one after the other, and 100, chosen by chance, are inquired: by a name, and by
metadata, over SOAP; and in JSON and SPARQL. The services between two sizes are published in bulk. Three sides: durable
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
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import orjson
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from perf.harness import Report, legend_below, median
from perf.world import World
from tests.processes import ServiceProcess

SIZES = (100, 500, 1_000, 2_000, 5_000, 10_000, 20_000)
SIGNED_SIZES = (100, 2_000)
TWO_THOUSAND, TWENTY_THOUSAND = 2_000, 20_000
ASKED, WARM = 100, 10
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
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "caller")])
        now = datetime.datetime.now(datetime.UTC)
        builder = x509.CertificateBuilder(name, name, self._key.public_key(), 1)
        builder = builder.not_valid_before(now).not_valid_after(now + datetime.timedelta(1))
        certificate = builder.sign(self._key, SHA256()).public_bytes(Encoding.DER)
        self._certificate = base64.b64encode(certificate).decode()

    def signed(self, call: str) -> bytes:
        """In canonical form as it is written."""
        oasis = "http://docs.oasis-open.org/wss/2004/01/oasis-200401-wss"
        wsse, wsu = f"{oasis}-wssecurity-secext-1.0.xsd", f"{oasis}-wssecurity-utility-1.0.xsd"
        ds, exclusive = "http://www.w3.org/2000/09/xmldsig#", "http://www.w3.org/2001/10/xml-exc-c14n#"
        token = f"{oasis}-x509-token-profile-1.0#X509v3"
        now, id = datetime.datetime.now(datetime.UTC), secrets.token_hex(8)
        when = now.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        body = f'<s:Body xmlns:s="{SOAP}" xmlns:wsu="{wsu}" wsu:Id="b{id}">{call}</s:Body>'
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
    """Over one connection. ``envelope``: how a call becomes a message."""

    def __init__(self, base: str, envelope: Callable[[str], bytes]) -> None:
        split = urlsplit(base)
        self.envelope = envelope
        self._connection = http.client.HTTPConnection(str(split.hostname), split.port, timeout=120)

    def ask(self, method: str, path: str, body: bytes | None = None, media_type: str = "application/json") -> bytes:
        self._connection.request(method, f"/registry{path}", body, {"Content-Type": media_type} if body else {})
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


def grown(client: Client, sizes: Sequence[int], *, soap_alone: bool = False) -> Figures:
    """The figures at each size."""
    chance, there = random.Random(17), 0
    bulk: list[int] = []
    found: Figures = {}

    def by_json(each: int) -> bytes:
        return client.ask("GET", f"/metadata?type={quote(TYPE, safe='')}&value=subject%20{each}")

    def sparql(each: int) -> bytes:
        query = f'select ?s {{ ?s <{TYPE}> "subject {each}" }}'
        return client.ask("POST", "/sparql", query.encode(), "application/sparql-query")

    for size in sizes:
        client.grow(there, size - ASKED)
        bulk += range(there, size - ASKED)
        there = size
        new = list(range(size - ASKED, size))
        # a message is made before it is timed: signing is the caller's work
        saves = [client.envelope(_SERVICE.format(each)) for each in new]
        found["publish", size] = timed(lambda message: client.call("publication", message), saves, b"serviceDetail")
        asked = [chance.choice(bulk or new) for _ in range(WARM + ASKED)]
        finds = [client.envelope(_FIND.format(each)) for each in asked]
        timed(lambda message: client.call("inquiry", message), finds[:WARM])
        found["inquire", size] = timed(lambda message: client.call("inquiry", message), finds[WARM:], b"serviceKey")
        if not bulk:
            continue
        by_metadata = [client.envelope(_BY_METADATA.format(each)) for each in asked]
        timed(lambda message: client.call("metadata", message), by_metadata[:WARM])
        found["inquire by metadata", size] = timed(
            lambda message: client.call("metadata", message), by_metadata[WARM:], b"serviceKey"
        )
        if not soap_alone:
            found["inquire by metadata in JSON", size] = timed(by_json, asked, b"urn:bulk")
            sparql(asked[0])  # its process takes over what was published
            found["SPARQL", size] = timed(sparql, asked, b"urn:bulk")
    return found


def sides() -> dict[str, Figures]:
    found: dict[str, Figures] = {}
    for side, parent in {"durable": None, "in memory": "/dev/shm", "signed": None}.items():
        if parent is not None and not os.path.isdir(parent):
            continue
        with tempfile.TemporaryDirectory(dir=parent) as name:
            directory = Path(name)
            more, envelope = '[registry]\nstore = "sqlite:///registry.db"\n', plain
            if side == "signed":
                envelope = Signer(directory).signed
                more += (
                    '[registry.policy]\nread = ["*", "anonymous"]\nwrite = ["*", "anonymous"]\n'
                    '[identity]\nmethods = ["ws-security"]\nanonymous = true\n'
                    '[identity.signatures.keys.caller]\nname = "caller"\nkey = "caller.pem"\n'
                )
            running = ServiceProcess(directory, {}, more=more).start()
            try:
                signed = side == "signed"
                found[side] = grown(Client(running.url, envelope), SIGNED_SIZES if signed else SIZES, soap_alone=signed)
            finally:
                running.stop()
    return found


def measure(report: Report) -> None:
    found = sides()
    report.text(
        f"Medians of {ASKED} requests one after the other over one connection, in ms, with the client's own work in "
        "them; messages are signed before they are timed. Durable: each publication is on the disk when it is "
        "answered. Published: the figures of Grimoires at 2,000 services."
    )
    for side in ("durable", "in memory"):
        rows = [
            [what, *(f"{found[side][what, size]:.2f}" if (what, size) in found[side] else "" for size in SIZES),
             PUBLISHED.get((side, what), "")]
            for what in KINDS
        ]  # fmt: skip
        report.table([side, *(f"{size:,} services" for size in SIZES), "published, 2,000"], rows)
    rows = [
        [what, f"{found['signed'][what, TWO_THOUSAND]:.2f}", f"{found['durable'][what, TWO_THOUSAND]:.2f}",
         PUBLISHED.get(("signed", what), "")]
        for what in KINDS[:3]
    ]  # fmt: skip
    report.table(["2,000 services, durable", "signed (X.509)", "not signed", "published, signed"], rows)
    report.plot("registry", lambda axes: _drawn(axes, found), "latency by services, beside the published", (1, 2))
    for (side, what), limit in GOALS.items():
        report.goal(f"{side}: {what}, ms at 2,000 services", found[side][what, TWO_THOUSAND], limit)
    for what in KINDS[:2]:
        more = found["signed"][what, TWO_THOUSAND] - found["durable"][what, TWO_THOUSAND]
        report.goal(f"signature of a message to {what}, ms", more, SIGNATURE_GOAL)
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
    panels[0].figure.suptitle("A registry that grows answers as fast as before; crosses: as published")
    legend_below(panels[0])


def run(world: World, rounds: int) -> Report:
    report = Report("registry", "A registry by the published method")
    measure(report)
    return report


if __name__ == "__main__":
    alone = Report("registry", "A registry by the published method")
    measure(alone)
    print(alone.write())
