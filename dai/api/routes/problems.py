"""Why answers broke off, to be asked for afterwards."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from dai.api.dependencies import TheCaller, TheService
from dai.api.problems import PROBLEM, answers
from dai.api.requests.parameters import Text
from dai.api.requests.route import Route
from dai.api.responses import answer
from dai.errors import NotFoundError

router = APIRouter(route_class=Route, tags=["operations"])


@router.get(
    "/problems/{request}",
    summary="Why the answer with this X-Request-ID broke off, with the number of rows before that",
    response_class=Response,
    responses=answers(NotFoundError, ok={200: {"content": {PROBLEM: {"schema": {"type": "object"}}}}}),
)
async def get_problem(service: TheService, request: Text, caller: TheCaller) -> Response:
    problem = await service.problem(request, caller)
    if problem is None:
        raise NotFoundError(
            f"No answer with the X-Request-ID {request!r} broke off, or it was too long ago.",
            hint="Give the X-Request-ID header of the answer that broke off.",
        )
    return answer(problem, PROBLEM)
