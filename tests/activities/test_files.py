"""Files of a directory: what is read and changed. ``test_files_outside``: that nothing outside it can be named."""

import base64
import os
import re
import signal
import stat
import subprocess
import sys

import httpx
import pytest

from dai.drivers.directory import beneath
from dai.drivers.memory import Memory
from dai.errors import (
    CancelledError,
    ConflictError,
    DaiError,
    DataError,
    DeniedError,
    LimitError,
    MissingDependencyError,
    NotAQueryError,
    NotFoundError,
    ParameterError,
    RequestError,
)
from dai.perform.activities.files.locate import Finder, Matches
from dai.perform.parser import parse
from dai.perform.pipeline import Environment, Running
from dai.perform.response import document
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Block
from tests.activities.directories import listed, manipulate, outcome, read, write
from tests.documents import Ends, query, results, running, written
from tests.pipelines import begun

XML = {"Content-Type": "application/xml", "Accept": "application/xml"}


# --- reading --------------------------------------------------------------------------------------------------------

LINES = b"zero\none\n\nthree\nfour"
LARGE = b"".join(b"%07d\n" % n for n in range(200_000))


@pytest.mark.parametrize(
    ("content", "portion", "expected"),
    [
        (LINES, "", LINES),
        (b"", "", b""),
        (LINES, '<bytes offset="3" length="4"/>', LINES[3:7]),
        (LINES, '<bytes offset="5"/>', LINES[5:]),
        (LINES, '<bytes length="2"/>', LINES[:2]),
        (LINES, '<bytes offset="500" length="2"/>', b""),
        (LINES, '<bytes offset="1" length="0"/>', b""),
        (LINES, '<bytes offset="9223372036854775807"/>', b""),
        (LINES, '<bytes offset="9223372036854775800" length="100"/>', b""),
        (LINES, f'<bytes offset="{2**63 - 1}"/>', b""),
        (LINES, f'<bytes offset="5" length="{2**63 - 1}"/>', LINES[5:]),
        (LINES, f'<lines offset="{2**63 - 1}"/>', b""),
        (LINES, f'<lines length="{2**63 - 1}"/>', LINES),
        (LINES, '<lines offset="1" length="2"/>', b"one\n\n"),
        (LINES, '<lines offset="3"/>', b"three\nfour"),
        (LINES, '<lines offset="0" length="0"/>', b""),
        (LINES, '<lines offset="9" length="2"/>', b""),
        (LARGE, "", LARGE),
        (LARGE, '<lines offset="100000" length="90000"/>', LARGE[800_000:1_520_000]),
        (LARGE, '<lines offset="199999" length="9"/>', b"0199999\n"),
        (LARGE, '<bytes offset="300000" length="600000"/>', LARGE[300_000:900_000]),
        (b"x" * 1_000_000 + b"\ny", '<lines offset="1"/>', b"y"),
    ],
)
@pytest.mark.parametrize("encode", ["", ' base64encode="false"', ' base64encode="true"'])
def test_read(place, content, portion, expected, encode):
    (place.inside / "sub/file.ext").write_bytes(content)
    actual = outcome(read("sub/file.ext", portion, encode), place)
    assert (base64.b64decode(actual) if "true" in encode else actual) == expected


@pytest.mark.parametrize(
    ("content", "encoding"), [(b"text \xc3\xa9\n", None), (b"\xff\xfe\0", "base64"), (b"a\0", "base64")]
)
def test_text_is_text_in_a_response(place, content, encoding):
    (place.inside / "f").write_bytes(content)
    with running(read("f"), place.driver) as work:
        elements = results(b"".join(document(work, "s", "r")))["e"]
    assert elements.get("encoding") == encoding
    assert (base64.b64decode(elements.text) if encoding else elements.text.encode()) == content


# --- writing --------------------------------------------------------------------------------------------------------

TEXT = "0123456789"
ZONK = " ".join(f"zonk{n}" for n in range(1, 20))


def places(numbers: set[int]) -> str:
    return " ".join(f"!!{n}" if n in numbers else f"zonk{n}" for n in range(1, 20))


