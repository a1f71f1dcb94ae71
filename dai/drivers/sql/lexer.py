"""Finds the words of a statement, and the parts of its text that are not code, without parsing it.

One lexer for every dialect skips strings, quoted names, comments and dollar quotes. On it stand three questions: what
is the first keyword, is this one single query, where are the parameter markers. Nothing here decides what a statement
may do: that is the read-only transaction's part, and the database's.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, wraps
from typing import Any, Literal, NamedTuple, TypeVar, cast

from dai.drivers.sql.syntax import VALUE, Syntax
from dai.errors import NotAQueryError, ParameterError, StatementError
from dai.plugins import nearest

F = TypeVar("F", bound=Callable[..., Any])
_KEPT = 20_000
"""Characters of a statement whose results are remembered."""
Kind = Literal["word", "name", "string", "number", "list", "comment", "executable", "marker", "escaped", "symbol"]
"""``list``: many numbers or texts that alone stand in parentheses, for who asks for ``lists``."""
Style = Literal["qmark", "format", "dollar", "numeric", "named"]
"""``?``, ``%s``, ``$1``, ``:1``, ``:p1``."""


class Token(NamedTuple):
    """``start`` and ``end`` count characters of the statement from 0."""

    kind: Kind
    start: int
    end: int


_VALUE = re.compile(VALUE)
_KINDS: dict[str, Kind] = {"estring": "string", "dollar": "string"}

COMMANDS = frozenset(
    """ABORT ALTER ANALYSE ANALYZE ATTACH BACKUP BEGIN BINLOG CACHE CALL CHANGE CHECK CHECKPOINT CHECKSUM CLOSE CLUSTER
    COMMENT COMMIT COPY CREATE DEALLOCATE DECLARE DELETE DESC DESCRIBE DETACH DISCARD DO DROP END EXECUTE EXPLAIN EXPORT
    FETCH FLUSH FORCE FROM GET GRANT HANDLER HELP IMPORT INSERT INSTALL KILL LISTEN LOAD LOCK MERGE MOVE NOTIFY OPTIMIZE
    PIVOT PRAGMA PREPARE PURGE REASSIGN REFRESH REINDEX RELEASE RENAME REPAIR REPLACE RESET RESIGNAL REVOKE ROLLBACK
    SAVEPOINT SECURITY SELECT SET SHOW SHUTDOWN SIGNAL START STOP SUMMARIZE TABLE TRUNCATE UNINSTALL UNLISTEN UNLOCK
    UNPIVOT UPDATE USE VACUUM VALUES WITH XA""".split()
)
"""The words with which statements begin, in any of our databases; any other is a syntax error."""

_VERBS = frozenset({"SELECT", "VALUES", "TABLE", "FROM", "INSERT", "UPDATE", "DELETE", "MERGE", "REPLACE"})
_CHANGES = frozenset({"INSERT", "UPDATE", "DELETE", "MERGE", "REPLACE"})


def tokens(sql: str, syntax: Syntax, *, lists: bool = False) -> Iterator[Token]:
    """All tokens but white space, in order. What is not closed reaches to the end: the database will say so."""
    match = (syntax.lexer_with_lists if lists else syntax.lexer).match
    at, end = 0, len(sql)
    while at < end:
        part = match(sql, at)
        if part is None or part.lastgroup is None:
            raise AssertionError(f"No part of the syntax takes {sql[at : at + 20]!r}.")
        group, stop = part.lastgroup, part.end()
        if group == "open":
            group, stop = "comment", _comment_end(sql, at, syntax.nested_comments)
        if group != "space":
            yield Token(_KINDS.get(group, group), at, stop)  # type: ignore[arg-type]
        at = stop


def _comment_end(sql: str, start: int, nested: bool) -> int:
    depth, at = 1, start + 2
    while depth:
        close = sql.find("*/", at)
        if close < 0:
            return len(sql)
        inner = sql.find("/*", at, close + 1) if nested else -1  # "/*/" opens, then closes nothing
        depth, at = (depth + 1, inner + 2) if inner >= 0 else (depth - 1, close + 2)
    return at


def shortened(sql: str, syntax: Syntax) -> str:
    """With the first value alone of each long list behind IN."""
    parts, at = [], 0
    before = ("", "")
    for kind, start, end in tokens(sql, syntax, lists=True):
        if kind == "list" and before == ("IN", "(") and (first := _VALUE.match(sql, start)):
            parts.append(sql[at : first.end()])
            at = end
        if kind != "comment":
            before = before[1], sql[start:end].upper() if kind in ("word", "symbol") else ""
    return "".join([*parts, sql[at:]])


def keyword(sql: str, syntax: Syntax) -> str:
    """The first keyword in upper case, behind comments and opening parentheses; empty where there is none."""
    for kind, start, end in tokens(sql, syntax):
        if kind == "word":
            return sql[start:end].upper()
        if kind != "comment" and sql[start:end] != "(":
            return ""
    return ""


def check_locks(sql: str, syntax: Syntax) -> None:
    """NotAQueryError for a query that locks rows, where a transaction that only reads may do that."""
    previous = ""
    for kind, start, end in tokens(sql, syntax) if syntax.locking else ():
        if kind == "comment":
            continue
        text = sql[start:end].upper() if kind == "word" else ""
        if (previous, text) in syntax.locking:
            raise _refused(sql, f"SELECT … {previous} {text}", start)
        previous = text


def check_comments(sql: str, syntax: Syntax) -> None:
    """NotAQueryError for a comment that the server may run: whether its quotes begin a string nobody knows who does not
    know the server's version, so nothing could be said of what follows."""
    for kind, start, end in tokens(sql, syntax) if "/*" in sql else ():
        if kind == "executable":
            raise NotAQueryError(
                f"A comment that the database may run is not allowed: {sql[start:end]}.",
                sql=sql,
                position=start + 1,
                hint="Write its text outside the comment, or leave it out.",
            )


