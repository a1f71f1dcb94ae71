"""Writes the error for a query that DuckDB refuses: what is wrong, where in the SQL, and the nearest names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from dai.drivers.duckdb.syntax import OF_THE_GRAMMAR, SYNTAX
from dai.drivers.sql.lexer import tokens
from dai.drivers.sql.suggestions import at_syntax_error, in_double_quotes, other_parameter, unfit_quotes
from dai.errors import DaiError, DataError, LimitError, NotFoundError, ParameterError, StatementError, caret
from dai.plugins import MOST, close_name, close_to, nearest
from dqp.catalog.reflection import Reflected
from dqp.catalog.validator import Fault, keywords

Columns = Mapping[str, Mapping[str, str]]
"""By table: the names of its columns in the federation, and in the source."""
_INSTEAD = {
    **dict.fromkeys(("to_char", "date_format", "format_date"), "strftime(moment, '%Y-%m-%d')"),
    **dict.fromkeys(("to_date", "str_to_date", "parse_date"), "strptime(text, '%Y-%m-%d')"),
    **dict.fromkeys(("getdate", "sysdate", "curdate"), "now() or current_date"),
    "nvl": "coalesce(a, b)",
    "isnull": "a IS NULL, or coalesce(a, b)",
    "group_concat": "string_agg(text, ', ')",
    "to_number": "CAST(text AS DOUBLE)",
}
"""Functions of other products, and what does the same here."""
_ELLIPSIS = 300
_LONGEST = 2_000
_UNFIT = re.compile(
    r"""(?:Could not convert \w+ ['"](?P<text>.*)['"] to .*?|Could not cast value .*?|Type .*? can't be cast .*?"""
    r"""|(?:invalid )?\w+ field (?:format|value out of range): "(?P<moment>.*)".*?)"""
    r"""(?: when casting from source column (?P<column>.+))?""",
    re.S,
)
"""DuckDB's messages about a value that a type cannot hold."""
_BEFORE = re.compile(r"\b(?:cast\s*\(|date|time|timestamp|timestamptz|interval)\s*\Z", re.I)
_BEFORE_NAMES = frozenset({"FROM", "JOIN", ",", "SELECT", "WHERE", "ON", "AND", "OR", "BY", "HAVING", "(", "="})
_BEHIND = re.compile(r"\s*::")


def explained(
    sql: str, fault: Fault, missing: Callable[[str], DaiError | None], columns: Callable[[], Columns]
) -> DaiError:
    """The error for a refused query. ``missing`` makes the error for a table's name, as it is written; ``columns``
    gives the columns of the tables that the query names."""
    message, _, rest = fault.message.partition("\n")
    if "Values were not provided" in message:
        return ParameterError(f"A value is missing for the parameter {message.rpartition(': ')[2]}.")
    if "excess parameters" in fault.message or "Parameter argument/count mismatch" in message:
        return ParameterError(f"The SQL has no parameter {_last(fault.message)}, but there is a value for it.")
    if message.startswith("Max expression depth"):
        return LimitError("The query is nested too deeply.", hint="Name parts of it in WITH.")

    def wrong(detail: str, hint: str | None, position: int | None = fault.position) -> StatementError:
        return StatementError(detail, sql=sql, position=position, hint=hint)

    if (table := missing_table(sql, fault)) is not None:
        error = missing(table)
        if isinstance(error, DaiError) and error.status != 404:
            return error
        if error is not None:
            return wrong(error.detail, error.hint)
    if fault.kind == "COLUMN_NOT_FOUND" and fault.name:
        return wrong(*_missing_column(sql, fault, fault.name, columns()))
    if match := re.match(r'(?:Table|Values list) "(.+?)" does not have a column named "(.+?)"', message):
        return wrong(
            *_similar(columns(), match[2])
            or (f"There is no column {match[2]!r} in {match[1]}.", _nearest_quoted(match[2], rest))
        )
    if match := re.match(r'Column "(.+?)" (?:does not exist on|in [A-Z]+ list not found)', message):
        known = list(dict.fromkeys(name for names in _read(sql, columns()).values() for name in names))
        places = [start for kind, start, end in tokens(sql, SYNTAX) if sql[start:end].strip('"`') == match[1]]
        position = places[0] + 1 if fault.position is None and len(places) == 1 else fault.position
        hint = nearest(match[1], known) if known and match[1].casefold() not in map(str.casefold, known) else None
        return wrong(message[:_ELLIPSIS], hint, position)
    if match := re.match(r'Referenced table "(.+?)" not found', message):
        column = _column_of_subquery(sql, fault)
        if column is not None and (found := _missing_in(match[1], *column, columns())) is not None:
            return wrong(*found)
        return wrong(f"There is no table {match[1]!r} in this FROM clause.", _nearest_quoted(match[1], rest))
    if match := re.match(r"(\w+) Function with name (.+?) does not exist", message):
        near = close_to(match[2], [*OF_THE_GRAMMAR, *(fault.candidates or "").split(",")])
        hint = f"Did you mean {near!r}?" if near else None
        if (function := _INSTEAD.get(match[2].casefold())) is not None:
            hint = f"Write {function}."
        return wrong(f"There is no {match[1].lower()} function {match[2]!r}.", hint)
    if fault.kind == "NO_MATCHING_FUNCTION" or message.startswith("No function matches"):
        detail = message.partition(". You might")[0].replace("_LITERAL", "")
        return wrong(f"{detail}.", _cast(_faulty_text(sql, fault), fault, rest))
    if message.startswith(("Deprecated lambda arrow", "Invalid lambda parameters")):
        return wrong("An arrow (->) reads from JSON; it makes no lambda.", "Write lambda x: x + 1 for x -> x + 1.")
    hint = next((line.strip() for line in rest.splitlines() if line.startswith("Did you mean")), None)
    if match := re.match(r"Cannot extract field '(.+?)' from expression \"(.+?)\"", message):
        hint = f"A struct of a source is text here (JSON): {match[2]}->>'{match[1]}'."
    elif (match := re.match(r"Could not convert string '(.+?)' to INT64", message)) and f"['{match[1]}']" in sql:
        hint = f"A map or a struct of a source is text here (JSON): …->>'{match[1]}'."
    if hint is None and fault.position is not None and message.startswith("syntax error"):
        hint = other_parameter(sql, SYNTAX) or at_syntax_error(sql, fault.position, SYNTAX) or unfit_quotes(sql, SYNTAX)
        hint = hint or _keyword_as_name(sql, fault.position)
    return wrong(message[:_ELLIPSIS], hint)


def _keyword_as_name(sql: str, position: int) -> str | None:
    """A hint where a keyword stands for a table, or a ) too many. ``position``: of the keyword or what follows it."""
    code = [(sql[start:end], start) for kind, start, end in tokens(sql, SYNTAX) if kind != "comment"]
    at = next((place for place, (_, start) in enumerate(code) if start == position - 1), 0)
    written = [text for text, _ in code]
    if written[at : at + 1] == [")"] and written[: at + 1].count(")") > written[: at + 1].count("("):
        return "A ) has no (."
    at -= written[at : at + 1] == ["."]
    if at > 0 and written[at].lower() in keywords() and written[at - 1].upper() in _BEFORE_NAMES:
        return f'{written[at]} is a keyword; write a table of that name "{written[at]}".'
    return None


def _missing_column(sql: str, fault: Fault, name: str, tables: Columns) -> tuple[str, str | None]:
    """Message and hint for a column that none of the tables has, or that the query around does not see."""
    read = _read(sql, tables)
    if similar := _similar(read, name):
        return similar
    hiding = [table for table, names in read.items() if name.casefold() in map(str.casefold, names)]
    if hiding:
        instead = f", or use {' or '.join(fault.candidates.split(','))}" if fault.candidates else ""
        has = f"{' and '.join(hiding)} has one, but the query in FROM does not select it."
        return f"There is no column {name!r} here: {has}", f"Select it in the query in FROM{instead}."
    known = list(dict.fromkeys(each for names in read.values() for each in names))
    near = close_name(name, known)
    hint = nearest(name, known) if known else None
    owners = [table for table, names in read.items() if near in names]
    if len(owners) > 1:
        hint = f"Did you mean {near!r}, of {' or '.join(owners)}?"
    if not near:
        text = in_double_quotes(sql, fault.position or 0) if fault.position else None
        others = {each: close_name(name, list(tables[each])) for each in tables if each not in read}
        other = next((f"{each}, which is not in the query, has {has!r}." for each, has in others.items() if has), None)
        hint = unfit_quotes(sql, SYNTAX) or text or other or hint
    where = f" in {next(iter(read))}" if len(read) == 1 else ""
    return f"There is no column {name!r}{where}.", hint


def _column_of_subquery(sql: str, fault: Fault) -> tuple[str, exp.Expression] | None:
    """The name of the column at the fault, and the member of FROM that has the name before it. Where it is one of a
    subquery, DuckDB misses the column there, looks for it in the query around it, and reports a missing table."""
    try:
        columns = sqlglot.parse_one(sql, read="duckdb").find_all(exp.Column)
    except (SqlglotError, RecursionError):
        return None
    for column in columns:
        if fault.position is None or column.parts[0].meta.get("start") != fault.position - 1:
            continue
        select = column.find_ancestor(exp.Select)
        while select is not None and (around := select.find_ancestor(exp.Select)) is not None:
            members = [each.this for each in (select.args.get("from_"), *select.args.get("joins", ())) if each]
            for member in (*members, *select.args.get("laterals", ())):
                if member.alias_or_name.casefold() == column.table.casefold():
                    return column.name, member
            select = around
    return None


def _missing_in(table: str, name: str, member: exp.Expression, tables: Columns) -> tuple[str, str | None] | None:
    """Message and hint for a column that the member of FROM, called ``table`` in the query, does not have; None where
    it has it, so that the column stands before the member."""
    cte = _cte(member)
    read = {} if cte is not None else {each: tables[each] for each in tables if _is(each, member)}
    known = [each for names in read.values() for each in names]
    if cte is not None:
        known = _names(cte)
    elif isinstance(member, exp.Subquery):
        known = _names(member)
    known = _renamed(known, member)
    if any(each.casefold() == name.casefold() for each in known):
        return None
    similar = None if member.alias_column_names else _similar(read, name)
    return similar or (f"There is no column {name!r} in {table}.", nearest(name, known) if known else None)


def _read(sql: str, tables: Columns) -> Columns:
    """Those of the tables, whose names are words of the query, that it may read; all where it cannot be parsed."""
    try:
        members = list(sqlglot.parse_one(sql, read="duckdb").find_all(exp.Table))
    except (SqlglotError, RecursionError):
        return tables
    return {table: names for table, names in tables.items() if any(_is(table, each) for each in members)}


def _is(table: str, member: exp.Expression) -> bool:
    """Whether the member of FROM may be the table, which has this name in the federation."""
    written = [each.name.casefold() for each in member.parts] if isinstance(member, exp.Table) else []
    source, _, name = table.casefold().partition(".")
    if written == [table.casefold().replace(".", "_")]:
        return True
    return written[-1:] == [(name or source).rpartition(".")[2]] and written[0] in (source, written[-1])


def _cte(member: exp.Expression) -> exp.CTE | None:
    """The common table expression that the member of FROM reads."""
    if not isinstance(member, exp.Table) or member.db:
        return None
    named = (each for each in member.root().find_all(exp.CTE) if each.alias.casefold() == member.name.casefold())
    return next(named, None)


def _names(query: exp.CTE | exp.Subquery) -> list[str]:
    """The columns of a query that it names."""
    inner = query.this
    named = [each for each in inner.named_selects if each != "*"] if isinstance(inner, exp.Query) else []
    return _renamed(named, query)


def _renamed(names: list[str], member: exp.Expression) -> list[str]:
    alias = member.args.get("alias")
    others = [each.name for each in alias.columns] if isinstance(alias, exp.TableAlias) else []
    return [*others, *names[len(others) :]]


def _nearest_quoted(name: str, rest: str) -> str | None:
    """The nearest of the names that the message has in quotes, as a hint."""
    candidates = re.findall(r'"([^"]+)"', rest)
    return nearest(name, candidates) if candidates else None


@contextmanager
def pointed(sql: str) -> Iterator[None]:
    """A value that does not fit is pointed at in the query."""
    try:
        yield
    except DataError as error:
        _point(sql, error)
        if error.detail.startswith("Unimplemented type for cast") and "[])" in error.detail:
            error.hint = "Use a list of values with IN: … IN $ids."
        raise


def _point(sql: str, error: DataError) -> None:
    """Adds to the error of a value that does not fit a type the place in the SQL, if only one is possible: the only
    place that names the column, or the cast text itself."""
    match = _UNFIT.fullmatch(error.detail) if len(error.detail) <= _LONGEST else None
    if match is None:
        return
    text, column = match["text"] or match["moment"], match["column"]
    if column is not None and column.casefold() not in sql.casefold():
        # DuckDB or the planner invented this name, so it would only confuse.
        error.detail, column = error.detail[: match.start("column")].rpartition(" when casting")[0], None
    places = []
    for kind, start, end in tokens(sql, SYNTAX):
        written = sql[start:end]
        if column is not None:
            if kind in ("word", "name") and written.strip('"`').casefold() == column.casefold():
                places.append(start)
        elif kind == "string" and written[1:-1] == text and (_BEFORE.search(sql, 0, start) or _BEHIND.match(sql, end)):
            places.append(start)
    if len(places) == 1:
        error.extra["excerpt"] = caret(sql, places[0] + 1)
    error.hint = error.hint or "TRY_CAST(… AS …) gives NULL for such a value."


def _similar(tables: Columns, name: str) -> tuple[str, str] | None:
    """Message and hint for a name that several columns have in other letters; these columns have numbers here."""
    for table, columns in tables.items():
        called = {each: here for here, each in columns.items() if each != here and each.casefold() == name.casefold()}
        if called:
            mistaken = f"{name!r} may be {' or '.join(map(repr, called))} of {table}"
            written = f"Write {' or '.join(map(repr, called.values()))}: the federation numbers such names."
            return f"{mistaken}: these names differ only in the case of letters.", written
    return None


def missing_table(sql: str, fault: Fault) -> str | None:
    """The missing table's name, as the SQL writes it; None for any other fault."""
    missing = fault.kind in ("MISSING_ENTRY", "Catalog") and fault.message.startswith("Table with name")
    return _faulty_text(sql, fault) if missing else None


def _cast(written: str | None, fault: Fault, rest: str) -> str:
    """Hint for a function call with wrong types: the possible types, and the call with its argument cast if only one is
    possible."""
    listed = rest.partition("Candidate functions:")[2].splitlines()
    known = [each.strip().replace(", /)", ")") for each in listed if each.strip()] or [fault.candidates or ""]
    known = [re.sub(r"\bcol\d+ ", "", each) for each in known if each]
    if not known or sum(map(len, known)) > _ELLIPSIS:
        return "Cast the arguments to types that the function takes."
    there = f"The function takes: {'; '.join(known)}."
    taken = re.fullmatch(r"\w+\((?:\w+ )?(\w+)\) -> .*", known[0]) if len(known) == 1 else None
    call = re.fullmatch(r"(\w+)\s*\((.+)\)", written or "", re.S)
    argument_type = re.search(r"'\w+\((\w+)\)'", fault.message)
    if taken is None or call is None or argument_type is None:
        return f"{there} Cast the arguments."
    simple = re.fullmatch(r"\w+(?:\.\w+)*|\w+\([^()]*\)", call[2])
    argument = f"{call[2]}::{taken[1]}" if simple else f"CAST({call[2]} AS {taken[1]})"
    return f"{there} Cast the argument: {call[1]}({argument})."


def _faulty_text(sql: str, fault: Fault) -> str | None:
    if fault.position is None:
        return None
    return sql[fault.position - 1 : fault.position - 1 + fault.length] or None


def _last(message: str) -> str:
    return message.rpartition(": ")[2].strip()


def ambiguous(name: str, similar: Sequence[str]) -> NotFoundError:
    return NotFoundError(
        f"{name} may be {' or '.join(similar)}: these names differ only in the case of letters.",
        hint="Write the name with exactly its upper and lower case letters.",
    )


def nearest_table(name: str, reflected: Reflected, loaded: Iterable[Reflected]) -> str:
    """A hint for a table that a source does not have. ``loaded``: all sources that have told their tables."""
    known = list(dict.fromkeys(each.name for each in reflected.tables))
    if name.casefold() in map(str.casefold, known):  # in several schemas, or not in the one that was named
        return nearest(name, [".".join(filter(None, (each.schema, each.name))) for each in reflected.tables])
    called = [
        f"{each.alias}.{info.name}"
        for each in loaded
        for info in each.tables
        if info.name.casefold() == name.casefold()
    ]
    if called:
        return either(called)
    return nearest(name, known) if known else f"The source {reflected.alias!r} has no table."


def either(names: Sequence[str]) -> str:
    return f"Did you mean {' or '.join(map(repr, names[:MOST]))}?"
