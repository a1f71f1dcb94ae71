import threading
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dai.drivers.memory import Memory, Script
from dai.errors import DaiError, DocumentError
from dai.perform.parser import DIALECTS, GDS, WSI, EndPoint, SessionRequest, parse, query
from dai.perform.pipeline import Running
from tests.documents import environment, table, to_csv, written
from tests.documents import query as query_activity

UPDATE = '<sqlUpdateStatement name="{0}">{1}<expression>x</expression><resultStream name="n{0}"/></sqlUpdateStatement>'
SINK = '<outputStream name="out"><fromLocal from="{}"/></outputStream>'


@pytest.mark.parametrize("dialect", DIALECTS)
def test_what_is_parsed(dialect):
    body = (
        "<documentation> what it is for </documentation>"
        '<sqlQueryStatement name="q">\n<sqlParameter position="2" type="integer"> 7 </sqlParameter>'
        '<sqlParameter position="1"/><expression>\n select 1 \n</expression><webRowSetStream name="t"/>'
        "</sqlQueryStatement>" + to_csv("c", "t", "e")
    )
    perform = parse(written(body, dialect))
    assert perform.dialect is dialect
    assert perform.documentation == "what it is for"
    statement, _ = perform.activities
    assert (statement.name, statement.element, statement.line) == ("q", "sqlQueryStatement", 1)
    assert statement.expression == "select 1"
    assert [(each.position, each.constant()) for each in statement.parameters] == [(2, 7), (1, "")]
    assert perform.end_points == (EndPoint("e", "c", True),)
    assert perform.consumers == {"t": ("c",), "e": ()}
    assert perform.session is None


def test_end_points_that_are_no_tables():
    body = (
        UPDATE.format("u", "")
        + (
            '<extractDatabaseSchema name="s"><output name="x"/></extractDatabaseSchema>'
            '<blockAggregator name="b"><input from="nu"/><blocksize size="1"/><output name="y"/></blockAggregator>'
            '<inputStream name="i"><toLocal name="z"/></inputStream>'
        )
        + query_activity("q", "x", "w", "webRowSetStream")
    )
    tabular = {end.name: end.tabular for end in parse(written(body)).end_points}
    assert tabular == {"x": False, "y": False, "z": False, "w": True}


def test_a_document_without_end_point():
    perform = parse(written(query_activity("q", "x", "t") + SINK.format("t")))
    assert perform.end_points == ()


@pytest.mark.parametrize(
    ("element", "expected"),
    [
        ("<session/>", SessionRequest()),
        ('<session timeout="1.5"/>', SessionRequest(timeout=1.5)),
        ('<session id="s" end="true"/>', SessionRequest("s", None, True)),
        ('<session id="s" end=" 1 "/>', SessionRequest("s", None, True)),
        ('<session id="s" end="0"/>', SessionRequest("s", None, False)),
    ],
)
def test_sessions(element, expected):
    assert parse(written(element)).session == expected


def steps(body: str) -> list[list[str]]:
    return [[each.name for each in step] for step in parse(written(body)).steps]


def u(name: str, *sources: str) -> str:
    return UPDATE.format(name, "".join(f'<sqlParameter position="{n}" from="{s}"/>' for n, s in enumerate(sources, 1)))


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (u("b", "na") + u("a"), [["a", "b"]]),
        (f"<sequence>{u('a')}{u('b')}</sequence>", [["a"], ["b"]]),
        (f"<flow>{u('a')}{u('b')}</flow>", [["a", "b"]]),
        (f"<sequence>{u('a')}<flow>{u('b')}{u('c')}</flow>{u('d')}</sequence>", [["a"], ["b", "c"], ["d"]]),
        (f"<flow><sequence>{u('a')}{u('b')}</sequence>{u('c')}</flow>", [["a", "c"], ["b"]]),
        (f"<sequence>{u('a')}</sequence><sequence>{u('b')}{u('c')}</sequence>", [["a", "b"], ["c"]]),
        (f"<sequence><sequence>{u('a')}{u('b')}</sequence>{u('c', 'na')}</sequence>", [["a"], ["b"], ["c"]]),
        (f"{u('z', 'nb')}<sequence>{u('a')}{u('b')}</sequence>{u('y', 'nz', 'na')}", [["a"], ["b", "z", "y"]]),
        (f"<flow>{u('c', 'nb')}<sequence>{u('a')}{u('b')}</sequence></flow>", [["a"], ["b", "c"]]),
        (f"{u('z', 'nb')}<sequence/>{u('b', 'na')}{u('a')}", [["a", "b", "z"]]),
    ],
)
def test_steps(body, expected):
    assert steps(body) == expected


