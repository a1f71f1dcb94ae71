"""``/resources/{r}/perform`` and ``/query``: documents and statements, at once or as a job."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, TypeVar

from dai.api.calls.call import Call
from dai.api.calls.operations import Answer, Operation, Parameter
from dai.api.calls.replies import JSON, Reply, problem_reply
from dai.api.requests.negotiation import (
    DOCUMENT,
    best,
    format_of_name,
    media_types,
    names_a_format,
    not_acceptable,
    tabular,
)
from dai.api.scheduling.turns import Small
from dai.api.streaming import conduct
from dai.api.work import Work
from dai.errors import (
    ConflictError,
    DaiError,
    DataError,
    DocumentError,
    EncodingError,
    GoneError,
    LimitError,
    NotAcceptableError,
    NotAQueryError,
    NotFoundError,
    ParameterError,
    RequestError,
    StatementError,
    TooLargeError,
    UnsupportedMediaTypeError,
)
from dai.formats import FORMATS, Format
from dai.formats.compression import negotiate
from dai.formats.inline import tables_of
from dai.perform.graph import GDS, Dialect
from dai.perform.parser import DIALECTS, Perform, parse, query
from dai.perform.pipeline import Environment
from dai.perform.response import MEDIA_TYPE, processing
from dai.plugins import nearest
from dai.service.jobs import document_limits
from dai.service.sessions import Session
from dai.streams.cancellation import Cancellation

Parsed = TypeVar("Parsed")
PARSE_AT_ONCE = 1 << 16
"""Documents of more bytes are parsed in a thread."""
QUERY_BYTES = 4 << 20
_QUERY_MEMBERS = ("sql", "parameters", "tables", "blocksize")


async def post_query(call: Call) -> Reply | None:
    """One statement."""
    service = call.service
    began = time.perf_counter()
    resource = service.resources.named(call.path["resource"])
    limits = service.config.limits
    body = await call.body(QUERY_BYTES + limits.table_bytes * 4 // 3)

    def read() -> dict[str, Any]:
        return _checked_query(call.parsed(body), limits.block_rows)

    def made() -> Perform:
        tables = tables_of(asked, limits.table_bytes)
        if len(body) - sum(map(len, (asked.get("tables") or {}).values())) > QUERY_BYTES:
            raise TooLargeError(f"The body has more than {QUERY_BYTES:,} bytes besides the tables.")
        return query(asked["sql"], asked.get("parameters") or (), tables)

    large = len(body) > PARSE_AT_ONCE
    asked = await _off_loop(service, read) if large else read()
    # A few bytes of a table may be many rows.
    perform = await _off_loop(service, made) if large or asked.get("tables") else made()
    accept = call.header(b"accept")
    blocksize = asked.get("blocksize") or call.query.get("blocksize")
    if _asynchronous(call):
        return await _job(call, resource.name, "query", body, perform, None, blocksize)
    form = tabular(accept, call.query.get("format"))
    coding = negotiate(call.header(b"accept-encoding"))
    call.access.stages["validate"] = time.perf_counter() - began
    session = _session(call)
    environment = Environment(resource.driver, session, Cancellation(), blocksize, service.scratch)
    work = Work(
        perform,
        environment,
        service.config.limits,
        call.id,
        output="result",
        form=form,
        coding=coding,
        replace_invalid=call.query.get("invalidCharacters") == "replace",
        turns=service.turns,
        statement=Small.key(resource.name, asked["sql"].encode(errors="replace")),
    )
    if session.explicit:
        with session.request(environment.cancellation):
            await conduct(call, work)
    else:
        await conduct(call, work)
    return None


async def _off_loop(service: Any, read: Callable[[], Parsed]) -> Parsed:
    return await asyncio.get_running_loop().run_in_executor(service.files, read)


def _checked_query(asked: Any, most: int) -> dict[str, Any]:
    if not isinstance(asked, dict):
        raise DataError('The body must be a JSON object with the member "sql".')
    for name in asked:
        if name not in _QUERY_MEMBERS:
            raise ParameterError(f"A query has no member {name!r}.", hint=nearest(name, list(_QUERY_MEMBERS)))
    if not isinstance(sql := asked.get("sql"), str) or not sql.strip():
        raise ParameterError("'sql' must be text that is not empty.")
    if "\x00" in sql:
        raise ParameterError("'sql' holds the character U+0000.")
    parameters = asked.get("parameters")
    if parameters is not None and not isinstance(parameters, list):
        raise ParameterError("'parameters' must be a list.")
    for number, value in enumerate(parameters or (), 1):
        if value is not None and not isinstance(value, str | int | float):
            raise ParameterError(f"Parameter {number} must be a text, a number, true, false or null.")
    blocksize = asked.get("blocksize")
    if blocksize is not None and (
        not isinstance(blocksize, int) or isinstance(blocksize, bool) or not 1 <= blocksize <= most
    ):
        raise ParameterError(f"'blocksize' must be a whole number from 1 to {most:,}.")
    return asked


async def post_perform(call: Call) -> Reply | None:
    """A perform document."""
    dialect: Dialect = GDS
    try:
        service = call.service
        began = time.perf_counter()
        resource = service.resources.named(call.path["resource"])
        limits = service.config.limits
        body = await call.body(limits.document_bytes)
        bounds = document_limits(limits)
        dialect = next((each for each in DIALECTS if each.namespace.encode() in body[:4096]), GDS)
        if len(body) <= PARSE_AT_ONCE:
            perform = parse(body, bounds)
        else:
            perform = await _off_loop(service, lambda: parse(body, bounds))
        blocksize = call.query.get("blocksize")
        output, form = _chosen(call, perform)
        call.access.stages["validate"] = time.perf_counter() - began
        job = _asynchronous(call) or bool(perform.activities and not perform.end_points)
        awaited = not job and _awaited(call, perform, output)
        session = _session(call, perform)
        if job:
            return await _job(call, resource.name, "perform", body, perform, session, blocksize)
        environment = Environment(resource.driver, session, Cancellation(), blocksize, service.scratch)
        accept = None if call.query.get("format") else call.header(b"accept")
        coding = negotiate(call.header(b"accept-encoding"))
        work = Work(
            *(perform, environment, limits, call.id),
            output=output,
            form=form,
            accept=accept,
            coding=coding,
            awaited=awaited,
            turns=service.turns,
            statement=Small.key(resource.name, body),
        )
        try:
            with session.request(environment.cancellation, perform.activities) as request:
                await conduct(call, work)
                request.error = work.error
        finally:
            if perform.session is not None and perform.session.end:
                service.sessions.end(session)
        return None
    except DaiError as error:
        if call.status:
            raise
        return problem_reply(call, error, dialect)


def _chosen(call: Call, perform: Perform) -> tuple[str | None, Format | None]:
    """Which end point alone (None: the response document), and in which format (None: its own)."""
    accept, name = call.header(b"accept"), call.query.get("format")
    output = call.query.get("output")
    ends = {end.name: end for end in perform.end_points}
    if output is not None:
        if output not in ends:
            hint = nearest(output, list(ends)) if ends else "The document has no end point."
            raise NotFoundError(f"The document has no end point {output!r}.", hint=hint)
        if name is not None:
            return output, format_of_name(name)
        if not ends[output].tabular or not names_a_format(accept):
            return output, None
        if best(accept, [DOCUMENT]) and best(accept, list(media_types().values())) is None:
            # a WebRowSet is XML
            return output, format_of_name("webrowset")
        return output, tabular(accept, None)
    alone = [end.name for end in perform.end_points if end.tabular]
    if name is not None:
        form = format_of_name(name)
    else:
        known = media_types()
        offers = [DOCUMENT, *(known.values() if len(alone) == 1 else ())]
        chosen = best(accept, offers)
        if chosen == DOCUMENT or not perform.end_points:
            return None, None
        if chosen is None:
            hint = f"Possible: {', '.join(offers)}."
            if len(alone) != 1:
                hint += " One end point alone (?output=NAME) may have other forms."
            error = not_acceptable(accept, offers)
            raise NotAcceptableError(error.detail, hint=hint)
        form = tabular(chosen, None)
    if len(alone) != 1:
        raise NotAcceptableError(
            f"The document has {len(alone)} tabular end points; a format needs exactly one.",
            hint="Name one with ?output=NAME.",
        )
    return alone[0], form


def _awaited(call: Call, perform: Perform, output: str | None) -> bool:
    """Whether a client needs the response's head to find the document's streams: they are in a session that it does not
    know yet. RequestError where there is no head."""
    streams = [each.name for each in perform.activities if each.element in ("inputStream", "outputStream")]
    joined = call.query.get("session") or (perform.session is not None and perform.session.id is not None)
    if not streams or joined:
        return False
    if output is not None:
        raise RequestError(
            f"Nobody can reach the stream {streams[0]!r}: an end point alone does not say which session it is in.",
            hint="POST /sessions makes one; send the document with ?session=ID. Or ask for the response document.",
        )
    return True


def _session(call: Call, perform: Perform | None = None) -> Session:
    """The session of the request: the one it names, a new one where the document asks for it, or one of its own."""
    sessions = call.service.sessions
    asked = perform.session if perform is not None else None
    named = call.query.get("session")
    if asked is not None and asked.id is not None:
        if named is not None and named != asked.id:
            raise ConflictError(f"The address names session {named!r}, the document {asked.id!r}.")
        return sessions.get(asked.id)
    if named is not None:
        return sessions.get(named)
    if asked is not None:
        return sessions.create(asked.timeout)
    return sessions.implicit()


def _asynchronous(call: Call) -> bool:
    return call.query.get("phase") is not None or "respond-async" in call.preferences


async def _job(
    call: Call,
    resource: str,
    kind: str,
    body: bytes,
    perform: Perform,
    session: Session | None,
    blocksize: int | None,
) -> Reply:
    session = session or _session(call, perform)
    pending = call.query.get("phase") == "PENDING"

    def submit() -> Any:
        return call.service.jobs.submit(resource, kind, body, perform, session, blocksize=blocksize, pending=pending)

    job = await asyncio.get_running_loop().run_in_executor(call.service.control, submit)
    headers = {"Location": f"/jobs/{job.id}"}
    if "respond-async" in call.preferences:
        headers["Preference-Applied"] = "respond-async"
    return Reply(processing(perform, session.id, job.id), MEDIA_TYPE, 202, headers)


_FORMAT = Parameter("format", "the form of the result, in place of Accept", words=tuple(FORMATS))
_BLOCKSIZE = Parameter("blocksize", "rows a block where the document does not say", int, minimum=1, maximum=1_000_000)
_SESSION = Parameter("session", "the session to join")
_INVALID = Parameter(
    "invalidCharacters",
    "what becomes of characters that XML cannot carry, in a WebRowSet that is answered at once",
    words=("refuse", "replace"),
)
_PHASE = Parameter("phase", "makes a job; PENDING waits for PHASE=RUN", words=("RUN", "PENDING"))
_TABULAR: dict[str, Any] = dict.fromkeys(media_types().values())
_ACCEPTED = Answer(
    "Goes on as a job; the body is a response document with status PROCESSING",
    {DOCUMENT: None},
    {"Location": "the job"},
)
_PROBLEMS = (
    NotFoundError,
    StatementError,
    NotAQueryError,
    DataError,
    EncodingError,
    NotAcceptableError,
    TooLargeError,
    UnsupportedMediaTypeError,
    LimitError,
)

OPERATIONS = (
    Operation(
        "POST",
        "/resources/{resource}/query",
        post_query,
        "Run one query; its result is streamed, as Arrow unless Accept says otherwise",
        {200: Answer("The result", _TABULAR), 202: _ACCEPTED},
        parameters=(_FORMAT, _BLOCKSIZE, _SESSION, _PHASE, _INVALID),
        body={
            JSON: {
                "type": "object",
                "required": ["sql"],
                "additionalProperties": False,
                "properties": {
                    "sql": {"type": "string", "minLength": 1, "pattern": r"\S"},
                    "parameters": {
                        "type": ["array", "null"],
                        "items": {"type": ["string", "number", "boolean", "null"]},
                        "description": "values of the ? in the statement, by position",
                    },
                    "tables": {
                        "type": ["object", "null"],
                        "additionalProperties": {"type": "string", "contentEncoding": "base64"},
                        "description": "tables that this statement alone sees: by name, an Arrow IPC stream each",
                    },
                    "blocksize": {"type": ["integer", "null"], "minimum": 1, "maximum": 1_000_000},
                },
            }
        },
        problems=_PROBLEMS,
        tag="data",
    ),
    Operation(
        "POST",
        "/resources/{resource}/perform",
        post_perform,
        "Run a perform document; its response, or one end point alone, is streamed",
        {
            200: Answer("The response document, or the end point alone", {DOCUMENT: None, **_TABULAR, "*/*": None}),
            202: _ACCEPTED,
            207: Answer(
                "Something failed before a result was delivered, something else was done: the response document, which "
                "says what, also with ?output=",
                {DOCUMENT: None},
            ),
        },
        parameters=(Parameter("output", "this end point alone"), _FORMAT, _BLOCKSIZE, _SESSION, _PHASE),
        body={DOCUMENT: None, "text/xml": None, "application/octet-stream": None},
        problems=(DocumentError, ConflictError, GoneError, *_PROBLEMS),
        tag="data",
    ),
)
