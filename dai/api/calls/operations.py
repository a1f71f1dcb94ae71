"""Operations, declared once: what is routed, what is checked and what the OpenAPI document says."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from dai.errors import (
    BusyError,
    DaiError,
    DatabaseUnavailableError,
    DeniedError,
    HeadTooLargeError,
    InternalError,
    MethodError,
    NotFoundError,
    ParameterError,
)

_TRUE, _FALSE = frozenset({"true", "1"}), frozenset({"false", "0"})


Handler = Callable[..., Awaitable[Any]]
"""Takes the ``Call``; gives what is to be sent (``dai.api.call.Sendable``), or None when it has sent that itself."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """``kind`` is int, float, bool or str; ``words`` the only values allowed. Those of the path are always required."""

    name: str
    about: str
    kind: type = str
    place: str = "query"
    minimum: int | None = None
    maximum: int | None = None
    words: tuple[str, ...] = ()
    required: bool = False

    def value(self, text: str) -> Any:
        """ParameterError for a text that does not fit."""
        if self.kind is str:
            if (self.words and text not in self.words) or not text or "\x00" in text:
                raise self._wrong(text)
            return text
        if self.kind is bool:
            if text not in _TRUE | _FALSE:
                raise self._wrong(text)
            return text in _TRUE
        try:
            if not text.isascii() or "_" in text or text != text.strip() or len(text) > 20:
                raise ValueError
            value = self.kind(text)
        except ValueError:
            raise self._wrong(text) from None
        low, high = self.minimum, self.maximum
        if value != value or (low is not None and value < low) or (high is not None and value > high):
            raise self._wrong(text)
        return value

    def _wrong(self, text: str) -> ParameterError:
        return ParameterError(f"{self.name!r} cannot be {text[:100]!r}.", hint=f"Expected: {self._expected()}.")

    def _expected(self) -> str:
        if self.words:
            return ", ".join(self.words)
        if self.kind is bool:
            return "true or false"
        if self.kind is str:
            return "text"
        bounds = [
            f"{word} {bound}"
            for word, bound in (("at least", self.minimum), ("at most", self.maximum))
            if bound is not None
        ]
        return " and ".join(["a whole number" if self.kind is int else "a number", *bounds])

    def schema(self) -> dict[str, Any]:
        """JSON schema of the values."""
        types = {int: "integer", float: "number", bool: "boolean", str: "string"}
        schema: dict[str, Any] = {"type": types[self.kind]}
        if self.kind is str and not self.words:
            schema["minLength"] = 1
        bounds = {"minimum": self.minimum, "maximum": self.maximum}
        schema.update((name, bound) for name, bound in bounds.items() if bound is not None)
        if self.words:
            schema["enum"] = list(self.words)
        return schema


@dataclass(frozen=True, slots=True)
class Answer:
    """One success answer: media type to JSON schema (None: bytes of that form)."""

    about: str
    content: Mapping[str, Mapping[str, Any] | None] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)


ALWAYS: tuple[type[DaiError], ...] = (
    ParameterError,
    DeniedError,
    HeadTooLargeError,
    InternalError,
    DatabaseUnavailableError,
    BusyError,
)
"""What any operation may answer."""


@dataclass(frozen=True)
class Operation:
    """``path`` has ``{name}`` for path parameters; ``problems`` are the errors it may answer besides ALWAYS; ``quiet``
    ones are logged below the level info; ``head`` is False for a GET that changes something."""

    method: str
    path: str
    handler: Handler
    about: str
    answers: Mapping[int, Answer]
    parameters: tuple[Parameter, ...] = ()
    body: Mapping[str, Mapping[str, Any] | None] = field(default_factory=dict)
    body_required: bool = True
    problems: tuple[type[DaiError], ...] = ()
    tag: str = ""
    quiet: bool = False
    head: bool = True

    @property
    def reads(self) -> bool:
        """Whether it changes nothing."""
        return self.method == "GET" and self.head

    def takes(self, media_type: str) -> bool:
        """Whether a body may have that media type: one of those declared, or one with such a suffix (RFC 6839)."""
        suffix = f"application/{media_type.rpartition('+')[2]}" if "+" in media_type else media_type
        return not {"*/*", media_type, suffix}.isdisjoint(self.body)

    @cached_property
    def segments(self) -> tuple[str, ...]:
        return tuple(self.path.split("/"))

    @cached_property
    def query_names(self) -> dict[str, Parameter]:
        return {each.name: each for each in self.parameters if each.place == "query"}

    @cached_property
    def _path_parameters(self) -> dict[str, Parameter]:
        return {each.name: each for each in self.parameters if each.place == "path"}

    def parameter(self, name: str) -> Parameter:
        """The path parameter of that name; text where it was not declared."""
        return self._path_parameters.get(name) or Parameter(name, "", place="path")


class Router:
    """Finds the operation of a path: literal segments before ``{names}``, by the number of segments."""

    def __init__(self, operations: Iterable[Operation]) -> None:
        self.operations = tuple(operations)
        self._by_length: dict[int, list[tuple[tuple[str | None, ...], tuple[str, ...], dict[str, Operation]]]] = {}
        for operation in self.operations:
            pattern = tuple(None if each.startswith("{") else each for each in operation.segments)
            names = tuple(each[1:-1] for each in operation.segments if each.startswith("{"))
            rows = self._by_length.setdefault(len(pattern), [])
            for known, _, methods in rows:
                if known == pattern:
                    methods[operation.method] = operation
                    break
            else:
                rows.append((pattern, names, {operation.method: operation}))
        for rows in self._by_length.values():
            rows.sort(key=lambda row: [each is None for each in row[0]])
            for _, _, methods in rows:
                if "GET" in methods and methods["GET"].head:
                    methods.setdefault("HEAD", methods["GET"])

    def find(self, method: str, path: str) -> tuple[Operation, dict[str, str]]:
        """The operation and the texts of its path parameters. NotFoundError, or MethodError naming the methods."""
        segments = path.split("/")
        for pattern, names, methods in self._by_length.get(len(segments), ()):
            if all(want is None or want == have for want, have in zip(pattern, segments, strict=True)):
                operation = methods.get(method)
                if operation is None:
                    allowed = ", ".join(sorted(methods))
                    raise MethodError(
                        f"{method[:20]} is not possible here.", hint=f"Possible: {allowed}.", allow=allowed
                    )
                given = [have for want, have in zip(pattern, segments, strict=True) if want is None]
                return operation, dict(zip(names, given, strict=True))
        raise NotFoundError("There is nothing at this address.", hint="GET /openapi.json lists all addresses.")
