import json

import pytest

from dai import errors
from dai.errors import (
    BusyError,
    DaiError,
    DocumentError,
    EncodingError,
    InternalError,
    NotAQueryError,
    StatementError,
    by_code,
    caret,
)


def every(kind: type[DaiError] = DaiError) -> list[type[DaiError]]:
    return [kind, *(each for child in kind.__subclasses__() for each in every(child))]


TREE = [kind for kind in every() if kind is not DaiError and kind.__module__ == "dai.errors"]


@pytest.mark.parametrize("kind", TREE)
def test_each_class_has_a_code_of_its_own_and_stands_in_the_tree(kind):
    assert by_code(kind.code) is kind
    assert f"{kind.__name__} " in errors.__doc__
    line = next(line for line in errors.__doc__.splitlines() if f" {kind.__name__} " in line)
    assert line.split(kind.__name__)[1].split()[:2] == [kind.code, str(kind.status)]
    assert 400 <= kind.status < 600


@pytest.mark.parametrize("kind", TREE)
def test_problem_is_json_without_empty_members(kind):
    problem = kind("what", hint="try").problem(instance="abc")
    assert problem["type"] == kind.code
    assert problem["status"] == kind.status
    assert problem["detail"] == "what"
    assert None not in problem.values()
    json.dumps(problem)


def test_unknown_code():
    assert by_code("never-heard-of") is DaiError


def test_internal_is_the_class_of_its_code():
    assert by_code("internal") is InternalError


@pytest.mark.parametrize(
    ("sql", "position", "expected"),
    [
        ("selct 1", 1, "line 1: selct 1\n        ^"),
        ("select\n  nme from t", 10, "line 2:   nme from t\n          ^"),
        ("a\tb", 3, "line 1: a b\n          ^"),
        ("abc", 99, "line 1: abc\n           ^"),
        ("", 1, "line 1: \n        ^"),
    ],
)
def test_caret(sql, position, expected):
    assert caret(sql, position) == expected


def test_caret_stays_below_its_character_in_a_long_line():
    sql = "x" * 500 + "!" + "y" * 500
    line, mark = caret(sql, 501).split("\n")
    assert line[mark.index("^")] == "!"
    assert len(line) < 120


def test_statement_error_shows_the_place():
    error = NotAQueryError("no query", sql="drop table x", position=1, hint="Use sqlUpdateStatement.")
    assert isinstance(error, StatementError)
    assert str(error) == "no query\nline 1: drop table x\n        ^\nUse sqlUpdateStatement."


def test_document_error_shows_the_place():
    error = DocumentError("no such link", line=3, element="sqlBag", expected="the name of an output", hint="Look.")
    assert str(error) == "no such link\nline 3, element sqlBag, expected: the name of an output\nLook."
    assert str(DocumentError("too bad")) == "too bad"


def test_members_of_their_own():
    assert DocumentError("x", line=3, element="e", expected="f").problem() == {
        "type": "invalid-document",
        "title": "Invalid perform document",
        "status": 400,
        "detail": "x",
        "line": 3,
        "element": "e",
        "expected": "f",
    }
    assert EncodingError("x", column="c", row=2).problem()["row"] == 2
    assert BusyError("x", retry_after=7).problem()["retry_after"] == 7
