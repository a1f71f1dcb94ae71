"""A data service and its resources, from outside."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Self, overload
from urllib.parse import quote, urlsplit
from uuid import UUID

from dai.client.documents import as_bytes, has_streams
from dai.client.http.transport import Options, Reply, Transport
from dai.client.jobs import Job, Jobs
from dai.client.progress import Asked
from dai.client.results.choices import checked
from dai.client.results.elsewhere import OF_RESOURCES, Elsewhere
from dai.client.results.interrupted import shortly_told
from dai.client.results.response import Response
from dai.client.results.result import Result
from dai.client.statements import Parameters, arguments, change, is_plain_query, parameters_of, plain, rows_of, written
from dai.client.streams.at_once import pull_at_once
from dai.client.streams.feed import Feed
from dai.client.streams.session import Session
from dai.errors import DataError, NotFoundError, ParameterError
from dai.formats import form_of, media_type
from dai.plugins import nearest
from dai.streams.cancellation import Cancellation

DEFAULT = Options()
_OPTIONS = ("blocksize", "format", "session", "progress", "cancellation", "tables", "numeric", "limit", "truncate")
"""Of ``Resource.query``."""
PARTIAL = 207
"""Something failed, something else was done: a response document says what."""
_AS_TEXT = {
    "TextClause": "Give the SQL as text: query(str(sql)).",
    **dict.fromkeys(("PosixPath", "WindowsPath"), "Read the file: query(path.read_text())."),
}
ASYNCHRONOUS = {"Prefer": "respond-async"}


class Service:
    """A data service at ``http://host:port``."""

    def __init__(self, base: str, options: Options = DEFAULT) -> None:
        self.transport = Transport(base, options)

    @property
    def url(self) -> str:
        return self.transport.base

    def get(self, path: str, *, fresh: bool = False) -> Any:
        """The service's JSON answer at ``path``; ``fresh``: not a cached one."""
        return self.transport.json(path, fresh=fresh)

    def resources(self) -> list[Mapping[str, Any]]:
        """Name and properties of every data resource."""
        return list(self.get("/resources")["resources"])

    def resource(self, name: str) -> Resource:
        """The resource of that name. Raises NotFoundError with the nearest name, UnreachableError where no service
        answers. Where documents alone are signed, the service is not asked: it might not know who does."""
        if self.transport.options.signs == "documents":
            return Resource(self, name, {})
        try:
            return Resource(self, name, self.get(f"/resources/{quote(name, safe='')}"))
        except NotFoundError:
            try:
                names = [str(each["name"]) for each in self.resources()]
            except NotFoundError:
                parts = urlsplit(self.url)
                first = parts.path.strip("/").removeprefix("resources/").partition("/")[0]
                meant = f"Did you mean '{parts.scheme}://{parts.netloc}/{first}'?" if first else "Check host and port."
                raise NotFoundError(f"There is no data service at {self.url}.", hint=meant) from None
            hint = nearest(name, names) if names else "The service has none."
            if " " in name:
                hint = f"This looks like SQL; give the name of the resource first. {hint}"
            raise NotFoundError(f"The service at {self.url} has no resource {name!r}.", hint=hint) from None

    def jobs(self) -> Jobs:
        return Jobs(self.transport)

    def feed(
        self,
        id: str | None = None,
        *,
        title: str = "",
        readers: Sequence[str] = (),
        writers: Sequence[str] = (),
        blocks: int | None = None,
        bytes: int | None = None,
        seconds: float | None = None,
    ) -> Feed:
        """A new feed: blocks that are published once and followed by many. With ``id`` one that is there. ``readers``
        and ``writers`` besides its owner: names, ``group:NAME``, ``*``, ``anonymous``. It keeps so many ``blocks`` and
        ``bytes`` for so many ``seconds`` at most (docs/contexts.md)."""
        if id is not None:
            return Feed(self.transport, id)
        import json

        bounds = {"blocks": blocks, "bytes": bytes, "seconds": seconds}
        wanted = {"title": title, "readers": list(readers), "writers": list(writers)} | {
            name: value for name, value in bounds.items() if value is not None
        }
        reply = self.transport.send("POST", "/feeds", json.dumps(wanted).encode(), {"Content-Type": "application/json"})
        with reply.body:
            return Feed(self.transport, str(reply.json()["id"]))

    def close(self) -> None:
        self.transport.close()

    def __repr__(self) -> str:
        return f"<Service {self.url}>"


