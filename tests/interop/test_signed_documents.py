"""Documents that the JDK's own XML Signature has signed, as clients of the original do."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from dai.api.server.serve import background
from tests.api.conftest import DOCUMENT, XML, configured, statement
from tests.api.test_signatures import written
from tests.interop.java import java

PATH = "/resources/book/perform"


@pytest.mark.parametrize(
    ("kind", "made", "algorithm"),
    [
        ("RSA", partial(rsa.generate_private_key, 65537, 2048), "http://www.w3.org/2001/04/xmldsig-more#rsa-sha256"),
        (
            "RSA",
            partial(rsa.generate_private_key, 65537, 2048),
            "http://www.w3.org/2007/05/xmldsig-more#sha256-rsa-MGF1",
        ),
        ("EC", partial(ec.generate_private_key, ec.SECP256R1()), "http://www.w3.org/2001/04/xmldsig-more#ecdsa-sha256"),
        ("EC", partial(ec.generate_private_key, ec.SECP384R1()), "http://www.w3.org/2001/04/xmldsig-more#ecdsa-sha384"),
    ],
)
def test_java_signs(tmp_path: Path, kind: str, made: Callable[[], Any], algorithm: str) -> None:
    key = made()
    written(tmp_path, "own", key)
    (tmp_path / "own.der").write_bytes(key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption()))
    document = tmp_path / "document.xml"
    document.write_text(DOCUMENT.format("<!-- a\r\ncomment -->\n" + statement("select 'a < b & Zoë' as a")), "utf-8")
    identity = {"methods": ["xml-signature"], "signatures": {"keys": {"own": {"name": "alice", "key": "own.pem"}}}}
    with background(configured(tmp_path, {"book": {"url": "sqlite://"}}, identity=identity)) as running:
        target = running.url.removeprefix("http://") + PATH
        signed = java("SignDocument", document, tmp_path / "own.der", kind, "own", algorithm, target)
        answers = [httpx.post(running.url + PATH, content=signed.encode(), headers=XML) for _ in range(2)]
        assert [each.status_code for each in answers] == [200, 401], answers[0].text
        assert "Zoë" in answers[0].text
        elsewhere = java("SignDocument", document, tmp_path / "own.der", kind, "own", algorithm, "localhost" + PATH)
        assert httpx.post(running.url + PATH, content=elsewhere.encode(), headers=XML).status_code == 401
