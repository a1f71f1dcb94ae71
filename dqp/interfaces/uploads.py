"""Tables of one's own in a federation of a service: private to who loaded them, by names that nobody can guess.

A lab loads a table ``mine`` as ``mine_`` and 128 random bits, and puts ``WITH mine AS (FROM mine_…)`` in front of a
query that names it. The service lists no such name, and forgets a table that was not used for ``upload_seconds``; the
lab, which has it still, sends it again.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from difflib import get_close_matches
from typing import Any

import pyarrow as pa
from sqlglot.tokenizer_core import TokenType

from dai.client.documents import activity, document, element
from dai.errors import DaiError, ParameterError, StatementError
from dqp.algebra.private import PRIVATE, definitions
from dqp.binding.parameters import Statement
from dqp.catalog.validator import NOT_HERE


class Uploads:
    """Those of one lab. ``remote`` is the resource that the federation is."""

    def __init__(self, remote: Any) -> None:
        self._remote = remote
        self._token = secrets.token_hex(16)
        self._tables: dict[str, tuple[str, pa.Table]] = {}

    @property
    def tables(self) -> Mapping[str, pa.Table]:
        return dict(self._tables.values())

    def upload(self, name: str, table: pa.Table) -> None:
        """Makes the table known to this lab's queries. ParameterError for a name that needs quotes; raises what the
        service says, without its private name."""
        if PRIVATE.fullmatch(self._private(name)) is None:
            raise ParameterError(
                f"{name!r} cannot be the name of a table loaded into the federation of a service.",
                hint="A letter or '_', then letters, digits or '_': 128 characters at most.",
            )
        self._send(name, table)
        self._tables[name.casefold()] = (name, table)

    def asked(self, statement: Statement, head: str, ask: Callable[[str], Any]) -> Any:
        """What ``ask`` gives for ``head`` and the statement, which sees the tables that it names."""
        used = self._used(statement)
        at, text, last = _definitions(statement, {self._tables[name][0]: self._private(name) for name in used})
        sql = f"{head}{statement.text[:at]}{text}{statement.text[at:]}{last}"
        begin = len(head) + at
        try:
            try:
                return ask(sql)
            except StatementError as error:
                # A position within the definitions: the service does not know the table any more.
                if error.position is None or not begin < error.position <= begin + len(text):
                    raise
                for name in used:
                    self._send(*self._tables[name])
                return ask(sql)
        except StatementError as error:
            if error.position is not None:
                place = error.position - len(head)
                error.position = max(1, place - len(text) if place > at + len(text) else min(place, at + 1))
            raise statement.error(self._plain(error)) from error

    def close(self) -> None:
        """Lets the service forget the tables, where it can be reached."""
        for name, _ in list(self._tables.values()):
            with suppress(DaiError):
                self._send(name, pa.table({"gone": pa.array([], pa.int64())}))
        self._tables.clear()

    def _private(self, name: str) -> str:
        return f"{name.casefold()}_{self._token}"

    def _used(self, statement: Statement) -> list[str]:
        words = {each.text.casefold() for each in statement.tokens}
        wanted = words - _defined(statement)
        return [name for name in list(self._tables) if name in wanted]

    def _plain(self, error: StatementError) -> StatementError:
        detail, hint = ((each or "").replace(f"_{self._token}", "") for each in (error.detail, error.hint))
        missing = re.match(r"There is no table '(\w+)'\.", detail)
        near = get_close_matches(missing[1].casefold(), self._tables, 1) if missing else []
        if near:  # The service suggests none of them: it knows no name.
            hint = re.sub(r"\AKnown: .*", lambda _: f"Did you mean {self._tables[near[0]][0]!r}?", hint)
        return type(error)(detail, position=error.position, sqlstate=error.sqlstate, hint=hint or None)

    def _send(self, name: str, table: pa.Table) -> None:
        """Pushes a table into the memory of the service's federation."""
        into = document(
            activity("inputStream", element("toLocal", name="tuples"), name="upload"),
            activity(
                "sqlBulkLoadRowSet",
                element("webRowSetStream", from_="tuples"),
                element("loadIntoTable", tableName=self._private(name), transactionally=True),
                element("resultStream", name="count"),
                name="load",
            ),
        )
        with self._remote.session() as session:
            job = self._remote.submit(into, session=session.id)
            failure: DaiError | None = None
            try:
                session.push("upload", table, format="arrow")
            except DaiError as error:
                # Nobody reads on: the job says why.
                failure = error
                if not job.refresh(wait=5).finished:
                    job.abort()
            job.wait()
            if (cause := job.error) is not None:
                cause.detail = cause.detail.replace(f"_{self._token}", "")
                raise cause from failure
            if failure is not None:
                raise failure


def _defined(statement: Statement) -> set[str]:
    """The names that the statement's own first WITH defines, which go before those of tables."""
    names: set[str] = set()
    depth, expected = 0, bool(statement.tokens) and statement.tokens[0].token_type == TokenType.WITH
    if not expected:
        return names
    for token in statement.tokens[1:]:
        kind = token.token_type
        depth += (kind == TokenType.L_PAREN) - (kind == TokenType.R_PAREN)
        if depth == 0 and kind in (TokenType.SELECT, TokenType.FROM):
            break
        if depth == 0 and kind == TokenType.COMMA:
            expected = True
        elif expected and kind != TokenType.RECURSIVE:
            names.add(token.text.casefold())
            expected = False
    return names


def _definitions(statement: Statement, names: Mapping[str, str]) -> tuple[int, str, str]:
    """What defines the names at the beginning of the statement, where it has to stand, and what at the end."""
    if not names or statement.tokens[0].text.upper() in NOT_HERE:
        return 0, "", ""
    text = definitions(names)
    first, *others = statement.tokens
    if first.token_type == TokenType.VALUES:
        return first.start, f"WITH {text} FROM (", ")"
    if first.token_type != TokenType.WITH:
        return first.start, f"WITH {text} ", ""
    last = others[0] if others and others[0].token_type == TokenType.RECURSIVE else first
    return last.end + 1, f" {text},", ""
