"""``/registry/webhooks``: sends changes of entries to the addresses that callers register."""

from __future__ import annotations

import dataclasses
import secrets
import uuid
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import Field
from starlette.responses import Response

from dai.api.dependencies import TheBody
from dai.api.problems import answers
from dai.api.requests.body import JSON, takes
from dai.api.requests.parameters import Asked, Text, members
from dai.api.requests.route import Route
from dai.api.responses import JSONAnswer
from dai.api.routes.registry.common import BODY, Book, Reading, Writing
from dai.errors import DeniedError, NotFoundError, ParameterError, QuotaError
from dai.service.registry.entries import MOST_KEY
from dai.service.registry.webhooks.sender import checked, signing
from dai.service.registry.webhooks.store import MOST_OF_OWNER, Webhook

router = APIRouter(route_class=Route, prefix="/registry", tags=["registry"])
Kind = Annotated[str, Field(max_length=100)]
Action = Literal["published", "modified", "deprecated", "deleted"]


class Hook(Asked):
    """A webhook as it is made, or changed."""

    id: str = Field("", description="of one that is there, which is changed and goes on where it stopped")
    url: str = Field(max_length=2000, description="where changes are sent: one that [delivery] urls allows")
    kinds: list[Kind] = Field(default_factory=list, max_length=50, description="kinds of entries; empty: all")
    actions: list[Action] = Field(default_factory=list, max_length=10, description="empty: all")
    prefix: str = Field("", max_length=MOST_KEY, description="how the keys of the entries begin")


class Id(Asked):
    id: Text


def _document(webhook: Webhook) -> dict[str, Any]:
    members = dataclasses.asdict(webhook)
    return {name: members[name] for name in members if name not in ("secret", "groups", "administrator")}


async def _own(book: Book, id: str) -> Webhook:
    """NotFoundError for what belongs to others."""
    for each in await book.run(book.webhooks.all):
        if each.id == id and book.caller.sees(each.owner):
            return each
    raise NotFoundError(f"There is no webhook {id[:100]!r}.")


@router.get(
    "/webhooks",
    summary="The webhooks of the caller, and the last change that each has sent",
    responses=answers(NotFoundError, DeniedError),
)
async def get_webhooks(book: Reading) -> Response:
    webhooks = [each for each in await book.run(book.webhooks.all) if book.caller.sees(each.owner)]
    return JSONAnswer({"webhooks": [_document(each) for each in webhooks]})


@router.post(
    "/webhooks",
    summary="Create a webhook, which sends changes of entries; or change one, which then goes on",
    description="Each request is signed (RFC 9421, hmac-sha256) by the secret, which is shown when a webhook is made.",
    openapi_extra=takes({JSON: Hook.model_json_schema()}),
    responses=answers(NotFoundError, DeniedError, ParameterError, QuotaError, *BODY),
)
async def post_webhook(book: Writing, body: TheBody) -> Response:
    asked = members(Hook, await body.read())
    checked(asked.url, book.service.config.delivery)
    signing()
    wanted: dict[str, Any] = {
        "url": asked.url,
        "kinds": asked.kinds,
        "actions": list(asked.actions),
        "prefix": asked.prefix,
    }
    if asked.id:
        before = await _own(book, asked.id)
        webhook = dataclasses.replace(before, **wanted, failures=0, problem="", stopped=False)
        await book.run(book.webhooks.put, webhook)
        return JSONAnswer(_document(webhook))
    caller = book.caller
    own = [each for each in await book.run(book.webhooks.all) if each.owner == caller.name]
    if len(own) >= MOST_OF_OWNER:
        raise QuotaError(f"{caller.name!r} has {MOST_OF_OWNER} webhooks, the most that is allowed.")
    webhook = Webhook(
        id=uuid.uuid4().hex,
        owner=caller.name,
        groups=sorted(caller.groups),
        administrator=caller.administrator,
        secret=secrets.token_urlsafe(32),
        number=await book.run(book.registry.number),
        **wanted,
    )
    await book.run(book.webhooks.put, webhook)
    return JSONAnswer({**_document(webhook), "secret": webhook.secret})


@router.delete(
    "/webhooks",
    summary="Delete a webhook",
    status_code=204,
    responses=answers(NotFoundError, DeniedError),
)
async def delete_webhook(book: Writing, asked: Annotated[Id, Query()]) -> Response:
    await book.run(book.webhooks.delete, (await _own(book, asked.id)).id)
    return Response(status_code=204)
