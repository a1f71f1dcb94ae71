"""RDQL: what its translation finds against what an evaluator written anew finds, and over HTTP."""

import itertools
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyoxigraph import Literal, NamedNode, Quad, Store

from dai.errors import ParameterError
from dai.service.registry.sparql.rdql import sparql
from tests.registry.conftest import LABEL, Known, publish, service
from tests.thoroughness import examples

NODES = [NamedNode(f"urn:n:{each}") for each in "ab"]
PROPERTIES = [NamedNode("http://p/x"), NamedNode("http://p/y")]
VALUES: list[Any] = [
    Literal("5"), Literal("Sky"), Literal("sky", language="en"), Literal(5), Literal(7), Literal(2.5), *NODES,
]  # fmt: skip
TRIPLES = [
    (subject, property, value)
    for at, (subject, property, value) in enumerate(itertools.product(NODES, PROPERTIES, VALUES))
    if at % 3 or value == VALUES[0]
]
VARIABLES = ["?a", "?b", "?c"]


@pytest.fixture(scope="module")
def store() -> Store:
    filled = Store()
    filled.extend(Quad(*each) for each in TRIPLES)
    return filled


class Wrong(Exception):
    """What makes an expression say nothing."""


def number(value: Any) -> float:
    text = value if isinstance(value, int | float) else getattr(value, "value", "")
    try:
        return float(text)
    except ValueError:
        raise Wrong from None


def value_of(said: Any, row: dict[str, Any]) -> Any:
    """Of an expression: a term, a number (of Python) or a truth value."""
    what, *parts = said
    if what == "term":
        if parts[0] in VARIABLES and parts[0] not in row:
            raise Wrong
        return row.get(parts[0], parts[0])
    if what == "number":
        return parts[0]
    if what in ("&&", "||"):
        outcomes = []
        for each in parts:
            try:
                outcomes.append(value_of(each, row))
            except Wrong:
                outcomes.append(None)
        decided = what == "||"
        if decided in outcomes:
            return decided
        if None in outcomes:
            raise Wrong
        return not decided
    if what == "!":
        return not value_of(parts[0], row)
    if what in ("=~", "!~"):
        found = re.search(parts[1], text_of(value_of(parts[0], row)), re.IGNORECASE if parts[2] else 0)
        return (found is not None) is (what == "=~")
    left, right = (value_of(each, row) for each in parts)
    if what in ("eq", "ne"):
        return (text_of(left) == text_of(right)) is (what == "eq")
    left, right = number(left), number(right)
    return {
        "<": left < right, "<=": left <= right, ">": left > right, ">=": left >= right, "==": left == right,
        "!=": left != right, "+": left + right, "-": left - right, "*": left * right,
    }[what]  # fmt: skip


def text_of(value: Any) -> str:
    return str(getattr(value, "value", value))


