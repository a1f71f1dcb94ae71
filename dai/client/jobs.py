"""Jobs: work that goes on in the service, followed with the phases of UWS (IVOA Universal Worker Service 1.1)."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from dai.client.http.problems import from_problem
from dai.client.http.resume import Resumed, resumable
from dai.client.http.transport import Transport
from dai.client.progress import Asked
from dai.client.results.preview import SHOWN_ROWS
from dai.client.results.result import Result
from dai.client.results.tabular import Tabular, checked_rows
from dai.errors import CancelledError, ConflictError, DaiError, LimitError, NotFoundError, RequestError, own_lines
from dai.formats import form_of, media_type, status
from dai.plugins import nearest
from dai.streams.cancellation import Cancellation

if TYPE_CHECKING:
    import pyarrow as pa

    from dai.streams.stream import Stream

FINISHED = frozenset({"COMPLETED", "ERROR", "ABORTED"})
AGAIN_SECONDS = 1.0
"""Seconds between two requests for following a job, if the service answers at once."""
LONG_POLL = 20
"""Seconds a waiting request is held by the service."""


class StillRunning(KeyboardInterrupt):
    """The caller stopped waiting (Ctrl-C) for a job, which goes on."""

    def __init__(self, id: str) -> None:
        super().__init__(f"Job {id} goes on. Stop it: job.abort(), or dai jobs {id} --abort.")

    def _render_traceback_(self) -> list[str]:
        return [*own_lines(self), str(self)]


class Job(Tabular):
    """One job. Its attributes are from the service's last answer; ``refresh`` asks again.

    Its only result can be read like any other (``job.df()``), which waits for it. The service keeps it, so it can be
    read again; ``arrow()`` keeps its table here. ``result`` gives one of several.
    """

    def __init__(self, transport: Transport, id: str, properties: Mapping[str, Any] | None = None) -> None:
        self._transport, self.id = transport, id
        self._properties = properties
        self._table: pa.Table | None = None

    @property
    def _path(self) -> str:
        return f"/jobs/{quote(self.id, safe='')}"

    @property
    def properties(self) -> Mapping[str, Any]:
        """Everything the service says of the job: owner, times, destruction time, progress, outputs."""
        if self._properties is None:
            self.refresh()
        assert self._properties is not None
        return self._properties

    @property
    def phase(self) -> str:
        """PENDING, QUEUED, EXECUTING, COMPLETED, ERROR or ABORTED."""
        return str(self.properties["phase"])

    @property
    def label(self) -> str | None:
        """The label that its creator gave it."""
        return self.properties.get("label")

    @property
    def sql(self) -> str | None:
        """The beginning of its first statement."""
        return self.properties.get("sql")

    @property
    def share(self) -> float | None:
        """How much of it is done, from 0 to 1, about; None where that is unknown."""
        return self.properties.get("progress")

    @property
    def finished(self) -> bool:
        return self.phase in FINISHED

    @property
    def progress(self) -> list[Mapping[str, Any]]:
        """For each activity now: its status, rows, blocks, bytes and seconds; of a query over several databases its
        ``parts``, each with name, state, rows, bytes and seconds."""
        return list(self.refresh().properties["activities"])

    @property
    def outputs(self) -> list[str]:
        """Names of the results."""
        return [str(each["name"]) for each in self.properties.get("outputs", [])]

    @property
    def error(self) -> DaiError | None:
        """Why the job failed or stopped; None while it has not."""
        if problem := self.properties.get("error"):
            return from_problem(problem)
        return CancelledError(f"Job {self.id} was aborted.") if self.phase == "ABORTED" else None

    def refresh(self, wait: int = 0) -> Job:
        """Ask the service, which holds its answer up to ``wait`` seconds while nothing changes."""
        query = f"?wait={wait}" if wait else ""
        if self._properties is None or not self._transport.compresses:
            self._properties = self._transport.json(self._path + query)
            return self
        # over a network what changes, and all of it once more when the job has ended
        accept = {"Accept": f"{status.MEDIA_TYPE}, application/json;q=0.5"}
        reply = self._transport.send("GET", self._path + query, headers=accept)
        with reply.body:
            if reply.media_type != status.MEDIA_TYPE:
                self._properties = reply.json()
                return self
            (item,) = status.items([reply.body.read_all()])
        return self._changed(item)

    def _changed(self, item: Any) -> Job:
        self._properties = status.merged(self.properties, item)
        if self.finished:
            self._properties = self._transport.json(self._path)
        return self

    def follow(self, every: int = 5) -> Iterator[Job]:
        """This job each time its status has changed, as often as each ``every`` seconds, until it has ended: a
        request in 15 minutes, and 20 to 60 bytes for each status. Leaving it lets the job go on."""
        if self.refresh().finished:
            yield self
            return
        headers, before, phase = {"Accept": status.SEQUENCE}, None, ""
        while True:  # the service has a client come again after a while
            began = time.monotonic()
            reply = self._transport.send("GET", f"{self._path}?every={every}", headers=headers)
            with reply.body:
                for item in status.items(iter(reply.body.read1, b"")):
                    if item != before:
                        before = item
                        phase = self._changed(item).phase
                        yield self
            if self.phase in FINISHED:
                if phase not in FINISHED:  # by what was done with this object meanwhile
                    yield self
                return
            if time.monotonic() - began < AGAIN_SECONDS:  # the service stops
                time.sleep(AGAIN_SECONDS)

    def wait(self, timeout: float | None = None) -> Job:
        """Waits until the job has ended, however it ended. Ctrl-C only ends the waiting: the job goes on.

        Raises LimitError when it has not ended after ``timeout`` seconds; the job goes on.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        try:
            while not self.refresh(self._held(deadline)).finished:
                if deadline is not None and time.monotonic() >= deadline:
                    raise LimitError(
                        f"Job {self.id} is still {self.phase} after {timeout:g} seconds; it goes on.",
                        hint="Call .wait() again, or .abort() it.",
                    )
        except KeyboardInterrupt:
            raise StillRunning(self.id) from None
        return self

    def finish(self, cancellation: Cancellation | None = None) -> None:
        """Waits until the job has ended and raises its error. Cancelled, or interrupted (Ctrl-C), it is aborted."""
        cancellation = cancellation or Cancellation()
        abort = Job(self._transport, self.id).abort  # another thread's
        try:
            with cancellation.on_cancel(abort):
                while not self.refresh(LONG_POLL).finished:
                    pass
            cancellation.check()
        except BaseException:
            with suppress(DaiError):
                abort()
            raise
        if (error := self.error) is not None:
            raise error

    @staticmethod
    def _held(deadline: float | None) -> int:
        return LONG_POLL if deadline is None else max(0, min(LONG_POLL, round(deadline - time.monotonic())))

    def result(
        self,
        name: str | None = None,
        *,
        format: str | None = None,
        blocksize: int | None = None,
        progress: Asked = None,
        numeric: str | None = None,
    ) -> Result:
        """The result ``name`` (the only one where there is one), once the job has completed. Raises its error.

        Without a ``format`` tuples come as Arrow, and what is none (the count of an update, XML) as it is. With one,
        NotAcceptableError where the result cannot have it.

        ``numeric`` as in ``Resource.query``. A download that breaks off goes on where it was, as often as the transport
        retries.
        """
        self.wait()
        if (error := self.error) is not None:
            raise error
        names = self.outputs
        if name is None:
            if len(names) != 1:
                raise RequestError(
                    f"Job {self.id} has {len(names)} results.", hint=f"Name one: {', '.join(names)}." if names else None
                )
            name = names[0]
        elif names and name not in names:
            raise NotFoundError(f"Job {self.id} has no result {name!r}.", hint=nearest(name, names))
        query = f"?blocksize={blocksize}" if blocksize else ""
        transport, path = self._transport, f"{self._path}/outputs/{quote(name, safe='')}{query}"
        headers = {"Accept": media_type(format) if format else f"{media_type('arrow')}, */*;q=0.1"}
        reply = transport.send("GET", path, headers=headers)
        source = Resumed(transport, path, headers, reply) if resumable(reply) else reply.body
        form, size = form_of(reply.media_type), reply.size
        return Result(source, form, blocksize=blocksize, progress=progress, numeric=numeric, size=size)

    # --- its only result ---

    def stream(self) -> Stream:
        """The tuples as the library's own currency; closing it ends the transfer."""
        return self.result().stream()

    def reader(self) -> pa.RecordBatchReader:
        """For libraries that take an Arrow reader; reads as it is read."""
        return self.result().reader()

    def arrow(self) -> pa.Table:
        """All of it as one table in memory; asked for again, the same table."""
        if self._table is None:
            self._table = self.result().arrow()
        return self._table

    def head(self, rows: int = SHOWN_ROWS) -> pa.Table:
        if self._table is not None:
            return self._table.slice(0, checked_rows(rows))
        with self.result() as result:
            return result.head(rows)

    def _length(self) -> int | None:
        return None if self._table is None else int(self._table.num_rows)

    def abort(self) -> None:
        """Stop the work, in the database too. A job that has ended stays as it is."""
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        try:
            with self._transport.send("POST", f"{self._path}/phase", b"PHASE=ABORT", headers).body:
                pass
        except ConflictError:
            if not self.refresh().finished:
                raise
        self._properties = None

    def delete(self) -> None:
        """Stop the work if it still runs and destroy the results."""
        with self._transport.send("DELETE", self._path).body:
            pass

    def __repr__(self) -> str:
        named = self.label or self.sql
        return f"<Job {self.id}: {self.phase}{f', {named}' if named else ''}>"


class Jobs(Iterable[Job]):
    """The jobs a service keeps: iterate, or take one by its id."""

    def __init__(self, transport: Transport, resource: str | None = None) -> None:
        self._transport, self._resource = transport, resource

    def __iter__(self) -> Iterator[Job]:
        for each in self._transport.json("/jobs")["jobs"]:
            if self._resource in (None, each["resource"]):
                yield Job(self._transport, str(each["id"]), each)

    def __getitem__(self, id: str) -> Job:
        return Job(self._transport, id).refresh()

    def __repr__(self) -> str:
        return "\n".join(map(repr, self)) or "<no jobs>"
