"""``/jobs``: IVOA UWS 1.1 semantics over JSON; results with byte ranges."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema
from starlette.responses import Response, StreamingResponse

from dai.api.dependencies import Accept, TheBody, TheCaller, TheService
from dai.api.problems import answers, header
from dai.api.requests.body import FORM, JSON, takes
from dai.api.requests.negotiation import DOCUMENT, best, format_of_name, media_types, not_acceptable, tabular
from dai.api.requests.parameters import WHOLE, Asked, BlockSize, FormatName, Text, Unsaid, block_rows
from dai.api.requests.route import Route
from dai.api.responses import FILE_PIECE, JSONAnswer, KeptFile, answer
from dai.api.service import Service
from dai.api.streaming import Follower
from dai.drivers import Part as PartOfQuery
from dai.drivers import share_of
from dai.errors import (
    ConflictError,
    DataError,
    DeniedError,
    EncodingError,
    GoneError,
    InternalError,
    LimitError,
    NotAcceptableError,
    NotFoundError,
    PreconditionError,
    QuotaError,
    RangeError,
    SlowRequestError,
    TooLargeError,
    UnsupportedMediaTypeError,
)
from dai.formats import Format, format_named, status
from dai.perform.activity import FRAGMENT
from dai.perform.parser import Perform
from dai.service.jobs.execution import STORED_FORM
from dai.service.jobs.phases import EXECUTING, PENDING
from dai.service.state.store import Job

router = APIRouter(route_class=Route, prefix="/jobs", tags=["jobs"])
MOST_WAIT = 60
_BODY_PROBLEMS = (
    NotFoundError,
    ConflictError,
    DataError,
    TooLargeError,
    UnsupportedMediaTypeError,
    SlowRequestError,
)


class Counts(BaseModel):
    model_config = ConfigDict(extra="allow")

    rows: int | Unsaid = None
    bytes: int | Unsaid = None
    seconds: float | Unsaid = None


class Part(Counts):
    """What a query over several databases has one of them do."""

    name: str
    state: Literal["waiting", "running", "done", "failed", "stopped"]
    expected: int | None = None


class Activity(Counts):
    activity: str
    element: str
    status: str
    blocks: int | Unsaid = None
    error: dict[str, Any] | None = None
    parts: list[Part] | Unsaid = None


class JobDescription(BaseModel):
    """A job."""

    model_config = ConfigDict(extra="allow")

    id: str
    phase: str
    label: str | None = None
    sql: str | None = Field(None, description="the beginning of its first statement")
    progress: float | None = Field(None, description="from 0 to 1, about, where it is known")
    activities: list[Activity] | Unsaid = None


class JobList(BaseModel):
    jobs: list[JobDescription]


class Listing(Asked):
    phase: Literal["PENDING", "QUEUED", "EXECUTING", "COMPLETED", "ERROR", "ABORTED"] | Unsaid = Field(
        None, description="only those in this phase"
    )
    last: Annotated[int, Field(ge=1, le=10_000, description="only this many"), WHOLE] = 1000


class Waiting(Asked):
    wait: Annotated[
        int, Field(ge=0, le=MOST_WAIT, description="seconds to hold the answer until the phase changes"), WHOLE
    ] = 0
    every: Annotated[
        int, Field(ge=1, le=MOST_WAIT, description="seconds between the items of a sequence, while the job runs"), WHOLE
    ] = 5


class OutputForm(Asked):
    format: FormatName | Unsaid = Field(None, description="the form of the result, in place of Accept")
    blocksize: BlockSize | Unsaid = None


class PhaseChange(Asked):
    phase: Annotated[Literal["RUN", "ABORT"], BeforeValidator(str.upper)] = Field(alias="PHASE")


def _moment_of(text: str) -> float:
    """Seconds of a time such as 2030-01-31T12:00:00Z, in UTC if it has no time zone."""
    try:
        when = datetime.datetime.fromisoformat(text)
        # in UTC it may be beyond the years that there are, and could not be told
        return (when if when.tzinfo else when.replace(tzinfo=datetime.UTC)).astimezone(datetime.UTC).timestamp()
    except (OverflowError, OSError, ValueError):
        raise ValueError("a time as in 2030-01-31T12:00:00Z") from None


class DestructionChange(Asked):
    seconds: Annotated[
        float, BeforeValidator(_moment_of), WithJsonSchema({"type": "string", "format": "date-time"})
    ] = Field(alias="DESTRUCTION")


def _form(model: type[Asked]) -> dict[str, Any]:
    schema = model.model_json_schema()
    return takes({FORM: schema, JSON: schema})


def _moment(seconds: float | None) -> str | None:
    if seconds is None:
        return None
    moment = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def described(job: Job) -> dict[str, Any]:
    """What clients see of a job."""
    return {
        "id": job.id,
        "phase": job.phase,
        "resource": job.resource,
        "session": job.session,
        "owner": job.owner,
        "label": job.label,
        "sql": job.beginning,
        "progress": _progress(job),
        "created": _moment(job.created),
        "started": _moment(job.started),
        "ended": _moment(job.ended),
        "destruction": _moment(job.destruction),
        "activities": job.activities,
        "outputs": [
            {
                "name": each["name"],
                "href": f"/jobs/{job.id}/outputs/{each['name']}",
                "media_type": _media_type(each),
                "tabular": each["tabular"],
                "rows": each["rows"],
                "bytes": each["bytes"],
            }
            for each in job.outputs
        ],
        "error": job.error,
    }


def _progress(job: Job) -> float | None:
    """From 0 to 1, about; None where it is unknown."""
    if job.phase == "COMPLETED":
        return 1.0
    parts = [part for each in job.activities for part in each.get("parts") or ()]
    share = share_of([PartOfQuery(**each) for each in parts])
    return None if share is None else round(min(share, 0.99), 3)


def _status(job: Job) -> bytes:
    return status.packed(job.phase, job.started, job.ended, job.activities, _progress(job))


def _media_type(output: dict[str, Any]) -> str:
    return DOCUMENT if output["media_type"] == FRAGMENT else str(output["media_type"])


@router.get("", summary="The jobs, the newest first", response_model=JobList, responses=answers())
async def list_jobs(service: TheService, caller: TheCaller, options: Annotated[Listing, Query()]) -> Response:
    phases = frozenset({options.phase} if options.phase else ())
    jobs = await service.in_control(
        service.jobs.listed, phases, options.last, None if caller.administrator else caller.name
    )
    jobs = [each for each in jobs if caller.may_ask(each.resource)]
    progress = await service.progress() if any(job.phase == EXECUTING for job in jobs) else {}
    for number, job in enumerate(jobs):
        if job.phase == EXECUTING and job.id in progress:
            jobs[number] = dataclasses.replace(job, activities=progress[job.id])
    return JSONAnswer({"jobs": [described(job) for job in jobs]})


@router.get(
    "/{job}",
    summary="One job: phase, times, progress of its activities, results",
    response_model=JobDescription,
    responses=answers(NotFoundError, ok={200: {"content": {status.MEDIA_TYPE: {}, status.SEQUENCE: {}}}}),
)
async def get_job(
    service: TheService, caller: TheCaller, accept: Accept, job: Text, options: Annotated[Waiting, Query()]
) -> Response:
    """Waits, where asked to, until the phase changes. In few bytes to whoever prefers that; as a sequence: at each
    change of the phase, and as often as every=, until the job has ended."""
    form = best(accept, (JSON, status.MEDIA_TYPE, status.SEQUENCE))
    follower = Follower(service, caller, job)
    known = await follower.job()
    if form == status.SEQUENCE:
        return StreamingResponse(follower.items(known, _status, options.every), media_type=status.SEQUENCE)
    if options.wait and known.phase != PENDING:
        known = await follower.moved(known, options.wait)
    if form == status.MEDIA_TYPE:
        return answer(_status(known), status.MEDIA_TYPE)
    return JSONAnswer(described(known))


@router.delete(
    "/{job}", summary="Stop a job, and delete it with its results", status_code=204, responses=answers(NotFoundError)
)
async def delete_job(service: TheService, caller: TheCaller, job: Text) -> Response:
    await service.in_control(service.jobs.get, job, caller)
    await service.in_control(service.jobs.delete, job)
    return Response(status_code=204)


@router.post(
    "/{job}/phase",
    summary="Run a pending job, or abort one",
    response_model=JobDescription,
    responses=answers(*_BODY_PROBLEMS, ok={200: {"headers": {"Location": header("the job")}}}),
    openapi_extra=_form(PhaseChange),
)
async def post_phase(service: TheService, caller: TheCaller, job: Text, body: TheBody) -> Response:
    change = await body.fields(PhaseChange)
    await service.in_control(service.jobs.get, job, caller)

    def allowed(known: Job, perform: Perform) -> None:
        """The policy and the role map may be others than when the job was made."""
        resource = service.resources.named(known.resource)
        resource.policy.check("read", caller, "read")
        seen = resource.of(caller) if (known.owner or "") == caller.name else resource.by(known.database_user)
        if resource.callers is not None and seen.database_user != known.database_user:
            raise DeniedError(
                "The job was made with other credentials than yours now, and its federation passes credentials on.",
                hint="Send the document again.",
            )
        if resource.users is not None and seen.database_user != known.database_user:
            raise DeniedError(
                f"Since the job was made, the role map of the resource {resource.name!r} maps you to another user.",
                hint="Send the document again.",
            )
        resource.check_document(perform.activities, caller)

    if change.phase == "RUN":
        known = await service.in_control(service.jobs.run, job, allowed)
    else:
        known = await service.in_control(service.jobs.abort, job)
    return JSONAnswer(described(known), headers={"Location": f"/jobs/{job}"})


@router.post(
    "/{job}/destruction",
    summary="Set the time at which the job and its results are destroyed",
    response_model=JobDescription,
    responses=answers(*_BODY_PROBLEMS),
    openapi_extra=_form(DestructionChange),
)
async def post_destruction(service: TheService, caller: TheCaller, job: Text, body: TheBody) -> Response:
    change = await body.fields(DestructionChange)
    await service.in_control(service.jobs.get, job, caller)
    return JSONAnswer(described(await service.in_control(service.jobs.set_destruction, job, change.seconds)))


@router.get(
    "/{job}/outputs/{output}",
    summary="One result of a completed job, in any form; supports byte ranges",
    response_class=Response,
    responses=answers(
        *(NotFoundError, ConflictError, GoneError, NotAcceptableError, PreconditionError),
        *(RangeError, LimitError, QuotaError, EncodingError),
        ok={
            200: {"description": "The result", "content": {"*/*": {}}, "headers": {"ETag": header("of this form")}},
            206: {
                "description": "The part that Range asked for",
                "content": {"*/*": {}},
                "headers": {"Content-Range": header("which part it is")},
            },
            304: {"description": "The result has the ETag that was sent in If-None-Match"},
        },
    ),
)
async def get_output(
    request: Request,
    service: TheService,
    caller: TheCaller,
    accept: Accept,
    job: Text,
    output: Text,
    options: Annotated[OutputForm, Query()],
) -> Response:
    """As it is kept, or rendered once into a file beside that."""
    known = await service.in_control(service.jobs.get, job, caller)
    result = service.jobs.output(known, output)
    stored, etag = service.results.path(job, result["file"]), f"{job}-{result['file']}"
    name = options.format
    if not result["tabular"]:
        media_type = _media_type(result)
        if name is not None and format_of_name(name).media_type != media_type:
            raise not_acceptable(name, [media_type])
        if name is None and best(accept, [media_type.partition(";")[0]]) is None:
            raise not_acceptable(accept, [media_type])
        return _file(request, stored, media_type, etag)
    if name is None and best(accept, list(media_types().values())) is None and best(accept, [DOCUMENT]):
        name = "webrowset"
    form = tabular(accept, name)
    if form.name == STORED_FORM and options.blocksize is None:
        return _file(request, stored, form.media_type, etag)
    blocksize = block_rows(options.blocksize, service.config.limits.block_rows) if form.binary else None
    return await asyncio.get_running_loop().run_in_executor(
        service.rendering, _rendered, request, service, known, result["file"], form, blocksize
    )


def _file(request: Request, path: Path, media_type: str, etag: str) -> KeptFile:
    try:
        return KeptFile(request, path, media_type, etag)
    except FileNotFoundError as error:
        raise GoneError("The result was destroyed.") from error
    except OSError as error:
        raise InternalError("The result cannot be read.") from error


def _rendered(
    request: Request, service: Service, job: Job, index: int, form: Format, blocksize: int | None
) -> KeptFile:
    """Of blocks of a size that was asked for, the last file is kept. What it takes counts as its owner's."""
    results, id = service.results, job.id
    variant = form.name if blocksize is None else f"{form.name}-{blocksize}"
    path, stored = results.path(id, index, variant), results.path(id, index)
    with results.rendering(results.path(id, index, form.name)):
        if not path.exists():
            if blocksize is not None:
                results.remove_forms(id, index, f"{form.name}-*")
                service.jobs.count_forms(id)
            try:
                file = stored.open("rb")
            except OSError as error:
                raise GoneError("The result was destroyed.") from error
            quota = service.quotas.storing(job.owner or "")
            with file, quota as check, results.writer(id, index, variant) as writer:
                chunks = iter(lambda: file.read(FILE_PIECE), b"")
                with format_named(STORED_FORM).decode(chunks) as stream:
                    for block in form.encode(stream, blocksize):
                        check(writer.written + len(block))
                        writer.write(block.data)
                writer.finish()
            service.jobs.count_forms(id)
        return _file(request, path, form.media_type, f"{id}-{index}-{variant}")
