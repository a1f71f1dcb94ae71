"""The program of the processes that read large results of SQLite by ADBC; ``readers`` is the service's end. It imports
what they need, and forks for each of them when ``forks`` hands over a socket to read from and a pipe to write to.

They are processes of their own because ADBC brings its own SQLite: two of them in one process take each other's locks
away when a file is closed (sqlite.org/howtocorrupt.html, 2.2.1), and ADBC has no interrupt, whereas a process can be
killed. Imports nothing of this package, so that it starts fast.

A process first sends its number and a descriptor of itself back through the socket. It reads a line of JSON for each
query (``uri``, ``sql``, ``parameters``, the rows that are read ``at_once``, and the most ``rows`` of a batch). The
answer is such a line, ``{}`` or ``{"error": …}``, then an Arrow stream, then another such line, without which it is not
whole.
"""

import contextlib
import ctypes
import gc
import json
import os
import resource
import select
import signal
import socket
import sys
import threading
import time
from typing import Any, BinaryIO


class _Without:
    """ADBC imports them where they are installed, which takes most of a second, and needs neither."""

    def find_spec(self, name: str, *_: object) -> None:
        if name in ("pandas", "polars"):
            raise ModuleNotFoundError(name)


if __name__ != "dai.drivers.sqlite.worker":  # a program of its own; a test that imports the module keeps its libraries
    sys.meta_path.insert(0, _Without())

import adbc_driver_sqlite.dbapi  # noqa: E402
import numpy as np  # noqa: E402
import pyarrow as pa  # noqa: E402

MEMORY_BYTES = 1 << 30
"""Beyond what the process has when it starts."""
IDLE_SECONDS, FORKS_SECONDS = 60.0, 3600.0
"""After which a process without a query ends, and this one if it was not asked for another."""
BATCH_BYTES, BATCH_SECONDS = 4 << 20, 0.02
"""From which a batch does not wait for more rows."""
_ROWS = "adbc.sqlite.query.batch_rows"


LIBRARY = os.path.join(os.path.dirname(adbc_driver_sqlite.dbapi.__file__), "libadbc_driver_sqlite.so")
_SINGLE_THREAD = 1
"""SQLITE_CONFIG_SINGLETHREAD of sqlite3_config()."""
_SECTION = np.dtype(
    {
        "names": "name type flags address offset size link info align entry".split(),
        "formats": "<u4 <u4 <u8 <u8 <u8 <u8 <u4 <u4 <u8 <u8".split(),
    }
)
_SYMBOL = np.dtype({"names": "name info other section value size".split(), "formats": "<u4 u1 u1 <u2 <u8 <u8".split()})
"""Elf64_Shdr and Elf64_Sym of the ELF specification."""
_ELF, _SYMBOLS, _FUNCTION = b"\x7fELF\x02\x01", 2, 2


def _places(data: bytes) -> dict[str, set[int]]:
    """The addresses of two of a library's own functions by their names, whether it exports them or not."""
    start, size, number = (int.from_bytes(data[one:other], "little") for one, other in ((40, 48), (58, 60), (60, 62)))
    places: dict[str, set[int]] = {name: set() for name in ("AdbcDriverInit", "sqlite3_config")}
    if data.startswith(_ELF) and size == _SECTION.itemsize:
        sections = np.frombuffer(data, _SECTION, number, start)
        for each in sections[sections["type"] == _SYMBOLS]:
            texts = sections[each["link"]]
            symbols = np.frombuffer(data, _SYMBOL, each["size"] // _SYMBOL.itemsize, each["offset"])
            own = symbols[(symbols["info"] & 15 == _FUNCTION) & (symbols["section"] != 0)]
            for name, found in places.items():
                at = data.find(b"\0" + name.encode() + b"\0", texts["offset"], texts["offset"] + texts["size"])
                found.update(own["value"][own["name"] == at + 1 - int(texts["offset"])].tolist())
    return places


def without_locks(library: str) -> bool:
    """Tells ADBC's SQLite that only one thread uses it, so that it takes no locks, which are a fifth of the time of
    reading. Call it before SQLite is used. ADBC has no option for it, and its library does not export the function.
    The other threads of a process do not use SQLite: they wait for the service, and write rows. Returns whether SQLite
    accepted it."""
    try:
        with open(library, "rb") as file:
            places = _places(file.read())
    except (OSError, ValueError, IndexError):
        return False
    if any(len(each) != 1 for each in places.values()):
        return False
    (known,), (asked,) = places.values()
    here = ctypes.cast(ctypes.CDLL(library).AdbcDriverInit, ctypes.c_void_p).value or 0
    refused: int = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)(here + asked - known)(_SINGLE_THREAD)
    return refused == 0


def _limit() -> None:
    with open("/proc/self/statm") as file:
        data = int(file.read().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (data + MEMORY_BYTES, data + MEMORY_BYTES))


