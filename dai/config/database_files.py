"""Describes databases in messages: the kind of a database file, by its first bytes (files of tables are
``data_files``), and the parts of a URL, without its password."""

from __future__ import annotations

from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from urllib.parse import urlsplit

from dai.config import data_files
from dai.config.values import parsed

PRODUCTS = {"sqlite": "SQLite", "duckdb": "DuckDB"}


def kind_of(path: Path | str) -> str | None:
    """``sqlite`` or ``duckdb``; None for any other file, and where there is none."""
    try:
        with open(path, "rb") as file:
            begin = file.read(16)
    except (OSError, ValueError):
        return None
    if begin == b"SQLite format 3\0":
        return "sqlite"
    return "duckdb" if begin[8:12] == b"DUCK" else None


def near(path: Path | str) -> str | None:
    """A hint with the file whose name is nearest, in the same folder."""
    with suppress(OSError):
        names = [each.name for each in Path(path).parent.iterdir()]
        if close := get_close_matches(Path(path).name, names, 1, 0.75):
            return f"Did you mean {str(Path(path).with_name(close[0]))!r}?"
    return None


def url_of(path: Path | str, name: str = "data") -> str | None:
    """The URL of the database in a file, or of the tables that files, a folder or a pattern are; None for anything
    else. ``name``: of the table of a pattern."""
    kind = kind_of(path)
    if kind is not None:
        return f"{kind}:///{Path(path).resolve()}"
    return data_files.url(str(path), str(path), Path(), name) if data_files.is_files(str(path)) else None


def address(url: str | None) -> str:
    """The parts of a URL as text: ``host db.example.org, port 5432, database 'lab', user 'reader'``, or the file."""
    parts = parsed(url or "")
    if parts.drivername == data_files.SCHEME:
        places = [place for each in parts.query.values() for place in ((each,) if isinstance(each, str) else each)]
        return f"files {', '.join(urlsplit(each.partition(':')[2])._replace(query='').geturl() for each in places)}"
    if parts.host is None:
        return f"file {parts.database}"
    said = [("host", parts.host), ("port", parts.port), ("database", parts.database), ("user", parts.username)]
    return ", ".join(f"{name} {value}" for name, value in said if value is not None)
