"""``/registry/uddi``: UDDI version 2 over SOAP 1.1, for programs that speak it."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Path, Request
from starlette.responses import Response

from dai.api.dependencies import TheBody
from dai.api.problems import answers
from dai.api.requests.body import takes
from dai.api.requests.route import Route
from dai.api.responses import answer
from dai.api.routes.registry.common import BODY, Reading
from dai.errors import DeniedError, NotFoundError, SlowRequestError
from dai.service.registry.uddi.elements import xml_schema
from dai.service.registry.uddi.service import answer as answered
from dai.service.registry.uddi.types import PORTS

XML = "text/xml"
MOST = 4 << 20
Part = Annotated[Literal["inquiry", "publication"], Path()]
router = APIRouter(route_class=Route, prefix="/registry", tags=["registry"])


@router.get(
    "/uddi/xml.xsd",
    summary="The schema of xml:lang, which the WSDLs import",
    response_class=Response,
    responses=answers(NotFoundError, DeniedError, ok={200: {"content": {XML: {}}}}),
)
async def get_uddi_schema(book: Reading) -> Response:
    return answer(xml_schema(), XML)


@router.get(
    "/uddi/{part}",
    summary="The WSDL of UDDI v2",
    response_class=Response,
    responses=answers(NotFoundError, DeniedError, ok={200: {"content": {XML: {}}}}),
)
async def get_uddi_wsdl(request: Request, book: Reading, part: Part) -> Response:
    return answer(PORTS[part].wsdl(str(request.url.replace(query=""))), XML)


@router.post(
    "/uddi/{part}",
    summary="An operation of UDDI v2",
    response_class=Response,
    responses=answers(
        *(NotFoundError, DeniedError, SlowRequestError, *BODY),
        ok={200: {"content": {XML: {}}}, 500: {"description": "A SOAP fault", "content": {XML: {}}}},
    ),
    openapi_extra=takes({XML: None}),
)
async def post_uddi(book: Reading, part: Part, body: TheBody) -> Response:
    status, message = await answered(book, part, await body.read(MOST), MOST)
    return answer(message, f"{XML}; charset=utf-8", status)
