"""``/jobs``: IVOA UWS 1.1 semantics over JSON; results with byte ranges."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from dai.api.calls.call import FORM, Call
from dai.api.calls.operations import Answer, Operation, Parameter
from dai.api.calls.replies import JSON, FileReply, Reply, json_reply
from dai.api.requests.negotiation import DOCUMENT, best, format_of_name, media_types, not_acceptable, tabular
from dai.errors import (
    ConflictError,
    DataError,
    EncodingError,
    GoneError,
    InternalError,
    LimitError,
    NotAcceptableError,
    NotFoundError,
    ParameterError,
    RangeError,
    TooLargeError,
    UnsupportedMediaTypeError,
)
from dai.formats import FORMATS, Format, format_named
from dai.perform.activity import FRAGMENT
from dai.service.jobs import MOVES, PENDING, STORED_FORM
from dai.service.store import Job

T = TypeVar("T")
MOST_WAIT = 60
FILE_PIECE = 1 << 20


async def _control(call: Call, function: Callable[..., T], *arguments: Any) -> T:
    return await asyncio.get_running_loop().run_in_executor(call.service.control, function, *arguments)


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


def _media_type(output: dict[str, Any]) -> str:
    return DOCUMENT if output["media_type"] == FRAGMENT else str(output["media_type"])


async def list_jobs(call: Call) -> Reply:
    phases = frozenset({call.query["phase"]} if "phase" in call.query else ())
    found = await _control(call, call.service.jobs.listed, phases, call.query.get("last", 1000))
    return json_reply({"jobs": [described(job) for job in found]})


async def get_job(call: Call) -> Reply:
    """Waits, where asked to, until the phase changes."""
    jobs, id = call.service.jobs, call.path["job"]
    loop = asyncio.get_running_loop()
    wait = call.query.get("wait", 0)
    deadline = loop.time() + wait
    changed = asyncio.Event()

    def notify() -> None:
        loop.call_soon_threadsafe(changed.set)

    with jobs.listening(id, notify):
        job = await _control(call, jobs.get, id)
        phase = job.phase
        while wait and job.phase == phase and phase in MOVES and phase != PENDING and loop.time() < deadline:
            try:
                async with asyncio.timeout_at(deadline):
                    await changed.wait()
            except TimeoutError:
                pass
            changed.clear()
            job = await _control(call, jobs.get, id)
    return json_reply(described(job))


async def post_phase(call: Call) -> Reply:
    asked = (await call.fields()).get("phase", "").upper()
    jobs, id = call.service.jobs, call.path["job"]
    if asked not in ("RUN", "ABORT"):
        raise ParameterError("PHASE must be RUN or ABORT.")
    job = await _control(call, jobs.run if asked == "RUN" else jobs.abort, id)
    return json_reply(described(job), headers={"Location": f"/jobs/{id}"})


async def post_destruction(call: Call) -> Reply:
    text = (await call.fields()).get("destruction", "")
    try:
        when = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise ParameterError("DESTRUCTION must be a time as in 2030-01-31T12:00:00Z.") from None
    if when.tzinfo is None:
        when = when.replace(tzinfo=datetime.UTC)
    try:
        seconds = when.timestamp()
    except (OverflowError, OSError, ValueError):
        raise ParameterError("DESTRUCTION is no time that can be kept.") from None
    return json_reply(described(await _control(call, call.service.jobs.set_destruction, call.path["job"], seconds)))


async def delete_job(call: Call) -> Reply:
    await _control(call, call.service.jobs.delete, call.path["job"])
    return Reply(status=204)


async def get_output(call: Call) -> FileReply:
    """As it is kept, or rendered once into a file beside that."""
    service, id = call.service, call.path["job"]
    job = await _control(call, service.jobs.get, id)
    output = service.jobs.output(job, call.path["output"])
    kept = service.results.path(id, output["file"])
    accept, name = call.header(b"accept"), call.query.get("format")
    if not output["tabular"]:
        media_type = _media_type(output)
        if name is not None and format_of_name(name).media_type != media_type:
            raise not_acceptable(name, [media_type])
        if name is None and best(accept, [media_type.partition(";")[0]]) is None:
            raise not_acceptable(accept, [media_type])
        return _file(call, kept, media_type, f"{id}-{output['file']}")
    if name is None and best(accept, list(media_types().values())) is None and best(accept, [DOCUMENT]):
        name = "webrowset"
    form = tabular(accept, name)
    blocksize = call.query.get("blocksize")
    if form.name == STORED_FORM and blocksize is None:
        return _file(call, kept, form.media_type, f"{id}-{output['file']}")
    return await asyncio.get_running_loop().run_in_executor(
        service.rendering, _rendered, call, id, output["file"], form, blocksize if form.binary else None
    )


def _file(call: Call, path: Path, media_type: str, etag: str) -> FileReply:
    try:
        return FileReply(call, path, media_type, etag)
    except FileNotFoundError as error:
        raise GoneError("The result was destroyed.") from error
    except OSError as error:
        raise InternalError("The result cannot be read.") from error


def _rendered(call: Call, id: str, index: int, form: Format, blocksize: int | None) -> FileReply:
    """Of blocks of a size that was asked for, the last file is kept."""
    results = call.service.results
    variant = form.name if blocksize is None else f"{form.name}-{blocksize}"
    path, kept = results.path(id, index, variant), results.path(id, index)
    with results.rendering(results.path(id, index, form.name)):
        if not path.exists():
            if blocksize is not None:
                results.remove_forms(id, index, f"{form.name}-*")
            try:
                file = kept.open("rb")
            except OSError as error:
                raise GoneError("The result was destroyed.") from error
            with file, results.writer(id, index, variant) as writer:
                chunks = iter(lambda: file.read(FILE_PIECE), b"")
                with format_named(STORED_FORM).decode(chunks) as stream:
                    for block in form.encode(stream, blocksize):
                        writer.write(block.data)
                writer.finish()
        return _file(call, path, form.media_type, f"{id}-{index}-{variant}")


_COUNTS = {"rows": {"type": "integer"}, "bytes": {"type": "integer"}, "seconds": {"type": "number"}}
_PART = {
    "type": "object",
    "description": "what a query over several databases has one of them do",
    "required": ["name", "state", "rows", "bytes", "seconds"],
    "properties": {
        "name": {"type": "string"},
        "state": {"type": "string", "enum": ["waiting", "running", "done", "failed", "stopped"]},
        **_COUNTS,
    },
}
_ACTIVITY = {
    "type": "object",
    "required": ["activity", "element", "status"],
    "properties": {
        **{name: {"type": "string"} for name in ("activity", "element", "status")},
        "blocks": {"type": "integer"},
        **_COUNTS,
        "error": {"type": ["object", "null"]},
        "parts": {"type": "array", "items": _PART},
    },
}
_JOB = {
    "type": "object",
    "required": ["id", "phase"],
    "properties": {"activities": {"type": "array", "items": _ACTIVITY}},
}
_WAIT = Parameter("wait", "seconds to hold the answer until the phase changes", int, minimum=0, maximum=MOST_WAIT)
_PHASES = ("PENDING", "QUEUED", "EXECUTING", "COMPLETED", "ERROR", "ABORTED")


def _fields(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {
        FORM: {"type": "object", "required": [name], "properties": {name: schema}},
        JSON: {"type": "object", "required": [name], "properties": {name: schema}},
    }


_BODY_PROBLEMS = (NotFoundError, ConflictError, DataError, TooLargeError, UnsupportedMediaTypeError)

OPERATIONS = (
    Operation(
        "GET",
        "/jobs",
        list_jobs,
        "The jobs, the newest first",
        {200: Answer("The jobs", {JSON: {"type": "object", "properties": {"jobs": {"items": _JOB}}}})},
        parameters=(
            Parameter("phase", "only those in this phase", words=_PHASES),
            Parameter("last", "only this many", int, minimum=1, maximum=10_000),
        ),
        tag="jobs",
    ),
    Operation(
        "GET",
        "/jobs/{job}",
        get_job,
        "One job: phase, times, progress of its activities, results",
        {200: Answer("The job", {JSON: _JOB})},
        parameters=(_WAIT,),
        problems=(NotFoundError,),
        tag="jobs",
    ),
    Operation(
        "DELETE",
        "/jobs/{job}",
        delete_job,
        "Stop a job, forget it and its results",
        {204: Answer("It is gone")},
        problems=(NotFoundError,),
        tag="jobs",
    ),
    Operation(
        "POST",
        "/jobs/{job}/phase",
        post_phase,
        "Run a pending job, or abort one",
        {200: Answer("The job", {JSON: _JOB}, {"Location": "the job"})},
        body=_fields("PHASE", {"type": "string", "enum": ["RUN", "ABORT"]}),
        problems=_BODY_PROBLEMS,
        tag="jobs",
    ),
    Operation(
        "POST",
        "/jobs/{job}/destruction",
        post_destruction,
        "Set the time at which the job and its results are destroyed",
        {200: Answer("The job", {JSON: _JOB})},
        body=_fields("DESTRUCTION", {"type": "string", "format": "date-time"}),
        problems=_BODY_PROBLEMS,
        tag="jobs",
    ),
    Operation(
        "GET",
        "/jobs/{job}/outputs/{output}",
        get_output,
        "One result of a completed job, in any form; supports byte ranges",
        {
            200: Answer("The result", {"*/*": None}, {"ETag": "of this form"}),
            206: Answer("The part that Range asked for", {"*/*": None}, {"Content-Range": "which part it is"}),
            304: Answer("The result has the ETag that was sent in If-None-Match"),
        },
        parameters=(
            Parameter("format", "the form of the result, in place of Accept", words=tuple(FORMATS)),
            Parameter("blocksize", "rows a block", int, minimum=1, maximum=1_000_000),
        ),
        problems=(NotFoundError, ConflictError, GoneError, NotAcceptableError, RangeError, LimitError, EncodingError),
        tag="jobs",
    ),
)