def _remembered(function: F) -> F:
    """With its last results, but for long statements: they would be kept with them."""
    known = lru_cache(maxsize=256)(function)

    @wraps(function)
    def remembering(sql: str, *arguments: Any) -> Any:
        return (known if len(sql) <= _KEPT else function)(sql, *arguments)

    return cast(F, remembering)


@_remembered
def single_query(sql: str, syntax: Syntax) -> str:
    """The SQL of one single query, without a semicolon and what follows it (so positions stay what they are).

    Raises StatementError where no statement begins so; NotAQueryError for no statement, several statements, a statement
    that changes something by its own keyword (also behind ``WITH``), ``SELECT … INTO``, comments that the server may
    run, and what tells secrets.
    """
    check_comments(sql, syntax)
    first = keyword(sql, syntax)
    if not first and not any(kind != "comment" for kind, _, _ in tokens(sql, syntax)):
        raise NotAQueryError("The statement is empty.", sql=sql, hint="Send one SELECT statement.")
    if first not in COMMANDS and first not in syntax.queries:
        raise _unknown(sql, syntax)
    if first not in syntax.queries:
        raise _refused(sql, first or "This", _first_code(sql, syntax))
    depth, previous, ended, verb = 0, "", None, "" if first == "WITH" else first
    words: tuple[str, ...] = ()
    for kind, start, end in tokens(sql, syntax, lists=True):
        if kind == "comment":
            continue
        if ended is not None:
            if sql[start:end] == ";":
                continue
            raise NotAQueryError(
                "There is more than one statement.",
                sql=sql,
                position=start + 1,
                hint="A query is one statement. Send others on their own, or in activities of their own.",
            )
        text = sql[start:end].upper() if kind in ("word", "symbol") else ""
        if text == ";":
            ended = start
        elif text == "(":
            depth += 1
        elif text == ")":
            depth -= 1
        elif kind == "word":
            words = (*words, text) if len(words) < 3 else words
            if words[:2] in syntax.telling or words in syntax.telling:
                raise _refused(sql, " ".join(words), start)
            if not verb and depth == 0 and text in _VERBS and previous not in ("WITH", "RECURSIVE", ","):
                verb = text
                if verb in _CHANGES:
                    raise _refused(sql, f"WITH … {verb}", start)
            if text == "INTO" and previous not in syntax.before_into:
                raise _refused(sql, f"{first} … INTO", start)
        previous = text
    return sql if ended is None else sql[:ended]


