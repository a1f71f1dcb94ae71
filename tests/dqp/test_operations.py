"""Operation calls: against a real HTTP service on loopback, and Python functions."""

from __future__ import annotations

import contextlib
import datetime as dt
import io
import json
import threading
import time
from collections.abc import Iterator
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import dqp
from dai.drivers import driver_for
from dai.errors import CancelledError, ConfigurationError, DaiError, DataError
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Stream
from dqp.algebra.types import PLAIN, arrow_type
from dqp.errors import OperationError
from dqp.execution.service_calls import AHEAD, Caller, Operation, operations_of
from dqp.settings import FederationSettings
from tests.processes import SECONDS, until


class Lengths(ThreadingHTTPServer):
    """Answers the length of each text; counts, waits, fails and misbehaves as it is told."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.bodies: list[Any] = []
        self.failures: list[int] = []
        self.lock = threading.Lock()
        self.now, self.most = 0, 0
        self.hold: threading.Event | None = None
        self.arrived = threading.Event()
        self.answer: bytes | None = None
        self.pause = 0.0
        """Seconds between two bytes of an answer."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/length"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Lengths

    def do_POST(self) -> None:
        server = self.server
        body = self.rfile.read(int(self.headers["content-length"]))
        with server.lock:
            server.now += 1
            server.most = max(server.most, server.now)
            status = server.failures.pop(0) if server.failures else 200
        server.arrived.set()
        if server.hold is not None:
            server.hold.wait(20)
        if self.headers["content-type"] == "application/json":
            rows = json.loads(body)["arguments"]
            server.bodies.append(rows)
            content = json.dumps({"results": [len(row[0]) for row in rows]}).encode()
        else:
            table = pa.ipc.open_stream(body).read_all()
            server.bodies.append(table.to_pylist())
            lengths = pa.table({"r": [len(each.as_py()) for each in table.column(0)]})
            sink = io.BytesIO()
            with pa.ipc.new_stream(sink, lengths.schema) as writer:
                writer.write_table(lengths)
            content = sink.getvalue()
        content = server.answer if server.answer is not None else content
        with server.lock:
            server.now -= 1
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        with contextlib.suppress(ConnectionError):
            for at in range(len(content) if server.pause else 0):
                self.wfile.write(content[at : at + 1])
                time.sleep(server.pause)
            self.wfile.write(b"" if server.pause else content)

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


@pytest.fixture
def service() -> Iterator[Lengths]:
    server = Lengths()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server
    if server.hold is not None:
        server.hold.set()
    server.shutdown()
    thread.join()
    server.server_close()


def operation(**given: Any) -> Operation:
    return Operation(**{"name": "length", "types": (pa.string(),), "result": pa.int64(), **given})


def called(made: Operation, *arguments: pa.Array) -> pa.Array:
    caller = Caller(made, Cancellation())
    try:
        return caller.begin(*arguments)()
    finally:
        caller.close()


@pytest.mark.parametrize("format", ["json", "arrow"])
@pytest.mark.parametrize("batch", [1, 3, 100])
def test_results_stand_at_their_rows(service: Lengths, format: str, batch: int) -> None:
    texts = [None, "a", "bb", "a", None, "ccc", "", "bb", "dddd"]
    got = called(operation(url=service.url, format=format, batch=batch), pa.array(texts))
    assert got.to_pylist() == [None if each is None else len(each) for each in texts]
    assert sum(map(len, service.bodies)) == 5, "each different text once, no NULL"
    assert max(map(len, service.bodies)) <= batch


def test_a_function_that_is_not_deterministic_is_called_for_each_row(service: Lengths) -> None:
    called(operation(url=service.url, deterministic=False), pa.array(["a", "a", "a"]))
    assert len(service.bodies) == 3


def test_calls_at_once_are_limited(service: Lengths) -> None:
    service.hold = threading.Event()
    letting = threading.Thread(target=lambda: (until(lambda: service.now >= 3), service.hold.set()))
    letting.start()
    called(operation(url=service.url, concurrent=3), pa.array([str(each) for each in range(12)]))
    letting.join()
    assert service.most == 3


