import os
from pathlib import Path

import pyarrow as pa
import pytest

from dai.errors import LimitError
from dai.streams import spool
from dai.streams.spool import Spool
from dai.streams.stream import Block

BATCH = pa.record_batch({"d": pa.array(["x", "y", "x"]).dictionary_encode(), "l": pa.array([[1], None, []])})
NO_COLUMNS = pa.RecordBatch.from_struct_array(pa.array([{}] * 3, pa.struct([])))
ITEMS = [BATCH, NO_COLUMNS, Block(b"bytes", 2), Block(memoryview(b""), 0), Block(pa.py_buffer(b"more"), 1)]


def open_files(directory: Path) -> int:
    opened = 0
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            opened += os.readlink(f"/proc/self/fd/{descriptor}").startswith(f"{directory}/")
        except FileNotFoundError:
            continue
    return opened


@pytest.mark.parametrize("item", ITEMS, ids=["batch", "no columns", "bytes", "empty", "buffer"])
def test_what_was_written_is_read_as_often_as_wanted(tmp_path, item):
    spool = Spool(tmp_path, "rows")
    spool.write(BATCH)
    spilled = spool.write(item)
    for _ in range(2):
        read = spilled.read()
        if isinstance(item, Block):
            assert (bytes(read.data), read.rows) == (bytes(item.data), item.rows)
        else:
            assert read.equals(item)
            assert read.num_rows == 3


@pytest.mark.parametrize(("file_bytes", "files"), [(1 << 20, 1), (1, 4)])
def test_a_file_goes_with_the_last_that_is_held_of_it(tmp_path, monkeypatch, file_bytes, files):
    monkeypatch.setattr(spool, "FILE_BYTES", file_bytes)
    kept = Spool(tmp_path, "rows")
    assert open_files(tmp_path) == 0
    items = [kept.write(BATCH) for _ in range(4)]
    assert open_files(tmp_path) == files
    whole = kept.size
    items[0].hold()
    for each in items:
        each.release()
    assert open_files(tmp_path) == 1
    assert items[0].read().equals(BATCH)
    assert kept.size == whole / files
    items[0].release()
    assert open_files(tmp_path) == kept.size == 0
    assert kept.write(BATCH).read().equals(BATCH)
    assert not os.listdir(tmp_path)


def test_where_no_file_can_be_made_it_is_said(tmp_path):
    with pytest.raises(LimitError, match="No temporary file can be made for rows") as raised:
        Spool(tmp_path / "missing", "rows", hint="Free some.").write(BATCH)
    assert str(tmp_path) not in str(raised.value)
    assert raised.value.hint == "Free some."


@pytest.mark.parametrize(
    ("what", "bound", "why"),
    [
        ("MOST_BYTES", 3000, r"0\.0 GiB are written, the most"),
        ("FREE_BYTES", 1 << 60, r"its last [\d,]+\.\d GiB stay free"),
    ],
)
def test_a_spool_fills_no_disk(tmp_path, monkeypatch, what, bound, why):
    monkeypatch.setattr(spool, "FILE_BYTES", 1000)
    monkeypatch.setattr(spool, what, bound)
    monkeypatch.setattr(spool, "FREE_SHARE", 1.0)
    kept = Spool(tmp_path, "rows")
    with pytest.raises(LimitError, match=rf"^There is no room on disk for rows: {why}\.$"):
        list(map(kept.write, [Block(bytes(1000), 1)] * 10))
    assert kept.size == (0 if what == "FREE_BYTES" else 3000)
    assert open_files(tmp_path) <= 1, "those of which nothing is held are closed"
