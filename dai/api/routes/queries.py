"""``/resources/{r}/query``: one statement that reads, at once or as a job.

These come often: ``post_query`` takes from the request what other operations have as dependencies, each of which costs
FastAPI some 15 µs to look up."""

from __future__ import annotations

import time
from typing import Annotated, Any, Literal, get_args

import orjson
from fastapi import APIRouter, Path, Query, Request
from pydantic import AfterValidator, Field, WithJsonSchema
from starlette.responses import Response

from dai.api.dependencies import NamedResource, resource_of
from dai.api.monitoring.access import Access
from dai.api.problems import answers
from dai.api.requests.body import JSON, Body, takes
from dai.api.requests.head import listed
from dai.api.requests.negotiation import (
    tabular,
)
from dai.api.requests.parameters import (
    MOST_ROWS,
    WHOLE,
    Asked,
    Flag,
    FormatName,
    Text,
    Unsaid,
    block_rows,
    members,
    printable,
)
from dai.api.requests.route import PullRoute, Route
from dai.api.routes.perform import (
    ACCEPTED,
    PARSE_AT_ONCE,
    PROBLEMS,
    TABULAR,
    Options,
    asynchronous,
    job_answer,
    off_loop,
    session_of,
    submitted,
)
from dai.api.scheduling.turns import Small
from dai.api.service import Service
from dai.api.streaming import WorkAnswer
from dai.api.work import Work
from dai.drivers.sql.parameters import MOST_VALUES
from dai.errors import (
    ParameterError,
    TooLargeError,
)
from dai.formats.compression import negotiate
from dai.formats.inline import tables_of
from dai.perform.activities.sql.parameters import Converted
from dai.perform.parser import Perform, query
from dai.perform.pipeline import Environment
from dai.security.audit import digest
from dai.service.resources import Resource
from dai.streams.cancellation import Cancellation

router = APIRouter(route_class=Route, prefix="/resources/{resource}", tags=["data"])
frequent = APIRouter(route_class=PullRoute, prefix="/resources/{resource}", tags=["data"])
QUERY_BYTES = 4 << 20


class QueryOptions(Options):
    invalid_characters: Literal["refuse", "replace"] | Unsaid = Field(
        None,
        alias="invalidCharacters",
        description="characters that XML does not allow, in a synchronous WebRowSet: refuse or replace",
    )


_SCALARS = (str, bool, int, float, type(None))
_TYPES = tuple(each for each in get_args(Converted) if each != "null")
_SCALAR: dict[str, Any] = {
    "anyOf": [
        {"type": ["string", "number", "boolean", "null"]},
        {
            "type": "object",
            "properties": {"type": {"enum": [*_TYPES]}, "value": {"type": "string"}},
            "required": ["type", "value"],
            "additionalProperties": False,
            "description": "a value of a type that JSON does not have, written as in sqlParameter of a document",
        },
    ]
}
_VALUE: dict[str, Any] = {"anyOf": [*_SCALAR["anyOf"], {"type": "array", "items": _SCALAR}]}


def _values(sent: Any) -> Any:
    """By place or by name; pydantic's own union of both would say less of what is wrong."""
    if not isinstance(sent, list | dict | None):
        raise ValueError("an array of values, or an object with values by name")
    if len(sent or ()) > MOST_VALUES:
        raise ValueError(f"at most {MOST_VALUES:,} values")
    for place, value in sent.items() if isinstance(sent, dict) else enumerate(sent or (), 1):
        for each in value if isinstance(value, list) else (value,):
            if isinstance(each, dict):
                if each.keys() != {"type", "value"} or each["type"] not in _TYPES or type(each["value"]) is not str:
                    raise ValueError(
                        f'{{"type": …, "value": "…"}} for parameter {place}, the type one of {", ".join(_TYPES)}'
                    )
            elif not isinstance(each, _SCALARS):
                raise ValueError(f"a text, a number, true, false, null or a list of these for parameter {place}")
    return sent


_LIMIT = "the most rows; if there are more, the answer is 422, unless truncate is true"
_TRUNCATE = "true: if there are more rows than limit, return the first of them, with the header Truncated: true"


_NUMERIC = "decimal numbers as double, decimal, or text with all digits; default: as the database has them"
Numeric = Literal["double", "decimal", "text"]


class Statement(Asked, strict=True):
    sql: Annotated[str, Field(min_length=1, pattern=r"\S"), AfterValidator(printable)]
    parameters: Annotated[
        Any,
        AfterValidator(_values),
        WithJsonSchema(
            {
                "anyOf": [
                    {"type": "array", "items": _VALUE},
                    {"type": "object", "additionalProperties": _VALUE},
                    {"type": "null"},
                ],
                "description": "values of the ? in the statement, in order; or of each :name, by name. A list stands "
                "behind IN",
            }
        ),
    ] = None
    tables: Annotated[
        Any,
        WithJsonSchema(
            {
                "type": ["object", "null"],
                "additionalProperties": {"type": "string", "contentEncoding": "base64"},
                "description": "tables that this statement alone sees: by name, an Arrow IPC stream each",
            }
        ),
    ] = None
    blocksize: Annotated[int, Field(ge=1, le=MOST_ROWS)] | None = None
    limit: Annotated[int, Field(ge=1, le=MOST_ROWS, description=_LIMIT)] | None = None
    truncate: Annotated[bool, Field(description=_TRUNCATE)] = False
    numeric: Annotated[Numeric, Field(description=_NUMERIC)] | None = None


