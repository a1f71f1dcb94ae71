"""Where in the SQL an error is, for databases that only quote the text they stumbled over."""

from __future__ import annotations

from dai.drivers.sql.lexer import tokens
from dai.drivers.sql.syntax import Syntax


def of_name(sql: str, name: str, syntax: Syntax) -> int | None:
    """The 1-based position of the first place where ``name`` (or ``table.name``) stands as a word or a quoted name."""
    parts = [part.strip('"`[]') for part in name.split(".")]
    code = [token for token in tokens(sql, syntax) if token.kind != "comment"]
    for index, token in enumerate(code):
        spelled = [
            sql[each.start : each.end].strip('"`[]').casefold() for each in code[index : index + 2 * len(parts) - 1]
        ]
        if token.kind in ("word", "name") and spelled == ".".join(parts).casefold().replace(".", "\0.\0").split("\0"):
            return token.start + 1
    return None if len(parts) == 1 else of_name(sql, parts[-1], syntax)


def of_only_token(sql: str, text: str, syntax: Syntax) -> int | None:
    """The position of the token ``text`` if it stands in the SQL just once: any other would be a guess."""
    starts = [start for kind, start, end in tokens(sql, syntax) if kind != "comment" and sql[start:end] == text]
    return starts[0] + 1 if len(starts) == 1 else None
