"""Reads a statement and puts the values of its parameters in place.

Values become typed literals of DuckDB's SQL, so that all later stages see constants. ``Statement`` translates positions
in the text with literals to positions in the text that the user wrote. A long list after IN becomes a table, which the
binder knows by its name: planning thousands of constants would take longer than running the query.
"""

from __future__ import annotations

import contextlib
import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import partial
from itertools import pairwise
from typing import Any
from uuid import UUID

import pyarrow as pa
from sqlglot.dialects.duckdb import DuckDB
from sqlglot.errors import TokenError
from sqlglot.tokenizer_core import Token, TokenType

from dai.drivers.duckdb.syntax import SYNTAX
from dai.drivers.sql.lexer import tokens as lexed
from dai.drivers.sql.suggestions import other_parameter
from dai.errors import LimitError, NotAQueryError, ParameterError, StatementError
from dai.plugins import nearest
from dqp.algebra.table import list_name

Parameters = Sequence[Any] | Mapping[str, Any]

_EXPLAIN = re.compile(
    r"(?>\s|--[^\n]*|/\*.*?\*/)*explain\b(?P<analyze>\s+analy[sz]e\b)?"
    r"(?:\s*\(\s*format\s+(?P<form>\w+)\s*\))?",
    re.I | re.S,
)
FORMS = ("text", "json", "svg")
"""The formats of a plan."""
_ENDS = frozenset(
    {
        TokenType.VAR,
        TokenType.IDENTIFIER,
        TokenType.STRING,
        TokenType.NUMBER,
        TokenType.R_BRACKET,
        TokenType.R_PAREN,
        TokenType.R_BRACE,
    }
)
"""Tokens that end an operand. A colon after one belongs to a slice, a struct or a lambda and starts no parameter."""
_NAME = re.compile(r"\w+")
_TOUCHING = re.compile(r"'|\.\d")


class _Names(DuckDB):
    class Tokenizer(DuckDB.Tokenizer):
        IDENTIFIERS = ['"', "`"]  # noqa: RUF012
        KEYWORDS = {word: kind for word, kind in DuckDB.Tokenizer.KEYWORDS.items() if word != "?::"}  # noqa: RUF012


_DOLLARS = re.compile(
    r"""(?<!\w)[eE]'(?:[^'\\]|\\.|'')*(?:'|\Z)|'(?:[^']|'')*(?:'|\Z)|"(?:[^"]|"")*(?:"|\Z)"""
    r"""|`(?:[^`]|``)*(?:`|\Z)|--[^\n]*|/\*.*?(?:\*/|\Z)"""
    r"""|\$(?P<tag>(?:[^\W\d]\w*)?)\$.*?(?:\$(?P=tag)\$|\Z)|(?P<parameter>(?<![\w$])\$(?=\w+(?![\w$])))""",
    re.S,
)
"""A part of the text that may contain ``$`` without a parameter, or the ``$`` of a parameter. sqlglot takes ``$a,$``
for the start of a dollar-quoted string, so it gets ``?a,?b``, which has the same length."""
_WRITTEN = re.compile(
    r"""(?<!\w)[eE]'(?:[^'\\]|\\.|'')*+'|'(?:[^']|'')*+'|"(?:[^"]|"")*+"|`(?:[^`]|``)*+`|--[^\n]*|/\*.*?\*/"""
    r"""|\$(?P<tag>\w*)\$.*?\$(?P=tag)\$"""
    r"""|\bin\s*+\(\s*+(?:(?P<numbers>-?\d+(?:\s*+,\s*+-?\d+)*+)|(?P<texts>'(?:[^']|'')*+'(?:\s*+,\s*+'(?:[^']|'')*+')*+))"""
    r"""\s*+\)""",
    re.S | re.I,
)
"""A part of the text that may contain the word IN without being IN, or an IN with its list of whole numbers or
texts."""
_LARGEST = 2**127
_SPELLED = frozenset({int, float, str, bool, bytes, type(None), Decimal, date, datetime})
"""Types whose repr tells all different values apart."""
MOST_TOKENS = 30_000
"""Words, values, signs and comments. DuckDB's parser needs some 5 KB for each, and holds Python's lock."""
DEEPEST = 500
"""Parentheses and brackets that are open at once, and names in a chain of dots."""
MOST_LITERALS = 500
"""Values of a list behind IN that are written as literals."""
_LISTED: dict[type, tuple[str, pa.DataType]] = {
    int: ("BIGINT", pa.int64()),
    str: ("VARCHAR", pa.string()),
    float: ("DOUBLE", pa.float64()),
    date: ("DATE", pa.date32()),
}


