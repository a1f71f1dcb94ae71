import csv
import gc
import io
import os
import subprocess
import sys
import weakref
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet
import pytest

from dai.client import Progress, Result, Service
from dai.client.results.arrow import read_stream
from dai.client.results.files import CODINGS
from dai.client.testing import Scripted, ScriptedServer
from dai.errors import (
    CancelledError,
    DataError,
    MissingDependencyError,
    NotAcceptableError,
    ParameterError,
    RequestError,
    TruncatedError,
)
from dai.formats import form_of, format_named, media_type, suffixes
from dai.formats.compression import decompress
from dai.streams.stream import Stream
from tests.client.replies import TABLE, arrow, arrow_bytes, pieces


def result_of(server: ScriptedServer, blocksize: int | None = None, **options) -> Result:
    service = Service(server.url)
    reply = service.transport.send("GET", "/")
    return Result(reply.body, form_of(reply.media_type), blocksize=blocksize, progress=options.get("progress", False))


def encoded(form: str) -> Scripted:
    data = b"".join(bytes(memoryview(block.data)) for block in format_named(form).encode(Stream.of(TABLE)))
    return Scripted(body=pieces(data, 100), headers={"Content-Type": media_type(form)})


@pytest.mark.parametrize("size", [1, 7, 100, 100_000])
def test_an_arrow_result_as_table_and_data_frames(size: int) -> None:
    with ScriptedServer(arrow(size)) as server:
        result = result_of(server)
        assert repr(result) == "<Result: arrow, not read yet>"
        assert result.schema == TABLE.schema
        assert result.arrow().equals(TABLE)
        assert result.complete
        assert len(result) == 25
        assert result.received == len(arrow_bytes())
        assert result.arrow() is result.arrow()
        assert result.to_pandas()["id"].tolist() == list(range(25))
        assert result.to_polars()["name"].to_list() == TABLE["name"].to_pylist()
        assert repr(result) == "<Result: 25 rows × 2 columns: id int32, name string>"


def test_the_short_names_of_its_shapes(capsys: pytest.CaptureFixture[str]) -> None:
    replies = [arrow(7) for _ in range(8)]
    with ScriptedServer(*replies) as server:
        assert result_of(server).df()["id"].tolist() == list(range(25))
        assert result_of(server).pl()["id"].to_list() == list(range(25))
        assert pa.table(result_of(server)).equals(TABLE)
        assert result_of(server).to_duckdb().aggregate("sum(id)").fetchall() == [(300,)]
        connection = duckdb.connect()
        assert result_of(server).to_duckdb(connection).filter("id < 2").fetchall() == rows_of(TABLE)[:2]
        rows = result_of(server)
        assert rows.fetchone() == rows_of(TABLE)[0]
        assert rows.fetchmany(8) == rows_of(TABLE)[1:9]
        assert rows.fetchall() == rows_of(TABLE)[9:]
        assert (rows.fetchone(), rows.complete) == (None, True)
        shown = result_of(server)
        shown.show(2)
        names, _, *lines = capsys.readouterr().out.splitlines()
        assert (names.split(), len(lines)) == (["id", "name"], 2)
        assert shown.arrow().equals(TABLE)


def rows_of(table: pa.Table) -> list[tuple]:
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


@pytest.mark.parametrize("rows", [0, 1, 7, 9, 25, 100])
def test_the_first_rows_are_not_lost(rows: int) -> None:
    with ScriptedServer(arrow(7), arrow(7)) as server:
        result = result_of(server)
        assert result.head(rows).equals(TABLE.slice(0, rows))
        assert result.head(2).equals(TABLE.slice(0, 2))
        assert result.arrow().equals(TABLE)
        assert result.head(rows).equals(TABLE.slice(0, rows))
        with pytest.raises(ParameterError, match="not -1"):
            result.head(-1)
        read = result_of(server)
        assert len(list(read)) > 1
        with pytest.raises(RequestError, match="was read or closed"):
            read.head()


