"""deliverToSMTP: what arrives at a real server, who may write to whom, what is refused."""

import email
import email.policy
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from xml.sax.saxutils import escape

import pytest

from dai.config import DeliveryConfig, MailConfig
from dai.config import parse as configured
from dai.drivers.memory import Memory, Script
from dai.errors import (
    ConfigurationError,
    DaiError,
    DataError,
    DeniedError,
    LimitError,
    ParameterError,
    TruncatedError,
    UnreachableError,
)
from tests.activities.test_delivery import ROWS_AS_CSV, done, work_of
from tests.documents import table
from tests.servers.certificates import self_signed
from tests.servers.delivery import PASSWORD, USER, Cut, MailServer, mail_server


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return self_signed(tmp_path_factory.mktemp("mail"), "mail")


@pytest.fixture
def server() -> Iterator[MailServer]:
    with mail_server() as server:
        yield server


@pytest.fixture
def secure(certificate: Path) -> Iterator[MailServer]:
    with mail_server(certificate) as server:
        yield server


def mail(to: tuple[str, ...] = ("a@example.org",), sender: str = "dai@example.org", subject: str = "Rows") -> str:
    receivers = "".join(f"<to>{escape(each)}</to>" for each in to)
    rest = f"<from>{escape(sender)}</from><subject>{escape(subject)}</subject>"
    return f'<deliverToSMTP name="d"><fromLocal from="csv"/>{receivers}{rest}</deliverToSMTP>'


def allowing(server: MailServer, **more: object) -> DeliveryConfig:
    settings = MailConfig(
        host="127.0.0.1",
        port=server.port,
        tls="none",
        senders=("dai@example.org",),
        recipients=("@example.org", "x@y.org"),
    )
    return DeliveryConfig(private=True, silence=30.0, mail=replace(settings, **more))  # type: ignore[arg-type]


def test_a_mail_arrives(server):
    assert done(mail(("a@example.org", " X@Y.ORG ", "B.c@Example.org"), subject="Größe: 5 €"), allowing(server)) == []
    (content,) = server.messages
    message = email.message_from_bytes(content, policy=email.policy.default)
    assert server.recipients == [["a@example.org", "X@Y.ORG", "B.c@Example.org"]]
    assert message["Subject"] == "Größe: 5 €"
    assert message["From"] == "dai@example.org"
    assert message["To"] == "a@example.org, X@Y.ORG, B.c@Example.org"
    assert message.get_content_type() == "text/csv"
    assert message.get_payload(decode=True).decode() == ROWS_AS_CSV
    assert max(map(len, content.splitlines())) < 100


@pytest.mark.parametrize("rows", [0, 1, 2, 3, 7])
def test_contents_of_any_length(server, rows):
    with work_of(mail(), allowing(server), Memory({"q": Script(table(rows), batch_rows=1)})) as work:
        work.open().finish()
    (content,) = server.messages
    text = "id,name\r\n" + "".join(f"{n},name {n}\r\n" for n in range(rows))
    assert email.message_from_bytes(content).get_payload(decode=True).decode() == text


ADDRESSES = [
    "",
    "a",
    "a@",
    "@example.org",
    "a@b@example.org",
    "a@example.org\r\nRCPT TO:<x@evil.org>",
    "a b@example.org",
    "a@example.org,x@evil.org",
    "<a@example.org>",
    "a@example.org\nBcc: x@evil.org",
    "é@example.org",
    "a@exam\x85ple.org",
    "a" * 250 + "@example.org",
]


@pytest.mark.parametrize("address", ADDRESSES)
def test_what_is_no_address(server, address):
    for body in (mail((address,)), mail(sender=address)):
        with pytest.raises(ParameterError):
            done(body, allowing(server))
    assert server.messages == []


@pytest.mark.parametrize("subject", ["a\r\nBcc: x@evil.org", "a\nb", "a\tb", "a\x85b", "a\u2028b", "a" * 901])
def test_what_is_no_subject(server, subject):
    with pytest.raises(ParameterError, match="subject"):
        done(mail(subject=subject), allowing(server))
    assert server.messages == []


@pytest.mark.parametrize(
    "body",
    [
        mail(("a@example.org", "a@evil.org")),
        mail(("a@sub.example.org",)),
        mail(("z@y.org",)),
        mail(sender="other@example.org"),
        mail(sender="dai@example.org.evil.org"),
    ],
)
def test_who_may_write_to_whom(server, body):
    with pytest.raises(DeniedError, match="sends no mail"):
        done(body, allowing(server))
    assert server.messages == []


def test_no_mail_unless_the_operator_allows_it(server):
    with pytest.raises(DeniedError, match="sends no mail"):
        done(mail(), DeliveryConfig())
    with pytest.raises(DeniedError, match="sends no mail"):
        done(mail(), allowing(server, recipients=()))
    with pytest.raises(DeniedError, match="private address"):
        done(mail(), replace(allowing(server), private=False))


