"""``/resources/{r}/perform``: documents, at once or as a job; and what queries share with them.

These come often: they take from the request what other operations have as dependencies, each of which costs FastAPI
some 15 µs to look up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import quote

from fastapi import APIRouter, Path, Query, Request
from pydantic import Field
from starlette.responses import Response

from dai.api.blocks.pulling import pulled_at_once
from dai.api.dependencies import resource_of
from dai.api.monitoring.access import Access
from dai.api.problems import PROBLEM, answers, header
from dai.api.requests.body import JSON, Body, takes
from dai.api.requests.head import listed, preferences
from dai.api.requests.negotiation import (
    DOCUMENT,
    best,
    format_of_name,
    media_types,
    names_a_format,
    not_acceptable,
    tabular,
)
from dai.api.requests.parameters import (
    Asked,
    BlockSize,
    FormatName,
    Text,
    Unsaid,
    block_rows,
)
from dai.api.requests.route import PullRoute
from dai.api.responses import JSONAnswer, answer
from dai.api.routes.jobs import JobDescription, described
from dai.api.scheduling.turns import Small
from dai.api.service import Service
from dai.api.streaming import WorkAnswer
from dai.api.work import Work
from dai.api.workers.moved import Moved
from dai.errors import (
    ConflictError,
    DataError,
    DocumentError,
    EncodingError,
    GoneError,
    LimitError,
    NotAcceptableError,
    NotAQueryError,
    NotFoundError,
    QuotaError,
    RequestError,
    SlowRequestError,
    StatementError,
    TooLargeError,
    UnsupportedMediaTypeError,
)
from dai.formats import Format
from dai.formats.compression import negotiate
from dai.formats.frames import MEDIA_TYPE as BLOCKS
from dai.perform.graph import GDS
from dai.perform.parser import DIALECTS, Perform, parse
from dai.perform.pipeline import Environment
from dai.perform.statuses import MEDIA_TYPE, processing
from dai.plugins import nearest
from dai.security.audit import digest
from dai.security.identity import Caller
from dai.service.limits import document_limits
from dai.service.resources import Resource
from dai.service.sessions import Session
from dai.service.state.store import Job
from dai.streams.cancellation import Cancellation


class DocumentRoute(PullRoute):
    dialect = GDS


router = APIRouter(route_class=DocumentRoute, prefix="/resources/{resource}", tags=["data"])
Parsed = TypeVar("Parsed")
PARSE_AT_ONCE = 1 << 16
"""Documents of more bytes are parsed in a thread."""
SESSION = "X-Dai-Session"
PROBLEMS = (
    NotFoundError,
    StatementError,
    NotAQueryError,
    DataError,
    EncodingError,
    NotAcceptableError,
    TooLargeError,
    UnsupportedMediaTypeError,
    LimitError,
    QuotaError,
    SlowRequestError,
)
TABULAR: dict[str, Any] = {media_type: {} for media_type in media_types().values()}
ACCEPTED = {
    "description": "The work goes on as a job, which the body describes: in JSON, or as a response document with "
    "status PROCESSING",
    "content": {DOCUMENT: {}, JSON: {"schema": JobDescription.model_json_schema()}},
    "headers": {"Location": header("the job")},
}


class Options(Asked):
    format: FormatName | Unsaid = Field(None, description="the form of the result, in place of Accept")
    blocksize: BlockSize | Unsaid = None
    session: Text | Unsaid = Field(None, description="the session to join")
    phase: Literal["RUN", "PENDING"] | Unsaid = Field(
        None, description="create a job; with PENDING it waits for PHASE=RUN"
    )
    label: Annotated[str, Field(max_length=200, description="what a job is called in lists")] | Unsaid = None


class PerformOptions(Options):
    pull: Text | Unsaid = Field(None, description="return the first blocks of this outputStream, as a pull does")
    output: Text | Unsaid = Field(None, description="return only this end point")


async def off_loop(service: Service, read: Callable[[], Parsed]) -> Parsed:
    return await asyncio.get_running_loop().run_in_executor(service.files, read)


@router.post(
    "/perform",
    summary="Run a perform document; its response, or one end point alone, is streamed",
    response_class=Response,
    responses=answers(
        *(DocumentError, ConflictError, GoneError, *PROBLEMS),
        media_types=(PROBLEM, DOCUMENT),
        ok={
            200: {
                "description": "The response document, the end point alone, or (?pull=) the first blocks of a stream",
                "content": {DOCUMENT: {}, **TABULAR, BLOCKS: {}, "*/*": {}},
                "headers": {SESSION: header("with ?pull=, the session of the stream")},
            },
            202: ACCEPTED,
            204: {"description": "With ?pull=: the stream has ended before its first block"},
            207: {
                "description": "Something failed before a result was delivered, something else was done: the response "
                "document, which says what, also with ?output=",
                "content": {DOCUMENT: {}},
            },
        },
    ),
    openapi_extra=takes({DOCUMENT: None, "text/xml": None, "application/octet-stream": None}),
)
async def post_perform(
    request: Request,
    resource: Annotated[Text, Path()],
    options: Annotated[PerformOptions, Query()],
) -> Response:
    service: Service = request.app.state.service
    access: Access = request.state.access
    target = resource_of(request, resource)
    accept = listed(request, "accept")
    began = time.perf_counter()
    limits = target.config.limits
    data = await Body(request).read(limits.document_bytes)
    if service.audit.on:
        access.document = digest(data)
    bounds, blocksize = document_limits(limits), block_rows(options.blocksize, limits.block_rows)
    dialect = next((each for each in DIALECTS if each.namespace.encode() in data[:4096]), GDS)
    request.state.dialect = dialect
    if len(data) <= PARSE_AT_ONCE:
        perform = parse(data, bounds)
    else:
        perform = await off_loop(service, lambda: parse(data, bounds))
    for name, line in perform.resources.items():
        if name != target.name:
            raise DocumentError(
                f"The document names the resource {name!r}, but it was sent to {target.name!r}.",
                line=line,
                element="dataResource",
                expected=target.name,
                hint=f"Send it to /resources/{quote(name)}/perform.",
            )
    target.check_document(perform.activities, access.caller)
    named = perform.session.id if perform.session is not None else None
    if named is not None and (worker := service.home_of(named, target.name)) is not None:
        return Moved(request, worker, data)
    queued = asynchronous(request, options)
    output, form = _chosen(options, None if queued else accept, perform)  # of a job, Accept is about the job itself
    access.stages["validate"] = time.perf_counter() - began
    pull = options.pull
    if pull is not None:
        _check_pulled(options, perform)
    job = queued or bool(perform.activities and not perform.end_points)
    awaited = not (job or pull is not None) and _awaited(options, perform, output)
    session = session_of(service, access, options, target, perform)
    if pull is not None or job:
        begun = await submitted(request, options, target, "perform", data, perform, session, blocksize)
        if pull is None:
            return job_answer(request, begun, perform, session)
        said = {"location": f"/jobs/{begun.id}", SESSION: session.id}
        return await pulled_at_once(request, session, session.find_output(pull), said)
    environment = Environment(
        target.driver, session, Cancellation(access.span), blocksize, service.scratch, target.config
    )
    work = Work(
        *(perform, environment, limits, access.id),
        output=output,
        form=form,
        accept=None if options.format else accept,
        coding=negotiate(listed(request, "accept-encoding")),
        awaited=awaited,
        turns=service.turns,
        statement=Small.key((target.name, target.database_user), data),
    )
    return WorkAnswer(request, work, session)


def _check_pulled(options: PerformOptions, perform: Perform) -> None:
    """NotFoundError where the document has no such stream to pull from; ConflictError beside what says otherwise."""
    names = [each.name for each in perform.activities if each.element == "outputStream"]
    if options.pull not in names:
        hint = nearest(str(options.pull), names) if names else "It has none."
        raise NotFoundError(f"The document has no outputStream {options.pull!r}.", hint=hint)
    others = [name for name in ("output", "format", "session", "phase") if getattr(options, name) is not None]
    if others or perform.session is not None:
        said = f"parameter {others[0]!r}" if others else "session of the document"
        raise ConflictError(
            f"The parameter 'pull' cannot be used together with the {said}.",
            hint="To pull blocks of a stream in another session, use GET /sessions/{session}/streams/{stream}/blocks.",
        )


def _chosen(options: PerformOptions, accept: str | None, perform: Perform) -> tuple[str | None, Format | None]:
    """Which end point alone (None: the response document), and in which format (None: its own)."""
    name, output = options.format, options.output
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
            hint = f"Possible: {', '.join(dict.fromkeys(offers))}."
            if len(alone) != 1:
                hint += " A single end point (?output=NAME) can come in other formats."
            error = not_acceptable(accept, offers)
            raise NotAcceptableError(error.detail, hint=hint)
        form = tabular(chosen, None)
    if len(alone) != 1:
        raise NotAcceptableError(
            f"The document has {len(alone)} tabular end points; a format needs exactly one.",
            hint="Name one with ?output=NAME.",
        )
    return alone[0], form


def _awaited(options: Options, perform: Perform, output: str | None) -> bool:
    """Whether a client needs the response's head to find the document's streams: they are in a session that it does not
    know yet. RequestError where there is no head."""
    streams = [each.name for each in perform.activities if each.element in ("inputStream", "outputStream")]
    joined = options.session or (perform.session is not None and perform.session.id is not None)
    if not streams or joined:
        return False
    if output is not None:
        raise RequestError(
            f"Nobody could find the stream {streams[0]!r}: the answer with one end point alone does not name the "
            "session.",
            hint="Make a session (POST /sessions) and send the document with ?session=ID; or ask for the response "
            "document.",
        )
    return True


def session_of(
    service: Service, access: Access, options: Options, resource: Resource, perform: Perform | None = None
) -> Session:
    session = _chosen_session(service, access.caller, options, perform)
    if session.explicit:
        access.session = session.id
    session.resources.add(resource.name)
    return session


def _chosen_session(service: Service, caller: Caller, options: Options, perform: Perform | None) -> Session:
    """The session of the request: the one it names, a new one where the document asks for it, or one of its own."""
    sessions, named = service.sessions, options.session
    wanted = perform.session if perform is not None else None
    if wanted is not None and wanted.id is not None:
        if named is not None and named != wanted.id:
            raise ConflictError(f"The address names the session {named!r}, but the document names {wanted.id!r}.")
        return sessions.get(wanted.id, caller)
    if named is not None:
        return sessions.get(named, caller)
    if wanted is not None:
        return sessions.create(wanted.timeout, owner=caller.name or None)
    return sessions.implicit(caller.name or None)


def asynchronous(request: Request, options: Options) -> bool:
    return options.phase is not None or "respond-async" in preferences(request)


def job_answer(request: Request, job: Job, perform: Perform, session: Session) -> Response:
    """The answer to a request that became a job."""
    headers = {"Location": f"/jobs/{job.id}"}
    if "respond-async" in preferences(request):
        headers["Preference-Applied"] = "respond-async"
    accept = listed(request, "accept")
    offers = [JSON, DOCUMENT] if job.kind == "query" else [DOCUMENT, JSON]
    if (best(accept, offers) or offers[0]) == JSON:
        return JSONAnswer(described(job), 202, headers)
    return answer(processing(perform, session.id, job.id), MEDIA_TYPE, 202, headers)


async def submitted(
    request: Request,
    options: Options,
    resource: Resource,
    kind: str,
    body: bytes,
    perform: Perform,
    session: Session,
    blocksize: int | None,
) -> Job:
    service: Service = request.app.state.service
    access: Access = request.state.access
    pending = options.phase == "PENDING"

    def submit() -> Job:
        return service.jobs.submit(
            *(resource.name, kind, body, perform, session),
            blocksize=blocksize,
            owner=access.caller.name or None,
            database_user=resource.database_user,
            pending=pending,
            span=access.span,
            label=options.label,
        )

    job = await service.in_control(submit)
    access.job = job.id
    return job
