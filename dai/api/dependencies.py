"""FastAPI dependencies of operations: the service, the resource that the address names, the body.

All are coroutine functions: FastAPI runs others in threads.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Path, Request

from dai.api.monitoring.access import Access
from dai.api.requests.body import Body
from dai.api.requests.head import listed
from dai.api.requests.parameters import Text
from dai.api.service import Service
from dai.security.identity import Caller
from dai.service.resources import Resource


async def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


def resource_of(request: Request, name: str) -> Resource:
    """The resource as the caller sees it. NotFoundError if there is none, DeniedError if the caller may not use it."""
    service: Service = request.app.state.service
    access: Access = request.state.access
    resource = service.resources.named(name, access.caller)
    resource.policy.check("read", access.caller, "read")
    resource = resource.of(access.caller)
    access.database_user = resource.database_user
    return resource


TheService = Annotated[Service, Depends(_service)]


async def _resource(request: Request, resource: Annotated[Text, Path()]) -> Resource:
    return resource_of(request, resource)


async def _access(request: Request) -> Access:
    access: Access = request.state.access
    return access


async def _caller(request: Request) -> Caller:
    access: Access = request.state.access
    return access.caller


async def _accept(request: Request) -> str | None:
    return listed(request, "accept")


async def _body(request: Request) -> Body:
    return Body(request)


NamedResource = Annotated[Resource, Depends(_resource)]
TheCaller = Annotated[Caller, Depends(_caller)]
TheAccess = Annotated[Access, Depends(_access)]
Accept = Annotated[str | None, Depends(_accept)]
TheBody = Annotated[Body, Depends(_body)]
