"""Perform documents in tests: writing them, running them, reading what they answer."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from lxml import etree

from dai.config import Config
from dai.drivers import Driver
from dai.drivers.memory import Memory, Script
from dai.perform.parser import GDS, PREVIEW, Dialect, parse
from dai.perform.pipeline import Environment, Running
from dai.perform.response import document
from dai.streams.cancellation import Cancellation
from dai.streams.mailbox import Mailbox


@dataclass
class Ends:
    """A session that lives in memory."""

    id: str = "session-1"
    capacity: int = 2
    explicit: bool = True
    kept: dict[object, Any] = field(default_factory=dict)
    outputs: dict[str, Mailbox] = field(default_factory=dict)
    inputs: dict[str, Mailbox] = field(default_factory=dict)

    def keep(self, key: object, create: Callable[[], Any]) -> Any:
        return self.kept.setdefault(key, create())

    def output(self, name: str) -> Mailbox:
        return self.outputs.setdefault(name, Mailbox(self.capacity))

    def input(self, name: str) -> Mailbox:
        return self.inputs.setdefault(name, Mailbox(self.capacity))


def written(body: str, dialect: Dialect = GDS) -> bytes:
    if dialect is PREVIEW:
        body = f'<request name="everything">{body}</request><execute name="run" requestName="everything"/>'
    return rooted(body, dialect)


def rooted(body: str, dialect: Dialect) -> bytes:
    return f'<{dialect.request} xmlns="{dialect.namespace}">{body}</{dialect.request}>'.encode()


def environment(
    driver: Driver | None,
    session: Ends | None = None,
    cancellation: Cancellation | None = None,
    blocksize: int | None = None,
    scratch: Path | None = None,
    config: Config = Config(),
) -> Environment:
    return Environment(driver, session or Ends(), cancellation or Cancellation(), blocksize, scratch, config)


@contextmanager
def running(body: str, driver: Driver | None, **more: object) -> Iterator[Running]:
    with Running(parse(written(body)), environment(driver, **more)) as work:  # type: ignore[arg-type]
        yield work.open()


def answer(body: str, driver: Driver | None, **more: object) -> bytes:
    """The whole response document."""
    with running(body, driver, **more) as work:
        return b"".join(document(work, "s", "r"))


def results(response: bytes) -> dict[str, etree._Element]:
    """The ``result`` elements of a response by name; the request's status under ``request``."""
    root = etree.fromstring(response)
    local = {node: etree.QName(node).localname for node in root}
    elements = {node.get("name"): node for node in root if local[node] == "result"}
    elements["request"] = next(node for node in root if local[node] == "request")
    return elements


def statuses(response: bytes) -> dict[str, str]:
    return {name: node.get("status") for name, node in results(response).items()}


def error_of(node: etree._Element) -> tuple[str, str, str]:
    """Code, failing activity, message."""
    (error,) = [each for each in node if etree.QName(each).localname == "error"]
    return error.get("id"), error.get("activity"), error.text or ""


def table(rows: int) -> pa.Table:
    return pa.table(
        {"id": pa.array(range(rows), pa.int64()), "name": pa.array([f"name {n}" for n in range(rows)], pa.string())}
    )


def query(name: str, sql: str, output: str, element: str = "resultStream") -> str:
    return (
        f'<sqlQueryStatement name="{name}"><expression>{sql}</expression><{element} name="{output}"/>'
        "</sqlQueryStatement>"
    )


def to_csv(name: str, source: str, output: str) -> str:
    return f'<sqlResultsToCSV name="{name}"><resultSet from="{source}"/><csv name="{output}"/></sqlResultsToCSV>'


def memory(**scripts: Script) -> Memory:
    return Memory(scripts)
