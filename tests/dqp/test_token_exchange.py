"""Federations that ask their sources with tokens in exchange for those of callers (RFC 8693)."""

from __future__ import annotations

import json
import logging
import ssl
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pyarrow as pa
import pytest

from dai.__main__ import main
from dai.api.server.serve import Background, background
from dai.client import Options
from dai.config import parse
from dai.drivers import driver_for
from dai.errors import ConfigurationError, DaiError, DatabaseUnavailableError
from dai.security.identity import jwt as method
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Stream
from dqp.catalog import exchanged
from dqp.catalog.exchanged import ExchangedTokens
from dqp.errors import NoTokenError
from dqp.settings import ExchangeSettings, TlsSettings
from dqp.settings import parse as federation_of
from tests.processes import until
from tests.servers.certificates import self_signed
from tests.servers.issuer import TYPES, Answer, Issuer, issuing

SECRET = "s:e cret&%"
FAR, OFF, NEAR = (f"select count(*) as n from {name}.t" for name in ("far", "off", "near"))
JOIN = "select count(*) as n from near.t a join far.t b on a.k = b.k join off.t c on a.k = c.k"
OPAQUE = Issuer(("lab", SECRET), "federation", {"far": {"alice"}})


@dataclass
class World:
    """``far`` and ``off`` know tokens of the issuer for themselves; ``near`` is a resource of the federation's service,
    which knows those for the federation."""

    issuer: Issuer
    service: Background
    sources: dict[str, Background]
    audits: dict[str, Path]
    config: dict[str, Any]

    def ask(self, who: str | None, sql: str, **claims: Any) -> httpx.Response:
        return self.ask_with(self.issuer.token(who, **claims) if who else None, sql)

    def ask_with(self, token: str | None, sql: str, format: str = "csv") -> httpx.Response:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        url = f"{self.service.url}/resources/lab/query?format={format}"
        return httpx.post(url, json={"sql": sql}, headers=headers, timeout=100)

    def askers(self, source: str) -> set[str | None]:
        """Who has asked, since the last look."""
        lines = self.audits[source].read_text().splitlines()
        self.audits[source].write_text("")
        return {json.loads(each).get("caller") for each in lines}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    directory = tmp_path_factory.mktemp("exchange")
    issuer = Issuer(("lab", SECRET), "federation", {"far": {"alice", "bob"}, "off": {"alice"}})
    (directory / "secret").write_text(SECRET)

    def started(name: str, audience: str, **sections: Any) -> Background:
        (directory / name).mkdir()
        url = f"sqlite:///{directory / name}.db"
        with closing(driver_for(url)) as driver:
            rows = pa.table({"k": pa.array(range(100), pa.int64())})
            driver.load("t", Stream.of(rows), cancellation=Cancellation(), create=True)
        known = {"issuer": issuer.url, "audience": [audience], "jwks": f"{issuer.url}/keys"}
        config: dict[str, Any] = {
            "service": {"port": 0, "state": "sqlite:///state.db", "results_directory": "results", "grace": 0.2},
            "identity": {"methods": ["jwt"], "wrong_seconds": 0.0, "jwt": known},
            "audit": {"file": str(directory / f"{name}.jsonl")},
            "resources": {name: {"url": url}},
        }
        configs.append({name: config.get(name, {}) | value for name, value in (config | sections).items()})
        return stack.enter_context(background(parse(configs[-1], directory / name, {})))

    configs: list[dict[str, Any]] = []
    with issuing(issuer), ExitStack() as stack:
        sources = {name: started(name, name) for name in ("far", "off")}
        exchange = {"url": f"{issuer.url}/token", "client_id": "lab", "client_secret": f"file:{directory / 'secret'}"}
        lab = {
            "callers": "exchange",
            "exchange": exchange,
            "sources": [
                {"alias": "near", "resource": "near"},
                {"alias": "far", "url": f"{sources['far'].url}/resources/far", "exchange": {"audience": "far"}},
                {
                    "alias": "off",
                    "url": f"{sources['off'].url}/resources/off",
                    "exchange": {"audience": "off", "resource": "https://off.example.org", "scope": "read"},
                },
            ],
        }
        service = started("near", "federation", federations={"lab": lab}, identity={"anonymous": True})
        audits = {name: directory / f"{name}.jsonl" for name in ("near", "far", "off")}
        yield World(issuer, service, sources, audits, configs[-1])


