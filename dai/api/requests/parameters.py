"""Values in addresses and bodies: the base of their models, and what Python would read more freely than we say."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, TypeVar
from urllib.parse import parse_qsl

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.json_schema import SkipJsonSchema

from dai.errors import DataError, ParameterError
from dai.formats import FORMATS
from dai.plugins import close_name, nearest

M = TypeVar("M", bound="Asked")
_DIGITS = re.compile(r"[+-]?[0-9]{1,20}")
_WORDS = {"true": True, "1": True, "false": False, "0": False}
MOST_ROWS = 1_000_000


class Asked(BaseModel):
    """Query parameters, or the members of a body. What a model does not name is refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def _whole(value: object) -> object:
    if isinstance(value, str) and not _DIGITS.fullmatch(value):
        raise ValueError("a whole number")
    return value


def _flag(value: object) -> object:
    if isinstance(value, str) and value not in _WORDS:
        raise ValueError("true or false")
    return _WORDS[value] if isinstance(value, str) else value


def printable(value: str) -> str:
    if "\x00" in value:
        raise ValueError("text without the character U+0000")
    return value


def _format(name: str) -> str:
    if name not in FORMATS:
        raise ValueError(", ".join(FORMATS))
    return name


WHOLE = BeforeValidator(_whole)
"""Marks an integer, behind its bounds: ``Annotated[int, Field(ge=1), WHOLE]``."""
Flag = Annotated[bool, BeforeValidator(_flag)]
Text = Annotated[str, Field(min_length=1), AfterValidator(printable)]
Unsaid = SkipJsonSchema[None]
"""The type of a parameter that may be left out has this beside its own."""
FormatName = Annotated[Text, Field(json_schema_extra={"enum": list(FORMATS)}), AfterValidator(_format)]
BlockSize = Annotated[
    int, Field(ge=1, le=MOST_ROWS, description="rows of a block, unless something else sets it"), WHOLE
]


def block_rows(blocksize: int | None, most: int) -> int | None:
    """That block size; ParameterError where it is more than the service allows (limits.block_rows)."""
    if blocksize is not None and blocksize > most:
        raise ParameterError(f"'blocksize' must be a whole number from 1 to {most:,}.")
    return blocksize


def pairs(text: bytes) -> list[tuple[str, str]]:
    """Of a query or a form. ValueError for what is neither."""
    return parse_qsl(text.decode("latin-1"), keep_blank_values=True, strict_parsing=True, errors="strict")


def members(model: type[M], body: bytes) -> M:
    """A JSON body. DataError if it is not JSON, ParameterError if it does not fit."""
    return _fitting(model, partial(model.model_validate_json, body))


def element(model: type[M], value: object, *place: str | int) -> M:
    """One of the values of a body. ParameterError where it does not fit."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        wrong = error.errors(include_url=False)[0]
        raise misfit({**wrong, "loc": (*place, *wrong["loc"])}, names(model)) from error


def fields(model: type[M], values: Mapping[str, str]) -> M:
    """A form. ParameterError where it does not fit."""
    return _fitting(model, partial(model.model_validate, values))


def _fitting(model: type[M], validate: Callable[[], M]) -> M:
    try:
        return validate()
    except ValidationError as error:
        said = error.errors(include_url=False)
        wrong = next((each for each in said if each["type"] == "extra_forbidden"), said[0])  # often misspelt
        if wrong["type"] == "json_invalid":
            raise DataError(f"The body is not JSON: {wrong['msg']}.") from error
        if not wrong["loc"]:
            raise DataError(f"The body must be a JSON object with {', '.join(map(repr, names(model)))}.") from error
        raise misfit(dict(wrong), names(model)) from error


def names(model: type[BaseModel]) -> list[str]:
    return [each.alias or name for name, each in model.model_fields.items()]


def misfit(wrong: dict[str, Any], known: list[str]) -> ParameterError:
    """The error for what pydantic says about a value; ``known``: the allowed names."""
    place = wrong["loc"]
    if place[0] in ("query", "path") and len(place) > 1:
        place = place[1:]
    # behind the first name only positions: the others are of the types that were tried
    name = ".".join(str(each) for number, each in enumerate(place) if number == 0 or isinstance(each, int))
    match wrong["type"]:
        case "missing":
            hint = f"Add it to the address: ?{name}=…" if wrong["loc"][0] == "query" else None
            return ParameterError(f"The parameter {name!r} is missing.", hint=hint)
        case "extra_forbidden":
            return unknown(name, known)
        case "value_error":
            expected = str(wrong["ctx"]["error"])
        case _:
            expected = wrong["msg"]
    said = wrong["input"]
    shown = said if isinstance(said, str) else reprlib.repr(said)  # which may be of any size
    return ParameterError(f"{name!r} cannot be {shown[:100]!r}.", hint=f"Expected: {expected}.")


def unknown(name: str, known: list[str]) -> ParameterError:
    hint = nearest(name, known) if known else "It takes none."
    if "parameters" in known and close_name(name, known) is None:
        hint += f' A value of the statement stands in parameters={{"{name}": …}}, which is JSON.'
    return ParameterError(f"There is no parameter {name!r} here.", hint=hint)