def _with_the_service(source: BinaryIO) -> None:
    """Ends this process once nobody holds the other end of what it reads from, whatever it computes."""
    try:
        poll = select.poll()
        poll.register(source, 0)  # hanging up, which is always told
        poll.poll()
    finally:
        os._exit(1)


def _say(sink: BinaryIO, **said: str) -> None:
    sink.write(json.dumps(said).encode() + b"\n")
    sink.flush()


class _Batches:
    """Writes what comes within a moment as one batch of at most so many rows: each batch costs the service as much as a
    few thousand rows. A thread writes what nothing follows for that long."""

    def __init__(self, stream: pa.ipc.RecordBatchStreamWriter, rows: int) -> None:
        self._stream, self._rows = stream, rows
        self._held: list[pa.RecordBatch] = []
        self._count = self._size = 0
        self._due = 0.0
        self._changed = threading.Condition()
        self._failure: BaseException | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def add(self, batch: pa.RecordBatch) -> None:
        with self._changed:
            if self._count + batch.num_rows > self._rows:
                self._write()
            self._held.append(batch)
            self._count, self._size = self._count + batch.num_rows, self._size + batch.nbytes
            if self._size >= BATCH_BYTES or time.monotonic() >= self._due:
                self._write()
            self._changed.notify()

    def close(self) -> None:
        """Writes what is left."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()
        self._write()

    def _write(self) -> None:
        if self._failure is not None:
            raise self._failure
        held, self._held = self._held, []
        self._count = self._size = 0
        if held:
            self._stream.write_batch(held[0] if len(held) == 1 else pa.concat_batches(held))
            self._due = time.monotonic() + BATCH_SECONDS

    def _watch(self) -> None:
        with self._changed:
            while not self._closed:
                left = self._due - time.monotonic()
                if self._held and left <= 0:
                    try:
                        self._write()
                    except (pa.ArrowException, OSError, MemoryError) as error:
                        self._failure = error
                        return
                self._changed.wait(max(left, 0.0) if self._held else None)


def _answer(asked: dict[str, Any], sink: BinaryIO) -> None:
    said: dict[str, str] = {}
    with (
        adbc_driver_sqlite.dbapi.connect(asked["uri"], autocommit=True) as connection,
        connection.cursor(adbc_stmt_kwargs={_ROWS: asked["at_once"]}) as cursor,
    ):
        cursor.execute("PRAGMA query_only = ON")
        cursor.fetchall()
        cursor.execute(asked["sql"], asked["parameters"] or None)
        reader = cursor.fetch_record_batch()
        _say(sink)
        with pa.ipc.new_stream(sink, reader.schema) as stream:
            batches = _Batches(stream, asked["rows"])
            try:
                for batch in reader:
                    batches.add(batch)
            except (pa.ArrowException, OSError, MemoryError) as error:
                said = {"error": str(error) or repr(error)}
            with contextlib.suppress(MemoryError):
                batches.close()
    _say(sink, **said)


def _read(source: BinaryIO, sink: BinaryIO) -> None:
    threading.Thread(target=_with_the_service, args=[source], daemon=True).start()
    with contextlib.suppress(OSError, ValueError):  # where there is no /proc, or less is allowed already
        _limit()
    while select.select([source], [], [], IDLE_SECONDS)[0] and (line := source.readline()):
        try:
            _answer(json.loads(line), sink)
        except BrokenPipeError:
            return
        except (adbc_driver_sqlite.dbapi.Error, pa.ArrowException, MemoryError) as error:
            _say(sink, error=str(error) or repr(error))


def _begin(service: socket.socket, sink: int) -> None:
    with contextlib.ExitStack() as stack:
        handles = []
        with contextlib.suppress(AttributeError, OSError):  # not every system has them
            handles.append(os.pidfd_open(os.getpid()))
        socket.send_fds(service, [str(os.getpid()).encode()], handles)
        for each in handles:
            os.close(each)
        _read(stack.enter_context(service.makefile("rb")), stack.enter_context(open(sink, "wb")))


def main(control: socket.socket) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):  # sent to all processes of a service, which has rows to finish
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how a process has ended
    without_locks(LIBRARY)
    gc.freeze()
    control.send(b"r")
    while select.select([control], [], [], FORKS_SECONDS)[0]:
        data, files, _, _ = socket.recv_fds(control, 1, 2)
        if not data:
            return
        with contextlib.suppress(OSError):  # no more processes: the service sees that this one is not there
            if not os.fork():
                try:
                    control.close()
                    _begin(socket.socket(fileno=files[0]), files[1])
                finally:
                    os._exit(0)
        for each in files:
            os.close(each)


if __name__ == "__main__":
    main(socket.socket(fileno=0))