def _first_code(sql: str, syntax: Syntax) -> int:
    return next(start for kind, start, _ in tokens(sql, syntax) if kind != "comment")


def _unknown(sql: str, syntax: Syntax) -> StatementError:
    at = next((token for token in tokens(sql, syntax) if token.kind != "comment" and sql[token.start] != "("), None)
    if at is None:
        return StatementError("Syntax error: the parentheses are empty.", sql=sql, position=1)
    text = sql[at.start : at.end]
    return StatementError(
        f"Syntax error at {text[:40]!r}: no statement begins with it.",
        sql=sql,
        position=at.start + 1,
        hint=nearest(text.upper(), sorted(syntax.queries)),
    )


def _refused(sql: str, what: str, start: int) -> NotAQueryError:
    hint = (
        "Only statements that read are allowed here (SELECT, WITH … SELECT, VALUES). "
        "To change data use resource.execute(…) in Python, or sqlUpdateStatement in a perform document."
    )
    if what in ("SHOW", "DESCRIBE", "DESC", "SUMMARIZE", "PRAGMA"):
        hint = "Tables and columns: resource.schema() in Python, dai resources NAME, GET /resources/NAME/schema."
    return NotAQueryError(f"{what} is not a query: nothing was run.", sql=sql, position=start + 1, hint=hint)


@dataclass(frozen=True, slots=True)
class Bound:
    """A statement in the driver's own paramstyle, with ``count`` markers. ``inserted``: where the driver had put
    something into the caller's SQL before, and how many characters."""

    sql: str
    count: int
    _starts: tuple[int, ...] = ()
    _shifts: tuple[int, ...] = ()
    inserted: tuple[int, int] = (0, 0)

    def original(self, position: int) -> int:
        """The 1-based position in the caller's SQL of a 1-based position in ``sql``."""
        edit = bisect_right(self._starts, position - 1) - 1
        place = position if edit < 0 else max(position - self._shifts[edit], 1)
        at, length = self.inserted
        return place if place <= at else max(place - length, at + 1)


def check_count(markers: int, values: int) -> None:
    """ParameterError for more or fewer values than markers."""
    if markers != values:
        raise ParameterError(
            f"The statement has {markers} parameter{'s' * (markers != 1)} (?), "
            f"{values} value{' was' if values == 1 else 's were'} given.",
            hint="Give one value for each ?, in order (in a perform document: one sqlParameter each).",
        )


_MARKERS: dict[Style, str] = {"qmark": "?", "format": "%s", "dollar": "${}", "numeric": ":{}", "named": ":p{}"}


@_remembered
def bind_markers(sql: str, style: Style, syntax: Syntax) -> Bound:
    """``?`` written as the driver's marker, ``??`` as ``?``. In ``format`` every other ``%`` is doubled, in strings
    too, because drivers of that style format the whole text. Use it only where parameters are given."""
    edits = _edits(sql, _MARKERS[style].format, syntax)
    if style == "format":
        edits += [(percent.start(), percent.end(), "%%") for percent in re.finditer("%", sql)]
        edits.sort()
    return edited(sql, edits)


def replace_markers(sql: str, text: Callable[[int], str], syntax: Syntax) -> Bound:
    """``?`` replaced by ``text(n)``, n from 1, and ``??`` by ``?``."""
    return edited(sql, _edits(sql, text, syntax))


def _edits(sql: str, text: Callable[[int], str], syntax: Syntax) -> list[tuple[int, int, str]]:
    edits: list[tuple[int, int, str]] = []
    count = 0
    for kind, start, end in tokens(sql, syntax, lists=True):
        if kind == "marker":
            count += 1
            edits.append((start, end, text(count)))
        elif kind == "escaped":
            edits.append((start, end, "?"))
    return edits


def edited(sql: str, edits: list[tuple[int, int, str]]) -> Bound:
    """With other texts at (start, end), which are in order."""
    count = sum(sql[start:end] == "?" for start, end, _ in edits)
    parts, starts, shifts, at, written = [], [], [], 0, 0
    for start, end, text in edits:
        parts += [sql[at:start], text]
        written += start - at + len(text)
        at = end
        starts.append(written)
        shifts.append(written - end)
    parts.append(sql[at:])
    return Bound("".join(parts), count, tuple(starts), tuple(shifts))
