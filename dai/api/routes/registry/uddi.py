"""``/registry/uddi``: UDDI version 2, metadata, WSDL documents and queries over SOAP 1.1, for programs of then."""

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
from dai.service.registry.metadata import service as metadata_service
from dai.service.registry.metadata import types as metadata
from dai.service.registry.uddi import service as uddi_service
from dai.service.registry.uddi import types as uddi
from dai.service.registry.uddi.elements import xml_schema

XML = "text/xml"
MOST = 4 << 20
Part = Annotated[Literal["inquiry", "publication", "metadata", "wsdl", "rdf"], Path()]
_PORTS = {**uddi.PORTS, **metadata.PORTS}
router = APIRouter(route_class=Route, prefix="/registry", tags=["registry"])


@router.get(
    "/uddi/schemas/xml.xsd",
    summary="The schema of xml:lang, which the WSDLs import",
    response_class=Response,
    responses=answers(NotFoundError, DeniedError, ok={200: {"content": {XML: {}}}}),
)
async def get_uddi_schema(book: Reading) -> Response:
    return answer(xml_schema(), XML)


@router.get(
    "/uddi/{part}",
    summary="The WSDL of UDDI v2, of metadata, of WSDL documents or of queries",
    response_class=Response,
    responses=answers(NotFoundError, DeniedError, ok={200: {"content": {XML: {}}}}),
)
async def get_uddi_wsdl(request: Request, book: Reading, part: Part) -> Response:
    return answer(_PORTS[part].wsdl(str(request.url.replace(query=""))), XML)


@router.post(
    "/uddi/{part}",
    summary="An operation over SOAP",
    response_class=Response,
    responses=answers(
        *(NotFoundError, DeniedError, SlowRequestError, *BODY),
        ok={200: {"content": {XML: {}}}, 500: {"description": "A SOAP fault", "content": {XML: {}}}},
    ),
    openapi_extra=takes({XML: None}),
)
async def post_uddi(book: Reading, part: Part, body: TheBody) -> Response:
    answered = uddi_service.answer if part in uddi.PORTS else metadata_service.answer
    status, message = await answered(book, part, await body.read(MOST), MOST)
    return answer(message, f"{XML}; charset=utf-8", status)