def test_blocks_have_the_size_that_was_asked_for() -> None:
    with ScriptedServer(arrow()) as server:
        assert [batch.num_rows for batch in result_of(server, blocksize=7)] == [7, 7, 7, 4]
        assert [batch.num_rows for batch in result_of(server)] == [10, 10, 5]


@pytest.mark.parametrize("form", ["webrowset", "csv", "parquet", "json"])
def test_other_forms_are_decoded(form: str) -> None:
    with ScriptedServer(encoded(form)) as server:
        table = result_of(server).arrow()
        assert table.column_names == ["id", "name"]
        assert list(map(int, table["id"].to_pylist())) == list(range(25))
        assert result_of(server).form == form


def test_nothing_is_read_ahead_of_the_reader() -> None:
    batches = []

    def slowly():
        for piece in pieces(arrow_bytes(), 100):
            batches.append(piece)
            yield piece

    with ScriptedServer(Scripted(body=slowly(), headers={"Content-Type": media_type("arrow")}, held=True)) as server:
        result = result_of(server)
        first = next(iter(result))
        assert first.num_rows == 10
        result.close()
        assert server.abandoned.wait(60)


def test_a_reader_for_other_libraries() -> None:
    with ScriptedServer(arrow()) as server, result_of(server).reader() as reader:
        assert isinstance(reader, pa.RecordBatchReader)
        assert reader.read_all().equals(TABLE)


@pytest.mark.parametrize("end", [8, 9, 100, 300])
def test_an_arrow_stream_without_its_end_is_no_result(end: int) -> None:
    data = arrow_bytes()[:-end]
    headers = {"Content-Type": media_type("arrow")}
    with ScriptedServer(Scripted(body=[data], headers=headers), Scripted(body=data, headers=headers)) as server:
        for _ in range(2):
            with pytest.raises(TruncatedError):
                result_of(server).arrow()


def test_an_arrow_stream_that_breaks_off() -> None:
    data = arrow_bytes()
    with ScriptedServer(*(arrow_broken(data[:size]) for size in range(0, len(data), 97))) as server:
        for _ in range(0, len(data), 97):
            with pytest.raises(TruncatedError):
                result_of(server).arrow()


def arrow_broken(data: bytes) -> Scripted:
    return Scripted(body=[data] if data else [], headers={"Content-Type": media_type("arrow")}, broken=True)


@pytest.mark.parametrize("data", [b"this is no arrow stream at all", arrow_bytes() + b"more"])
def test_what_is_no_arrow_stream(data: bytes) -> None:
    reply = Scripted(body=data, headers={"Content-Type": media_type("arrow")})
    with ScriptedServer(reply) as server, pytest.raises(DataError):
        result_of(server).arrow()


@pytest.mark.parametrize("offset", [1 << 16, 0x7FFFFFFF, -1])
def test_offsets_behind_the_end_are_not_followed(offset: int) -> None:
    """A service that lied about where its texts end ended the program, or the federation, that asked it."""
    sink, table = io.BytesIO(), pa.table({"s": ["abcd", "efgh"]})
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    offsets = b"".join(each.to_bytes(4, "little") for each in (0, 4, 8))
    assert sink.getvalue().count(offsets) == 1
    lie = offsets[:4] + offset.to_bytes(4, "little", signed=True) + offsets[8:]
    reply = Scripted(body=sink.getvalue().replace(offsets, lie), headers={"Content-Type": media_type("arrow")})
    with ScriptedServer(reply) as server, pytest.raises(DataError):
        result_of(server).arrow()


def test_bytes_and_files(tmp_path: Path) -> None:
    path = tmp_path / "result.arrow"
    with ScriptedServer(arrow()) as server:
        assert result_of(server).bytes() == arrow_bytes()
        assert result_of(server).save(path) == len(arrow_bytes())
        assert path.read_bytes() == arrow_bytes()
    with ScriptedServer(encoded("csv")) as server:
        assert len(list(csv.reader(io.StringIO(result_of(server).text(), newline="")))) == 26