@pytest.fixture(autouse=True)
def _as_it_was(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "world" in request.fixturenames:
        issuer = request.getfixturevalue("world").issuer
        issuer.life, issuer.claims, issuer.answers = 600, {}, []


def test_a_token_for_each_source_by_each_caller(world: World) -> None:
    """One for each, however often and by how many at once it is asked; what is asked is what the settings say."""
    token = world.issuer.token("alice", jti="one")
    before = len(world.issuer.exchanged)
    world.askers("far"), world.askers("off")
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: world.ask_with(token, JOIN), range(4)))
    assert [each.text.split() for each in answers] == [["n", "100"]] * 4
    assert (world.askers("far"), world.askers("off")) == ({"alice"}, {"alice"})
    asked = sorted(world.issuer.exchanged[before:], key=lambda each: each["audience"])
    usual = {
        "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
        "subject_token": token,
        "subject_token_type": f"{TYPES}access_token",
        "requested_token_type": f"{TYPES}access_token",
    }
    assert asked == [
        usual | {"audience": "far"},
        usual | {"audience": "off", "resource": "https://off.example.org", "scope": "read"},
    ]


def test_two_callers_never_share_a_token(world: World) -> None:
    """Nor do two tokens of one caller: what one of them may do is not what the other may."""
    tokens = [world.issuer.token(who, jti=f"share {number}") for number, who in enumerate(("alice", "bob", "alice"))]
    before = len(world.issuer.exchanged)
    world.askers("far")
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda token: world.ask_with(token, FAR), tokens * 3))
    assert {each.status_code for each in answers} == {200}
    assert world.askers("far") == {"alice", "bob"}
    assert sorted(each["subject_token"] for each in world.issuer.exchanged[before:]) == sorted(tokens)