@pytest.mark.parametrize(
    ("old", "locate", "operation", "new", "count"),
    [
        (TEXT, "<offset>1</offset>", '<insert text="!!"/>', "0!!123456789", 1),
        (TEXT, "<offset>start</offset>", '<insert text="!!"/>', "!!0123456789", 1),
        (TEXT, "<offset>end</offset>", '<insert text="!!"/>', "0123456789!!", 1),
        (TEXT, "", '<insert text="!!"/>', "!!0123456789", 1),
        (TEXT, "", '<append text="!!"/>', "0123456789!!", 1),
        (TEXT, "<offset>2</offset>", '<append text="!!"/>', "01!!23456789", 1),
        (TEXT, "<offset>2</offset><length>3</length>", '<append text="!!"/>', "01234!!56789", 1),
        (TEXT, "<offset>1</offset><length>3</length>", "<delete/>", "0456789", 1),
        (TEXT, "<offset>3</offset><length>end</length>", '<replace text="x"/>', "012x", 1),
        (TEXT, "<offset>3</offset>", '<replace text="x"/>', "012x", 1),
        (TEXT, "<offset>8</offset><length>100</length>", "<delete/>", "01234567", 1),
        (TEXT, "", "<delete/>", "", 1),
        (TEXT, "", '<replace text="é"/>', "é", 1),
        ("ab\ncd\r\ne", "<offset>start</offset><perLine>true</perLine>", '<insert text="!"/>', "!ab\n!cd\r\n!e", 3),
        ("ab\ncd\r\ne", "<perLine>true</perLine>", '<append text="!"/>', "ab!\ncd!\r\ne!", 3),
        ("ab\n\ncd\n", "<perLine>true</perLine>", "<delete/>", "\n\n\n", 3),
        ("abc\na\nbcd", "<offset>2</offset><perLine>true</perLine>", '<replace text="!"/>', "ab!\na\nbc!", 2),
        (ZONK, "<regexp>zonk</regexp><match>1-3</match>", '<replace text="!!"/>', places({1, 2, 3}), 3),
        (ZONK, "<regexp>zonk</regexp><match>1:4:9:...</match>", '<replace text="!!"/>', places({1, 4, 9, 16}), 4),
        (ZONK, "<regexp>zonk</regexp><match>2:4:...</match>", '<replace text="!!"/>', places(set(range(2, 20, 2))), 9),
        (ZONK, "<regexp>zonk</regexp><match>3:...</match>", '<replace text="!!"/>', places({3}), 1),
        (ZONK, "<regexp>zonk</regexp><match>2-3:7</match>", '<replace text="!!"/>', places({2, 3, 7}), 3),
        (ZONK, "<regexp>zonk</regexp><match>1-5:2-3:4-7</match>", '<replace text="!!"/>', places(set(range(1, 8))), 7),
        (ZONK, "<regexp>zonk</regexp><match>5:5:...</match>", '<replace text="!!"/>', places({5}), 1),
        (ZONK, "<regexp>zonk</regexp>", '<replace text="!!"/>', places(set(range(20))), 19),
        ("a1b22", "<regexp>[0-9]+</regexp>", '<insert text="#"/>', "a#1b#22", 2),
        ("a1b22", "<regexp>[0-9]+</regexp>", '<append text="#"/>', "a1#b22#", 2),
        ("a1b22", "<regexp>[0-9]+</regexp>", "<delete/>", "ab", 2),
        ("xx\nxx", "<regexp>x</regexp><match>2</match><perLine>true</perLine>", '<replace text="y"/>', "xy\nxy", 2),
        ("a\nb", "<regexp>a\\nb</regexp>", '<replace text="c"/>', "c", 1),
        ("a\nb", "<regexp>nothing</regexp>", '<replace text="c"/>', "a\nb", 0),
        ("abc", "<regexp></regexp>", '<insert text="-"/>', "-a-b-c-", 4),
    ],
)
def test_write(place, old, locate, operation, new, count):
    path = place.inside / "file.txt"
    path.write_bytes(old.encode())
    path.chmod(0o640)
    assert outcome(write("file.txt", operation, locate), place) == f'<resultStream updateCount="{count}"/>'.encode()
    assert path.read_bytes() == new.encode()
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


@pytest.mark.parametrize(
    ("locate", "new"),
    [
        ("<offset>2</offset><length>6</length>", b"01onetwo89"),
        ("<regexp>[27]</regexp>", b"01onetwo3456onetwo89"),
        ("", b"onetwo"),
    ],
)
def test_what_is_written_comes_from_an_output(place, locate, new):
    (place.inside / "f").write_text(TEXT)
    outcome(write("f", '<replace from="data"/>', locate), place, b"one", b"two")
    assert (place.inside / "f").read_bytes() == new


@pytest.mark.parametrize(
    "portion",
    [
        '<bytes offset="-1"/>',
        '<bytes length="-1"/>',
        '<lines offset="-1"/>',
        '<lines length="-1"/>',
        "<bytes/><lines/>",
    ],
)
def test_reading_refused(place, portion):
    (place.inside / "f").write_text(TEXT)
    with pytest.raises(ParameterError):
        outcome(read("f", portion), place)