class QueryInAddress(Asked):
    """What a browser or curl asks."""

    sql: Annotated[str, Field(min_length=1, pattern=r"\S"), AfterValidator(printable)]
    parameters: Annotated[str, Field(description="the same as in a body: a JSON array or object")] | Unsaid = None
    limit: Annotated[int, Field(ge=1, le=MOST_ROWS, description=_LIMIT), WHOLE] | Unsaid = None
    truncate: Annotated[Flag, Field(description=_TRUNCATE)] = False
    numeric: Numeric | Unsaid = Field(None, description=_NUMERIC)
    format: FormatName | Unsaid = Field(None, description="the form of the result, in place of Accept")
    session: Text | Unsaid = Field(None, description="the session to join")


@frequent.post(
    "/query",
    summary="Run one query; its result is streamed, as Arrow unless Accept says otherwise",
    response_class=Response,
    responses=answers(*PROBLEMS, ok={200: {"description": "The result", "content": TABULAR}, 202: ACCEPTED}),
    openapi_extra=takes({JSON: Statement.model_json_schema()}),
)
async def post_query(
    request: Request,
    resource: Annotated[Text, Path()],
    options: Annotated[QueryOptions, Query()],
) -> Response:
    service: Service = request.app.state.service
    target = resource_of(request, resource)
    access: Access = request.state.access
    began = time.perf_counter()
    limits = target.config.limits
    data = await Body(request).read(QUERY_BYTES + limits.table_bytes * 4 // 3)
    if service.audit.on:
        access.document = digest(data)

    def prepared() -> Perform:
        tables = tables_of({"tables": statement.tables}, limits.table_bytes)
        if len(data) - sum(map(len, (statement.tables or {}).values())) > QUERY_BYTES:
            raise TooLargeError(f"The body has more than {QUERY_BYTES:,} bytes besides the tables.")
        return _query(statement, tables)

    large = len(data) > PARSE_AT_ONCE
    statement = await off_loop(service, lambda: members(Statement, data)) if large else members(Statement, data)
    blocksize = block_rows(statement.blocksize or options.blocksize, limits.block_rows)
    if statement.tables:  # before they are read
        target.policy.check("load", access.caller, "load tables for queries of")
    # A few bytes of a table may be many rows.
    perform = await off_loop(service, prepared) if large or statement.tables else prepared()
    target.check_document(perform.activities, access.caller)
    if asynchronous(request, options):
        session = session_of(service, access, options, target)
        job = await submitted(request, options, target, "query", data, perform, session, blocksize)
        return job_answer(request, job, perform, session)
    return _answered(request, target, options, statement, perform, blocksize, began)


@router.get(
    "/query",
    summary="Run one query that reads; its result is streamed, as a JSON array unless Accept says otherwise",
    response_class=Response,
    responses=answers(*PROBLEMS, ok={200: {"description": "The result", "content": TABULAR}}),
)
async def get_query(request: Request, resource: NamedResource, asked: Annotated[QueryInAddress, Query()]) -> Response:
    service: Service = request.app.state.service
    began = time.perf_counter()
    try:
        parameters = orjson.loads(asked.parameters) if asked.parameters is not None else None
    except ValueError as error:
        raise ParameterError(
            f"'parameters' is not JSON: {error}.", hint='It looks like parameters=[7,"a"] or parameters={"id":7}.'
        ) from error
    limits = {"limit": asked.limit, "truncate": asked.truncate, "numeric": asked.numeric}
    body = orjson.dumps({"sql": asked.sql, "parameters": parameters, **limits})
    statement = members(Statement, body)
    if service.audit.on:
        request.state.access.document = digest(body)
    perform = _query(statement)
    resource.check_document(perform.activities, request.state.access.caller)
    options = QueryOptions.model_validate({"format": asked.format, "session": asked.session})
    return _answered(request, resource, options, statement, perform, None, began, first="json-array")


def _answered(
    request: Request,
    target: Resource,
    options: QueryOptions,
    statement: Statement,
    perform: Perform,
    blocksize: int | None,
    began: float,
    first: str | None = None,
) -> Response:
    """The result of a query at once; ``first``: the form where several are as welcome."""
    service: Service = request.app.state.service
    access: Access = request.state.access
    form = tabular(listed(request, "accept"), options.format, first)
    coding = negotiate(listed(request, "accept-encoding"))
    access.stages["validate"] = time.perf_counter() - began
    session = session_of(service, access, options, target)
    environment = Environment(
        target.driver, session, Cancellation(access.span), blocksize, service.scratch, target.config
    )
    work = Work(
        *(perform, environment, target.config.limits, access.id),
        output="result",
        form=form,
        coding=coding,
        replace_invalid=options.invalid_characters == "replace",
        turns=service.turns,
        statement=Small.key((target.name, target.database_user), statement.sql.encode(errors="replace")),
    )
    return WorkAnswer(request, work, session if session.explicit else None)


def _query(statement: Statement, tables: Any = None) -> Perform:
    values = statement.parameters or ()
    limit, truncate, numeric = statement.limit, statement.truncate, statement.numeric
    return query(statement.sql, values, tables, limit=limit, truncate=truncate, numeric=numeric)