def test_a_busy_service_is_asked_again(service: Lengths) -> None:
    service.failures = [503, 429, 502]
    assert called(operation(url=service.url), pa.array(["abc"])).to_pylist() == [3]


def test_a_service_that_stays_busy_is_an_error_that_names_the_function(service: Lengths) -> None:
    service.failures = [503] * 5
    with pytest.raises(OperationError, match="length failed 2 times: its service says 503"):
        called(operation(url=service.url, retries=1), pa.array(["abc"]))


def test_no_service_is_an_error(service: Lengths) -> None:
    with pytest.raises(OperationError, match="its service does not answer"):
        called(operation(url="http://127.0.0.1:9/", retries=0), pa.array(["abc"]))


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"{}",
        b'{"results": [1, 2]}',
        b'{"results": ["x"]}',
        b"[1]",
        b"\xff",
        b"[" * 100_000,
        b'{"results": [' + b"9" * 30 + b"]}",
    ],
)
def test_a_wrong_answer_is_an_error_and_never_a_result(service: Lengths, answer: bytes) -> None:
    service.answer = answer
    with pytest.raises(OperationError, match="length"):
        called(operation(url=service.url), pa.array(["abc"]))


@pytest.mark.parametrize(
    ("table", "says"),
    [
        (pa.table({}), "not arrow of type int64"),
        (pa.table({"r": ["x", "y"]}), "returned 2 results for 1 rows"),
    ],
    ids=["no column", "too many rows"],
)
def test_a_wrong_table_is_an_error(service: Lengths, table: pa.Table, says: str) -> None:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    service.answer = sink.getvalue()
    with pytest.raises(OperationError, match=says):
        called(operation(url=service.url, format="arrow"), pa.array(["abc"]))


def test_a_call_ends_although_bytes_still_come(service: Lengths) -> None:
    service.answer, service.pause = b'{"results": [' + b" " * 200 + b"1]}", 0.05
    with pytest.raises(OperationError, match=r"its service takes longer than 0\.3 s"):
        called(operation(url=service.url, timeout=0.3, retries=0), pa.array(["abc"]))


@pytest.mark.parametrize("status", [302, 404])
def test_another_status_is_an_error_at_once(service: Lengths, status: int) -> None:
    service.failures = [status]
    with pytest.raises(OperationError, match=f"length answered with status {status}"):
        called(operation(url=service.url), pa.array(["abc"]))
    assert len(service.bodies) == 1


def test_cancelling_ends_calls_under_way(service: Lengths) -> None:
    service.hold = threading.Event()
    cancellation = Cancellation()
    caller = Caller(operation(url=service.url), cancellation)
    failures: list[BaseException] = []

    def run() -> None:
        try:
            caller.begin(pa.array(["a", "b", "c"]))()
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert service.arrived.wait(SECONDS)
    cancellation.cancel()
    thread.join(SECONDS)
    assert not thread.is_alive()
    assert isinstance(failures[0], CancelledError)
    caller.close()


def shout(text: str, times: int) -> str:
    return text.upper() * times


def double(numbers: pa.Array) -> pa.Array:
    import pyarrow.compute as pc

    return pc.multiply(numbers, 2)


def broken(_: str) -> str:
    raise ValueError("secret detail")


def test_python_functions_by_value_and_by_array() -> None:
    by_value = Operation(name="shout", types=(pa.string(), pa.int64()), result=pa.string(), python=f"{__name__}:shout")
    assert called(by_value, pa.array(["a", None, "b", "a"]), pa.array([1, 2, None, 2])).to_pylist() == [
        "A",
        None,
        None,
        "AA",
    ]
    by_array = Operation(name="double", types=(pa.int64(),), result=pa.int64(), python=f"{__name__}:double", batch=10)
    assert called(by_array, pa.array([3, None, 3])).to_pylist() == [6, None, 6]


