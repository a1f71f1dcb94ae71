"""Messages to the interfaces, and their faults."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any

from lxml import etree

from dai.errors import DaiError
from dai.service import soap
from dai.service.registry.access import Access
from dai.service.registry.metadata import interfaces, statements
from dai.service.registry.metadata.types import METADATA, PORTS
from dai.service.registry.sparql.rdql import sparql
from dai.service.registry.uddi.faults import ERRORS, Refused, code_of

Operation = Callable[[Access, Any], Coroutine[Any, Any, Any]]


async def answer(access: Access, part: str, message: bytes, most: int) -> tuple[int, bytes]:
    """Status and message. ``part``: ``metadata``, ``wsdl`` or ``rdf``."""
    port = PORTS[part]
    try:
        _, element = soap.opened(message, port.vocabulary.namespace, most)
        name = etree.QName(element).localname
        if name not in port.calls:
            raise Refused("E_unsupported", f"There is no operation {name[:100]} at this address.")
        said = await _OPERATIONS[name](access, port.vocabulary.read(element))
        vocabulary, answered = port.vocabulary.of(port.calls[name])
        return 200, soap.envelope(vocabulary.message(answered, said))
    except DaiError as error:
        code = code_of(error)
        detail = {"errorNumber": ERRORS[code], "errorCode": code, "errorMessage": str(error)}
        return 500, soap.fault(error, METADATA.message("faultDetailList", {"faultDetail": [detail]}))


async def _inquire(access: Access, said: dict[str, Any]) -> dict[str, Any]:
    """A query in RDQL or SPARQL; each record has a field for each variable, empty where that is bound to nothing."""
    language, query = said.get("language", "").upper() or "RDQL", said.get("clause", "")
    if language not in ("RDQL", "SPARQL"):
        raise Refused("E_unsupported", f"There is no language {language[:100]!r}: ask in RDQL or SPARQL.")
    answered = json.loads(await access.query(sparql(query) if language == "RDQL" else query))
    if "boolean" in answered:
        return {"header": {"field": ["ask"]}, "record": [{"field": [str(answered["boolean"]).lower()]}]}
    names = answered["head"]["vars"]
    records = [[each.get(name, {}).get("value", "") for name in names] for each in answered["results"]["bindings"]]
    return {"header": {"field": names}, "record": [{"field": each} for each in records]}


_OPERATIONS: dict[str, Operation] = {
    "addMetadataToEntity": statements.add,
    "deleteMetadata": statements.delete,
    "get_metadataDetail": statements.detail,
    "get_entityMetadata": statements.of_entity,
    "find_entityByMetadata": statements.entities,
    "get_supportedEntityType": statements.types,
    "find_service": statements.services,
    "find_interfaceByMessagePartMetadata": statements.interfaces_by_part,
    "find_interfaceByOperationMetadata": statements.interfaces_by_operation,
    "find_operation": statements.found_operations,
    "addWSDLFileAdvertRequest": interfaces.advertise,
    "addWSDLFileRequest": interfaces.fetch,
    "getWSDLAdvertContentRequest": interfaces.content,
    "getWSDLAdvertContentByURLRequest": interfaces.content_by_url,
    "removeWSDLFileRequest": interfaces.remove,
    "findServicesByInterfaceRequest": interfaces.services,
    "getAllWSDLFilesRequest": interfaces.urls,
    "getOperationsByURLRequest": interfaces.operations_by_url,
    "getInputMessageOfOperationRequest": interfaces.message_at("input"),
    "getOutputMessageOfOperationRequest": interfaces.message_at("output"),
    "getFaultMessageOfOperationRequest": interfaces.message_at("fault"),
    "findInterfaceByOperationRequest": interfaces.interface_of_operation,
    "findOperationByMessagePartRequest": interfaces.operation_of_part,
    "inquireRequest": _inquire,
}
