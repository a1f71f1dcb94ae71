"""RDQL (W3C member submission of 2004) as SPARQL 1.1: a pure function.

``SELECT ?a, ?b [FROM <…>] WHERE (?a, <p>, ?b) … [AND ?b > 3 && ?a =~ /x/i …] [USING p FOR <…> …]``. Commas may be left
out, keywords are of any case, ``<p:name>`` and ``p:name`` are the same for a prefix p. ``FROM`` names a model: here
there is one. Comparisons of numbers read texts as numbers; ``eq`` and ``ne`` compare texts. Nothing is made distinct.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NoReturn

from dai.errors import ParameterError

PREFIXES = {
    "rdf": "http://www.w3.org/1999/02/22-rdf-syntax-ns#",
    "rdfs": "http://www.w3.org/2000/01/rdf-schema#",
    "owl": "http://www.w3.org/2002/07/owl#",
    "xsd": "http://www.w3.org/2001/XMLSchema#",
}
MOST_NESTED = 100
_SPACE = re.compile(r"(?:\s+|//[^\n]*|#[^\n]*|/\*.*?\*/)*", re.DOTALL)
_WORD = re.compile(r"[A-Za-z_][\w.-]*")
_VARIABLE = re.compile(r"\?([A-Za-z_]\w*)")
_IRI = re.compile(r'<([^<>"{}|^`\\\s]*)>')
_NAME = re.compile(r"([A-Za-z_][\w.-]*)?:([\w.-]*)")
_TEXT = re.compile(r'"((?:[^"\\]|\\.)*)"|\'((?:[^\'\\]|\\.)*)\'', re.DOTALL)
_LANGUAGE = re.compile(r"@([A-Za-z]{1,8}(?:-[A-Za-z0-9]{1,8})*)")
_NUMBER = re.compile(r"\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_SIGNED = re.compile(rf"-?{_NUMBER.pattern}")
_PATTERN = re.compile(r"m?/((?:[^/\\]|\\.)*)/([a-z]*)", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}
_DOUBLE = f"<{PREFIXES['xsd']}double>"
TERM, NUMBER, TRUTH = "term", "number", "truth"


def sparql(query: str) -> str:
    """ParameterError for what is no RDQL, or has no counterpart: bit operations, ``%``."""
    return _Query(query).translated()


def _quoted(text: str) -> str:
    for raw, written in (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\r", "\\r")):
        text = text.replace(raw, written)
    return f'"{text}"'


class _Query:
    def __init__(self, text: str) -> None:
        self._text, self._at, self._depth = text, 0, 0
        self._prefixes = dict(PREFIXES)
        self._space()

    def translated(self) -> str:
        self._declare()
        self._keyword("select")
        variables = "*" if self._skip("*") else " ".join(self._variables())
        if self._word("from") or self._word("source"):
            self._listed(self._iri)
        self._keyword("where")
        patterns = self._listed(self._pattern)
        filters: list[str] = []
        while self._word("and"):
            filters += self._listed(self._filter)
        if self._word("using"):
            self._listed(self._prefix)
        if self._at < len(self._text):
            self._fail("this is not expected here")
        body = " . ".join(patterns) + "".join(f" filter({each})" for each in filters)
        return f"select {variables} where {{ {body} }}"

    # lexical

    def _fail(self, what: str) -> NoReturn:
        rest = self._text[self._at : self._at + 30] or "the end"
        line = self._text.count("\n", 0, self._at) + 1
        raise ParameterError(
            f"The query is not RDQL: line {line}, at {rest!r}: {what}.",
            hint="It looks like SELECT ?s WHERE (?s, rdf:type, ?t) AND ?t ne 'x' USING p FOR <http://…>.",
        )

    def _space(self) -> None:
        match = _SPACE.match(self._text, self._at)
        assert match is not None
        self._at = match.end()

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        match = pattern.match(self._text, self._at)
        if match is not None:
            self._at = match.end()
            self._space()
        return match

    def _skip(self, sign: str) -> bool:
        if not self._text.startswith(sign, self._at):
            return False
        self._at += len(sign)
        self._space()
        return True

    def _ahead(self, word: str) -> bool:
        match = _WORD.match(self._text, self._at)
        return match is not None and match[0].lower() == word and not self._text.startswith(":", match.end())

    def _word(self, word: str) -> bool:
        return self._ahead(word) and self._match(_WORD) is not None

    def _keyword(self, word: str) -> None:
        if not self._word(word):
            self._fail(f"{word.upper()} is expected")

    def _sign(self, sign: str) -> None:
        if not self._skip(sign):
            self._fail(f"{sign!r} is expected")

    # clauses

    def _declare(self) -> None:
        """The prefixes stand at the end, and hold from the beginning."""
        for match in re.finditer(r"(?<![\w.-])([A-Za-z_][\w.-]*)\s+for\s*<([^<>\s]*)>", self._text, re.IGNORECASE):
            self._prefixes[match[1]] = match[2]

    def _prefix(self) -> str | None:
        match = self._match(_WORD)
        if match is None:
            return None
        self._keyword("for")
        if self._match(_IRI) is None:
            self._fail("an IRI is expected")
        return match[0]

    def _variables(self) -> list[str]:
        variables = self._listed(lambda: f"?{match[1]}" if (match := self._match(_VARIABLE)) else None)
        return list(dict.fromkeys(variables))

    def _listed(self, one: Callable[[], str | None]) -> list[str]:
        """One or more, with commas between them or not."""
        items: list[str] = []
        while True:
            said = one()
            if said is None:
                if not items:
                    self._fail("something is missing")
                return items
            items.append(said)
            self._skip(",")

    def _pattern(self) -> str | None:
        if not self._skip("("):
            return None
        terms = []
        for place in ("subject", "property", "value"):
            term = self._term()
            if term is None or (term[0] not in "?<" and place != "value"):
                self._fail(f"a {place} is expected")
            terms.append(term)
            self._skip(",")
        self._sign(")")
        return " ".join(terms)

    def _filter(self) -> str | None:
        ended = self._at == len(self._text) or any(self._ahead(each) for each in ("and", "using"))
        return None if ended else self._either()[0]

    def _iri(self) -> str | None:
        if (match := self._match(_IRI)) is not None:
            prefix, colon, name = match[1].partition(":")
            known = colon and prefix in self._prefixes and not name.startswith("//")
            return f"<{self._prefixes[prefix]}{name}>" if known else f"<{match[1]}>"
        at = self._at
        if (match := self._match(_NAME)) is not None:
            if match[1] not in self._prefixes:
                self._at = at
                self._fail(f"the prefix {match[1] or ''!r} is not declared (USING)")
            return f"<{self._prefixes[match[1]]}{match[2]}>"
        return None

    def _term(self) -> str | None:
        """A variable, an IRI, a text with its language or type, a number or a truth value, as SPARQL writes it."""
        if (match := self._match(_VARIABLE)) is not None:
            return f"?{match[1]}"
        if (match := self._match(_TEXT)) is not None:
            said = match[1] if match[1] is not None else match[2]
            text = _quoted(re.sub(r"\\(.)", lambda each: _ESCAPES.get(each[1], each[1]), said, flags=re.DOTALL))
            if (language := self._match(_LANGUAGE)) is not None:
                return f"{text}@{language[1]}"
            if self._skip("^^"):
                kind = self._iri()
                if kind is None:
                    self._fail("a type is expected")
                return f"{text}^^{kind}"
            return text
        if (match := self._match(_SIGNED)) is not None:
            return match[0]
        for each in ("true", "false"):
            if self._word(each):
                return each
        return self._iri()

    # expressions, each with what it is

    def _either(self) -> tuple[str, str]:
        said = self._both()
        while self._skip("||"):
            said = f"({said[0]} || {self._both()[0]})", TRUTH
        return said

    def _both(self) -> tuple[str, str]:
        said = self._compared()
        while self._skip("&&"):
            said = f"({said[0]} && {self._compared()[0]})", TRUTH
        return said

    def _compared(self) -> tuple[str, str]:
        said = self._equal()
        while True:
            if self._word("eq"):
                said = f"(str({said[0]}) = str({self._equal()[0]}))", TRUTH
            elif self._word("ne"):
                said = f"(str({said[0]}) != str({self._equal()[0]}))", TRUTH
            elif self._skip("=~"):
                said = f"regex(str({said[0]}), {self._regex()})", TRUTH
            elif self._skip("!~"):
                said = f"(!regex(str({said[0]}), {self._regex()}))", TRUTH
            else:
                return said

    def _regex(self) -> str:
        if (match := self._match(_PATTERN)) is not None:
            if set(match[2]) - set("imsx"):
                self._fail("a pattern has the flags i, m, s and x")
            pattern = match[1].replace("\\/", "/")
            return f'{_quoted(pattern)}, "{match[2]}"' if match[2] else _quoted(pattern)
        text = self._term()
        if text is None or text[0] != '"':
            self._fail("a pattern is expected, as in =~ /x/i")
        return text

    def _equal(self) -> tuple[str, str]:
        left = self._related()
        for sign, written in (("==", "="), ("!=", "!=")):
            if self._skip(sign):
                right = self._related()
                if NUMBER in (left[1], right[1]):
                    return f"({_number(left)} {written} {_number(right)})", TRUTH
                return f"({left[0]} {written} {right[0]})", TRUTH
        return left

    def _related(self) -> tuple[str, str]:
        left = self._sum()
        for sign in ("<=", ">=", "<", ">"):
            if self._skip(sign):
                return f"({_number(left)} {sign} {_number(self._sum())})", TRUTH
        return left

    def _sum(self) -> tuple[str, str]:
        said = self._product()
        while self._text[self._at : self._at + 1] in ("+", "-"):
            sign = self._text[self._at]
            self._sign(sign)
            said = f"({_number(said)} {sign} {_number(self._product())})", NUMBER
        return said

    def _product(self) -> tuple[str, str]:
        said = self._single()
        while self._text[self._at : self._at + 1] in ("*", "/"):
            sign = self._text[self._at]
            self._sign(sign)
            said = f"({_number(said)} {sign} {_number(self._single())})", NUMBER
        return said

    def _single(self) -> tuple[str, str]:
        self._depth += 1
        if self._depth > MOST_NESTED:
            self._fail(f"expressions are nested deeper than {MOST_NESTED}")
        try:
            if self._skip("("):
                said = self._either()
                self._sign(")")
                return said
            if not self._text.startswith("!=", self._at) and self._skip("!"):
                return f"(!{self._single()[0]})", TRUTH
            if (match := self._match(_NUMBER)) is not None:
                return match[0], NUMBER
            if self._skip("-"):
                return f"(-{_number(self._single())})", NUMBER
            term = self._term()
            if term is None:
                self._fail("an expression is expected")
            return term, TRUTH if term in ("true", "false") else TERM
        finally:
            self._depth -= 1


def _number(said: tuple[str, str]) -> str:
    text, what = said
    return text if what is NUMBER else f"{_DOUBLE}(str({text}))"
