"""The lexer: what is code and what is not, in every dialect."""

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dai.drivers.duckdb import syntax as duckdb
from dai.drivers.mariadb import syntax as mariadb
from dai.drivers.postgresql import syntax as postgresql
from dai.drivers.sql.lexer import bind_markers, keyword, replace_markers, shortened, single_query, tokens
from dai.drivers.sql.syntax import STANDARD
from dai.drivers.sqlite import syntax as sqlite
from dai.errors import NotAQueryError, StatementError

SYNTAX = {
    "postgres": postgresql.SYNTAX,
    "duckdb": duckdb.SYNTAX,
    "mysql": mariadb.SYNTAX,
    "sqlite": sqlite.SYNTAX,
    "other": STANDARD,
}


@pytest.mark.parametrize(
    ("sql", "dialect", "expected"),
    [
        ("select 1", "postgres", "SELECT"),
        ("/* a /* b */ update */ -- delete\n ((Select 1))", "postgres", "SELECT"),
        ("/* a /* b */ update", "sqlite", "UPDATE"),
        ("# insert\nselect 1", "mysql", "SELECT"),
        ("--1\nselect 1", "mysql", ""),
        ("'select'", "postgres", ""),
        ("", "postgres", ""),
    ],
)
def test_keyword(sql: str, dialect: str, expected: str) -> None:
    assert keyword(sql, SYNTAX[dialect]) == expected


@pytest.mark.parametrize(
    ("sql", "dialect", "sent"),
    [
        ("select 1", "postgres", "select 1"),
        ("select ';' ; -- end;\n;", "postgres", "select ';' "),
        ("select $x$ ; $y$ $x$, $$;$$", "postgres", "select $x$ ; $y$ $x$, $$;$$"),
        ("select E'\\';', 'a'';'", "postgres", "select E'\\';', 'a'';'"),
        ('select ";" from "a;b"', "postgres", 'select ";" from "a;b"'),
        ("select `;`, \"\\\";\", '\\';' # ;", "mysql", "select `;`, \"\\\";\", '\\';' # ;"),
        ("select [;] from [a;b]", "sqlite", "select [;] from [a;b]"),
        ("with update as (select 1) select * from update", "postgres", None),
        ("with a as (select 1), delete as (select 2) select 1", "postgres", None),
        ("select 1 as into", "postgres", None),
        ("values (1), (2)", "sqlite", None),
        ("from t", "duckdb", None),
        ("with a as (insert into t values (1) returning *) select * from a", "postgres", None),
    ],
)
def test_a_single_query_is_taken(sql: str, dialect: str, sent: str | None) -> None:
    assert single_query(sql, SYNTAX[dialect]) == (sql if sent is None else sent)


@pytest.mark.parametrize(
    ("sql", "dialect", "position"),
    [
        ("", "postgres", None),
        (" -- nothing\n", "postgres", None),
        ("insert into t values (1)", "postgres", 1),
        ("  update t set a = 1", "postgres", 3),
        ("select 1; drop table t", "postgres", 11),
        ("select 1 -- ;\n; select 2", "postgres", 17),
        ("with a as (select 1) delete from t", "postgres", 22),
        ("with update as (select 1) update t set a = 1", "mysql", 27),
        ("select * into x from t", "postgres", 10),
        ("select 1 into outfile '/tmp/x'", "mysql", 10),
        ("select 1 /*! into outfile '/tmp/x' */", "mysql", 10),
        ("(select 1 into outfile '/tmp/x')", "mysql", 11),
        ("select 1 /*M!100100 ; drop table t */", "mysql", 10),
        ("/*!99999 select ' */ drop table t /*!99999 ' */", "mysql", 1),
        ("select 1 --\x7f '\n into outfile '/tmp/x' -- '", "mysql", 17),
        ("select 1 --\u00a0a into outfile '/tmp/x' from t", "mysql", 15),
        ("select 1.into outfile '/tmp/x'", "mysql", 10),
        ("select 1e1into outfile '/tmp/x'", "mysql", 11),
        ("select 1 merge into outfile '/tmp/x'", "mysql", 16),
        ("select t.as into outfile '/tmp/x' from t", "mysql", 13),
        ("select @insert into outfile '/tmp/x'", "mysql", 16),
        ("select @. into outfile '/tmp/x'", "mysql", 11),
        ("show grants for current_user", "mysql", 6),
        ("show /* */ create user", "mysql", 19),
        ("--\rcopy t to program 'id' /*\nselect 1 --*/", "postgres", 4),
        ("--\rcopy t to '/tmp/x' /*\nselect 1 --*/", "duckdb", 4),
        ("pragma journal_mode = off", "sqlite", 1),
        ("from t", "postgres", 1),
    ],
)
def test_what_is_not_a_single_query_is_refused_where_it_stands(sql: str, dialect: str, position: int | None) -> None:
    with pytest.raises(NotAQueryError) as refused:
        single_query(sql, SYNTAX[dialect])
    assert refused.value.position == position
    assert refused.value.hint


