"""Common to the operations: the replica location with the caller's rights, kinds of parameters, errors."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, TypeVar

from fastapi import Depends
from pydantic import BaseModel, Field

from dai.api.dependencies import TheCaller, TheService
from dai.api.requests.body import JSON, takes
from dai.api.requests.parameters import WHOLE
from dai.api.responses import JSONAnswer
from dai.api.service import Service
from dai.errors import DataError, DeniedError, NotFoundError, TooLargeError, UnsupportedMediaTypeError
from dai.replicas.catalog.operations import Operation, Value
from dai.replicas.codes import Refused, text
from dai.replicas.names import TYPES, check_name
from dai.replicas.replicas import Replicas
from dai.security.identity import Caller

T = TypeVar("T")
MOST_BODY = 64 << 20
MOST_PAGE = 100_000
BODY = (DataError, TooLargeError, UnsupportedMediaTypeError)
Of = Annotated[Literal["logical", "target"], Field(description="kind of the names")]
Offset = Annotated[int, Field(ge=0, le=2**53), WHOLE]
Page = Annotated[int, Field(ge=1, le=MOST_PAGE, description="the most entries"), WHOLE]


class Location:
    """The replica location of this service and who asks it."""

    def __init__(self, service: Service, caller: Caller) -> None:
        if service.replicas is None:
            raise NotFoundError(
                "This service has no replica catalog.", hint="Its operator can set catalog in [replicas]."
            )
        self.replicas: Replicas = service.replicas
        self._service, self._caller = service, caller
        self.may("read", "look into")

    def may(self, work: str, what: str) -> None:
        self._service.replicas_policy.check(work, self._caller, what)

    def administers(self) -> None:
        self.may("write", "change")
        if self._service.config.identity.methods and not self._caller.administrator:
            raise DeniedError(
                f"{self._caller.name!r} may not administer the replica catalog.", hint="Administrators may."
            )

    async def run(self, work: Callable[..., T], *arguments: Any) -> T:
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._service.locating, work, *arguments)
        except Refused as error:
            raise error.error() from error

    async def change(
        self, operation: Operation, items: Sequence[Any], as_json: Callable[[Any], dict[str, Any]]
    ) -> JSONAnswer:
        """What came of the items: how many changed something, and the others with why."""
        codes = await asyncio.wrap_future(self.replicas.catalog.submit(operation, items))
        refused = [
            {**as_json(item), "code": int(code), "reason": text(code)}
            for item, code in zip(items, codes, strict=True)
            if code
        ]
        return JSONAnswer({"done": len(items) - len(refused), "refused": refused})


def checked(*names: str) -> None:
    for each in names:
        refusing(check_name, each)


def refusing(work: Callable[..., T], *arguments: Any) -> T:
    """The result of the work; a refusal becomes the error of an answer."""
    try:
        return work(*arguments)
    except Refused as error:
        raise error.error() from error


def attribute_value(each: Value) -> str | int | float | None:
    """The value of an attribute as callers read it."""
    return TYPES["date"].write(each.value) if each.type == "date" and each.value is not None else each.value


async def _reading(service: TheService, caller: TheCaller) -> Location:
    return Location(service, caller)


Reading = Annotated[Location, Depends(_reading)]


async def _writing(here: Reading) -> Location:
    here.may("write", "change")
    return here


async def _telling(here: Reading) -> Location:
    here.may("load", "tell names to")
    return here


async def _administering(here: Reading) -> Location:
    here.administers()
    return here


Writing = Annotated[Location, Depends(_writing)]
Telling = Annotated[Location, Depends(_telling)]
Administering = Annotated[Location, Depends(_administering)]
"""The replica location, for a caller who may do that: read it, change the catalog, tell the index, see to the whole."""


def json_body(model: type[BaseModel]) -> dict[str, Any]:
    return takes({JSON: model.model_json_schema()})