@pytest.mark.parametrize("sql", ["select upper_of(k) from (values ('x')) t(k)", "select upper_of('x')"])
def test_an_argument_that_is_no_value_of_its_type(sql: str) -> None:
    functions = {"upper_of": {"python": "math:sqrt", "arguments": ["BIGINT"], "returns": "DOUBLE"}}
    with dqp.connect({"functions": functions}) as lab, pytest.raises(DaiError) as raised:
        lab.sql(sql).arrow()
    assert "upper_of" in str(raised.value)
    assert "Traceback" not in str(raised.value)


def test_a_failing_python_function_does_not_tell_its_secrets() -> None:
    operation = Operation(name="broken", types=(pa.string(),), result=pa.string(), python=f"{__name__}:broken")
    with pytest.raises(OperationError, match="broken failed: ValueError") as caught:
        called(operation, pa.array(["x"]))
    assert "secret" not in str(caught.value)


def refusing(_: str) -> str:
    raise DataError("no word of English")


def test_an_error_that_a_python_function_means_is_told() -> None:
    with pytest.raises(DataError, match=r"^no word of English$"):
        called(operation(python=f"{__name__}:refusing"), pa.array(["x"]))


def test_dates_and_decimals_travel_as_texts(service: Lengths) -> None:
    service.answer = b'{"results": ["2024-02-29", null]}'
    dates = operation(
        url=service.url, batch=10, types=(pa.decimal128(9, 2), pa.timestamp("us")), result=pa.date32(), retries=0
    )
    moment = dt.datetime(2024, 2, 29, 12)
    answers = called(dates, pa.array([Decimal("1.50"), Decimal("2.00")]), pa.array([moment, moment]))
    assert answers.to_pylist() == [dt.date(2024, 2, 29), None]
    assert service.bodies == [[["1.50", "2024-02-29T12:00:00"], ["2.00", "2024-02-29T12:00:00"]]]


def test_an_answer_has_a_bound(service: Lengths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dqp.execution.service_calls.LARGEST_ANSWER", 100)
    service.answer = b'{"results": [' + b" " * 200 + b"1]}"
    with pytest.raises(OperationError, match="length answered more than 100 bytes"):
        called(operation(url=service.url), pa.array(["abc"]))


def test_a_failing_function_is_the_cause_that_a_query_tells(tmp_path: Path) -> None:
    lite = driver_for(f"sqlite:///{tmp_path}/lite.db")
    rows = pa.table({"name": [f"name {each}" for each in range(50)]})
    lite.load("t", Stream.of(rows), cancellation=Cancellation(), create=True)
    lite.close()
    function = {"python": f"{__name__}:broken", "arguments": ["VARCHAR"], "returns": "VARCHAR"}
    with dqp.connect({"sources": {"lite": f"sqlite:///{tmp_path}/lite.db"}, "functions": {"broken": function}}) as lab:
        for sql in ("select broken(name) from lite.t", "select count(*) from lite.t where broken(name) > 'a'"):
            with pytest.raises(OperationError, match="broken failed: ValueError"):
                lab.sql(sql).arrow()


LATER = threading.Event()


def awaiting(number: int) -> int:
    """The first waits for the last."""
    if number == 1:
        return int(LATER.wait(SECONDS))
    if number == 2 * AHEAD * 2:
        LATER.set()
    return number


def test_a_slow_call_does_not_keep_those_of_the_next_portion_from_being_made(tmp_path: Path) -> None:
    lite = driver_for(f"sqlite:///{tmp_path}/lite.db")
    numbers = range(1, 4 * AHEAD + 4)
    lite.load("t", Stream.of(pa.table({"id": numbers})), cancellation=Cancellation(), create=True)
    lite.close()
    function = {"python": f"{__name__}:awaiting", "arguments": ["BIGINT"], "returns": "BIGINT", "concurrent": 2}
    with dqp.connect(
        {"sources": {"lite": f"sqlite:///{tmp_path}/lite.db"}, "functions": {"awaiting": function}}
    ) as lab:
        table = lab.sql("select id, awaiting(id) as result from lite.t").arrow()
    assert table.to_pydict() == {"id": list(numbers), "result": list(numbers)}


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"url": "http://x/", "python": "a:b"},
        {"url": "file:///etc/passwd"},
        {"python": "nothing"},
        {"url": "http://x/", "batch": 0},
        {"url": "http://x/", "format": "xml"},
        {"url": "http://x/", "types": ()},
    ],
)
def test_a_registration_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=r"functions\.length"):
        operation(**wrong)


