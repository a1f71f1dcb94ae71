"""Keeps sessions between requests: their named streams, and the objects that drivers keep in them.

Every request belongs to a session. An implicit session is created for the request, and clients see it only if it has a
stream; it ends when the request has ended and its output streams have been read. Clients create and end explicit
sessions. Both kinds end when nobody has used them for their time-out. Then their streams are discarded, which stops the
work that fills them.

A session has attributes, and two kinds of named ``Mailbox``: outputs, from which clients pull, and inputs, into which
they push. A request declares its streams when it is accepted, so an undeclared name is an error at once. Drivers keep
things of their own in a session, such as the tables that were loaded into a federation.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import orjson

from dai.drivers import Kept
from dai.errors import BusyError, ConflictError, DaiError, GoneError, NotFoundError, ParameterError, TooLargeError
from dai.formats import FORMATS
from dai.perform.activity import Activity
from dai.perform.graph import takes_tuples
from dai.plugins import nearest
from dai.security.identity import Caller
from dai.service.identities import ALONE, Identities
from dai.streams.cancellation import Cancellation
from dai.streams.mailbox import Budget, Mailbox
from dai.streams.tally import Tally

STREAMS_A_SESSION = 1000
MOST_NAME = 200
"""Characters of the name of a stream."""
ATTRIBUTE_BYTES = 1 << 16
TUPLES = tuple(FORMATS[name].media_type for name in ("arrow", "webrowset"))
"""The forms of a pushed stream whose readers all take tuples."""
LINGER = 10.0
"""Seconds that a finished implicit session stays, so that a repeated call still learns that its stream has ended."""


class Session:
    """Implements ``dai.perform.activity.Sessions``; thread-safe."""

    def __init__(self, sessions: Sessions, timeout: float, explicit: bool) -> None:
        self.id = sessions.identities.new()
        self.timeout, self.explicit = timeout, explicit
        self.owner: str | None = None
        """The caller who made it; nobody in particular where it is None."""
        self.resources: set[str] = set()
        """Those whose documents ran in it."""
        self.created = time.time()
        self.ended = False
        self.budget = Budget(sessions.session_bytes, within=sessions.budget)
        """Counts the bytes in its streams and of blocks on their way to them."""
        self._sessions = sessions
        self._lock = threading.Lock()
        self._outputs: dict[str, Mailbox] = {}
        self._inputs: dict[str, Mailbox] = {}
        self.kept: dict[object, Any] = {}
        self._attributes = "{}"
        """As JSON: as values it may take twenty times as much."""
        self._requests: set[Request] = set()
        self._waiters = 0
        self._used = time.monotonic()

    def keep(self, key: object, create: Callable[[], Kept]) -> Kept:
        """The object that a driver keeps for the session by that key; closed when the session ends. GoneError if it has
        ended."""
        with self._lock:
            if self.ended:
                raise GoneError(f"Session {self.id} has ended.")
            value: Kept = self.kept.setdefault(key, create())
            return value

    @property
    def attributes(self) -> dict[str, Any]:
        """The values that clients keep in it: JSON values by their names."""
        return dict(orjson.loads(self._attributes))

    def change(self, attributes: Mapping[str, Any]) -> None:
        """Sets attributes; None removes one. TooLargeError where all of them need more than ATTRIBUTE_BYTES as JSON,
        ParameterError where JSON has no such value."""
        with self._lock:
            merged = {name: value for name, value in {**self.attributes, **attributes}.items() if value is not None}
            try:
                text = orjson.dumps(merged)
            except TypeError as error:
                raise ParameterError(f"The attributes cannot be kept as JSON: {error}.") from error
            if len(text) > ATTRIBUTE_BYTES:
                raise TooLargeError(f"The attributes of a session may have {ATTRIBUTE_BYTES:,} bytes.")
            self._attributes = text.decode()

    def touch(self) -> None:
        """Restarts the session's time-out."""
        self._used = time.monotonic()

    @property
    def idle(self) -> float:
        """Seconds since the last use."""
        return time.monotonic() - self._used

    @property
    def requests(self) -> int:
        """The number of running requests."""
        return len(self._requests)

    def output(self, name: str) -> Mailbox:
        """The mailbox from which a client pulls; created at its first use."""
        return self._stream(self._outputs, name)

    def input(self, name: str) -> Mailbox:
        """The mailbox into which a client pushes; created at its first use."""
        return self._stream(self._inputs, name)

    def find_output(self, name: str) -> Mailbox:
        """The output stream of that name. For an undeclared name, NotFoundError suggests the nearest one."""
        return self._mailbox("output", self._outputs, name)

    def find_input(self, name: str) -> Mailbox:
        """The input stream of that name. An explicit session without a running request creates it, because clients may
        push before they send the document. Otherwise an undeclared name is a NotFoundError."""
        if self.explicit and not self._requests:
            return self.input(name)
        return self._mailbox("input", self._inputs, name)

    def _mailbox(self, direction: str, streams: dict[str, Mailbox], name: str) -> Mailbox:
        if self.ended:
            raise GoneError(f"Session {self.id} has ended.")
        with self._lock:
            mailbox, names = streams.get(name), list(streams)
        if mailbox is None:
            hint = nearest(name, names) if names else f"The session has no {direction} stream."
            raise NotFoundError(f"Session {self.id} has no {direction} stream {name!r}.", hint=hint)
        return mailbox

    def streams(self) -> Iterator[tuple[str, str, Mailbox]]:
        """All streams: direction (``output`` or ``input``), name, mailbox."""
        with self._lock:
            outputs, inputs = dict(self._outputs), dict(self._inputs)
        for direction, mailboxes in (("output", outputs), ("input", inputs)):
            for name, mailbox in mailboxes.items():
                yield direction, name, mailbox

    @contextmanager
    def request(self, cancellation: Cancellation, activities: Collection[Activity] = ()) -> Iterator[Request]:
        """A context for a running request; creates the streams of its ``activities``. The end of the session cancels
        the request; the end of the request may end an implicit session.

        Output streams that were never written fail at the end, and an explicit session drops them, so that a corrected
        document may use their names again. Raises BusyError if there are too many streams or sessions.
        """
        request = Request(cancellation)
        with self._lock:
            self._requests.add(request)
            ended = self.ended
        if ended:
            cancellation.cancel(GoneError(f"Session {self.id} has ended."))
        self.touch()
        try:
            for each in activities:
                if each.element == "outputStream" and each.name not in self._outputs:
                    request.declared[each.name] = self.output(each.name)
                elif each.element == "inputStream":
                    mailbox = self.input(each.name)
                    if takes_tuples(each.outputs[0].link, activities):
                        mailbox.forms = TUPLES
            yield request
        except DaiError as error:
            request.error = request.error or error
            raise
        finally:
            self._withdraw(request)
            with self._lock:
                self._requests.discard(request)
            self.touch()
            self._sessions.settle(self)

    def _withdraw(self, request: Request) -> None:
        cause = request.error or GoneError("The request ended before it wrote this stream.")
        for name, mailbox in request.declared.items():
            if not mailbox.ended:
                mailbox.fail(cause)
            if self.explicit and not mailbox.expected and not mailbox.drained:
                with self._lock:
                    self._outputs.pop(name, None)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """A context for a client that waits for a stream, which keeps the session in use."""
        with self._lock:
            self._waiters += 1
        try:
            yield
        finally:
            with self._lock:
                self._waiters -= 1
            self.touch()

    def finished(self) -> bool:
        """Whether it is an implicit session that nobody needs any more."""
        if self.explicit or self._requests:
            return False
        if (self._outputs or self._inputs) and self.idle < min(LINGER, self.timeout):
            return False
        return all(mailbox.ended and not mailbox.held[0] for kind, _, mailbox in self.streams() if kind == "output")

    def expired(self) -> bool:
        """Whether it was not used for its time-out. A running request keeps it, unless the request waits for a
        client."""
        if self.idle < self.timeout or self._waiters:
            return False
        if not self._requests:
            return True
        return any(mailbox.full or direction == "input" for direction, _, mailbox in self.streams())

    def end(self, why: str) -> None:
        """Discards all streams and cancels the running requests, in the database too. Idempotent."""
        with self._lock:
            self.ended = True
            mailboxes = [*self._outputs.values(), *self._inputs.values()]
            requests = list(self._requests)
            values = list(self.kept.values())
            self.kept.clear()
        for each in values:
            each.close()
        for mailbox in mailboxes:
            mailbox.discard(GoneError(why))
        for request in requests:
            request.cancellation.cancel(GoneError(why))

    def _stream(self, streams: dict[str, Mailbox], name: str) -> Mailbox:
        with self._lock:
            if self.ended:
                raise GoneError(f"Session {self.id} has ended.")
            if (existing := streams.get(name)) is not None:
                return existing
            if len(name) > MOST_NAME:
                raise ParameterError(f"The name of a stream can have at most {MOST_NAME} characters.")
            if len(self._outputs) + len(self._inputs) >= STREAMS_A_SESSION:
                raise BusyError(
                    f"Session {self.id} already has {STREAMS_A_SESSION} streams, which is the limit.", retry_after=10
                )
            mailbox = streams[name] = Mailbox(capacity_bytes=self._sessions.stream_bytes, budget=self.budget)
        self._sessions.register(self)
        return mailbox