def unpacked(data: bytes, coding: str) -> bytes:
    return b"".join(decompress([data], coding))


@pytest.mark.parametrize("coding", ["", *CODINGS])
@pytest.mark.parametrize("suffix", suffixes())
@pytest.mark.parametrize("form", ["arrow", "webrowset", "response"])
def test_the_suffix_of_a_file_says_its_form(tmp_path: Path, form: str, suffix: str, coding: str) -> None:
    path = tmp_path / f"of.2024{suffix.upper()}{coding}"
    reply = encoded("webrowset" if form == "response" else form)
    if form == "response":
        reply.headers["Content-Type"] = "text/plain"
    with ScriptedServer(reply) as server:
        result = result_of(server)
        assert result.save(path) == path.stat().st_size
        assert result.complete
    data = unpacked(path.read_bytes(), CODINGS.get(coding, "identity"))
    expected = suffixes()[suffix]
    assert data[:4] == FIRST_BYTES[expected]
    table = format_named(expected).decode([data]).table()
    assert table.column_names == TABLE.column_names
    assert list(map(int, table["id"].to_pylist())) == TABLE["id"].to_pylist()
    assert table["name"].to_pylist() == TABLE["name"].to_pylist()


FIRST_BYTES = {
    "arrow": b"\xff" * 4,
    "parquet": b"PAR1",
    "webrowset": b"<?xm",
    "csv": b"id,n",
    "json": b'{"id',
    "votable": b"<VOT",
}


@pytest.mark.parametrize("name", ["x.xlsx", "x.gz", "x.csv.bz2", "x.txt.gz"])
def test_a_suffix_that_is_no_format_is_refused_before_anything_is_read(tmp_path: Path, name: str) -> None:
    with ScriptedServer(arrow()) as server:
        result = result_of(server)
        with pytest.raises(NotAcceptableError, match="does not tell the format") as raised:
            result.save(tmp_path / name)
        assert all(suffix in (raised.value.hint or "") for suffix in (*suffixes(), *CODINGS))
        assert not os.listdir(tmp_path)
        result.save(tmp_path / name, form="csv")
    assert os.listdir(tmp_path) == [name]


def test_a_table_that_was_read_is_saved_and_so_are_bytes_that_are_no_tuples(tmp_path: Path) -> None:
    with ScriptedServer(arrow()) as server:
        result = result_of(server)
        result.arrow()
        for name in ("x.csv", "x.arrow", "x.parquet"):
            result.save(tmp_path / name)
    assert pa.parquet.read_table(tmp_path / "x.parquet").equals(TABLE)
    assert (tmp_path / "x.csv").read_bytes().startswith(b"id,name")
    with ScriptedServer(Scripted(body=b"\x1f\x8b any", headers={"Content-Type": "application/gzip"})) as server:
        assert result_of(server).save(tmp_path / "x.tar.gz") == 6


def test_a_file_of_a_transfer_that_broke_off_does_not_appear(tmp_path: Path) -> None:
    path = tmp_path / "result.arrow"
    path.write_bytes(b"of yesterday")
    with ScriptedServer(arrow(broken=True)) as server, pytest.raises(TruncatedError):
        result_of(server).save(path)
    for name in ("result.csv", "result.arrow.zst"):
        with ScriptedServer(arrow(broken=True)) as server, pytest.raises(TruncatedError):
            result_of(server).save(tmp_path / name)
    assert os.listdir(tmp_path) == ["result.arrow"]
    assert path.read_bytes() == b"of yesterday"


def test_a_result_is_read_once() -> None:
    with ScriptedServer(arrow()) as server:
        result = result_of(server)
        list(result)
        for again in (result.arrow, result.bytes, lambda: list(result)):
            with pytest.raises(RequestError):
                again()
        result = result_of(server)
        result.bytes()
        with pytest.raises(RequestError, match="can be read only once"):
            result.arrow()
        assert repr(result) == "<Result: arrow, read>"


