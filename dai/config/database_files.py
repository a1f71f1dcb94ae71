"""Where a database is, for people: which database's a file is, by how it begins, and what a URL says, without its
password."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy.engine import make_url

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


def url_of(path: Path | str) -> str | None:
    """The URL of the database in a file; None for what is no database."""
    kind = kind_of(path)
    return None if kind is None else f"{kind}:///{Path(path).resolve()}"


def address(url: str | None) -> str:
    """What a URL says: ``host db.example.org, port 5432, database 'lab', user 'reader'``, or the file."""
    parts = make_url(url or "")
    if parts.host is None:
        return f"file {parts.database}"
    said = [("host", parts.host), ("port", parts.port), ("database", parts.database), ("user", parts.username)]
    return ", ".join(f"{name} {value}" for name, value in said if value is not None)
