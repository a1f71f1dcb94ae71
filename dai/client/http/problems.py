"""Makes the errors that callers catch from a service's answers about failures: pure functions on values."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any
from xml.parsers import expat

from dai.errors import DaiError, DataError, InternalError, by_code

_MEMBERS = frozenset({"type", "title", "status", "detail", "hint", "instance"})


def _parameters(kind: type[DaiError]) -> frozenset[str]:
    return frozenset(inspect.signature(kind.__init__).parameters) - {"self", "detail", "hint", "extra"}


def from_problem(problem: Mapping[str, Any], *, correlation: str | None = None) -> DaiError:
    """The error of an RFC 9457 problem document, of the class of its stable code.

    ``extra`` keeps every further member; the correlation id, which finds the failure in the service's log, is in
    ``extra["instance"]`` and at the end of the text.
    """
    kind = by_code(str(problem.get("type", "")))
    detail = str(problem.get("detail") or problem.get("title") or kind.title)
    members = {name: value for name, value in problem.items() if name not in _MEMBERS}
    instance = problem.get("instance") or correlation
    hints = [str(problem["hint"])] if problem.get("hint") else []
    if problem.get("activity"):
        hints.append(f"Activity: {problem['activity']}")
    if instance and f"Correlation id: {instance}" not in "\n".join(hints).split("\n"):  # a service may pass it on
        hints.append(f"Correlation id: {instance}")
    known = {name: members[name] for name in _parameters(kind) & members.keys()}
    hint = "\n".join(hints) or None
    try:
        error = kind(detail, hint=hint, **known)
    except (TypeError, ValueError):  # members of other types than a service of ours sends
        error = kind(detail, hint=hint)
    error.extra.update(members)
    if instance:
        error.extra["instance"] = str(instance)
    return error


def read_json(content: bytes) -> Any:
    """The JSON value. DataError if the text is not JSON, or nested too deeply."""
    import json

    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise DataError(
            "The address answered with something that is not JSON.", hint="Is this the address of a data service?"
        ) from error


def from_reply(status: int, media_type: str, body: bytes, correlation: str | None = None) -> DaiError:
    """The error of a reply with a status of 400 or more, whatever form its body has."""
    if media_type.endswith(("json", "+json")):
        try:
            problem = read_json(body)
        except DataError:
            problem = None
        if isinstance(problem, dict):
            return from_problem(problem, correlation=correlation)
    if media_type.endswith("xml") and (error := _from_response(body, correlation)) is not None:
        return error
    text = body[:200].decode("utf-8", "replace").strip()
    return InternalError(
        f"The service answered with status {status}" + (f": {text}" if text else "."),
        hint=f"Correlation id: {correlation}" if correlation else "Is this the address of a data service?",
        status=status,
    )


def _from_response(body: bytes, correlation: str | None) -> DaiError | None:
    """The first ``error`` element of a response document."""
    errors: list[DaiError] = []
    inside: list[dict[str, Any]] = []

    def start(name: str, attributes: dict[str, str]) -> None:
        if name.rpartition(":")[2] == "error":
            inside.append(error_members(attributes))

    def data(text: str) -> None:
        if inside:
            inside[-1]["detail"] = inside[-1].get("detail", "") + text

    def end(name: str) -> None:
        if name.rpartition(":")[2] == "error":
            errors.append(from_problem(inside.pop(), correlation=correlation))

    parser = expat.ParserCreate()
    parser.StartElementHandler, parser.EndElementHandler, parser.CharacterDataHandler = start, end, data
    try:
        parser.Parse(body, True)
    except expat.ExpatError:
        return None
    return errors[0] if errors else None


def error_members(attributes: Mapping[str, str]) -> dict[str, Any]:
    """The members of a problem document that stand in the attributes of a response's ``error`` element."""
    members: dict[str, Any] = {name: value for name, value in attributes.items() if name != "id"}
    members["type"] = attributes.get("id", "internal")
    for number in ("line", "position", "row", "retry_after"):
        if str(members.get(number, "")).isdigit():
            members[number] = int(members[number])
    return members
