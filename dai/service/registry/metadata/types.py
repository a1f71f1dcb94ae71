"""The elements of the interfaces for metadata and WSDL documents, and the operations at each address."""

from __future__ import annotations

from dai.service.registry.uddi.elements import Port, Vocabulary, declared
from dai.service.registry.uddi.types import UDDI

NAMESPACE = "http://www.grimoires.org/metadata.xsd"
INTERFACES = "http://www.grimoires.org/wsdl/type"
QUERIES = "http://www.grimoires.org/rdf"
_QUERY = "findQualifiers metadataType metadataValue author date"
_OPERATION = "portTypeNamespace portTypeName operationName"
_MESSAGE = "messageNamespace messageName partsName"
_PART = "messageNamespace messageName partName"

METADATA = Vocabulary(
    NAMESPACE,
    "m",
    {
        name: declared(words)
        for name, words in {
            "metadata": "@:metadataKey! metadataType metadataValue",
            "metadataInfo": "@:metadataKey! metadataType metadataValue author date",
            "metadataInfos": "metadataInfo*",
            "metadataValue": "triplesAssertion stringValue uriValue",
            "triplesAssertion": "triples resourceIdentifier language base",
            "entityReference": "@entityType! stringKey metadataKey messagePartReference operationReference",
            "messagePartReference": "messageNamespace messageName messagePartName",
            "operationReference": _OPERATION,
            "entityReferenceList": "entityReference*",
            "operationReferenceList": "operationReference*",
            "metadataQuery": _QUERY,
            "metadataQueryBag": "metadataQuery*",
            "operationMetadataQueryBag": "metadataQuery*",
            "messagePartMetadataQueryBag": "metadataQuery*",
            "findQualifiers": "findQualifier*",
            "uriBag": "uri*",
            "success": "=",
            "faultDetailList": "faultDetail*",
            "faultDetail": "@errorNumber @errorCode errorMessage",
            "addMetadataToEntity": "entityReference metadata",
            "deleteMetadata": "metadataKey",
            "get_metadataDetail": "metadataKey",
            "get_entityMetadata": "entityReference",
            "find_entityByMetadata": "metadataQueryBag",
            "get_supportedEntityType": "dummyToGetClass",
            "find_service": "@generic @maxRows @businessKey findQualifiers u:name* u:categoryBag u:tModelBag"
            " metadataQueryBag",
            "find_interfaceByMessagePartMetadata": "metadataQueryBag",
            "find_interfaceByOperationMetadata": "metadataQueryBag",
            "find_operation": "findQualifiers name* operationMetadataQueryBag messageName* messageNamespace*"
            " messagePartName* messagePartMetadataQueryBag",
        }.items()
    },
    others=(UDDI,),
    types={"success": "xs:boolean"},
)
WSDL = Vocabulary(
    INTERFACES,
    "w",
    {
        name: declared(words)
        for name, words in {
            "operationDetail": _OPERATION,
            "partsName": "name*",
            "addWSDLFileAdvertRequest": "url content",
            "addWSDLFileAdvertResponse": "=",
            "addWSDLFileRequest": "=",
            "addWSDLFileResponse": "=",
            "getWSDLAdvertContentRequest": "=",
            "getWSDLAdvertContentResponse": "=",
            "getWSDLAdvertContentByURLRequest": "=",
            "getWSDLAdvertContentByURLResponse": "=",
            "removeWSDLFileRequest": "=",
            "removeWSDLFileResponse": "=",
            "findServicesByInterfaceRequest": "=",
            "findServicesByInterfaceResponse": "serviceKey*",
            "getAllWSDLFilesRequest": "unused",
            "getAllWSDLFilesResponse": "url*",
            "getOperationsByURLRequest": "=",
            "getOperationsByURLResponse": "operationDetail*",
            "getInputMessageOfOperationRequest": _OPERATION,
            "getInputMessageOfOperationResponse": _MESSAGE,
            "getOutputMessageOfOperationRequest": _OPERATION,
            "getOutputMessageOfOperationResponse": _MESSAGE,
            "getFaultMessageOfOperationRequest": _OPERATION,
            "getFaultMessageOfOperationResponse": _MESSAGE,
            "findInterfaceByOperationRequest": _OPERATION,
            "findInterfaceByOperationResponse": "=",
            "findOperationByMessagePartRequest": _PART,
            "findOperationByMessagePartResponse": _OPERATION,
        }.items()
    },
    qualified=False,
    types={"removeWSDLFileResponse": "xs:boolean"},
)
RDF = Vocabulary(
    QUERIES,
    "r",
    {
        name: declared(words)
        for name, words in {
            "inquireRequest": "language clause",
            "inquireResponse": "header record*",
            "header": "field*",
            "record": "field*",
        }.items()
    },
)
PORTS = {
    "metadata": Port(
        "Metadata",
        "http://www.grimoires.org/metadata.wsdl",
        METADATA,
        {
            "addMetadataToEntity": "metadataInfo",
            "deleteMetadata": "success",
            "get_metadataDetail": "metadataInfo",
            "get_entityMetadata": "metadataInfos",
            "find_entityByMetadata": "entityReferenceList",
            "get_supportedEntityType": "uriBag",
            "find_service": "u:serviceList",
            "find_interfaceByMessagePartMetadata": "uriBag",
            "find_interfaceByOperationMetadata": "uriBag",
            "find_operation": "operationReferenceList",
        },
        "faultDetailList",
    ),
    "wsdl": Port(
        "WSDL",
        "http://www.grimoires.org/wsdl",
        WSDL,
        {name: name.replace("Request", "Response") for name in WSDL.elements if name.endswith("Request")},
        action="http://www.grimoires.org/wsdl/",
        suffix="Request",
    ),
    "rdf": Port("RDF", QUERIES, RDF, {"inquireRequest": "inquireResponse"}, action=f"{QUERIES}/", suffix="Request"),
}