def test_independent_pipelines():
    body = u("a") + u("b", "na") + u("c") + f"<sequence>{u('d')}{u('e')}</sequence>" + u("f", "nc", "nd") + u("g")
    component = parse(written(body)).component
    groups: dict[int, set[str]] = {}
    for name, number in component.items():
        groups.setdefault(number, set()).add(name)
    assert sorted(map(sorted, groups.values())) == [["a", "b"], ["c", "d", "e", "f"], ["g"]]


@st.composite
def links(draw):
    """Edges between activities, in any direction: circles may be among them."""
    size = draw(st.integers(1, 7))
    edges = draw(st.sets(st.tuples(st.integers(0, size - 1), st.integers(0, size - 1)), max_size=10))
    return size, edges


def reachable(start: int, edges: set[tuple[int, int]]) -> set[int]:
    actual: set[int] = set()
    ahead = [start]
    while ahead:
        at = ahead.pop()
        for one, other in edges:
            if one == at and other not in actual:
                actual.add(other)
                ahead.append(other)
    return actual


@given(links())
def test_circles_are_found_and_nothing_else(graph):
    size, edges = graph
    body = "".join(u(f"a{n}", *[f"na{one}" for one, other in sorted(edges) if other == n]) for n in range(size))
    if any(n in reachable(n, edges) for n in range(size)):
        with pytest.raises(DocumentError, match="circle"):
            parse(written(body))
        return
    (order,) = steps(body)
    assert sorted(order) == sorted(f"a{n}" for n in range(size))
    for one, other in edges:
        assert order.index(f"a{one}") < order.index(f"a{other}")


def test_the_circle_is_shown_as_the_data_would_flow():
    with pytest.raises(DocumentError, match=r"(a → b → c → a|b → c → a → b|c → a → b → c)\."):
        parse(written(u("a", "nc") + u("b", "na") + u("c", "nb")))


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_clearly(document):
    with pytest.raises(DaiError):
        parse(document)


@given(st.data())
def test_any_damage_is_refused_clearly_or_harmless(data):
    whole = written(query_activity("q", "select 1", "t") + to_csv("c", "t", "e"))
    start = data.draw(st.integers(0, len(whole)))
    damaged = whole[:start] + data.draw(st.binary(max_size=3)) + whole[data.draw(st.integers(start, len(whole))) :]
    with suppress(DocumentError):
        parse(damaged)


@pytest.mark.parametrize("declaration", ['<?xml version="1.0"?>', "<?xml version='1.0' encoding='utf-8'?>", ""])
@pytest.mark.parametrize("text", ["select 'é'", "select 'é' from t\n", "é"])
def test_a_document_in_latin_1_that_does_not_say_so(declaration: str, text: str) -> None:
    document = f"{declaration}<perform><expression>{text}</expression></perform>".encode("latin-1")
    with pytest.raises(DocumentError, match=r"is not UTF-8\. Save it as UTF-8, or name its encoding"):
        parse(document)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8", "iso-8859-1"])
def test_what_is_wrong_with_a_document_in_its_encoding_is_something_else(encoding: str) -> None:
    document = f'<?xml version="1.0" encoding="{encoding}"?><perform>é</performed>'.encode(encoding)
    with pytest.raises(DocumentError) as caught:
        parse(document)
    assert "UTF-8" not in str(caught.value)


def test_parsing_in_threads():
    """A message never comes from another document."""
    wrong: list[str] = []

    def work(number: int) -> None:
        bad = written(f'<sqlQueryStatement name="q" a{number}="x"><expression>x</expression></sqlQueryStatement>')
        for _ in range(30):
            try:
                parse(bad)
            except DocumentError as error:
                if f"'a{number}'" not in str(error):
                    wrong.append(str(error))
            parse(written(query_activity("q", "x", "t") + to_csv("c", "t", "e"), WSI if number % 2 else GDS))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert wrong == []


def test_a_query_without_xml():
    perform = query("select ?", [None, 0, "", b"x"])
    driver = Memory({"select ?": Script(table(1))})
    with Running(perform, environment(driver)) as work:
        ((end, source),) = [(end, source.table()) for end, source in work.open().end_points()]
    assert end == EndPoint("result", "query", True)
    assert source.num_rows == 1
    assert driver.executed == [("select ?", (None, 0, "", b"x"))]