@pytest.mark.parametrize("operation", ["append", "replace"])
def test_a_new_file(place, operation):
    outcome(write("sub/new", f'<{operation} text="x"/>'), place)
    assert (place.inside / "sub/new").read_text() == "x"


@pytest.mark.parametrize(
    ("operation", "locate", "error", "says"),
    [
        (
            '<insert text="x"/>',
            "<offset>11</offset>",
            DataError,
            "The offset 11 is beyond the end of the file, which has 10 bytes",
        ),
        ('<insert text="x"/>', "<offset>-1</offset>", ParameterError, "offset cannot be '-1'"),
        ('<insert text="x"/>', "<offset>x</offset>", ParameterError, "offset cannot be 'x'"),
        ('<replace text="x"/>', "<length>many</length>", ParameterError, "length cannot be 'many'"),
        ('<replace text="x"/>', "<regexp>(</regexp>", ParameterError, "missing"),
        ('<replace text="x"/>', "<regexp>(a)\\1</regexp>", ParameterError, "cannot be used"),
        ('<replace text="x"/>', "<regexp>(?=a)</regexp>", ParameterError, "cannot be used"),
        ('<replace text="x"/>', "<regexp>a</regexp><offset>1</offset>", ParameterError, "not both"),
        ('<replace text="x"/>', "<match>1</match>", ParameterError, "no regexp"),
        *(
            (
                '<replace text="x"/>',
                f"<regexp>a</regexp><match>{match}</match>",
                ParameterError,
                "match",
            )
            for match in ("0", "3-1", "x", "4:1", "...", "", "1-3:...", "1:...:2", "-1", "x" * 100_000)
        ),
        ("", "", ParameterError, "0 operations"),
        ('<delete/><insert text="x"/>', "", ParameterError, "2 operations"),
        ("<insert/>", "", ParameterError, "a text or a from"),
    ],
)
def test_writing_refused(place, operation, locate, error, says):
    (place.inside / "f").write_text(TEXT)
    with pytest.raises(error, match=re.escape(says)):
        outcome(write("f", operation, locate), place)
    assert (place.inside / "f").read_text() == TEXT


def test_a_regular_expression_takes_no_longer_than_the_text(place):
    (place.inside / "f").write_text("a" * 100_000 + "!")
    outcome(write("f", "<delete/>", "<regexp>(a|a)*(a|aa)+$</regexp>"), place)


def test_what_is_searched_as_a_whole_has_a_bound(place):
    (place.inside / "f").write_bytes(LARGE)
    with pytest.raises(LimitError, match="1,048,576 bytes"):
        outcome(write("f", "<delete/>", "<regexp>x</regexp>"), place)
    outcome(write("f", "<delete/>", "<regexp>^0+</regexp><perLine>true</perLine>"), place)
    assert (place.inside / "f").read_bytes() == b"".join(b"%d\n" % n if n else b"\n" for n in range(200_000))


@pytest.mark.parametrize("locate", ["<regexp>x</regexp>", "<perLine>true</perLine>"])
def test_what_is_written_in_several_places_has_a_bound(place, locate):
    old = b"x\n" * 5000
    (place.inside / "f").write_bytes(old)
    with pytest.raises(LimitError, match="4,194,304 bytes in all") as raised:
        outcome(write("f", f'<insert text="{"y" * 1000}"/>', locate), place)
    assert (raised.value.extra["limit"], (place.inside / "f").read_bytes()) == ("limits.unpacked_bytes", old)
    outcome(write("f", f'<insert text="{"y" * 800}"/>', locate), place)
    assert (place.inside / "f").stat().st_size == len(old) + 800 * 5000


def test_without_re2_only_a_regexp_is_refused(place, monkeypatch):
    monkeypatch.setitem(sys.modules, "re2", None)
    (place.inside / "f").write_text(TEXT)
    with pytest.raises(MissingDependencyError, match=r"re2(?s:.*)pip install google-re2"):
        outcome(write("f", "<delete/>", "<regexp>1</regexp>"), place)
    outcome(write("f", "<delete/>", "<offset>1</offset>"), place)
    assert (place.inside / "f").read_text() == "0"


def test_a_long_match(place):
    """Each number is looked at once; the numbers that begin a sequence are few."""
    (place.inside / "f").write_bytes(b"x" * 100_000)
    numbers = ":".join(str(2 * each) for each in range(1, 50_001))
    outcome(write("f", "<delete/>", f"<regexp>x</regexp><match>{numbers}</match>"), place)
    assert (place.inside / "f").stat().st_size == 50_000
    with pytest.raises(ParameterError, match="50,000 numbers before"):
        outcome(write("f", "<delete/>", f"<regexp>x</regexp><match>{numbers}:...</match>"), place)


