"""Documents whose blocks come as frames, and streams that wait before a block."""

from threading import Event
from typing import Any

import pytest

from dai.streams.mailbox import Mailbox
from tests.api.conftest import DOCUMENT, statement

SQL = "select i, s from numbers where i < 250"
PAYLOAD = DOCUMENT.format(
    statement(SQL) + '<outputStream name="out" representation="payload"><fromLocal from="rows"/></outputStream>'
)
ARROW = DOCUMENT.format(
    statement(SQL)
    + '<sqlResultsToArrow name="e"><resultSet from="rows"/><arrow name="a"/></sqlResultsToArrow>'
    + '<outputStream name="out"><fromLocal from="a"/></outputStream>'
)
CSV = DOCUMENT.format(
    statement(SQL)
    + '<sqlResultsToCSV name="e"><resultSet from="rows"/><csv name="a"/></sqlResultsToCSV>'
    + '<outputStream name="out"><fromLocal from="a"/></outputStream>'
)


class Paused:
    """Producers of streams wait before the block of that number until they may ``go`` on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
        self.go, wait_for_room = Event(), Mailbox._wait_for_room

        def waited(mailbox: Mailbox, *arguments: Any) -> bool:
            room = wait_for_room(mailbox, *arguments)
            assert mailbox.expected != number or self.go.wait(60)
            return room

        monkeypatch.setattr(Mailbox, "_wait_for_room", waited)