class Resource(Elsewhere):
    """A data resource: a database behind a service."""

    _instead = OF_RESOURCES

    def __init__(self, service: Service, name: str, properties: Mapping[str, Any]) -> None:
        self.service, self.name, self.properties = service, name, properties
        self._path = f"/resources/{quote(name, safe='')}"

    @property
    def url(self) -> str:
        return self.service.url + self._path

    def query(
        self,
        sql: str,
        *parameters: Any,
        blocksize: int | None = None,
        format: str = "arrow",
        session: str | None = None,
        progress: Asked = None,
        cancellation: Cancellation | None = None,
        tables: Mapping[str, Any] | None = None,
        numeric: str | None = None,
        limit: int | None = None,
        truncate: bool = False,
        **named: Any,
    ) -> Result:
        """The result of a query, streamed as it is read. ``?`` in the SQL stands for the next of the ``parameters``,
        bound by the database, or ``:name`` for one that is ``named`` (or in a mapping, which is then the only one); a
        list stands behind IN, for its values: ``id in :ids``.

        ``blocksize``: rows a block. ``session``: the id of a session to run in, which a federation needs for tables
        that were loaded into it. The database has accepted the statement when this returns. Cancelling (from another
        thread) raises the cause here or where the result is read, and stops the statement. ``tables``: Arrow tables (or
        what ``pyarrow.table`` takes, data frames among it) that this query alone sees, by name, where the resource
        takes them (``properties["tables"]``); then ``??`` is the operator ``?``. ``numeric``: what decimal numbers are
        in tuples: ``double``, ``decimal`` (those without a declared precision with 38 digits on either side of the
        point) or ``text``; None: as docs/types.md says. ``limit``: rows at most; with more it is a LimitError, or with
        ``truncate`` the first ones, and ``result.truncated`` says so.

        Raises StatementError with a caret into the SQL, NotAQueryError, BusyError after several attempts.
        """
        headers = {"Content-Type": "application/json", "Accept": media_type(format)}
        if not isinstance(sql, str):
            raise ParameterError(f"SQL must be text, not {type(sql).__name__}.", hint=_AS_TEXT.get(type(sql).__name__))
        numeric = checked(numeric)
        for name in named:
            if f":{name}" not in sql and f"${name}" not in sql and (near := get_close_matches(name, _OPTIONS, 1, 0.8)):
                raise ParameterError(
                    f"The statement has no parameter :{name}, and query no option {name!r}.",
                    hint=f"Did you mean {near[0]!r}?",
                )
        written = None if format == "arrow" else numeric  # others have the service's own text of a number
        body = _query(sql, arguments(parameters, named), blocksize, tables, limit, truncate, written)
        path = f"{self._path}/query" + _parameters(session=session)
        with shortly_told():
            reply = self.service.transport.send("POST", path, body, headers, cancellation=cancellation)
        return _result(reply, blocksize, progress, numeric)

    @overload
    def perform(
        self,
        document: Any,
        output: None = None,
        *,
        format: str | None = None,
        blocksize: int | None = None,
        session: str | None = None,
        progress: Asked = None,
        cancellation: Cancellation | None = None,
        numeric: str | None = None,
    ) -> Response: ...

    @overload
    def perform(
        self,
        document: Any,
        output: str,
        *,
        format: str | None = None,
        blocksize: int | None = None,
        session: str | None = None,
        progress: Asked = None,
        cancellation: Cancellation | None = None,
        numeric: str | None = None,
    ) -> Result: ...

    def perform(
        self,
        document: Any,
        output: str | None = None,
        *,
        format: str | None = None,
        blocksize: int | None = None,
        session: str | None = None,
        progress: Asked = None,
        cancellation: Cancellation | None = None,
        numeric: str | None = None,
    ) -> Response | Result:
        """Run a perform document: bytes, text, a path or an element (``dai.client.documents`` builds them).

        Gives its ``Response``; with ``output``, the result of that end point alone, in ``format`` where that is given.
        ``cancellation`` and ``numeric`` as in ``query``. A document without end points runs as the response's ``job``:
        this waits for its end, and an interrupt (Ctrl-C) aborts it. Only while its streams are pushed or pulled does it
        go on, as all that is sent with ``submit``. Raises DocumentError with line and element, and whatever struck
        before the first block, or in the job; the error says what was committed all the same.
        """
        accept = media_type(format) if format and output else "application/xml" if output is None else "*/*"
        headers = {"Content-Type": "application/xml", "Accept": accept}
        path = f"{self._path}/perform" + _parameters(output=output, blocksize=blocksize, session=session)
        numeric = checked(numeric)
        body = as_bytes(document)
        reply = self.service.transport.send("POST", path, body, headers, cancellation=cancellation)
        if reply.status == PARTIAL:
            with Response(reply.body) as received:
                received.check()
            raise DataError("The service says that a part of the document failed, but not which.")
        if output is not None:
            return _result(reply, blocksize, progress, numeric)
        response = Response(reply.body, blocksize=blocksize, progress=progress)
        if reply.status == 202:
            response.job = Job(self.service.transport, _id(reply))
            # where documents alone are signed, the service may not know who asks for the job
            if self.service.transport.options.signs != "documents" and not has_streams(body):
                response.job.finish(cancellation)
                response.completed = True
        return response

    def pull(self, document: Any, stream: str, *, blocksize: int | None = None, progress: Asked = None) -> Result:
        """Run a perform document and read its ``outputStream`` of that name. As ``perform`` and ``pull`` in a session
        of its own, which ends with the result; but the first blocks, of a small result all, are the answer to the
        request that sends the document (docs/contexts.md). Raises as these do."""
        pull = pull_at_once(self, self.service.transport, self._path, document, stream, blocksize)
        return pull.result(progress)

    def execute(self, sql: str, *parameters: Any, cancellation: Cancellation | None = None, **named: Any) -> int:
        """Runs a statement that changes something, in a transaction of its own: how many rows changed. Parameters as in
        ``query``; or a list of mappings or of rows, for each of which the statement runs once, all in one transaction.
        DeniedError without the right to write."""
        several = () if named else rows_of(parameters)
        rows = [parameters_of(each) for each in several or (arguments(parameters, named),)]
        if is_plain_query(sql):
            said = (
                "execute returns the number of rows that a statement changed; a SELECT changes none. To get "
                "rows: resource.query(…)."
            )
            warnings.warn(said, stacklevel=2)
        return change(self, sql, rows if several or rows[0] else [], cancellation)

    def submit(
        self,
        sql_or_document: Any,
        *parameters: Any,
        blocksize: int | None = None,
        session: str | None = None,
        label: str | None = None,
        **named: Any,
    ) -> Job:
        """Run a query (text that is not XML), with parameters as in ``query``, or a perform document as a job, which
        outlives this program. ``label``: what it is called in lists."""
        transport = self.service.transport
        if isinstance(sql_or_document, str) and not sql_or_document.lstrip("\ufeff \t\r\n").startswith("<"):
            headers = {"Content-Type": "application/json", **ASYNCHRONOUS}
            body = _query(sql_or_document, arguments(parameters, named), blocksize)
            path = f"{self._path}/query" + _parameters(session=session, label=label)
            reply = transport.send("POST", path, body, headers)
        else:
            headers = {"Content-Type": "application/xml", **ASYNCHRONOUS}
            path = f"{self._path}/perform" + _parameters(blocksize=blocksize, session=session, label=label)
            reply = transport.send("POST", path, as_bytes(sql_or_document), headers)
        with reply.body:
            reply.body.read_all()
        return Job(self.service.transport, _id(reply))

    def schema(self, *, fresh: bool = False, tables: str | None = None) -> Schema:
        """Tables with their columns, keys and row estimates, at most half a minute old; ``fresh``: as they are now.
        ``tables``: those alone whose names the LIKE pattern fits."""
        return Schema(self.service.get(f"{self._path}/schema{_parameters(tables=tables)}", fresh=fresh))

    def statistics(self, table: str) -> Mapping[str, Any]:
        """What the database knows of a table without reading it: ``rows``, ``size_bytes``, and in ``columns``, by name,
        ``distinct``, ``null_fraction``, ``low``, ``high``, ``width``, ``correlation``; None for what it does not
        know. NotFoundError suggests the nearest name."""
        reported: Mapping[str, Any] = self.service.get(f"{self._path}/statistics{_parameters(table=table)}")
        return reported

    def jobs(self) -> Jobs:
        """The service's jobs on this resource."""
        return Jobs(self.service.transport, self.name)

    def session(self, timeout: float | None = None, *, id: str | None = None) -> Session:
        """A new session on this resource's service; ``timeout``: seconds after its last use that it ends by itself.

        With ``id`` (a response's ``session``) one that is there already: leaving that does not end it.
        """
        if id is not None:
            return Session(self, self.service.transport, id, own=False)
        return Session.create(self, self.service.transport, timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the idle connections."""
        self.service.close()

    def __repr__(self) -> str:
        product = self.properties.get("product")
        return f"<Resource {self.name} at {self.service.url}{f': {product}' if product else ''}>"


class Schema(Sequence[Mapping[str, Any]]):
    """The tables of a resource; ``schema["flights"]`` or ``schema["public.flights"]`` by name, printed as a list."""

    def __init__(self, document: Any) -> None:
        self._tables: list[Mapping[str, Any]] = list(document["tables"])

    def __len__(self) -> int:
        return len(self._tables)

    def __getitem__(self, key: Any) -> Any:
        if not isinstance(key, str):
            return self._tables[key]
        for table in self._tables:
            if key in (table["name"], _full(table)):
                return table
        raise NotFoundError(f"There is no table {key!r}.", hint=nearest(key, [_full(each) for each in self]))

    def __repr__(self) -> str:
        return "\n".join(map(_described, self._tables)) or "<no tables>"


def _full(table: Mapping[str, Any]) -> str:
    """With its schema, where that has to be said; of a federation that is the source."""
    return f"{table['schema']}.{table['name']}" if table.get("schema") else str(table["name"])


def _described(table: Mapping[str, Any]) -> str:
    # files that cannot be read have no columns, but a comment that says why
    columns = ", ".join(map(_column, table.get("columns", []))) or table.get("comment") or ""
    rows = table.get("rows")
    estimate = f" (about {rows:,} rows)" if isinstance(rows, int) else ""
    return f"{_full(table)}{estimate}: {columns}"


def _column(column: Mapping[str, Any]) -> str:
    meant = ", ".join(str(column[name]) for name in ("unit", "ucd", "quantity") if column.get(name))
    kind = str(column["type"])
    if str(column.get("arrow")).startswith("decimal") and column.get("precision") and "(" not in kind:
        kind = f"{kind}({column['precision']},{column['scale'] or 0})"
    return f"{column['name']} {kind}" + (f" [{meant}]" if meant else "")


def _result(reply: Reply, blocksize: int | None, progress: Asked, numeric: str | None) -> Result:
    """The result in a reply; its form is what the reply says it is."""
    form = form_of(reply.media_type)
    result = Result(reply.body, form, blocksize=blocksize, progress=progress, numeric=numeric, size=reply.size)
    result.truncated = reply.headers.get("truncated") == "true"
    return result


def _query(
    sql: str,
    parameters: Parameters,
    blocksize: int | None,
    tables: Mapping[str, Any] | None = None,
    limit: int | None = None,
    truncate: bool = False,
    numeric: str | None = None,
) -> bytes:
    import json

    body: dict[str, Any] = {"sql": sql}
    if tables is not None and not isinstance(tables, Mapping):
        raise ParameterError(
            "The tables have no names.", hint='Give each a name: tables={"t": frame}, and write t in the SQL.'
        )
    if tables:
        body["tables"] = {name: _table(name, each) for name, each in tables.items()}
    if isinstance(parameters, Mapping):
        body["parameters"] = {name: _value(f":{name}", plain(each)) for name, each in parameters.items()}
    elif parameters:
        body["parameters"] = [_value(str(place), plain(each)) for place, each in enumerate(parameters, 1)]
    if blocksize is not None:
        body["blocksize"] = blocksize
    if limit is not None:
        body |= {"limit": limit, "truncate": truncate}
    if numeric is not None:
        body["numeric"] = numeric
    try:
        return json.dumps(body, ensure_ascii=False).encode()
    except (TypeError, ValueError) as error:
        raise DataError(f"A parameter cannot be sent: {error}.") from error


def _table(name: str, table: Any) -> str:
    import pyarrow as pa

    from dai.formats.inline import text_of

    try:
        return text_of(table if isinstance(table, pa.Table) else pa.table(table))
    except (TypeError, ValueError, pa.ArrowException) as error:
        raise DataError(
            f"The table {name!r} cannot be sent: {'; '.join(map(str, error.args))}",
            hint="Give an Arrow table, a pandas or polars data frame, or a mapping of columns; each column needs "
            "values of one SQL type.",
        ) from error


def _value(shown: str, value: Any) -> Any:
    """JSON's own types as they are; moments, decimals and bytes as texts with their types; UUIDs as the text that
    databases read."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list):
        return [_value(shown, each) for each in value]
    if isinstance(value, UUID):
        return str(value)
    if (typed := written(value)) is not None:
        return {"type": typed[0], "value": typed[1]}
    raise DataError(
        f"Parameter {shown} cannot be of the type {type(value).__name__}.",
        hint="Give a text, bytes, a number, a date, True, False, None or a list of these.",
    )


def _parameters(**parameters: Any) -> str:
    query = "&".join(f"{name}={quote(str(value), safe='')}" for name, value in parameters.items() if value is not None)
    return f"?{query}" if query else ""


def _id(reply: Reply) -> str:
    location = str(reply.headers.get("location", ""))
    return location.rstrip("/").rpartition("/")[2]