@pytest.mark.parametrize("matches", [Matches(((1, 1),), True), Matches(((10**9, 10**9),)), None])
def test_a_search_is_cancelled(matches):
    """At each match, wanted or not."""
    cancellation = Cancellation()
    spans = Finder(expression=re.compile(b"x"), matches=matches).spans(b"x" * 1000, cancellation.check)
    if matches is None or matches.endless:
        assert next(spans) == (0, 1)
    cancellation.cancel(CancelledError("Enough."))
    with pytest.raises(CancelledError):
        next(spans)


def test_a_failure_half_way_changes_nothing(place):
    (place.inside / "f").write_text(TEXT)
    body = query("q", "q", "t") + write("f", '<replace from="t"/>')
    with pytest.raises(NotAQueryError):
        outcome(body, place)
    session = Ends(capacity=10)
    session.input("pushed").put(Block(b"x", 1), Cancellation())
    body = write("f", '<append from="data"/>') + '<inputStream name="pushed"><toLocal name="data"/></inputStream>'
    cancellation = Cancellation()
    thread, raised = begun(Running(parse(written(body)), Environment(place.driver, session, cancellation)))
    while session.input("pushed").held[0]:
        thread.join(0.01)
        assert thread.is_alive()
    cancellation.cancel(CancelledError("Enough."))
    thread.join(60)
    assert [type(each) for each in raised] == [CancelledError]
    assert (place.inside / "f").read_text() == TEXT