def found(patterns: list[tuple[Any, ...]], filters: list[Any]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [{}]
    for pattern in patterns:
        rows = [
            {**row, **{name: value for name, value in zip(pattern, triple, strict=True) if name in VARIABLES}}
            for row in rows
            for triple in TRIPLES
            if all(
                row.get(said, value) == value
                and all(triple[at] == value for at, name in enumerate(pattern) if name == said)
                if said in VARIABLES
                else said == value
                for said, value in zip(pattern, triple, strict=True)
            )
        ]

    def holds(row: dict[str, Any]) -> bool:
        try:
            return all(value_of(each, row) for each in filters)
        except Wrong:
            return False

    return [row for row in rows if holds(row)]


def written(said: Any) -> str:
    """An expression in RDQL, with all brackets."""
    what, *parts = said
    if what == "term":
        return term(parts[0])
    if what == "number":
        return str(parts[0])
    if what == "!":
        return f"!({written(parts[0])})"
    if what in ("=~", "!~"):
        return f"({written(parts[0])} {what} /{parts[1]}/{parts[2]})"
    return f"({written(parts[0])} {what} {written(parts[1])})"


def term(said: Any) -> str:
    if isinstance(said, NamedNode):
        return said.value.replace("http://p/", "p:") if said.value.startswith("http") else f"<{said.value}>"
    if isinstance(said, Literal):
        language = f"@{said.language}" if said.language else ""
        kind = "" if said.language or said.datatype.value.endswith("#string") else f"^^<{said.datatype.value}>"
        return f"'{said.value}'{language}{kind}"
    return str(said)


variables = st.sampled_from(VARIABLES)
patterns = st.lists(
    st.tuples(
        st.one_of(variables, st.sampled_from(NODES)),
        st.one_of(variables, st.sampled_from(PROPERTIES)),
        st.one_of(variables, st.sampled_from(VALUES)),
    ),
    min_size=1,
    max_size=3,
)
terms = st.one_of(variables, st.sampled_from(VALUES)).map(lambda each: ("term", each))
numbers = st.one_of(st.sampled_from([2, 5, 7, 2.5]).map(lambda each: ("number", each)), terms)
sums = st.one_of(numbers, st.tuples(st.sampled_from("+-*"), numbers, numbers))
leaves = st.one_of(
    st.tuples(st.sampled_from(["<", "<=", ">", ">="]), sums, sums),
    st.tuples(st.sampled_from(["==", "!="]), st.sampled_from([2, 5, 7]).map(lambda each: ("number", each)), sums),
    st.tuples(st.sampled_from(["eq", "ne"]), terms, terms),
    st.tuples(
        st.sampled_from(["=~", "!~"]), terms, st.sampled_from(["sky", "^S", "5", "k.$"]), st.sampled_from(["", "i"])
    ),
)
expressions = st.recursive(
    leaves,
    lambda inner: st.one_of(st.tuples(st.sampled_from(["&&", "||"]), inner, inner), st.tuples(st.just("!"), inner)),
    max_leaves=4,
)


@given(patterns, st.lists(expressions, max_size=2), st.booleans(), st.sampled_from([str.upper, str.lower]))
@settings(max_examples=examples(100), deadline=None)
def test_the_translation_finds_what_rdql_means(store, patterns, filters, commas, case) -> None:
    comma = ", " if commas else " "
    named = [each for each in VARIABLES if any(each in pattern for pattern in patterns)]
    selected = named or ["?a"]
    query = f"{case('select')} {comma.join(selected)} {case('where')} "
    query += comma.join(f"({comma.join(map(term, each))})" for each in patterns)
    if filters:
        query += f" {case('and')} " + (", ".join(map(written, filters)))
    query += f" {case('using')} p {case('for')} <http://p/>"
    expected = found(patterns, filters)
    rows = [tuple(str(row.get(name)) for name in selected) for row in expected]
    got = [tuple(str(each) for each in solution) for solution in store.query(sparql(query))]
    assert sorted(got) == sorted(rows), sparql(query)


@pytest.mark.parametrize(
    ("rdql", "same"),
    [
        ("select * where (?s, ?p, ?o)", "select * { ?s ?p ?o }"),
        ("SELECT ?s FROM <http://model> WHERE (?s rdf:type <rdfs:Class>)", "select ?s { ?s a rdfs:Class }"),
        ("select ?s, ?o where (?s, <p:x>, ?o), (?o, p:y, ?s) using p for <http://p/>",
         "select ?s ?o { ?s <http://p/x> ?o . ?o <http://p/y> ?s }"),
        ('select ?o where (?s, ?p, ?o) and ?o =~ /s[k]y\\/?/i && ! (?o eq "sky")',
         'select ?o { ?s ?p ?o filter(regex(str(?o), "s[k]y/?", "i") && !(str(?o) = "sky")) }'),
        ("select ?o where (?s, ?p, ?o) and ?o > 2 + 1 * 2, ?o <= 7",
         "select ?o { ?s ?p ?o filter(xsd:double(str(?o)) > 4 && xsd:double(str(?o)) <= 7) }"),
        ("select ?o where (?s, ?p, ?o) and -?o < -4 - 1", "select ?o { ?s ?p ?o filter(xsd:double(str(?o)) > 5) }"),
        ("select ?s where (?s, ?p, 5) # what is five\n", "select ?s { ?s ?p 5 }"),
        ("select ?s where (?s ?p 'sky'@en) and ?p ne <http://p/x>",
         "select ?s { ?s ?p 'sky'@en filter(str(?p) != 'http://p/x') }"),
        ("select ?o where (?s, ?p, ?o) and ?s == <urn:n:a>", "select ?o { <urn:n:a> ?p ?o }"),
    ],
)  # fmt: skip
def test_queries_and_what_they_are_in_sparql(store: Store, rdql: str, same: str) -> None:
    prefixes = "".join(
        f"prefix {name}: <http://www.w3.org/{where}#> "
        for name, where in {"rdfs": "2000/01/rdf-schema", "xsd": "2001/XMLSchema"}.items()
    )
    expected = sorted(str(each) for each in store.query(prefixes + same))
    assert sorted(str(each) for each in store.query(sparql(rdql))) == expected
    assert expected or "Class" in same


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("", "SELECT is expected"),
        ("select where (?s, ?p, ?o)", "something is missing"),
        ("select ?s", "WHERE is expected"),
        ("select ?s where (?s, ?p)", "a value is expected"),
        ("select ?s where ('a', ?p, ?o)", "a subject is expected"),
        ("select ?s where (?s, q:x, ?o)", "the prefix 'q' is not declared"),
        ("select ?s where (?s, ?p, ?o) and", "something is missing"),
        ("select ?s where (?s, ?p, ?o) and ?o % 2 == 1", "an expression is expected"),
        ("select ?s where (?s, ?p, ?o) and ?o =~ /x/q", "the flags"),
        ("select ?s where (?s, ?p, ?o) and " + "(" * 200, "nested deeper"),
        ("select distinct ?s where (?s, ?p, ?o)", "something is missing"),
        ("select ?s where (?s, ?p, ?o) } drop all {", "not expected here"),
        ("select ?s where (?s, <a> } drop all { <b>, ?o)", "a value is expected"),
    ],
)
def test_what_is_no_rdql(query: str, says: str) -> None:
    with pytest.raises(ParameterError, match=re.escape(says)):
        sparql(query)


@pytest.mark.server
def test_rdql_over_http(known: Known) -> None:
    alice = known("alice")
    publish(alice, service("urn:s:sky"), service("urn:s:sea"))
    query = f"SELECT ?s WHERE (?s, <{LABEL}>, ?n) AND ?n eq 'sky'"
    asked = (
        alice.get("/sparql", params={"query": query, "language": "rdql"}),
        alice.post("/sparql", content=query, headers={"Content-Type": "application/rdql-query"}),
        alice.post("/sparql", data={"query": query, "language": "rdql"}),
    )
    for answer in asked:
        assert answer.status_code == 200, answer.text
        assert [each["s"]["value"] for each in answer.json()["results"]["bindings"]] == ["urn:s:sky"]
    refused = alice.get("/sparql", params={"query": "select ?s where", "language": "rdql"})
    assert (refused.status_code, "not RDQL" in refused.text) == (400, True)
