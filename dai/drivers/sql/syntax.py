"""The syntax of a database's SQL: how statements are lexed, how names are quoted, the names of types.

Each driver has one ``Syntax``, in the module ``syntax`` of its package; ``STANDARD`` is for any other database.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import pyarrow as pa
import pyarrow.types as types

SPACE = r"(?P<space>\s+)"
LINE_COMMENT = r"(?P<comment>--[^\n]*)"
LINE_COMMENT_TO_RETURN = r"(?P<comment>--[^\n\r]*)"
OPEN_COMMENT = r"(?P<open>/\*)"
STRING = r"(?P<string>'[^']*(?:'|\Z))"  # a doubled quote is two adjacent strings, which is the same to us
NAME = r'(?P<name>"[^"]*(?:"|\Z))'
ESCAPE_STRING = r"(?P<estring>[eE]'(?:[^'\\]|\\.|'')*(?:'|\Z))"
DOLLAR_STRING = r"(?P<dollar>\$(?P<tag>(?:[^\W\d]\w*)?)\$.*?(?:\$(?P=tag)\$|\Z))"
NUMBER = r"(?P<number>\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)"  # a keyword may follow at once: 1.INTO
VALUE = r"(?:-?[0-9]+(?:\.[0-9]+)?|'[^'\\]*')"
LIST = rf"(?P<list>(?<=\(){VALUE}(?:,\s*+{VALUE}){{15,}}+(?=\)))"
REST = rf"(?P<word>[^\W\d][\w$]*)|{NUMBER}|(?P<escaped>\?\?)|(?P<marker>\?)|(?P<symbol>.)"
QUERIES = frozenset({"SELECT", "WITH", "VALUES", "TABLE"})


@dataclass(frozen=True, eq=False)
class Types:
    """The database's names of Arrow's types, for CREATE TABLE; an empty name is a type that it does not have.
    ``simple``: types without parameters; ``decimal``: of precision and scale; ``named``: of texts that a foreign source
    calls so (looked up, never copied into SQL: they are data); ``lists``: whether there are arrays."""

    simple: Mapping[pa.DataType, str]
    text: str
    binary: str
    decimal: Callable[[int, int], str]
    time: str
    timestamp: str
    timestamptz: str
    timestamp_ns: str = ""
    duration: str = ""
    named: Mapping[str, str] = field(default_factory=dict)
    lists: bool = False

    def of(self, type: pa.DataType) -> str:
        """The name of the type that holds the values of an Arrow type without loss."""
        if types.is_dictionary(type):
            return self.of(type.value_type)
        if type in self.simple:
            return self.simple[type]
        if types.is_decimal(type):
            precision, scale = (type.precision - type.scale, 0) if type.scale < 0 else (type.precision, type.scale)
            return self.decimal(max(precision, scale), scale)
        if types.is_timestamp(type):
            if type.tz is not None:
                return self.timestamptz
            return (type.unit == "ns" and self.timestamp_ns) or self.timestamp
        if types.is_list(type) or types.is_large_list(type) or types.is_fixed_size_list(type):
            element = self.of(type.value_type)
            return f"{element}[]" if element and self.lists else ""
        return next((name for fits, name in self._families if fits(type)), "")

    @cached_property
    def _families(self) -> tuple[tuple[Callable[[pa.DataType], bool], str], ...]:
        texts = types.is_string, types.is_large_string, types.is_string_view
        binaries = types.is_binary, types.is_large_binary, types.is_fixed_size_binary, types.is_binary_view
        return (
            *((fits, self.text) for fits in texts),
            *((fits, self.binary) for fits in binaries),
            (types.is_time, self.time),
            (types.is_duration, self.duration),
        )


@dataclass(frozen=True, eq=False)
class Syntax:
    """``parts``: of the regular expression that finds the next token, whose groups are ``Kind`` s of tokens or one of
    ``space``, ``open`` (of a comment), ``estring``, ``dollar`` and ``executable``; ``queries``: what a query may begin
    with; ``before_into``: behind what INTO is a name or stands where the database itself lets nothing change;
    ``telling``: beginnings of statements that tell secrets; ``locking``: words behind one another by which a query
    locks rows, where a transaction that only reads may; ``quote``: around names; ``types``: None where no tables
    are made; ``numbered``: whether ``$1`` is a parameter, which no database's driver binds; ``in_nothing``
    and ``not_in_nothing``: IN and NOT IN of a list without values, whatever their operand's type."""

    parts: tuple[str, ...] = (SPACE, LINE_COMMENT, OPEN_COMMENT, STRING, NAME, REST)
    queries: frozenset[str] = QUERIES
    before_into: frozenset[str] = frozenset({"AS", ".", "INSERT", "MERGE", "REPLACE", "IGNORE"})
    telling: frozenset[tuple[str, ...]] = frozenset()
    locking: frozenset[tuple[str, str]] = frozenset()
    nested_comments: bool = False
    quote: str = '"'
    types: Types | None = None
    numbered: bool = False
    in_nothing: str = "IN (SELECT NULL WHERE 1 = 0)"
    not_in_nothing: str = "NOT IN (SELECT NULL WHERE 1 = 0)"

    @cached_property
    def lexer(self) -> re.Pattern[str]:
        return re.compile("|".join(self.parts), re.DOTALL)

    @cached_property
    def lexer_with_lists(self) -> re.Pattern[str]:
        """Many numbers or texts that stand alone in parentheses are one token, which is read in a hundredth of the
        time."""
        return re.compile("|".join((LIST, *self.parts)), re.DOTALL)


STANDARD = Syntax()