KILLED = """
import os, signal, sys
from pathlib import Path
from dai.drivers.directory import beneath
if sys.argv[2] == "named":
    beneath._UNNAMED = os.O_WRONLY | os.O_DIRECTORY  # as a file system that knows no files without names
with beneath.Beneath(Path(sys.argv[1])).replacing(sys.argv[3], new=sys.argv[3] == "new") as (old, writer):
    writer.write(b"half")
    writer.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("way", ["unnamed", "named"])
@pytest.mark.parametrize("name", ["f", "new"])
def test_a_process_that_is_killed_leaves_the_file_as_it_was(place, way, name):
    (place.inside / "f").write_text(TEXT)
    before = sorted(path.name for path in place.inside.iterdir())
    killed = subprocess.run([sys.executable, "-c", KILLED, str(place.inside), way, name], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert (place.inside / "f").read_text() == TEXT
    parts = list(place.inside.glob(".*.part"))
    assert len(parts) == (way == "named")
    assert sorted(path.name for path in place.inside.iterdir() if path not in parts) == before
    with place.driver.files.replacing(name, new=name == "new") as (_, writer):
        writer.write(b"whole")
    assert (place.inside / name).read_text() == "whole"
    assert list(place.inside.glob(".*.part")) == parts
    for each in parts:  # the fixture looks for others
        each.unlink()


@pytest.mark.parametrize("name", ["f", "new"])
def test_a_file_system_that_knows_no_files_without_names(place, name, monkeypatch):
    monkeypatch.setattr(beneath, "_UNNAMED", os.O_WRONLY | os.O_DIRECTORY)
    (place.inside / "f").write_text(TEXT)
    with place.driver.files.replacing(name, new=name == "new") as (_, writer):
        writer.write(b"whole")
    assert (place.inside / name).read_text() == "whole"
    with pytest.raises(DaiError), place.driver.files.replacing("f") as (_, writer):
        place.driver.files.copy("nowhere", "else", Cancellation())
    assert (place.inside / "f").read_text() == ("whole" if name == "f" else TEXT)
    assert not list(place.inside.glob(".*.part"))


def test_two_who_change_a_file_at_once(place):
    """The second is refused; nothing of the first is lost."""
    (place.inside / "f").write_text(TEXT)
    with place.driver.files.replacing("f") as (_, writer):
        writer.write(b"first")
        with pytest.raises(ConflictError, match="another request"):
            outcome(write("f", '<append text="second"/>'), place)
        assert set(outcome(listed(), place)["name"].to_pylist()) == {"f", "sub"}
    assert (place.inside / "f").read_text() == "first"


# --- directories ----------------------------------------------------------------------------------------------------


def test_list(place):
    (place.inside / "a").write_text("12345")
    os.utime(place.inside / "a", (1_000_000_000, 1_000_000_000))
    (place.inside / "link").symlink_to(place.outside / "secret")
    os.mkfifo(place.inside / "fifo")
    actual = {each["name"]: each for each in outcome(listed(), place).to_pylist()}
    assert actual.keys() == {"a", "sub"}
    assert (actual["a"]["kind"], actual["a"]["bytes"], actual["sub"]["kind"]) == ("file", 5, "directory")
    assert actual["sub"]["bytes"] is None
    assert actual["a"]["modified"].timestamp() == 1_000_000_000
    assert outcome(listed("sub"), place).num_rows == 0
    for number in range(2500):
        (place.inside / f"sub/{number}").touch()
    assert sorted(map(int, outcome(listed("sub/."), place)["name"].to_pylist())) == list(range(2500))


def test_manipulate(place):
    (place.inside / "a").write_bytes(LARGE)
    outcome(manipulate('<copy from="a" to="sub/b"/>'), place)
    assert (place.inside / "sub/b").read_bytes() == LARGE
    outcome(manipulate('<move from="sub/b" to="c"/>'), place)
    assert (place.inside / "c").read_bytes() == LARGE
    assert not (place.inside / "sub/b").exists()
    outcome(manipulate("<mkdir>sub/deep</mkdir>"), place)
    outcome(manipulate('<move from="sub" to="other"/>'), place)
    outcome(manipulate("<delete>other/deep</delete>"), place)
    outcome(manipulate("<delete>c</delete>"), place)
    assert sorted(path.name for path in place.inside.iterdir()) == ["a", "other"]


@pytest.mark.parametrize(
    ("operation", "error"),
    [
        ('<copy from="a" to="b"/>', ConflictError),
        ('<copy from="a" to="sub"/>', DeniedError),
        ('<copy from="nothing" to="c"/>', NotFoundError),
        ('<move from="a" to="b"/>', ConflictError),
        ('<move from="sub" to="b"/>', ConflictError),
        ('<move from="sub" to="sub/deeper"/>', DeniedError),
        ("<delete>sub</delete>", ConflictError),
        ("<delete>nothing</delete>", NotFoundError),
        ("<mkdir>sub</mkdir>", ConflictError),
        ("<mkdir>a/x</mkdir>", DeniedError),
        ("<mkdir>no/x</mkdir>", NotFoundError),
        (f"<mkdir>{'x' * 300}</mkdir>", ParameterError),
        ("", ParameterError),
        ("<mkdir>x</mkdir><delete>y</delete>", ParameterError),
    ],
)
def test_manipulation_refused(place, operation, error):
    for name in ("a", "b", "sub/full"):
        (place.inside / name).write_text(name)
    with pytest.raises(error):
        outcome(manipulate(operation), place)
    assert {path.name: path.read_text() for path in place.inside.glob("**/*") if path.is_file()} == {
        "a": "a",
        "b": "b",
        "full": "sub/full",
    }


# --- as a resource --------------------------------------------------------------------------------------------------


def test_only_directories_have_files():
    with pytest.raises(RequestError, match="not a directory"), running(read("x"), Memory({})):
        pass


def test_sql_on_a_directory(place):
    for body in (
        query("q", "select 1", "e", "webRowSetStream"),
        '<sqlUpdateStatement name="u"><expression>x</expression><resultStream name="e"/></sqlUpdateStatement>',
    ):
        with pytest.raises(NotAQueryError, match="directory of files"):
            outcome(body, place)


def test_a_service_with_a_directory(place, tmp_path):
    from dai.api.server.serve import background
    from tests.api.conftest import configured

    (place.inside / "f").write_text("in the file")
    config = configured(tmp_path, {"exports": {"directory": str(place.inside), "description": "files"}})
    with background(config) as service, httpx.Client(base_url=service.url, timeout=60) as client:
        (listed_one,) = client.get("/resources").json()["resources"]
        properties = client.get("/resources/exports").json()
        assert listed_one["name"] == properties["name"] == "exports"
        assert (properties["kind"], properties["available"], properties["tables"]) == ("directory", True, False)
        assert {"fileAccessActivity", "gzipCompression", "TupleSort"} <= set(properties["activities"])
        assert not {"sqlQueryStatement", "runFragments"} & set(properties["activities"])
        assert client.get("/resources/exports/schema").json()["tables"] == []
        assert client.get("/health/ready").status_code == 200
        answer = client.post("/resources/exports/perform", content=written(read("f")), headers=XML)
        assert results(answer.content)["e"].text == "in the file"
        for name, status in (("../outside/secret", 403), ("nothing", 404)):
            refused = client.post("/resources/exports/perform", content=written(read(name)), headers=XML)
            assert refused.status_code == status
            assert str(tmp_path) not in refused.text
        assert client.post("/resources/exports/query", json={"sql": "select 1"}).status_code == 400
