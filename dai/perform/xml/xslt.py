"""Style sheets (XSLT 1.0), each in a process of its own.

A style sheet is a program: it may loop for ever and make a large document of a small one, and libxslt cannot be
stopped from another thread. So it runs in a process that has bounds on memory and time, opens nothing, and is killed
when nobody wants its result any more.
"""

from __future__ import annotations

import math
import os
import resource
import struct
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from dai.errors import BusyError, DataError, InternalError, LimitError
from dai.streams.cancellation import Cancellation
from dai.streams.waiting import Condition

MEMORY_BYTES = 1 << 30
PLACES, PLACE_SECONDS = 8, 30.0
"""So many style sheets run at once; others wait so long."""
SPENT = "processor seconds of style sheets"
_MESSAGE = 2_000
"""Characters: a pipe that nobody reads yet takes so many."""
_BLOCK_BYTES = 1 << 18
_REFUSED, _TOO_LARGE = 3, 4


class _Places:
    def __init__(self) -> None:
        self._changed, self._taken = Condition(), 0

    @contextmanager
    def one(self, cancellation: Cancellation) -> Iterator[None]:
        with self._changed:
            if not self._changed.wait_for(lambda: self._taken < PLACES, cancellation, PLACE_SECONDS):
                raise BusyError("The service is already running as many style sheets as it can.", retry_after=10)
            self._taken += 1
        try:
            yield
        finally:
            with self._changed:
                self._taken -= 1
                self._changed.notify_all()


_places = _Places()


def transformed(
    style: bytes, document: bytes, cancellation: Cancellation, seconds: int, spent: defaultdict[str, float]
) -> Iterator[bytes]:
    """The result, in blocks. ``seconds``: of processor time, for all style sheets that add theirs up in ``spent``.
    DataError where style sheet or document cannot be read or the style sheet does what it may not, LimitError beyond
    the bounds, BusyError where others run all the time."""
    with _places.one(cancellation):
        yield from _transformed(style, document, cancellation, seconds, spent)


def _transformed(
    style: bytes, document: bytes, cancellation: Cancellation, seconds: int, spent: defaultdict[str, float]
) -> Iterator[bytes]:
    left = math.ceil(seconds - spent[SPENT])
    if left <= 0:
        raise _too_large(seconds)
    process = subprocess.Popen(
        [sys.executable, "-I", "-m", __name__, str(left)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    feeder = threading.Thread(target=_feed, args=(process, style, document), name="style sheet")
    feeder.start()
    try:
        with cancellation.on_cancel(process.kill):
            while block := process.stdout.read(_BLOCK_BYTES):
                yield block
            reason = process.stderr.read().decode(errors="replace")
            code = _ended(process, spent)
        cancellation.check()
        if code == _REFUSED:
            raise DataError(reason)
        if code == _TOO_LARGE or code < 0:
            raise _too_large(seconds)
        if code:
            raise InternalError("The process that transforms documents failed.")
    finally:
        process.kill()
        _ended(process, spent)
        feeder.join()
        for pipe in (process.stdin, process.stdout, process.stderr):
            with suppress(OSError):
                pipe.close()


def _ended(process: subprocess.Popen[bytes], spent: defaultdict[str, float]) -> int:
    """The exit code, when the process has ended."""
    if process.returncode is None:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        spent[SPENT] += used.ru_utime + used.ru_stime
    return process.returncode


def _too_large(seconds: int) -> LimitError:
    return LimitError(
        f"The style sheets of this document need more than {MEMORY_BYTES >> 20:,} MiB or {seconds} seconds "
        "(limits.transform_seconds).",
        hint="Transform smaller documents, or fewer.",
        limit="limits.transform_seconds",
    )


def _feed(process: subprocess.Popen[bytes], style: bytes, document: bytes) -> None:
    assert process.stdin is not None
    with suppress(OSError, ValueError):  # the process has ended
        process.stdin.write(struct.pack("<Q", len(style)) + style)
        process.stdin.write(document)
        process.stdin.close()


def _main() -> int:
    from lxml import etree

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (int(sys.argv[1]),) * 2)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    data = sys.stdin.buffer
    (size,) = struct.unpack("<Q", data.read(8))
    try:
        style, document = (_parsed(data.read(each), what) for each, what in ((size, "style sheet"), (-1, "document")))
        # EXSLT's regular expressions would run in Python, where some take for ever
        nothing = etree.XSLTAccessControl.DENY_ALL  # type: ignore[attr-defined]
        sheet = etree.XSLT(style, access_control=nothing, regexp=False)
        sys.stdout.buffer.write(bytes(sheet(document)))
        sys.stdout.buffer.flush()
    except MemoryError:
        return _TOO_LARGE
    except (etree.LxmlError, ValueError) as error:
        # libxslt gives many names to a lack of memory
        if _peak_bytes() > MEMORY_BYTES // 4:
            return _TOO_LARGE
        message = str(error)[:_MESSAGE] or "The style sheet cannot be run."
        # libxslt's words, with a name of its own
        if any(each in message for each in (" rights for ", "__STRING__XSLT__", "Cannot resolve URI")):
            message = (
                "The style sheet reads or writes another document (document(), xsl:import, xsl:include, xsl:document); "
                "a style sheet reads its two inputs and writes its output only."
            )
        print(message, file=sys.stderr, end="")
        return _REFUSED
    return 0


def _peak_bytes() -> int:
    with suppress(OSError), open("/proc/self/status", "rb") as status:
        return next((int(line.split()[1]) << 10 for line in status if line.startswith(b"VmPeak:")), 0)
    return 0


def _parsed(data: bytes, what: str):  # type: ignore[no-untyped-def]
    from lxml import etree

    parser = etree.XMLParser(resolve_entities=False, load_dtd=False, no_network=True, huge_tree=False)
    try:
        root = etree.fromstring(data, parser)
    except etree.XMLSyntaxError as error:
        raise ValueError(f"The {what} is not well-formed XML: {error.msg}.") from None
    if root.getroottree().docinfo.internalDTD is not None:
        raise ValueError(f"The {what} has a DTD; DTDs and entities are not accepted.")
    return root


if __name__ == "__main__":
    sys.exit(_main())