@dataclass(frozen=True)
class Statement:
    """``text`` is the query alone, with literals for parameters; ``written`` what the user sent. ``kind``: ``query``,
    ``explain`` or ``explain analyze``."""

    written: str
    text: str
    kind: str
    tokens: tuple[Token, ...]
    edits: tuple[tuple[int, int, int], ...] = ()
    """(start and end in ``written``, length of the replacement in ``text``), in order."""
    lists: Mapping[str, pa.Table] = field(default_factory=dict)
    """Long lists, by the names under which ``text`` reads them."""
    form: str | None = None
    """Format of the plan that EXPLAIN returns: one of FORMS."""
    values: tuple[tuple[int, int, str], ...] = ()
    """Start and end in ``text`` of each literal that stands for a parameter, and the parameter's name or number."""

    def place(self, position: int | None) -> int | None:
        """The 1-based position in ``written`` for one in ``text``."""
        if position is None:
            return None
        shift = 0
        for start, end, length in self.edits:
            if position - 1 < start + shift:
                break
            if position - 1 < start + shift + length:
                return start + 1
            shift += length - (end - start)
        return position - shift

    def error(self, error: StatementError) -> StatementError:
        """The same error with its position in the text that the user sent."""
        position = self.place(error.position)
        return type(error)(error.detail, sql=self.written, position=position, sqlstate=error.sqlstate, hint=error.hint)


def tokens(sql: str, written: str | None = None, shift: int = 0) -> list[Token]:
    """Raises StatementError for a string, name or comment without an end, LimitError for a text that is too long or too
    deeply nested."""
    _bounded(sql)
    try:
        return list(_Names().tokenize(_DOLLARS.sub(lambda each: "?" if each["parameter"] else each[0], sql)))
    except TokenError as error:
        place = re.search(r"from (\d+):(\d+)", str(error.__cause__))
        position = len(sql.rstrip())
        if place:
            position = sum(len(each) + 1 for each in sql.split("\n")[: int(place[1]) - 1]) + int(place[2]) + 1
        message = "A string, a quoted name or a comment has no end."
        hint = "Write '' for a ' within a text; or better, give the text as a parameter: $name." if "'" in sql else None
        raise StatementError(message, sql=written or sql, position=position + shift, hint=hint) from error