@pytest.mark.parametrize(
    ("name", "declared", "says"),
    [
        ("a-b", {}, "made of letters, digits and '_'"),
        ("score", {"batches": 2}, "no key 'batches'(?s:.*)'batch'"),
        ("score", {"arguments": "DOUBLE"}, r"score\.arguments must be a list of types"),
        ("score", {"arguments": ["NUMBER9"]}, r"score\.arguments: 'NUMBER9' is not a DuckDB type"),
        ("score", {"returns": 3}, r"score\.returns: 3 is not a DuckDB type"),
        ("score", {"returns": None}, "needs the type that it returns"),
    ],
)
def test_a_declaration_that_cannot_be_is_refused_at_its_key(name: str, declared: dict[str, Any], says: str) -> None:
    function = {"python": "math:sqrt", "arguments": ["DOUBLE"], "returns": "DOUBLE", **declared}
    with pytest.raises(ConfigurationError, match=says):
        dqp.connect({"functions": {name: {key: value for key, value in function.items() if value is not None}}})


@pytest.mark.parametrize(
    ("text", "type"),
    [
        ("INT", pa.int32()),
        ("bool", pa.bool_()),
        ("int8", pa.int64()),
        ("REAL", pa.float32()),
        ("hugeint", pa.decimal128(38, 0)),
        ("TIMESTAMPTZ", pa.timestamp("us", "UTC")),
        ("decimal(12, 2)", pa.decimal128(12, 2)),
        ("DECIMAL(12,2)[]", pa.list_(pa.decimal128(12, 2))),
        ("int[][]", pa.list_(pa.list_(pa.int32()))),
        ("TEXT", pa.string()),
        ("UUID", pa.string()),
        *((each, arrow_type(each)) for each in PLAIN),
    ],
    ids=str,
)
def test_a_type_has_all_its_names(text: str, type: pa.DataType) -> None:
    function = {"python": "math:sqrt", "arguments": [text], "returns": text}
    made = operations_of(FederationSettings(functions={"score": function}))["score"]
    assert (made.types, made.result) == ((type,), type)


@pytest.mark.parametrize("python", ["math:nothing", "no_such_module_at_all:f"])
def test_a_python_function_that_is_not_there(python: str) -> None:
    with pytest.raises(ConfigurationError, match=r"functions\.length\.python: .* was not found"):
        called(operation(python=python), pa.array(["x"]))


@pytest.mark.parametrize("name", ["predict", "soundex", "compress", "transform", "select", "upper"])
def test_a_name_that_means_something_else_in_sql_is_refused(name: str) -> None:
    function = {"python": "math:sqrt", "arguments": ["DOUBLE"], "returns": "DOUBLE"}
    with pytest.raises(ConfigurationError, match=rf"functions\.{name}: .* of this name"):
        dqp.connect({"functions": {name: function}})


def test_other_names_are_those_of_functions() -> None:
    function = {"python": "math:sqrt", "arguments": ["DOUBLE"], "returns": "DOUBLE"}
    with dqp.connect({"functions": dict.fromkeys(("Complexity", "score", "blast_p", "embed"), function)}) as lab:
        assert lab.sql(
            "select complexity(4.0) as a, score(9.0) as b, blast_p(16.0) as c, EMBED(25.0) as d"
        ).arrow().to_pylist() == [{"a": 2.0, "b": 3.0, "c": 4.0, "d": 5.0}]