def test_a_refused_recipient_stops_it_for_all(server):
    with pytest.raises(DataError, match=r"the recipient nobody@example.org \(status 550\)"):
        done(mail(("a@example.org", "nobody@example.org")), allowing(server))
    assert server.messages == []


def test_a_mail_too_large(server):
    with pytest.raises(LimitError, match="at most 1,000 bytes"):
        done(mail(), allowing(server, bytes=1000))
    assert server.messages == []


def test_a_query_that_fails_sends_nothing(server):
    driver = Memory({"q": Script(table(10), batch_rows=1, fails=DataError("half-way"))})
    with work_of(mail(), allowing(server), driver) as work, pytest.raises(DataError, match="half-way"):
        work.open().finish()
    assert server.messages == []


def test_after_starttls_and_a_login(secure, certificate):
    config = allowing(secure, tls="starttls", host="localhost", user=USER, password=PASSWORD)
    done(mail(), replace(config, authorities=certificate))
    assert email.message_from_bytes(secure.messages[0]).get_payload(decode=True).decode() == ROWS_AS_CSV


@pytest.mark.parametrize(
    ("more", "trusted", "error"),
    [
        ({"tls": "starttls", "user": USER, "password": "wrong"}, True, DeniedError),
        ({"tls": "starttls", "user": USER, "password": PASSWORD}, False, UnreachableError),
        ({"tls": "starttls"}, True, DataError),
        ({"tls": "none"}, True, DataError),
    ],
)
def test_servers_that_want_more(secure, certificate, more, trusted, error):
    config = replace(allowing(secure, **more), authorities=certificate if trusted else None)
    with pytest.raises(error) as raised:
        done(mail(), config)
    assert not {"wrong", PASSWORD, USER} & set(str(raised.value).split())
    assert secure.messages == []


def test_a_server_without_starttls(server):
    with pytest.raises(DaiError, match="refuses TLS"):
        done(mail(), allowing(server, tls="starttls"))
    assert server.messages == []


def refusal(config: DeliveryConfig) -> DaiError:
    with pytest.raises(DaiError) as raised:
        done(mail(), config)
    return raised.value


def test_a_mail_larger_than_the_server_takes():
    with mail_server(most=100_000) as server:
        error = refusal(allowing(server))
        assert server.messages == []
    assert isinstance(error, DataError)
    assert "refuses the message (status 552)" in str(error)
    assert "too large for the mail server" in str(error.hint)


def test_a_certificate_that_does_not_hold(secure):
    error = refusal(allowing(secure, tls="starttls", user=USER, password=PASSWORD))
    assert (type(error), secure.messages) == (UnreachableError, [])
    assert "The certificate of '127.0.0.1' is not valid: self-signed certificate" in str(error)
    assert "authorities in [delivery]" in str(error.hint)


def test_a_server_that_wants_a_login(secure, certificate):
    error = refusal(replace(allowing(secure, tls="starttls"), authorities=certificate))
    assert "(status 530)" in str(error)
    assert "user and password in [delivery.mail]" in str(error.hint)


@pytest.mark.parametrize("after", [0, 100_000])
def test_a_server_that_breaks_off(server, after):
    with Cut(server.port, after) as cut:
        error = refusal(allowing(server, port=cut.port))
    assert isinstance(error, TruncatedError | UnreachableError)
    assert "'127.0.0.1'" in str(error)
    assert server.messages == []


def test_a_server_that_breaks_off_at_the_end(server):
    """Nobody knows whether the message was sent; it is not sent twice."""
    server.breaks_off = True
    error = refusal(allowing(server))
    assert (type(error), len(server.messages)) == (TruncatedError, 1)
    assert "may have arrived" in str(error.hint)


@pytest.mark.parametrize(
    ("section", "says"),
    [
        ({"mail": {}}, "must be a section with host"),
        ({"mail": "x"}, "must be a section with host"),
        ({"mail": {"host": "x", "tls": "maybe"}}, "tls must be one of"),
        ({"mail": {"host": "x", "tls": "none", "user": "y"}}, "needs TLS"),
        ({"mail": {"host": "x", "password": "env:NOT_SET"}}, "not set"),
        ({"accounts": {"a": {"user": "x"}}}, "needs url"),
        ({"accounts": {"a": {"url": "gopher://x"}}}, "not an address"),
        ({"accounts": {"a": "x"}}, "must be a section"),
    ],
)
def test_configuration(section, says, tmp_path):
    with pytest.raises(ConfigurationError, match=says):
        configured({"delivery": section}, tmp_path, {})


def test_passwords_come_from_the_environment_and_are_not_shown(tmp_path):
    section = {
        "mail": {"host": "x", "user": "u", "password": "env:MAIL"},
        "accounts": {"a": {"url": "sftp://h/", "user": "u", "password": "env:FILES"}},
    }
    config = configured({"delivery": section}, tmp_path, {"MAIL": "secret 1", "FILES": "secret 2"}).delivery
    assert config.mail is not None
    assert (config.mail.password, config.accounts["a"].password) == ("secret 1", "secret 2")
    assert "secret 1" not in repr(config)
    assert "secret 2" not in repr(config)
