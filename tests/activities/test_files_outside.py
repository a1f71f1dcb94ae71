"""Files of a directory: nothing outside it can be named."""

import os
import socket
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from dai.errors import ConflictError, DaiError, DeniedError, NotFoundError, ParameterError
from tests.activities.directories import SECRET, listed, manipulate, outcome, read, write

WAYS = {
    "parent": "../outside/secret",
    "parent below": "sub/../../outside/secret",
    "only dots": "..",
    "dots at the end": "sub/..",
    "absolute": "{outside}/secret",
    "absolute with two slashes": "/{outside}/secret",
    "link to a file": "link",
    "link that leads back": "link-to-a",
    "link to a directory": "links/secret",
    "link in the middle": "sub/links/secret",
    "link to the root": "root{outside}/secret",
    "chain of links": "chain",
    "circle of links": "circle",
    "fifo": "fifo",
    "socket": "socket",
    "device": "sub/proc/self/environ",
    "a file as a directory": "a/x",
    "empty": "",
    "dots": "./.",
}
OPERATIONS = {
    "read": read,
    "read bytes": lambda name: read(name, '<bytes offset="0" length="5"/>'),
    "append": lambda name: write(name, '<append text="x"/>'),
    "insert": lambda name: write(name, '<insert text="x"/>'),
    "replace": lambda name: write(name, '<replace text="x"/>'),
    "search": lambda name: write(name, "<delete/>", "<regexp>s</regexp>"),
    "copy from": lambda name: manipulate(f'<copy from="{name}" to="stolen"/>'),
    "copy to": lambda name: manipulate(f'<copy from="a" to="{name}"/>'),
    "move from": lambda name: manipulate(f'<move from="{name}" to="stolen"/>'),
    "move to": lambda name: manipulate(f'<move from="a" to="{name}"/>'),
    "delete": lambda name: manipulate(f"<delete>{name}</delete>"),
    "make": lambda name: manipulate(f"<mkdir>{name}</mkdir>"),
    "list": lambda name: listed(name or "..") if name != "./." else listed("../"),
}


@pytest.fixture
def ways_out(place: SimpleNamespace) -> Iterator[SimpleNamespace]:
    inside, outside = place.inside, place.outside
    (inside / "a").write_text("a")
    (inside / "link").symlink_to(outside / "secret")
    (inside / "link-to-a").symlink_to("a")
    (inside / "links").symlink_to(outside)
    (inside / "sub/links").symlink_to("../../outside")
    (inside / "sub/proc").symlink_to("/proc")
    (inside / "root").symlink_to("/")
    (inside / "chain").symlink_to("link")
    (inside / "circle").symlink_to("circle")
    os.mkfifo(inside / "fifo")
    here = os.getcwd()
    os.chdir(inside)  # the path of a socket is short
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket")
        os.chdir(here)
        names = sorted(path.name for path in inside.iterdir())
        yield place
    assert sorted(path.name for path in inside.iterdir()) == names
    assert (inside / "a").read_text() == "a"


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("way", WAYS)
def test_nothing_outside_can_be_named(ways_out, way, operation):
    name = WAYS[way].format(outside=ways_out.outside)
    with pytest.raises((DeniedError, ParameterError, ConflictError, NotFoundError)) as raised:
        outcome(OPERATIONS[operation](name), ways_out)
    shown = str(raised.value) + str(raised.value.problem())
    assert SECRET not in shown
    assert name.startswith("/") or str(ways_out.inside) not in shown


PART = ".0123456789abcdef.part"


@pytest.mark.parametrize(
    "body",
    [
        read(PART),
        write(PART, '<append text="x"/>'),
        manipulate(f'<move from="f" to="{PART}"/>'),
        manipulate(f"<mkdir>{PART}</mkdir>"),
        manipulate(f'<copy from="{PART}" to="x"/>'),
    ],
)
def test_names_of_what_is_being_written_are_nobodys(place, body):
    """They are not listed: nothing of a user may hide there."""
    (place.inside / "f").write_text("text")
    with pytest.raises(DeniedError, match="Use another name"):
        outcome(body, place)
    assert sorted(path.name for path in place.inside.iterdir()) == ["f", "sub"]


@pytest.mark.parametrize("name", ["a\0b", "a\0", "\0", "../\0"])
def test_names_with_nul(place, name):
    for use in (place.driver.files.reading, place.driver.files.replacing):
        with pytest.raises(ParameterError, match="NUL"), use(name):
            pass
    with pytest.raises(ParameterError, match="NUL"):
        place.driver.files.delete(name)


@pytest.mark.parametrize("name", ["é", "a b", "..a", "a..", "...", "-rf", "~", "$HOME", "a\\..\\b", "%2e%2e", "*"])
def test_odd_names_are_names(place, name):
    outcome(write(name, '<append text="x"/>'), place)
    assert outcome(read(f"./{name}"), place) == b"x"
    assert [path.name for path in place.inside.iterdir() if path.is_file()] == [name]


def test_a_race_of_links_and_directories(place):
    """A directory becomes a link to the outside, and a directory again, while its file is read and written."""
    inside, real, link = place.inside, place.inside / "real", place.inside / "link"
    real.mkdir()
    (real / "secret").write_text("public")
    link.symlink_to(place.outside)
    swapped = inside / "swapped"
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            real.rename(swapped)
            swapped.rename(real)
            link.rename(swapped)
            swapped.rename(link)

    thread = threading.Thread(target=swap)
    thread.start()
    reached = 0
    deadline = time.monotonic() + 60
    try:
        while reached < 50 and time.monotonic() < deadline:
            for body in (read("swapped/secret"), write("swapped/secret", '<replace text="public"/>')):
                try:
                    assert outcome(body, place) in (b"public", b'<resultStream updateCount="1"/>')
                    reached += 1
                except (DeniedError, NotFoundError, ConflictError):
                    pass
    finally:
        stop.set()
        thread.join(60)
    assert reached >= 50
    assert (place.outside / "secret").read_text() == SECRET


def test_a_directory_that_is_gone(place):
    place.inside.joinpath("sub").rmdir()
    place.inside.rmdir()
    with pytest.raises(DaiError, match="cannot be opened"):
        outcome(read("x"), place)
    with pytest.raises(DaiError, match="cannot be opened"):
        place.driver.check()
    place.inside.mkdir()
