"""Mail (RFC 5321): one message, whose content is sent as it comes, in base64."""

from __future__ import annotations

import re
import smtplib
from collections.abc import Iterator, Sequence
from email.headerregistry import Address as Mailbox
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import formatdate, make_msgid

from dai.config import DeliveryConfig, MailConfig
from dai.errors import DataError, DeniedError, LimitError, ParameterError, TruncatedError
from dai.perform.delivery.calls import Call, Replies, media_type_of, tls
from dai.streams.cancellation import Cancellation

_MAILBOX = re.compile(r"[\w.!#$%&'*+/=?^`{|}~-]+@[a-z0-9-]+(\.[a-z0-9-]+)*", re.ASCII | re.IGNORECASE)
_LINE = 57
"""Bytes that one line of base64 holds."""
MOST_RECIPIENTS = 100


def allowed(addresses: Sequence[str], patterns: Sequence[str], what: str) -> list[str]:
    """The addresses; DeniedError for one that the operator does not list, ParameterError for what is none."""
    mailboxes = [each.strip(" \t\r\n") for each in addresses]
    if not 1 <= len(mailboxes) <= MOST_RECIPIENTS:
        raise ParameterError(f"A mail must have 1 to {MOST_RECIPIENTS} recipients.")
    listed = {each.lower() for each in patterns}
    for each in mailboxes:
        if len(each) > 254 or not _MAILBOX.fullmatch(each):
            raise ParameterError(f"{each[:254]!r} is not a mail address.", hint="It looks like name@example.org.")
        if not {each.lower(), "@" + each.lower().rpartition("@")[2]} & listed:
            raise DeniedError(
                f"This service sends no mail {what} {each}.",
                hint="The operator of the service allows addresses with senders and recipients in [delivery.mail].",
            )
    return mailboxes


def head(sender: str, recipients: Sequence[str], subject: str, content: str) -> bytes:
    """The header of the message and the empty line after it."""
    subject = subject.strip(" \t\r\n")
    if len(subject) > 900 or not subject.isprintable():
        raise ParameterError("A subject must be one line of at most 900 printable characters.")
    message = EmailMessage(SMTP)
    message["From"] = Mailbox(addr_spec=sender)
    message["To"] = [Mailbox(addr_spec=each) for each in recipients]
    message["Subject"] = subject
    message["Date"] = formatdate(usegmt=True)
    message["Message-ID"] = make_msgid(domain=sender.rpartition("@")[2])
    message["MIME-Version"] = "1.0"
    content = media_type_of(content if not content.startswith("multipart/") else None)
    if content.startswith("text/") and "charset" not in content:
        content += "; charset=utf-8"
    message["Content-Type"] = content
    message["Content-Transfer-Encoding"] = "base64"
    return message.as_bytes()


def body(blocks: Iterator[bytes], most: int) -> Iterator[bytes]:
    """The blocks as lines of base64, of which none begins with a full stop."""
    from binascii import b2a_base64

    rest, size = b"", 0
    for block in blocks:
        size += len(block)
        if size > most:
            raise LimitError(f"A mail can have at most {most:,} bytes.", limit="delivery.mail.bytes")
        data = rest + block
        whole = len(data) - len(data) % _LINE
        rest = data[whole:]
        lines = (b2a_base64(data[at : at + _LINE], newline=False) for at in range(0, whole, _LINE))
        if text := b"\r\n".join(lines):
            yield text + b"\r\n"
    if rest:
        yield b2a_base64(rest, newline=False) + b"\r\n"


def send(
    sender: str,
    to: Sequence[str],
    subject: str,
    blocks: Iterator[bytes],
    content: str,
    config: DeliveryConfig,
    cancellation: Cancellation,
) -> None:
    """One message to all recipients; none gets it if one is refused, or if the blocks end early."""
    mail = config.mail
    if mail is None:
        raise DeniedError(
            "This service sends no mail.", hint="The operator of the service allows it with [delivery.mail]."
        )
    (sender,) = allowed([sender], mail.senders, "from")
    recipients = allowed(to, mail.recipients, "to")
    header = head(sender, recipients, subject, content)
    errors = (smtplib.SMTPServerDisconnected,)
    with Call(mail.host, config, cancellation, errors) as call, call.translated():
        session = smtplib.SMTP(local_hostname="localhost")
        try:
            _begin(session, call, mail)
            _accepted(session.mail(sender), "the sender")
            for each in recipients:
                _accepted(session.rcpt(each), f"the recipient {each}")
            _accepted(session.docmd("DATA"), "the message", 354)
            assert session.sock is not None  # connected above
            session.sock.sendall(header)
            for text in body(blocks, mail.bytes):
                session.sock.sendall(text)
            call.check()
            _accepted(_end(session, mail), "the message")
        finally:
            session.close()


def _begin(session: smtplib.SMTP, call: Call, mail: MailConfig) -> None:
    session.sock = call.connect(mail.port)
    if mail.tls == "tls":
        session.sock = tls(call.config).wrap_socket(session.sock, server_hostname=mail.host)
    session.file = Replies(session.sock.makefile("rb"), mail.host)
    _accepted(session.getreply(), "the connection")
    _accepted(session.ehlo(), "the greeting")
    if mail.tls == "starttls":
        _accepted(session.docmd("STARTTLS"), "TLS")
        session.sock = tls(call.config).wrap_socket(session.sock, server_hostname=mail.host)
        # what came before the handshake is nobody's
        session.file = Replies(session.sock.makefile("rb"), mail.host)
        _accepted(session.ehlo(), "the greeting")
    if mail.user:
        try:
            session.login(mail.user, mail.password or "")
        except smtplib.SMTPServerDisconnected:
            raise
        except smtplib.SMTPException as error:
            raise DeniedError("The mail server refuses the credentials of this service.") from error


def _end(session: smtplib.SMTP, mail: MailConfig) -> tuple[int, bytes]:
    """The reply to the end of the message, which nothing takes back."""
    try:
        return session.docmd(".")
    except (smtplib.SMTPServerDisconnected, OSError) as error:
        raise TruncatedError(
            f"{mail.host!r} broke off before it said whether it takes the message.",
            hint="The message may have arrived: ask its recipients before you run the document again.",
        ) from error


_HINTS = {
    530: "The operator of the service must set user and password in [delivery.mail].",
    552: "The message is too large for the mail server: deliver it in another way, such as deliverToURL.",
}


def _accepted(reply: tuple[int, bytes], what: str, code: int = 2) -> None:
    status = reply[0]
    if status != code and status // 100 != code:
        later = "The server may take it later: run the document again." if 400 <= status < 500 else None
        raise DataError(f"The mail server refuses {what} (status {status}).", hint=_HINTS.get(status, later))
