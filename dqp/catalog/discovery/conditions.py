"""What to look for in a registry: a SPARQL query, or conditions such as ``unit=mJy table=galaxies``, all of which must
hold."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping

from dai.errors import ConfigurationError
from dai.plugins import nearest

_PREFIXES = """PREFIX : <urn:dai:registry:>
PREFIX dct: <http://purl.org/dc/terms/>
PREFIX rdfs: <http://www.w3.org/2000/01/rdf-schema#>
"""
_SPARQL = re.compile(r"\s*(?:prefix|base|select)\b", re.IGNORECASE)
VARIABLES = ("resource", "table", "service")
"""The variables that a SPARQL query may return: resources, tables of resources, or services of resources."""


def _named(variable: str) -> Callable[[str], str]:
    def pattern(value: str) -> str:
        return f"?{variable} rdfs:label ?{variable}Name . FILTER(LCASE(STR(?{variable}Name)) = {_text(value.lower())})"

    return pattern


def _column(word: str) -> Callable[[str], str]:
    return lambda value: f"[] dct:isPartOf ?table ; :{word} {_text(value)} ."


def _ucd(value: str) -> str:
    """As ``dai find``: a word of the UCD begins with it."""
    beginning = _text(rf"(^|;\s*){re.escape(value.lower())}($|[.;])")
    return f"[] dct:isPartOf ?table ; :ucd ?ucd . FILTER(REGEX(LCASE(STR(?ucd)), {beginning}))"


_CONDITIONS: Mapping[str, Callable[[str], str]] = {
    "table": _named("table"),
    "resource": _named("resource"),
    "service": _named("service"),
    "unit": _column("unit"),
    "quantity": _column("quantity"),
    "ucd": _ucd,
}
"""Conditions on one table: its name, a column with a unit, quantity or UCD, and the names of the entries above it."""


def query_of(find: str, where: str, *, evaluators: bool = False) -> str:
    """The SPARQL query of the condition. ConfigurationError, which names ``where``, for anything else."""
    if _SPARQL.match(find):
        return find
    try:
        words = shlex.split(find)
    except ValueError as error:
        raise ConfigurationError(f"{where}: {error}.") from error
    patterns = ["?resource a :Evaluator ; dct:isPartOf ?service ." if evaluators else _RESOURCE]
    for each in words:
        name, equals, value = each.partition("=")
        if not equals or not value or name not in _CONDITIONS or (evaluators and name not in ("resource", "service")):
            known = [*_CONDITIONS] if not evaluators else ["resource", "service"]
            raise ConfigurationError(
                f"{where}: {each!r} is not a condition.",
                hint=nearest(name, known)
                + ' A condition looks like "unit=mJy table=galaxies"; a SPARQL query is possible, too.',
            )
        if not evaluators and name not in ("resource", "service") and _TABLE not in patterns:
            patterns.append(_TABLE)
        patterns.append(_CONDITIONS[name](value))
    return f"{_PREFIXES}SELECT DISTINCT ?resource WHERE {{\n" + "\n".join(patterns) + "\n}"


_RESOURCE = "?resource a :Resource ; dct:isPartOf ?service ."
_TABLE = "?table a :Table ; dct:isPartOf ?resource ."


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)
