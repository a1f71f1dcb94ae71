"""Why answers broke off, to be asked for afterwards."""

from __future__ import annotations

from dai.api.calls.call import Call
from dai.api.calls.operations import Answer, Operation
from dai.api.calls.replies import Reply
from dai.api.problems import PROBLEM
from dai.errors import NotFoundError


async def get_problem(call: Call) -> Reply:
    problem = call.service.problems.of(call.path["request"])
    if problem is None:
        raise NotFoundError(
            f"No answer to a request {call.path['request']!r} broke off, or it is long ago.",
            hint="It is the X-Request-ID of the answer.",
        )
    return Reply(problem, PROBLEM)


OPERATIONS = (
    Operation(
        "GET",
        "/problems/{request}",
        get_problem,
        "Why the answer with this X-Request-ID broke off: its problem, with the rows that came before",
        {200: Answer("The problem", {PROBLEM: {"type": "object"}})},
        problems=(NotFoundError,),
        tag="operations",
    ),
)