def _bounded(sql: str) -> None:
    """Raises LimitError for a statement that is too large for a parser; reads no further than to the limit."""
    if len(sql) <= MOST_TOKENS and all(sql.count(each) <= DEEPEST // 4 for each in "([{."):
        return
    depth = dots = 0
    for count, (kind, start, end) in enumerate(lexed(sql, SYNTAX), 1):
        text = sql[start:end] if kind == "symbol" else ""
        depth += (text in ("(", "[", "{")) - (text in (")", "]", "}"))
        dots = dots + 1 if text == "." else 0 if text else dots
        if depth > DEEPEST or dots > DEEPEST:
            raise LimitError(
                f"The query is nested too deeply: at character {start + 1:,} more than {DEEPEST} "
                f"{'parentheses and brackets are open' if depth > DEEPEST else 'names are joined by dots'}.",
                hint="Name parts of it in WITH.",
            )
        if count > MOST_TOKENS:
            raise LimitError(
                f"The query has more than {MOST_TOKENS:,} words, values, signs and comments.",
                hint="Pass a long list as one parameter (id IN $ids), or upload it as a table and join that.",
            )


def is_explain(sql: str) -> bool:
    """Whether the text begins with EXPLAIN."""
    return _EXPLAIN.match(sql) is not None


def read(sql: str, parameters: Parameters = (), most: int | None = MOST_LITERALS) -> Statement:
    """The statement with its parameters in place. ``most``: values of a list that become literals, None for any number.
    Raises StatementError, NotAQueryError, ParameterError."""
    try:
        sql.encode()
    except UnicodeEncodeError as error:
        detail = f"The statement is not valid Unicode: character {error.start + 1:,} is half a surrogate pair."
        raise StatementError(detail, hint="Send it as UTF-8.") from error
    prefix = _EXPLAIN.match(sql)
    kind = "query" if prefix is None else "explain analyze" if prefix["analyze"] else "explain"
    form = (prefix["form"] or "text").lower() if prefix else None
    if form is not None and form not in FORMS:
        raise StatementError(f"There is no plan format {form!r}.", sql=sql, hint=nearest(form, list(FORMS)))
    start = prefix.end() if prefix else 0
    written, lists = sql, dict[str, pa.Table]()
    try:
        sql_tokens = tokens(sql[start:], written, start)
    except LimitError:
        if most is None:
            raise
        sql = _WRITTEN.sub(partial(_as_table, lists, most), sql)
        sql_tokens = tokens(sql[start:], written, start)
    while sql_tokens and sql_tokens[-1].token_type == TokenType.SEMICOLON:
        sql_tokens.pop()
    if not sql_tokens:
        raise NotAQueryError("The statement is empty.")
    end = start + sql_tokens[-1].end + 1
    second = next((each for each in sql_tokens if each.token_type == TokenType.SEMICOLON), None)
    if second is not None:
        raise NotAQueryError(
            "This is more than one statement; nothing was run.", sql=written, position=start + second.start + 1
        )
    replaced = _replaced(sql_tokens, sql[start:], parameters, lists, most)
    edits = [(start + first, start + last, text) for first, last, text, _ in replaced]
    if not edits and not start and end == len(sql):
        return Statement(written, sql, kind, tuple(sql_tokens), lists=lists, form=form)
    parts, at, length = [], start, 0
    values: list[tuple[int, int, str]] = []
    for (first, last, text), (*_, key) in zip(edits, replaced, strict=True):
        parts += [sql[at:first], text]
        length += first - at + len(text)
        values.append((length - len(text), length, str(key)))
        at = last
    text = "".join([*parts, sql[at:end]])
    lengths = [(first, last, len(each)) for first, last, each in edits]
    known = ((0, start, 0), *lengths) if start else tuple(lengths)
    sql_tokens = tokens(text) if edits else sql_tokens
    for (first, last, _), (begin, behind, _) in zip(edits, values, strict=True):
        if not _is_alone(text, sql_tokens, begin, behind):
            raise ParameterError(
                f"Parameter {sql[first:last]} touches a text, a number or a word, with which its value would be one.",
                hint="Write an operator between them: $name || 'text'.",
            )
    return Statement(written, text, kind, tuple(sql_tokens), known, lists, form, tuple(values))


def _as_table(lists: dict[str, pa.Table], most: int, match: re.Match[str]) -> str:
    """The replacement for a long list after IN, as for a list that is a parameter. It is as long as the list was."""
    values: list[Any] = []
    if match["numbers"]:
        values = [int(each) for each in match["numbers"].split(",")]
    elif match["texts"]:
        values = [each.replace("''", "'") for each in re.findall(r"'((?:[^']|'')*+)'", match["texts"])]
    text = _listed(values, lists, most, True)
    first = match.start("numbers" if match["numbers"] else "texts") - match.start()
    return match[0] if text is None else f"{match[0][:first]}{text})".ljust(len(match[0]))


def _replaced(
    sql_tokens: list[Token], sql: str, parameters: Parameters, lists: dict[str, pa.Table], most: int | None
) -> list[tuple[int, int, str, str | int]]:
    """(start, end, literal, name or number) of every parameter. Long lists go into ``lists``."""
    named = parameters if isinstance(parameters, Mapping) else None
    positional = [] if isinstance(parameters, Mapping) else list(parameters)
    edits: list[tuple[int, int, str, str | int]] = []
    used: set[str | int] = set()
    question = 0
    for index, token in enumerate(sql_tokens):
        following = sql_tokens[index + 1] if index + 1 < len(sql_tokens) else None
        adjacent = following is not None and following.start == token.end + 1 and _NAME.fullmatch(following.text)
        key: str | int
        first = sql[token.start]
        if token.token_type == TokenType.PLACEHOLDER and first == "?":
            key, end = question, token.end + 1
            question += 1
        elif following is None or not adjacent:
            continue
        elif token.token_type == TokenType.PLACEHOLDER and first == "$":
            key, end = int(following.text) - 1 if following.text.isdigit() else following.text, following.end + 1
        elif token.token_type == TokenType.COLON and (index == 0 or sql_tokens[index - 1].token_type not in _ENDS):
            key, end = following.text, following.end + 1
            if _is_slice(sql_tokens, index) and (named is None or key not in named):
                continue
        else:
            continue
        shown = sql[token.start : end]
        if isinstance(key, int):
            if named is not None and str(key + 1) in named and shown != "?":
                key = str(key + 1)
            elif named is not None or not 0 <= key < len(positional):
                raise _missing(shown, key, named, len(positional))
        elif named is None or key not in named:
            raise _missing(shown, key, named, len(positional))
        used.add(key)
        value = named[str(key)] if named is not None else positional[int(key)]
        name = f"{shown} (number {key + 1})" if shown == "?" and isinstance(key, int) else shown
        before = [each.token_type for each in sql_tokens[max(index - 2, 0) : index]]
        enclosed = before == [TokenType.IN, TokenType.L_PAREN] and _closes(sql_tokens, end)
        after_in = before[-1:] == [TokenType.IN]
        value = _members(plain(value)) if after_in else value
        text = _listed(value, lists, most, enclosed) if after_in or enclosed else None
        edits.append((token.start, end, _text(value, name, after_in, enclosed) if text is None else text, key))
    surplus: list[str | int] = [each for each in named or range(len(positional)) if each not in used]
    if surplus:
        names = ", ".join(f"${each}" if isinstance(each, str) else str(each + 1) for each in surplus)
        raise ParameterError(
            f"The statement does not use parameter {names}.",
            hint=other_parameter(sql, SYNTAX) or "Leave the value out, or use the parameter in the SQL.",
        )
    return edits


def _is_alone(sql: str, sql_tokens: Sequence[Token], begin: int, end: int) -> bool:
    """Whether a value has become no part of something else: of a word or a number that it touches, or of one text with
    another, which may stand in another line. Nor would any other value there."""
    if sql[begin - 1 : begin] in ("'", ".") or _TOUCHING.match(sql, end):
        return False
    first = bisect_left(sql_tokens, begin, key=lambda each: each.start)
    last = bisect_left(sql_tokens, end - 1, key=lambda each: each.end)
    if first == len(sql_tokens) or sql_tokens[first].start != begin or sql_tokens[last].end != end - 1:
        return False
    if first and sql_tokens[first - 1].token_type == TokenType.VAR and sql_tokens[first - 1].end == begin - 1:
        return False  # X'ab' is no text
    texts = [each.token_type == TokenType.STRING for each in sql_tokens[max(first - 1, 0) : last + 2]]
    return not any(one and other for one, other in pairwise(texts))


def _is_slice(sql_tokens: list[Token], colon: int) -> bool:
    """Whether the colon may be the first within the brackets behind an operand, as in ``x[:2]``, or the last of
    ``x[:-:2]``."""
    before = [each.token_type for each in sql_tokens[max(colon - 2, 0) : colon]]
    return len(before) == 2 and (
        (before[1] == TokenType.L_BRACKET and before[0] in _ENDS) or before == [TokenType.COLON, TokenType.DASH]
    )


def _members(value: Any) -> Any:
    """A list without its NULLs: in DuckDB, ``IN`` with a list means ``contains``, which never matches NULL."""
    if not isinstance(value, list):
        return value
    members = value if _SPELLED.issuperset(map(type, value)) else map(plain, value)
    return [each for each in members if each is not None]


def _closes(sql_tokens: list[Token], end: int) -> bool:
    return (
        any(each.start >= end and each.token_type == TokenType.R_PAREN for each in sql_tokens)
        and next(each for each in sql_tokens if each.start >= end).token_type == TokenType.R_PAREN
    )


def _missing(shown: str, key: str | int, named: Mapping[str, Any] | None, count: int) -> ParameterError:
    if isinstance(key, int):
        available = (
            "only names are" if named else f"{count or 'no'} positional {'value is' if count == 1 else 'values are'}"
        )
        in_order = "Give one value for each, in order (in a perform document: one sqlParameter each)."
        hint = "Write $ and its name in the SQL." if named else in_order
        return ParameterError(f"Parameter {shown} is number {key + 1}, but {available} given.", hint=hint)
    known = ", ".join(map(str, named)) if named else "no named values"
    how_to_set = (
        f"Give it one: sql(…, {key}=…) in Python, -p {key}=… on the command line, or a variable {key} for %%dqp."
    )
    suggestion = nearest(key, list(map(str, named))) if named else ""
    hint = suggestion if suggestion.startswith("Did") else how_to_set
    return ParameterError(f"Parameter {shown} has no value; given: {known}.", hint=hint)


def _listed(value: Any, lists: dict[str, pa.Table], most: int | None, enclosed: bool) -> str | None:
    """The subquery that gives the values of a long list, which is put into ``lists``; None for any other value."""
    value = plain(value)
    if most is None or not isinstance(value, list) or len(value) <= most:
        return None
    kinds = {type(each) for each in value} - {type(None)}
    type_name, arrow = _LISTED.get(kinds.pop(), (None, None)) if len(kinds) == 1 else (None, None)
    if type_name is None:
        return None
    try:
        values = pa.array(value, arrow)
        if arrow == pa.int64():
            with contextlib.suppress(pa.ArrowInvalid):
                values, type_name = values.cast(pa.int32()), "INTEGER"
    except (pa.ArrowInvalid, OverflowError, UnicodeEncodeError):
        return None
    name = list_name(type_name, len(lists))
    lists[name] = pa.table({"value": values})
    return f"SELECT value FROM {name}" if enclosed else f"(SELECT value FROM {name})"


def _text(value: Any, name: str, after_in: bool, enclosed: bool) -> str:
    """The literal; a sequence after IN is its list of values."""
    value = plain(value)
    if not (isinstance(value, list) and (after_in or enclosed)):
        return literal(value, name)
    if not enclosed and {Decimal} <= set(map(type, value)) <= {Decimal, int}:
        return literal(value, name)  # IN [1.5] may round the value that it looks for, IN (1.5) does not
    listed = ", ".join(literal(plain(each), name) for each in value)
    return listed if enclosed else f"({listed})"


def plain(value: Any) -> Any:
    """A value of NumPy, Arrow or pandas as Python's; any sequence as a list."""
    if hasattr(value, "as_py"):
        return value.as_py()
    package = type(value).__module__.partition(".")[0]
    if package in ("numpy", "pandas") and hasattr(value, "tolist"):
        kind = getattr(getattr(value, "dtype", None), "kind", "")
        if package == "numpy" and kind in ("M", "m"):
            value = value.astype(f"{'datetime64' if kind == 'M' else 'timedelta64'}[us]")
        listed = value.tolist()
        # In a pandas column of texts or objects, NaN marks a missing value.
        missing = package == "pandas" and kind == "O" and isinstance(listed, list)
        return [None if isinstance(each, float) and each != each else each for each in listed] if missing else listed
    if type(value).__name__ in ("NaTType", "NAType"):
        return None
    return list(value) if isinstance(value, tuple | set | frozenset | range) else value


def spelled(parameters: Parameters) -> str:
    """A text that differs for different values. (``repr`` of a long NumPy or pandas array leaves out its middle.)"""
    if isinstance(parameters, Mapping):
        return repr({name: _whole(each) for name, each in parameters.items()})
    return repr([_whole(each) for each in parameters])


def _whole(value: Any) -> Any:
    value = plain(value)
    if isinstance(value, list):
        return value if all(type(each) in _SPELLED for each in value) else [_whole(each) for each in value]
    if type(value) in _SPELLED:
        return value
    try:
        return (literal(value),)  # a tuple: no text is the same
    except ParameterError:
        return value


def literal(value: Any, name: str = "") -> str:
    """DuckDB's SQL of a Python value. ParameterError for a value that DuckDB has no type for."""
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, int):
        if not -_LARGEST <= value < _LARGEST:
            raise ParameterError(f"The value of parameter {name} has more than 128 bits.")
        return f"({int(value)})" if value < 0 else str(int(value))
    if isinstance(value, float):
        return f"CAST('{float(value)!r}' AS DOUBLE)"
    if isinstance(value, Decimal):
        return _decimal(value, name)
    if isinstance(value, str):
        return _string(value, name)
    if isinstance(value, bytes | bytearray | memoryview):
        return "CAST('" + "".join(f"\\x{each:02X}" for each in bytes(value)) + "' AS BLOB)"
    if isinstance(value, datetime):
        kind = "TIMESTAMP" if value.tzinfo is None else "TIMESTAMPTZ"
        return f"CAST('{value.isoformat(sep=' ')}' AS {kind})"
    if isinstance(value, date):
        return f"CAST('{value.isoformat()}' AS DATE)"
    if isinstance(value, time):
        return f"CAST('{value.isoformat()}' AS {'TIME' if value.tzinfo is None else 'TIMETZ'})"
    if isinstance(value, timedelta):
        micros = (value - timedelta(days=value.days)) // timedelta(microseconds=1)
        return f"CAST('{value.days} days {micros} microseconds' AS INTERVAL)"
    if isinstance(value, UUID):
        return f"CAST('{value}' AS UUID)"
    if isinstance(value, list):
        return "[" + ", ".join(literal(plain(each), name) for each in value) + "]"
    raise ParameterError(f"The value of parameter {name} is a {type(value).__name__}; SQL has no type for it.")


def _decimal(value: Decimal, name: str) -> str:
    if not value.is_finite():
        raise ParameterError(f"The value of parameter {name} is {value}, which no SQL decimal can hold.")
    text = format(value, "f")
    whole, _, fraction = text.lstrip("-").partition(".")
    digits = len(whole.lstrip("0")) + len(fraction)
    if digits > 38:
        raise ParameterError(f"The value of parameter {name} has more than 38 digits.")
    # As for a constant in DuckDB, a zero before the point counts as a digit.
    precision = digits if whole.strip("0") else min(digits + 1, 38)
    return f"CAST('{text}' AS DECIMAL({precision}, {len(fraction)}))"


def _string(value: str, name: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ParameterError(f"The value of parameter {name} is not valid Unicode text.") from error
    parts = ["'" + part.replace("'", "''") + "'" for part in str(value).split("\0")]
    return parts[0] if len(parts) == 1 else "(" + " || chr(0) || ".join(parts) + ")"
