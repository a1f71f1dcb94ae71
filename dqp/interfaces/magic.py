"""``%load_ext dqp``: queries in cells of a notebook.

::

    %%dqp lab busy
    select carrier, count(*) as n from pg.flights where month = $month group by all order by n desc

``lab`` is the variable that holds the federation (or the path of a federation.toml, or a URL); ``busy`` is the variable
that gets the query, its rows read; without it only the first rows are shown. ``$month`` is the notebook's variable of
that name. ``--explain`` and ``--analyze`` draw the plan instead. ``%dqp lab select …`` is a query in one line.

An error is shown with its place in the SQL and without a traceback; the cell counts as failed. <Tab> completes sources,
tables, columns and functions in the cell, and ``lab.source.table.column`` in any other.
"""

from __future__ import annotations

import re
import shlex
from contextlib import suppress
from itertools import pairwise
from typing import Any

from IPython.core.completer import CompletionContext, SimpleCompletion, SimpleMatcherResult, context_matcher
from IPython.core.magic import Magics, line_cell_magic, magics_class, no_var_expand
from sqlglot.tokenizer_core import TokenType

from dai.client.results.interrupted import QueryInterrupted
from dai.errors import DaiError, ParameterError
from dai.plugins import nearest
from dqp.binding.parameters import tokens
from dqp.interfaces.completion import completions
from dqp.interfaces.lab import Lab
from dqp.interfaces.listing import Place

_CELL = re.compile(r"%%dqp[ \t]+(?P<lab>[^\s]+)[^\n]*\n|%dqp[ \t]+(?P<line>[^\s]+)[ \t]+")
_HEAD = re.compile(r"%%?dqp[ \t]+(?P<word>\w*)\Z")
_PATH = re.compile(r"(?<![\w.])(?P<path>[^\W\d]\w*(?:\.\w+)*)\.(?P<word>\w*)\Z")
_USAGE = "%%dqp LAB [RESULT] [--explain | --analyze], and the SQL below; or %dqp LAB SQL."


class QueryFailed(Exception):
    """What went wrong with a cell's query, for people."""

    def _render_traceback_(self) -> list[str]:
        return str(self).split("\n")


@magics_class
class FederationMagics(Magics):
    """``%dqp`` and ``%%dqp`` of one notebook; federations that were named by path or URL stay connected."""

    def __init__(self, shell: Any) -> None:
        super().__init__(shell)
        self._variables = shell.user_ns
        self._opened: dict[str, Lab] = {}

    @no_var_expand  # a notebook would paste the value of $name, and run what stands in braces
    @line_cell_magic
    def dqp(self, line: str, cell: str | None = None) -> Any:
        """``%%dqp LAB [RESULT] [--explain | --analyze]`` and the SQL below, or ``%dqp LAB SQL``: one query of the
        federation LAB, which may go into the variable RESULT. ``$name`` is the notebook's variable of that name."""
        try:
            return self._read(line, cell)
        except DaiError as error:
            raise QueryFailed(str(error)) from None
        except KeyboardInterrupt:
            raise QueryInterrupted from None  # without the lines of the library

    def _read(self, line: str, cell: str | None) -> Any:
        if cell is None:
            name, _, sql = line.strip().partition(" ")
            words: list[str] = []
        else:
            try:
                name, *words = shlex.split(line)
            except ValueError:
                name = ""
            sql = cell
        if not name or not sql.strip():
            raise ParameterError("%dqp needs a federation and a query.", hint=_USAGE)
        options = {each for each in words if each.startswith("-")}
        results = [each for each in words if not each.startswith("-")]
        if options - {"--explain", "--analyze"} or len(results) > 1 or not all(map(str.isidentifier, results)):
            raise ParameterError(f"%dqp does not understand: {' '.join(words)}.", hint=_USAGE)
        variables = self._variables
        values = {each: variables[each] for each in _named(sql) if each in variables}
        query = self._lab(name)._query(sql, (), values, variables)
        if options:
            result: Any = query.explain(analyze="--analyze" in options)
        else:
            result = query.look()
            if results:
                query.arrow()
        if results:
            variables[results[0]] = result
        return result

    @context_matcher()
    def completed(self, context: CompletionContext) -> SimpleMatcherResult:
        """For IPython's completer."""
        lines = context.full_text.split("\n")
        before = "\n".join([*lines[: context.cursor_line], context.text_until_cursor])
        behind = context.full_text[len(before) :]
        word, offered = "", list[str]()
        with suppress(DaiError, AttributeError):
            if (cell := _CELL.match(context.full_text)) is not None and len(before) >= cell.end():
                start = cell.end()
                word, offered = completions(before[start:], behind, self._lab(cell["lab"] or cell["line"]).names())
            elif (path := _PATH.search(context.text_until_cursor)) is not None:
                word, offered = path["word"], self._below(path["path"].split("."), path["word"])
            elif (head := _HEAD.match(before)) is not None:
                word = head["word"]
                offered = [each for each, value in self._variables.items() if isinstance(value, Lab) and each[0] != "_"]
                offered = [each for each in offered if each.startswith(word)]
        # IPython puts a completion in the place of its token, which may begin before the word.
        left = context.token.removesuffix(word) if context.token.endswith(word) else ""
        listed = [SimpleCompletion(text=left + each, type="sql") for each in offered]
        return {"completions": listed, "suppress": bool(listed)}

    def _below(self, path: list[str], word: str) -> list[str]:
        """What follows in ``lab.source.table``, in Python."""
        lab = self._variables.get(path[0])
        if not isinstance(lab, Lab) or len(path) < 2:
            return []
        place = Place(lab, lab.names(), ())
        for each in path[1:]:
            place = place.at(each)
        return [each for each in dir(place) if each.startswith(word) and each.isidentifier()]

    def _lab(self, name: str) -> Lab:
        variables = self._variables
        if name in variables:
            lab = variables[name]
            if not isinstance(lab, Lab):
                raise ParameterError(
                    f"{name} is a {type(lab).__name__}, not a federation.", hint=f"{name} = dqp.connect(…)"
                )
            return lab
        if "/" not in name and not name.endswith(".toml"):
            labs = [each for each, value in variables.items() if isinstance(value, Lab) and not each.startswith("_")]
            hint = nearest(name, labs) if labs else f"{name} = dqp.connect(…) makes one."
            if labs and name.casefold() in ("select", "from", "with", "values", "show", "describe", "summarize"):
                hint = f"Write the federation before the SQL: %dqp {labs[0]} {name} …"
            raise ParameterError(f"There is no federation {name!r}.", hint=hint)
        if name not in self._opened:
            self._opened[name] = Lab(name)
        return self._opened[name]


def _named(sql: str) -> list[str]:
    """The names of the parameters ``$name``."""
    sql_tokens = tokens(sql)
    return [
        name.text
        for mark, name in pairwise(sql_tokens)
        if mark.token_type == TokenType.PLACEHOLDER and sql[mark.start] == "$" and name.start == mark.end + 1
    ]
