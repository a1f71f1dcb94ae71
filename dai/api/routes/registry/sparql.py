"""``/registry/sparql``: the SPARQL 1.1 protocol, queries alone; and queries in RDQL."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from dai.api.dependencies import Accept, TheBody
from dai.api.problems import answers
from dai.api.requests.body import FORM, content_type, takes
from dai.api.requests.negotiation import best
from dai.api.requests.parameters import Asked, Text, fields, pairs
from dai.api.requests.route import Route
from dai.api.responses import answer
from dai.api.routes.registry.common import BODY, Book, Reading
from dai.errors import (
    DataError,
    DeniedError,
    LimitError,
    NotAcceptableError,
    NotFoundError,
    ParameterError,
    TooLargeError,
)
from dai.service.registry.sparql.process import SOLUTIONS, TRIPLES, check_length
from dai.service.registry.sparql.rdql import sparql

router = APIRouter(route_class=Route, prefix="/registry", tags=["registry"])
SPARQL, RDQL = "application/sparql-query", "application/rdql-query"
_REFUSED = (NotFoundError, DeniedError, ParameterError, LimitError, TooLargeError, NotAcceptableError)


class Asking(Asked):
    query: Text
    language: Literal["sparql", "rdql"] = "sparql"


async def _answered(book: Book, query: str, accept: str | None, *, rdql: bool) -> Response:
    check_length(query)
    query = await book.run(sparql, query) if rdql else query
    # what a query gives, solutions or triples, is known when it is read
    wanted, left = [], [*SOLUTIONS, *TRIPLES]
    while (first := best(accept, left) if accept else next(iter(left), None)) is not None:
        wanted.append(first)
        left.remove(first)
    await book.run(book.registry.settle)
    solution = await book.service.registry_queries.asked(query, book.caller, wanted)
    return answer(solution.body, solution.media_type)


@router.get(
    "/sparql",
    summary="The answer to a query in SPARQL 1.1 or RDQL",
    responses=answers(*_REFUSED, ok={200: {"content": {each: {} for each in (*SOLUTIONS, *TRIPLES)}}}),
    response_class=Response,
)
async def get_sparql(book: Reading, accept: Accept, asked: Annotated[Asking, Query()]) -> Response:
    return await _answered(book, asked.query, accept, rdql=asked.language == "rdql")


@router.post(
    "/sparql",
    summary="The answer to a long query, sent as the body or in a form",
    openapi_extra=takes({SPARQL: None, RDQL: None, FORM: Asking.model_json_schema()}),
    responses=answers(*_REFUSED, *BODY, ok={200: {"content": {each: {} for each in (*SOLUTIONS, *TRIPLES)}}}),
    response_class=Response,
)
async def post_sparql(request: Request, book: Reading, accept: Accept, body: TheBody) -> Response:
    data = await body.read()
    if content_type(request) == FORM:
        try:
            asked = fields(Asking, dict(pairs(data)))
            query, rdql = asked.query, asked.language == "rdql"
        except ValueError as error:
            raise DataError("The form cannot be read.") from error
    else:
        try:
            query, rdql = data.decode(), content_type(request) == RDQL
        except UnicodeDecodeError as error:
            raise DataError("The query is not UTF-8.") from error
    return await _answered(book, query, accept, rdql=rdql)
