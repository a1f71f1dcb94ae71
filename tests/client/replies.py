"""What a service would send, for the client's tests."""

import io
import json

import pyarrow as pa

from dai.client.testing import Scripted
from dai.formats import media_type

TABLE = pa.table({"id": pa.array(range(25), pa.int32()), "name": [f"<b>{n}&" if n % 5 else None for n in range(25)]})


def arrow_bytes(table: pa.Table = TABLE, rows: int = 10) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=rows)
    return sink.getvalue()


def pieces(data: bytes, size: int) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]


def arrow(size: int = 100, **more) -> Scripted:
    return Scripted(body=pieces(arrow_bytes(), size), headers={"Content-Type": media_type("arrow")}, **more)


def said(document: object, status: int = 200, **headers: str) -> Scripted:
    return Scripted(status, json.dumps(document).encode(), {"Content-Type": "application/json", **headers})


def problem(status: int, **members: object) -> Scripted:
    headers = {"Content-Type": "application/problem+json"}
    if "retry_after" in members:
        headers["Retry-After"] = str(members["retry_after"])
    return Scripted(status, json.dumps({"status": status, **members}).encode(), headers)


DATA = said({"name": "data", "product": "PostgreSQL 17"})
