"""What the configuration and the commands say of callers, and how secrets are compared."""

import asyncio
import hashlib
import hmac
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from starlette.types import Message

from dai.__main__ import main
from dai.api.requests.digests import checked
from dai.config import IdentityConfig, parse
from dai.config.identity import CertificateConfig
from dai.errors import ConfigurationError, UnauthenticatedError
from dai.security.identity import Head, Identification, StoredToken
from dai.security.identity.certificates import Certificates
from dai.security.identity.tokens import Tokens, new

DAY = 86400.0
SECRET = "what a proxy of this service knows"


def test_a_token_is_looked_up_seldom_and_forgotten_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    asyncio.run(_looked_up_seldom(monkeypatch))


async def _looked_up_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    token, stored = new("alice", DAY, groups=("curators",))
    looked: list[str] = []
    there: dict[str, StoredToken] = {stored.id: stored}

    async def look_up(id: str) -> StoredToken | None:
        looked.append(id)
        return there.get(id)

    headers = {b"authorization": f"Bearer {token}".encode()}
    tokens = Tokens(IdentityConfig(kept_seconds=1000.0), look_up)
    callers = [await tokens.caller(headers) for _ in range(3)]
    assert [(each.name, each.groups) for each in callers if each] == [("alice", {"curators"})] * 3
    assert looked == [stored.id]
    monkeypatch.setattr(time, "time", lambda: stored.expires + 1)
    with pytest.raises(UnauthenticatedError, match="expired"):
        await tokens.caller(headers)
    monkeypatch.undo()
    tokens = Tokens(IdentityConfig(kept_seconds=0.0), look_up)
    assert await tokens.caller(headers) is not None
    there.clear()
    with pytest.raises(UnauthenticatedError, match="revoked"):
        await tokens.caller(headers)
    there[stored.id] = replace(stored, digest="0" * 64)  # another token of the same id
    with pytest.raises(UnauthenticatedError):
        await tokens.caller(headers)


async def _nobody(id: str) -> StoredToken | None:
    return None


@pytest.mark.parametrize("secret", ["token", "proxy", "body"])
def test_secrets_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch, secret: str) -> None:
    """How long a comparison takes tells nothing: nothing else than ``compare_digest`` decides."""
    compared: list[tuple[Any, Any]] = []

    def never(one: Any, other: Any) -> bool:
        compared.append((one, other))
        return False

    async def look_up(id: str) -> StoredToken | None:
        return stored

    async def body() -> Message:
        return {"type": "http.request", "body": b"x", "more_body": False}

    token, stored = new("alice", DAY)
    proxied = CertificateConfig(proxies=("127.0.0.1",), secret=SECRET, header="X-Client-DN")
    lines = [(b"x-client-dn", b"CN=bob"), (b"x-proxy-secret", SECRET.encode())]
    monkeypatch.setattr(hmac, "compare_digest", never)
    if secret == "token":
        with pytest.raises(UnauthenticatedError):
            asyncio.run(Tokens(IdentityConfig(), look_up).caller({b"authorization": f"Bearer {token}".encode()}))
    elif secret == "proxy":
        method = Certificates(IdentityConfig(certificate=proxied), look_up)
        assert asyncio.run(method.caller(Head(lines, address="127.0.0.1"))) is None
    else:
        with pytest.raises(UnauthenticatedError):
            asyncio.run(checked(body, {"sha-256": hashlib.sha256(b"x").digest()})())  # type: ignore[arg-type]
    assert [one == other for one, other in compared] == [True], "what is right was compared, once"


def test_methods_that_are_not_there() -> None:
    with pytest.raises(ConfigurationError, match="'tokens'") as raised:
        Identification(IdentityConfig(methods=("tokens",)), _nobody)
    assert "'token'" in str(raised.value)


def test_the_commands(tmp_path: Path, book: str, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "dai.toml"
    file.write_text(
        f'[service]\nstate = "sqlite:///state.db"\n[identity]\nmethods = ["token"]\n[resources.book]\nurl = "{book}"\n'
    )

    def said(*arguments: str) -> str:
        assert main(["tokens", *arguments, "--config", str(file)]) == 0
        return capsys.readouterr().out

    token = said("create", "alice", "--resource", "book", "--group", "curators", "--days", "1").strip()
    said("create", "root", "--administrator")
    listed = said("list")
    assert "alice" in listed
    assert "administrator" in listed
    assert "curators" in listed
    assert token not in listed
    assert token.split("_", 2)[2] not in (tmp_path / "state.db").read_bytes().decode("latin-1")
    said("revoke", token.split("_")[1])
    assert "alice" not in said("list")
    for wrong in (
        ["revoke", "x"],
        ["create", ""],
        ["create", "a\nb"],
        ["create", "x", "--group", ""],
        ["create", "x", "--resource", "nothing"],
    ):
        assert main(["tokens", *wrong, "--config", str(file)]) == 2


def test_the_configuration() -> None:
    assert parse({}, environment={}).identity == IdentityConfig()
    assert parse({}, environment={"DAI_IDENTITY__METHODS": "token"}).identity.methods == ("token",)
    with pytest.raises(ConfigurationError, match="no key 'method'"):
        parse({"identity": {"method": "token"}}, environment={})
