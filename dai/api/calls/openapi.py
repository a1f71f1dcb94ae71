"""The OpenAPI document, from the tables of operations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import dai
from dai.api.calls.operations import ALWAYS, Answer, Operation
from dai.api.problems import PROBLEM
from dai.errors import DaiError, SlowRequestError

RESPONSE_XML = "application/xml"

_PROBLEM_SCHEMA = {
    "type": "object",
    "description": "RFC 9457",
    "required": ["type", "title", "status", "instance"],
    "properties": {
        "type": {"type": "string", "description": "stable error code"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "hint": {"type": "string", "description": "what to try"},
        "instance": {"type": "string", "description": "correlation id; also in the log of the service"},
    },
}
_HEADERS = {"X-Request-ID": {"description": "correlation id", "schema": {"type": "string"}}}


def document(operations: Iterable[Operation]) -> dict[str, Any]:
    """OpenAPI 3.1 (https://spec.openapis.org/oas/v3.1.1)."""
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "dai data service",
            "version": dai.__version__,
            "description": "Perform documents and queries over data resources, streamed back in blocks.",
        },
        "paths": paths,
        "components": {"schemas": {"Problem": _PROBLEM_SCHEMA}},
    }


def _operation(operation: Operation) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": operation.handler.__name__,
        "summary": operation.about.partition("\n")[0],
        "tags": [operation.tag],
        "responses": _responses(operation),
    }
    if "\n" in operation.about:
        described["description"] = operation.about.partition("\n")[2].strip()
    declared = {each.name for each in operation.parameters if each.place == "path"}
    missing = [each[1:-1] for each in operation.segments if each.startswith("{") and each[1:-1] not in declared]
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}} for name in missing
    ]
    parameters += [
        {
            "name": each.name,
            "in": each.place,
            "required": each.required or each.place == "path",
            "description": each.about,
            "schema": each.schema(),
        }
        for each in operation.parameters
    ]
    if parameters:
        described["parameters"] = parameters
    if operation.body:
        described["requestBody"] = {"required": operation.body_required, "content": _content(operation.body)}
    return described


def _responses(operation: Operation) -> dict[str, Any]:
    responses = {str(status): _answer(answer) for status, answer in operation.answers.items()}
    by_status: dict[int, list[type[DaiError]]] = {}
    for problem in dict.fromkeys((*operation.problems, *ALWAYS, *((SlowRequestError,) if operation.body else ()))):
        by_status.setdefault(problem.status, []).append(problem)
    for status, problems in sorted(by_status.items()):
        titles = "; ".join(dict.fromkeys(f"{each.title} ({each.code})" for each in problems))
        content: dict[str, Any] = {PROBLEM: {"schema": {"$ref": "#/components/schemas/Problem"}}}
        if operation.path.endswith("/perform"):
            content[RESPONSE_XML] = {}
        known = responses.get(str(status), {})
        content.update(known.get("content", {}))
        titles = "; ".join(filter(None, (known.get("description"), titles)))
        responses[str(status)] = {"description": titles, "headers": _HEADERS, "content": content}
    return responses


def _answer(answer: Answer) -> dict[str, Any]:
    described: dict[str, Any] = {"description": answer.about, "headers": dict(_HEADERS)}
    for name, about in answer.headers.items():
        described["headers"][name] = {"description": about, "schema": {"type": "string"}}
    if answer.content:
        described["content"] = _content(answer.content)
    return described


def _content(content: Mapping[str, Mapping[str, Any] | None]) -> dict[str, Any]:
    return {media_type: {"schema": schema} if schema is not None else {} for media_type, schema in content.items()}
