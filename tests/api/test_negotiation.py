import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dai.api.requests import negotiation
from dai.api.requests.negotiation import accepted, accepts_xml, best, media_types, names_a_format, tabular
from dai.errors import NotAcceptableError

OFFERS = ("application/xml", "text/csv", "application/vnd.apache.arrow.stream")


@pytest.mark.parametrize(
    ("accept", "chosen"),
    [
        (None, "application/xml"),
        ("", "application/xml"),
        ("*/*", "application/xml"),
        ("text/*", "text/csv"),
        ("text/csv;q=0.2, application/*;q=0.1", "text/csv"),
        ("text/csv;q=0, text/*", None),
        ("TEXT/CSV", "text/csv"),
        ("text/xml", "application/xml"),
        ("text/csv;header=absent;q=0.5", "text/csv"),
        ("text/csv;q=many", None),
        ("text/csv;q=7", None),
        ("application/xml;q=0.1, */*;q=0.5", "text/csv"),
        ("image/png", None),
        (",,;;,", None),
    ],
)
def test_the_best_offer(accept: str | None, chosen: str | None) -> None:
    assert best(accept, OFFERS) == chosen


@given(st.text(max_size=50))
def test_whatever_a_client_sends_is_read(accept: str) -> None:
    assert best(accept, OFFERS) in (*OFFERS, None)
    assert all(0.0 <= weight <= 1.0 for _, weight in accepted(accept))


def test_xml_counts_as_asked_for_only_by_name() -> None:
    assert accepts_xml("text/xml")
    assert accepts_xml("application/xml;q=0.3, */*")
    assert not accepts_xml("*/*")
    assert not accepts_xml(None)
    assert not accepts_xml("application/xml;q=0")


def test_a_format_is_named_where_nothing_else_would_do() -> None:
    assert names_a_format("text/csv")
    assert not names_a_format("text/csv, */*;q=0.1")
    assert not names_a_format(None)


def test_every_format_can_be_had_by_accept_and_by_name() -> None:
    for name, media_type in media_types().items():
        assert tabular(media_type, None).name == name
        assert tabular("image/png", name).name == name
    assert tabular(None, None).name == "arrow"
    with pytest.raises(NotAcceptableError, match="text/csv"):
        tabular("image/png", None)


@pytest.mark.parametrize(
    ("lines", "status", "kind"),
    [
        (["text/csv", "application/xml"], 200, "text/csv"),
        (["application/xml", "text/csv"], 200, "text/csv"),
        (["image/png", "text/csv;q=0.5", "application/x-ndjson"], 200, "application/x-ndjson"),
        (["image/png", "image/gif"], 406, "application/problem+json"),
    ],
)
def test_several_lines_of_accept_are_one_list(client: httpx.Client, lines: list[str], status: int, kind: str) -> None:
    headers = [("Content-Type", "application/json"), *(("Accept", each) for each in lines)]
    client.headers.pop("accept")
    answer = client.post("/resources/book/query", content=b'{"sql": "select 1 as a"}', headers=headers)
    assert (answer.status_code, answer.headers["content-type"]) == (status, kind)


def test_several_lines_of_other_lists_are_one_list(client: httpx.Client) -> None:
    headers = [("Content-Type", "application/json"), ("Prefer", "respond-async"), ("Prefer", "wait=1")]
    answer = client.post("/resources/book/query", content=b'{"sql": "select 1 as a"}', headers=headers)
    assert answer.status_code == 202
    etag = client.get("/resources/book/schema").headers["etag"]
    headers = [("If-None-Match", etag), ("If-None-Match", '"other"')]
    assert client.get("/resources/book/schema", headers=headers).status_code == 304


def test_what_nobody_sends_twice_is_not_remembered() -> None:
    """Each address reads Accept, also those that ask nobody who they are."""
    long = ", ".join(f"a/{number}" for number in range(5_000))
    before = negotiation._remembered.cache_info()
    assert negotiation.best(f"{long}, text/csv", ["text/html", "text/csv"]) == "text/csv"
    assert negotiation._remembered.cache_info() == before
    assert negotiation.best("text/csv", ["text/html", "text/csv"]) == "text/csv"
    assert negotiation._remembered.cache_info() != before