def test_the_callers_token_stays_here(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """No source is sent it, and none would take it; nor takes one that is for another."""
    seen: list[str] = []
    caller = method.JsonWebTokens.caller

    async def watched(self: Any, headers: Any) -> Any:
        if self._config.audience != ("federation",):
            seen.append(headers.get(b"authorization", b"").decode())
        return await caller(self, headers)

    monkeypatch.setattr(method.JsonWebTokens, "caller", watched)
    token = world.issuer.token("alice", jti="stays")
    assert world.ask_with(token, JOIN).status_code == 200
    assert seen
    assert {each.removeprefix("Bearer ") for each in seen} <= set(world.issuer.issued)
    for wrong in (token, world.issuer.token("alice", "off")):
        headers = {"Authorization": f"Bearer {wrong}"}
        assert httpx.get(f"{world.sources['far'].url}/resources/far", headers=headers).status_code == 401


@pytest.mark.parametrize(
    ("who", "claims", "code"),
    [("bob", {}, "invalid_target"), ("carol", {}, "invalid_target"), ("bob", {"exp": 1, "leeway": 1e9}, "")],
)
def test_an_exchange_that_is_refused(
    world: World, who: str, claims: dict[str, Any], code: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Also after one who may was answered. The error names the source and the code, and nothing else that the issuer
    said; other sources are read."""
    assert world.ask("alice", OFF).status_code == 200
    token = world.issuer.token(who, **claims)
    with caplog.at_level(logging.DEBUG):
        answer = world.ask_with(token, OFF)
    if claims:
        assert answer.status_code == 401  # it does not come so far
        return
    assert (answer.status_code, answer.json()["type"], answer.json()["source"]) == (403, "denied", "off")
    assert f"could not be exchanged for one for the source 'off': {code}." in answer.json()["detail"]
    assert not any(each in answer.text + caplog.text for each in (token, "will not do", SECRET))
    assert world.ask_with(token, NEAR).text.split() == ["n", "100"]


def test_who_sends_no_token_has_none_to_exchange(world: World) -> None:
    before = len(world.issuer.exchanged)
    answer = world.ask(None, FAR)
    assert (answer.status_code, "you sent none" in answer.text) == (403, True)
    assert len(world.issuer.exchanged) == before


def test_an_issuer_that_is_away(world: World) -> None:
    """What is known serves on; what is not says whose fault it is, and comes when the issuer is back."""
    known, new = (world.issuer.token("alice", jti=each) for each in ("known", "new"))
    assert world.ask_with(known, FAR).status_code == 200
    world.issuer.answers = [None] * 1000
    try:
        answer = world.ask_with(new, FAR)
        assert answer.status_code == 503
        assert "'far' is not available: the issuer of its tokens does not answer" in answer.text
        assert world.issuer.url not in answer.text
        assert world.ask_with(new, NEAR).status_code == 200
        assert world.ask_with(known, FAR).status_code == 200
    finally:
        world.issuer.answers = []
    until(lambda: world.ask_with(new, FAR).text.split() == ["n", "100"])


@pytest.mark.parametrize("claims", [{"aud": "off"}, {"exp": 1}, {"iss": "https://example.org"}, {"sub": None}])
def test_a_token_that_the_source_refuses(world: World, claims: dict[str, Any]) -> None:
    """For another audience, expired …: the source says so, and is asked with a new one soon."""
    token = world.issuer.token("alice", jti=str(claims))
    world.issuer.claims = claims
    answer = world.ask_with(token, FAR)
    assert (answer.status_code, answer.json()["source"]) == (403, "far"), answer.text
    assert "The source 'far' refuses" in answer.text
    world.issuer.claims = {}
    until(lambda: world.ask_with(token, FAR).text.split() == ["n", "100"])


def test_keys_rotate(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A token that a source took before is exchanged anew when it takes it no more, within the query."""
    token = world.issuer.token("alice", jti="rotates")
    assert world.ask_with(token, FAR).status_code == 200
    monkeypatch.setattr(method, "PAUSE", -1.0)
    world.issuer.rotate()
    # the source learns of the new key by a token that is signed with it, and forgets the old one
    headers = {"Authorization": f"Bearer {world.issuer.token('alice', 'far')}"}
    assert httpx.get(f"{world.sources['far'].url}/resources/far", headers=headers).status_code == 200
    count = len(world.issuer.exchanged)
    assert world.ask_with(token, FAR).text.split() == ["n", "100"]
    assert len(world.issuer.exchanged) == count + 1


def test_nothing_of_it_is_shown(world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    token = world.issuer.token("alice", jti="shown")
    texts = [world.ask_with(token, f"explain analyze {FAR}", "json").text]
    headers = {"Authorization": f"Bearer {token}"}
    for path in ("/resources/lab", "/resources/lab/schema", "/resources/lab/statistics?table=far.t", "/metrics"):
        texts.append(httpx.get(world.service.url + path, headers=headers).text)
    state = Path(str(world.service.service.config.service.state).removeprefix("sqlite:///"))
    texts += [each.read_bytes().decode("latin-1") for each in state.parent.glob(f"{state.name}*")]
    texts += [each.read_text() for each in world.audits.values()]
    resource = world.service.service.resources["lab"]
    settings = resource.driver.settings  # type: ignore[attr-defined]
    texts += [repr(settings), repr(settings.sources), repr(vars(resource)), str(resource.properties(False))]
    shown = "\n".join(texts)
    assert "k" in shown
    assert not [each for each in (SECRET, token, *world.issuer.issued) if each in shown]
    lines = ["[federations.lab]", 'callers = "exchange"', "[federations.lab.exchange]"]
    lines += ['url = "https://login.example.org/token"', 'client_id = "lab"', 'client_secret = "env:LAB"']
    (tmp_path / "dai.toml").write_text("\n".join(lines))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAB", SECRET)
        assert main(["check-config", str(tmp_path / "dai.toml")]) == 0
    said = capsys.readouterr().out
    assert "secret federations.lab.exchange.client_secret: from the environment variable LAB" in said
    assert SECRET not in said


def tokens(issuer: Issuer, bearer: str = "theirs", **settings: Any) -> ExchangedTokens:
    usual = {"url": f"{issuer.url}/token", "client_id": "lab", "client_secret": SECRET, "audience": "far"}
    usual |= {f"{each}_token_type": f"{TYPES}access_token" for each in ("subject", "requested")}
    return ExchangedTokens("far", ExchangeSettings(**(usual | settings)), bearer, Options())


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    with issuing(OPAQUE) as running:
        yield running


def given(**members: Any) -> Answer:
    usual = {"access_token": "good", "issued_token_type": f"{TYPES}access_token", "token_type": "Bearer"}
    said = {name: value for name, value in (usual | members).items() if value is not None}
    return 200, {"Content-Type": "application/json"}, json.dumps(said).encode()


@pytest.mark.parametrize(
    "answer",
    [
        given(access_token=None),
        given(access_token=["good"]),
        given(access_token=""),
        given(access_token="good\r\nX-Admin: yes"),
        given(access_token="göod"),
        given(access_token="x" * 20_000),
        given(access_token="theirs"),
        given(token_type="N_A"),
        given(token_type="mac"),
        given(token_type=None),
        given(issued_token_type=f"{TYPES}refresh_token"),
        given(issued_token_type={}),
        given(padding="x" * 100_000),
        (200, {}, b"<html>"),
        (200, {}, b"[" * 10_000),
        (200, {}, b'["good"]'),
        (302, {"Location": "http://127.0.0.1:9/token"}, b""),
        (204, {}, b""),
        (200, {"Content-Encoding": "gzip"}, b"theirs"),
        (401, {}, b'{"error": "invalid_client"}'),
        (400, {}, b'{"error": "unauthorized_client"}'),
        (500, {}, b"theirs"),
        (503, {"Retry-After": "1"}, b""),
        (429, {"Retry-After": "1"}, b""),
    ],
)
def test_answers_that_are_no_token(issuer: Issuer, answer: Answer, caplog: pytest.LogCaptureFixture) -> None:
    """No fault of the caller; what the issuer sent is neither used nor told."""
    issuer.answers = [answer]
    with caplog.at_level(logging.DEBUG), pytest.raises(DatabaseUnavailableError) as refused:
        tokens(issuer).token(Cancellation())
    records = "".join(str(vars(each)) for each in caplog.records)
    assert not [each for each in ("theirs", "good", SECRET) if each in str(refused.value) + records]
    issuer.answers = []


@pytest.mark.parametrize("code", [b'"invalid_grant"', b'"theirs and more"', b"7", b'"' + b"x" * 99 + b'"'])
def test_only_a_code_is_told(issuer: Issuer, code: bytes) -> None:
    issuer.answers = [(400, {}, b'{"error": ' + code + b', "error_description": "theirs"}')]
    with pytest.raises(NoTokenError) as refused:
        tokens(issuer).token(Cancellation())
    told = "invalid_grant" if b"invalid" in code else "status 400"
    assert f"for one for the source 'far': {told}." in str(refused.value)
    assert "theirs" not in str(refused.value)


def test_a_token_is_used_until_shortly_before_its_end(issuer: Issuer, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(exchanged, "time", SimpleNamespace(monotonic=lambda: now))
    known = tokens(issuer)
    for life, used in ((600, 570.0), (100, 90.0), (0, 0.0), (None, 54.0), (-1, 54.0), ("9", 54.0), (True, 0.9)):
        issuer.answers = [given(access_token=each, expires_in=life) for each in ("one", "two")]
        now += 10_000
        began = now
        assert known.token(Cancellation()) == "one"
        if used > 0.0:
            now = began + used - 0.01
            assert known.token(Cancellation()) == "one"
        now = began + used
        assert known.token(Cancellation()) == "two"
    issuer.answers = []


def test_a_token_that_was_refused_is_not_sent_again(issuer: Issuer) -> None:
    """Nor is a new one asked for at once, where the one that is refused is new."""
    issuer.answers = [given(access_token=each, expires_in=600) for each in ("one", "two", "three")]
    known = tokens(issuer)
    assert known.token(Cancellation()) == "one"
    assert known.refused("one") is False
    assert [known.token(Cancellation()) for _ in range(2)] == ["two", "two"]
    assert known.refused("one") is True, "another has come meanwhile"
    assert known.refused("two") is True
    assert known.token(Cancellation()) == "three"


def test_who_waits_for_a_token_can_be_cancelled(issuer: Issuer) -> None:
    held, arrived = threading.Event(), threading.Event()

    class Holding(list[Any]):
        def pop(self, *_: Any) -> Answer:
            arrived.set()
            held.wait()
            return given()

    issuer.answers = Holding([None])
    cancellation = Cancellation()
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(tokens(issuer).token, cancellation)
        arrived.wait()
        cancellation.cancel()
        with pytest.raises(DaiError) as ended:
            asked.result()
        assert ended.value is cancellation.cause
        held.set()
    issuer.answers = []


def test_an_issuer_behind_tls(tmp_path: Path) -> None:
    certificate = self_signed(tmp_path, "issuer")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, certificate.with_suffix(".key"))
    issuer = Issuer(("lab", SECRET), "federation", {"far": {"alice"}})
    with issuing(issuer, context):
        bearer = issuer.token("alice")
        with pytest.raises(DatabaseUnavailableError):
            tokens(issuer, bearer).token(Cancellation())
        assert issuer.exchanged == []
        assert tokens(issuer, bearer, ca=certificate).token(Cancellation()) == issuer.issued[0]


EXCHANGE = {"url": "https://login.example.org/token", "client_id": "lab", "client_secret": "planted"}
SOURCE = {"url": "https://x/resources/a", "exchange": {"audience": "a"}}


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({"callers": "own", "exchange": EXCHANGE}, 'needs federations.lab.callers = "exchange"'),
        ({"exchange": EXCHANGE, "sources": {"a": SOURCE | {"token": "t"}}}, "in the place of a token"),
        ({"exchange": EXCHANGE, "sources": {"a": {"resource": "a", "exchange": {"audience": "a"}}}}, "for services"),
        ({"exchange": EXCHANGE, "sources": {"a": SOURCE | {"forward": True}}}, 'forward needs callers = "forward"'),
        ({"sources": {"a": SOURCE}}, r"needs a section \[federations.lab.exchange\]"),
        ({"exchange": EXCHANGE, "sources": {"a": SOURCE | {"url": "http://x/resources/a"}}}, "without encryption"),
        ({"exchange": EXCHANGE, "sources": {"a": SOURCE | {"exchange": {}}}}, "what its tokens are for"),
        ({"exchange": EXCHANGE, "sources": {"a": SOURCE | {"exchange": {"audiance": "a"}}}}, "no key 'audiance'"),
        ({"exchange": EXCHANGE | {"url": "http://login.example.org/token"}}, "https://, or on loopback"),
        ({"exchange": EXCHANGE | {"url": "http://127.0.0.1.example.org/token"}}, "https://, or on loopback"),
        ({"exchange": EXCHANGE | {"url": "https://a:b@login.example.org/token"}}, "without a user"),
        ({"exchange": {"url": EXCHANGE["url"], "client_id": "lab"}}, "exchange.client_secret is missing"),
        ({"exchange": EXCHANGE | {"audience": "a"}}, "audience belongs to a source"),
        ({"exchange": EXCHANGE | {"client_secret": 4711}}, "client_secret must be text.$"),
        ({"exchange": EXCHANGE, "evaluators": ["http://127.0.0.1:1"]}, "can only use this process"),
    ],
)
def test_settings_that_cannot_be(keys: dict[str, Any], text: str) -> None:
    usual = {"callers": "exchange", "sources": {}}
    with pytest.raises(ConfigurationError, match=text) as error:
        federation_of(usual | keys, name="lab", where="federations.lab", served=TlsSettings())
    assert "planted" not in str(error.value)
