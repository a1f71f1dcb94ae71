"""``/wsctx``: WS-Context 1.0 over SOAP 1.1, for programs that speak it."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from dai.api.dependencies import TheBody, TheCaller, TheService
from dai.api.problems import answers
from dai.api.requests.body import takes
from dai.api.requests.route import Route
from dai.api.responses import answer
from dai.errors import SlowRequestError, TooLargeError, UnsupportedMediaTypeError
from dai.service.contexts.wsctx import ContextService, wsdl

XML = "text/xml"
router = APIRouter(route_class=Route, prefix="/wsctx", tags=["contexts"])


@router.get(
    "",
    summary="The WSDL of the context service (WS-Context 1.0)",
    response_class=Response,
    responses=answers(ok={200: {"content": {XML: {}}}}),
)
async def get_wsdl(request: Request) -> Response:
    return answer(wsdl(_address(request)), XML)


@router.post(
    "",
    summary="An operation of WS-Context 1.0: begin, complete, getStatus, get- and setTimeout, get- and setContents",
    response_class=Response,
    responses=answers(
        *(TooLargeError, SlowRequestError, UnsupportedMediaTypeError),
        ok={200: {"content": {XML: {}}}, 500: {"description": "A SOAP fault", "content": {XML: {}}}},
    ),
    openapi_extra=takes({XML: None}),
)
async def post_wsctx(request: Request, service: TheService, caller: TheCaller, body: TheBody) -> Response:
    most = service.config.limits.context_bytes

    async def wait(change: Any) -> Any:
        return await asyncio.wrap_future(change)

    interface = ContextService(service.contexts, caller, wait, service.in_control, _address(request))
    status, message = await interface.answer(await body.read(most + (1 << 16)), most)
    return answer(message, f"{XML}; charset=utf-8", status)


def _address(request: Request) -> str:
    return str(request.url.replace(query=""))