class Request:
    """A running request: the output streams that it ``declared``, and the ``error`` with which it ended."""

    def __init__(self, cancellation: Cancellation) -> None:
        self.cancellation = cancellation
        self.declared: dict[str, Mailbox] = {}
        self.error: DaiError | None = None


class Sessions:
    """The sessions of one service. Thread-safe. They end with the service, because their streams are unfinished work.

    One stream holds ``stream_bytes``, the streams of one session ``session_bytes``, those of all ``sessions_bytes``; a
    quarter of that is kept for pushed blocks that a reader waits for. An empty output stream takes one block whatever
    the others hold. ``count`` and ``held`` count the sessions and their bytes, in other processes of the service too.
    ``check`` raises where an owner who has so many sessions may have no more.
    """

    def __init__(
        self,
        limit: int,
        timeout: float,
        stream_bytes: int,
        session_bytes: int = 128 << 20,
        sessions_bytes: int = 512 << 20,
        *,
        identities: Identities = ALONE,
        count: Tally | None = None,
        held: Tally | None = None,
        check: Callable[[str, int], None] = lambda owner, count: None,
    ) -> None:
        self.limit, self.timeout, self.stream_bytes = limit, timeout, stream_bytes
        self.session_bytes = session_bytes
        self.budget = Budget(sessions_bytes - sessions_bytes // 4, awaited_limit=sessions_bytes, tally=held)
        self.identities = identities
        self._count, self._check = count or Tally(), check
        self._lock = threading.Lock()
        self._known: dict[str, Session] = {}

    def implicit(self, owner: str | None = None) -> Session:
        """A session for one request, which others see from its first stream on."""
        session = Session(self, self.timeout, explicit=False)
        session.owner = owner
        return session

    def create(
        self, timeout: float | None = None, attributes: Mapping[str, Any] | None = None, owner: str | None = None
    ) -> Session:
        """Creates an explicit session, which ends ``timeout`` seconds after its last use (at most the configured time,
        which is also the default). Raises BusyError if there are too many."""
        session = Session(self, self.timeout if timeout is None else timeout, explicit=True)
        session.owner = owner
        session.change(attributes or {})
        self.register(session)
        return session

    def register(self, session: Session) -> None:
        with self._lock:
            if session.id in self._known:
                return
            owned = sum(each.owner == session.owner for each in self._known.values())
            self._check(session.owner or "", owned)
            if not self._count.take(1, self.limit):
                raise BusyError(f"The service already has {self.limit} sessions, which is the limit.", retry_after=10)
            self._known[session.id] = session

    def get(self, id: str, caller: Caller | None = None) -> Session:
        """The session of that id; counts as a use. Raises NotFoundError if there is none any more, or none that the
        ``caller`` sees."""
        session = self._known.get(id)
        if session is None and not self.identities.owns(id):
            raise ConflictError(
                f"Session {id!r} is in another process of the service than this resource.",
                hint="POST /sessions makes a session that all resources can use.",
            )
        if session is None or session.ended or not (caller is None or caller.sees(session.owner, *session.resources)):
            raise NotFoundError(f"There is no session {id!r}; it may have ended.", hint="POST /sessions makes one.")
        session.touch()
        return session

    def all(self) -> list[Session]:
        with self._lock:
            return list(self._known.values())

    def open_streams(self) -> int:
        return sum(1 for session in self.all() for _ in session.streams())

    def end(self, session: Session, why: str = "The session was ended.") -> None:
        with self._lock:
            if self._known.pop(session.id, None) is not None:
                self._count.add(-1)
        session.end(why)

    def settle(self, session: Session) -> None:
        """Ends an implicit session that is finished."""
        if session.finished():
            self.end(session, "The session has ended: its request is done and its streams were read.")

    def reap(self) -> None:
        """Ends unused sessions; to be called regularly."""
        for session in self.all():
            if session.expired():
                self.end(session, f"The session was not used for {session.timeout:g} seconds and has ended.")
            else:
                self.settle(session)

    def close(self) -> None:
        for session in self.all():
            self.end(session, "The process of the service that kept this session is stopping.")