def test_leaving_the_block_stops_the_service() -> None:
    with ScriptedServer(arrow(held=True)) as server:
        with result_of(server) as result:
            assert result.schema
        assert server.abandoned.wait(60)
        with pytest.raises(RequestError):
            result.arrow()


def test_a_result_as_a_stream() -> None:
    with ScriptedServer(arrow(), arrow(held=True)) as server:
        with result_of(server).stream() as stream:
            assert stream.table() == TABLE
        stream = result_of(server).stream()
        assert stream.schema == TABLE.schema
        stream.close()
        assert server.abandoned.wait(60)


def test_a_loop_that_is_interrupted_stops_the_service() -> None:
    with ScriptedServer(arrow(held=True)) as server:

        def interrupt(progress: Progress) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            result_of(server, progress=interrupt).arrow()
        assert server.abandoned.wait(60)


def test_html_escapes_what_it_shows_and_loses_nothing() -> None:
    with ScriptedServer(arrow()) as server:
        result = result_of(server)
        shown = result._repr_html_()
        assert "&lt;b&gt;1&amp;" in shown
        assert "<b>" not in shown
        assert "<small>int32</small>" in shown
        assert "NULL" in shown
        assert shown.count("<tr>") == 1 + 10
        assert result.arrow().equals(TABLE)
        assert "25 rows × 2 columns" in result._repr_html_()
    with ScriptedServer(arrow()) as server:
        result = result_of(server)
        result.close()
        assert "closed" in result._repr_html_()


def test_wide_and_long_values_are_cut_in_html() -> None:
    wide = pa.table({f"c{n}": ["x" * 1000] for n in range(30)})
    data = arrow_bytes(wide)
    with ScriptedServer(Scripted(body=data, headers={"Content-Type": media_type("arrow")})) as server:
        shown = result_of(server)._repr_html_()
        assert shown.count("<th>") == 20
        assert "x" * 60 not in shown


def test_missing_packages_are_named_with_their_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    with ScriptedServer(arrow()) as server:
        monkeypatch.setitem(sys.modules, "polars", None)
        with pytest.raises(MissingDependencyError, match=r"(?s)'polars'.*pip install -e '\.\[polars\]'"):
            result_of(server).to_polars()


def test_progress_is_told_and_ends() -> None:
    told: list[Progress] = []
    with ScriptedServer(arrow()) as server:
        result_of(server, progress=told.append).arrow()
    assert told[0].rows == 10
    assert told[-1].finished
    assert told[-1].rows == 25
    assert "25 rows" in str(told[-1])


def test_connecting_and_commands_import_nothing_heavy() -> None:
    code = "import sys, dai.client, dai.__main__, dqp.__main__; print([m for m in %r if m in sys.modules])"
    heavy = ["pyarrow", "numpy", "fastapi", "sqlalchemy", "lxml", "uvicorn", "duckdb"]
    done = subprocess.run([sys.executable, "-c", code % heavy], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


class Stopped:
    """An Arrow stream that is cancelled behind its schema: its error is kept, as a cancellation keeps its cause."""

    def __init__(self) -> None:
        self._data = pa.schema([("n", pa.int64())]).serialize().to_pybytes()
        self.error = CancelledError("The work was cancelled.")

    def readinto(self, buffer: memoryview) -> int:
        if not self._data:
            raise self.error
        count = min(len(buffer), len(self._data))
        buffer[:count], self._data = self._data[:count], self._data[count:]
        return count

    def read1(self, size: int = 1) -> bytes:
        raise self.error


def test_what_a_cancelled_stream_held_is_freed() -> None:
    source = Stopped()
    stream = read_stream(source)
    with pytest.raises(CancelledError):
        next(stream)
    seen = weakref.ref(source)
    del source, stream
    gc.collect()
    assert seen() is None