@pytest.mark.parametrize("dialect", SYNTAX)
@pytest.mark.parametrize(
    ("sql", "position", "hint"),
    [
        ("selec 1", 1, "Did you mean 'SELECT'?"),
        (" /* select */ (slect 1)", 16, "Did you mean 'SELECT'?"),
        ("'select'", 1, "SELECT"),
        ("42", 1, "SELECT"),
        ("(", 1, None),
    ],
)
def test_a_syntax_error_is_no_change_of_data(sql: str, position: int, hint: str | None, dialect: str) -> None:
    with pytest.raises(StatementError) as refused:
        single_query(sql, SYNTAX[dialect])
    assert type(refused.value) is StatementError
    assert "Syntax error" in refused.value.detail
    assert refused.value.position == position
    assert hint is None or hint in (refused.value.hint or "")


@pytest.mark.parametrize("dialect", SYNTAX)
@pytest.mark.parametrize(
    "word", ["insert", "create", "set", "call", "begin", "pragma", "copy", "load", "attach", "use"]
)
def test_commands_are_no_queries(word: str, dialect: str) -> None:
    with pytest.raises(NotAQueryError):
        single_query(f"{word} x", SYNTAX[dialect])


@pytest.mark.parametrize(
    ("style", "expected"),
    [
        ("qmark", "select ?, '?%' /* ? */ from t where a ? 'x' and b % 2 = ?"),
        ("format", "select %s, '?%%' /* ? */ from t where a ? 'x' and b %% 2 = %s"),
        ("dollar", "select $1, '?%' /* ? */ from t where a ? 'x' and b % 2 = $2"),
        ("numeric", "select :1, '?%' /* ? */ from t where a ? 'x' and b % 2 = :2"),
        ("named", "select :p1, '?%' /* ? */ from t where a ? 'x' and b % 2 = :p2"),
    ],
)
def test_markers_in_every_style(style: str, expected: str) -> None:
    sql = "select ?, '?%' /* ? */ from t where a ?? 'x' and b % 2 = ?"
    bound = bind_markers(sql, style, SYNTAX["postgres"])  # type: ignore[arg-type]
    assert (bound.sql, bound.count) == (expected, 2)
    for word in ("select", "from", "and", "= "):
        assert bound.original(bound.sql.index(word) + 1) == sql.index(word) + 1


def test_markers_are_replaced_by_number() -> None:
    assert replace_markers("a ? b ? c ??", lambda number: f"<{number}>", SYNTAX["postgres"]).sql == "a <1> b <2> c ?"


PIECES = st.lists(
    st.sampled_from(
        ["select", "'", '"', "`", "[", "]", "--", "\n", "/*", "*/", "/*!", "#", "$$", "$a$", "?", "??", ";", "\\", "%",
         "1", "é", "E'", "\0", " "]
    ),
    max_size=30,
).map("".join)  # fmt: skip


@given(sql=PIECES | st.text(max_size=30), dialect=st.sampled_from(list(SYNTAX)))
def test_tokens_stand_in_order_and_leave_only_white_space(sql: str, dialect: str) -> None:
    at = 0
    for _, start, end in tokens(sql, SYNTAX[dialect]):
        assert at <= start < end
        assert sql[at:start].strip() == ""
        at = end
    assert sql[at:].strip() == ""


@pytest.mark.parametrize("dialect", list(SYNTAX))
@pytest.mark.parametrize("value", ["7", "-7", "7.25", "'a,(b'"])
@pytest.mark.parametrize("comma", [",", ", ", ",\n\t"])
def test_many_values_alone_in_parentheses_are_one_token(value: str, comma: str, dialect: str) -> None:
    many, few = comma.join([value] * 16), comma.join([value] * 15)
    sql = f"SELECT {few},{many} FROM t WHERE a IN ({many}) AND b IN ({few}) AND c IN ({many},?) AND d IN ({many}"
    found = [sql[start:end] for kind, start, end in tokens(sql, SYNTAX[dialect], lists=True) if kind == "list"]
    assert found == [many]
    assert not any(each.kind == "list" for each in tokens(sql, SYNTAX[dialect]))
    assert shortened(sql, SYNTAX[dialect]) == sql.replace(f"a IN ({many})", f"a IN ({value})")
    assert bind_markers(sql, "qmark", SYNTAX[dialect]).count == 1


@pytest.mark.parametrize("before", ["max", "VALUES ", "(a, b) > ", "IN (VALUES ", "IN max", '"in"'])
def test_only_lists_behind_in_are_shortened(before: str) -> None:
    many = ",".join(["7"] * 20)
    assert shortened(f"{before}({many})", SYNTAX["sqlite"]) == f"{before}({many})"
    assert shortened(f"{before}({many}) AND a iN -- of these\n ({many})", SYNTAX["sqlite"]).endswith(" (7)")
    assert shortened(f"a IN (\u0663,{many})", SYNTAX["sqlite"]) == f"a IN (\u0663,{many})"


@given(sql=PIECES, dialect=st.sampled_from(list(SYNTAX)))
def test_without_markers_nothing_is_rewritten(sql: str, dialect: str) -> None:
    bound = bind_markers(sql.replace("?", ""), "qmark", SYNTAX[dialect])
    assert (bound.sql, bound.count) == (sql.replace("?", ""), 0)


def test_long_statements_are_not_remembered() -> None:
    sql = f"select '{'x' * 1_000_000}', ?"
    before = sys.getrefcount(sql)
    single_query(sql, SYNTAX["postgres"])
    bind_markers(sql, "numeric", SYNTAX["postgres"])
    assert sys.getrefcount(sql) == before


def test_duckdb_takes_names_in_backquotes() -> None:
    assert bind_markers("select `a ?`, ? from `t``?`", "numeric", SYNTAX["duckdb"]).count == 1
