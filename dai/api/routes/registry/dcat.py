"""``/registry/dcat``: services and their tables as a catalog in DCAT-AP, for portals that harvest."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from pydantic import Field
from starlette.responses import Response

from dai.api.dependencies import Accept
from dai.api.problems import answers
from dai.api.requests.negotiation import best
from dai.api.requests.parameters import Asked
from dai.api.requests.route import Route
from dai.api.responses import answer
from dai.api.routes.registry.common import Offset, Page, Reading
from dai.errors import DeniedError, NotAcceptableError, NotFoundError, ParameterError
from dai.service.registry.mirror import Mirror
from dai.service.registry.rdf.dcat import FORMATS, Triple, catalog, to_rdf

router = APIRouter(route_class=Route, prefix="/registry", tags=["registry"])


class Asking(Asked):
    offset: Offset = 0
    limit: Annotated[Page, Field(description="the most services")] = 1000


@router.get(
    "/dcat",
    summary="The services and their tables as a catalog in DCAT-AP",
    responses=answers(
        *(NotFoundError, DeniedError, ParameterError, NotAcceptableError),
        ok={200: {"content": {each: {} for each in FORMATS}}},
    ),
    response_class=Response,
)
async def get_dcat(request: Request, book: Reading, accept: Accept, asked: Annotated[Asking, Query()]) -> Response:
    media_type = best(accept, list(FORMATS)) if accept else FORMATS[0]
    if media_type is None:
        raise NotAcceptableError("A catalog comes as RDF triples.", hint=f"It can be {', '.join(FORMATS)}.")
    address, title = str(request.url.replace(query="")), book.service.config.service.name

    def listed(mirror: Mirror) -> list[Triple]:
        services = mirror.shown(mirror.having(("kind", "service")), book.caller)
        shown = services[asked.offset : asked.offset + asked.limit]
        return list(catalog(mirror, book.caller, shown, address, title))

    return answer(await book.run(to_rdf, await book.read(listed), media_type), media_type)
