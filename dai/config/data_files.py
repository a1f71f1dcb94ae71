"""Files as tables: which tables a file, a folder or a pattern of files has.

A file is a table with the name of the file; a pattern (``2024/*.parquet``) one table of all files that it fits, with
the name of the resource. A folder has a table for each of its files, and one for each folder in it that has files.
``{"table": "pattern"}`` names tables; a list has several of all that. A file may have an address (``https:``, ``s3:``).
"""

from __future__ import annotations

import glob
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from dai.errors import ConfigurationError

SCHEME = "files"
_FORMS = {
    "csv": ("csv", "tsv"),
    "json": ("json", "jsonl", "ndjson"),
    "parquet": ("parquet", "pq"),
    "arrow": ("arrow", "feather", "ipc"),
}
_BY_SUFFIX = {suffix: form for form, suffixes in _FORMS.items() for suffix in suffixes}
_COMPRESSED = ("gz", "zst")
_LINKS = "Symbolic links that lead out of the folder are not followed; name such a file by its own path."
STORES = ("s3", "gs")
"""Object stores, whose objects can be listed."""
ADDRESSES = ("http", "https", *STORES)
Tables = dict[str, tuple[str, ...]]
"""Paths, patterns and addresses by the table that they are."""


def form_of(path: str) -> str | None:
    """``csv``, ``json``, ``parquet`` or ``arrow``; None for any other file."""
    *_, before, last = ("", "", *path.rpartition("/")[2].lower().split("."))
    form = _BY_SUFFIX.get(before if last in _COMPRESSED else last)
    return None if form is None or (last in _COMPRESSED and form not in ("csv", "json")) else form


def is_files(text: str) -> bool:
    """Whether a path or an address is meant as files with tables."""
    scheme, separator, _ = text.partition("://")
    if separator:
        return scheme in STORES or (scheme in ADDRESSES and form_of(urlsplit(text).path) is not None)
    return form_of(text) is not None or Path(text).is_dir()


def url(files: Any, where: str, base: Path, name: str) -> str:
    """The driver's URL of these files, each with its form before it; ``name`` is that of the table of a pattern.
    ConfigurationError names what is missing or of no known form."""
    tables = _tables(files, where, base, name)
    formed: dict[str, list[str]] = {}
    for table, paths in tables.items():
        for each in paths:
            form = form_of(urlsplit(each).path if "://" in each else each)
            if form is None:
                known = ", ".join(f".{suffix}" for suffix in _BY_SUFFIX)
                if each.partition("://")[0] in STORES:
                    known = f"Name several objects by a pattern: {each.partition('?')[0].rstrip('/')}/*.parquet"
                raise ConfigurationError(
                    f"{where}: {_display(each, base)} of the table {table} is not a file with a table.", hint=known
                )
            formed.setdefault(table, []).append(f"{form}:{each}")
            if "://" not in each and glob.has_magic(each) and not any(glob.iglob(each, recursive=True)):
                raise ConfigurationError(f"{where}: no file fits {_display(each, base)}.")
            if "://" not in each and not glob.has_magic(each) and not Path(each).is_file():
                raise ConfigurationError(f"{where}: there is no file {_display(each, base)}.")
    return f"{SCHEME}:///?{urlencode(formed, doseq=True)}"


def _is_within(path: Path, folder: Path) -> bool:
    """Whether no symbolic link leads out of the folder."""
    return path.resolve().is_relative_to(folder.resolve())


def _tables(files: Any, where: str, base: Path, name: str) -> Tables:
    tables: Tables = {}
    if isinstance(files, Mapping):
        for table, paths in files.items():
            listed = paths if isinstance(paths, list | tuple) else [paths]
            if not listed or not all(isinstance(each, str) and each for each in listed):
                raise ConfigurationError(f"{where}.{table} must be a path, or a list of paths.")
            tables[str(table)] = tuple(_literal(_absolute(each, base)) for each in listed)
        return tables
    listed = files if isinstance(files, list | tuple) else [files]
    if not listed or not all(isinstance(each, str | Path) and str(each) for each in listed):
        raise ConfigurationError(f'{where} must be a path, a list of paths, or tables: {{orders = "orders/*.csv"}}.')
    for each in map(str, listed):
        for table, path in _of(_absolute(each, base), where, base, name):
            if table.casefold() in map(str.casefold, tables):
                hint = f'Name them: {where} = {{first = "…", second = "…"}}.'
                raise ConfigurationError(f"{where}: there are two files for the table {table!r}.", hint=hint)
            tables[table] = path
    return tables


def _of(path: str, where: str, base: Path, name: str) -> list[tuple[str, tuple[str, ...]]]:
    if "://" in path:
        parts = urlsplit(path)
        several = parts.scheme in STORES and glob.has_magic(parts.path)
        return [(name if several else _stem(parts.path), (path,))]
    place = Path(path)
    if glob.has_magic(path) and not place.exists():
        return [(name, (path,))]
    if not place.is_dir():
        return [(_stem(path), (_literal(path),))]
    tables: list[tuple[str, tuple[str, ...]]] = []
    for each in sorted(place.iterdir()):
        if each.name.startswith((".", "_")) or not _is_within(each, place):
            continue
        if each.is_file() and form_of(each.name):
            # as a pattern, so that no link in its place is followed later
            itself = glob.escape(each.name)
            if itself == each.name:
                itself = re.sub("[^!.]", r"[\g<0>]", itself, count=1)
            tables.append((_stem(each.name), (f"{glob.escape(path)}/{itself}",)))
        elif each.is_dir():
            files = (file for file in each.rglob("*") if file.is_file() and _is_within(file, each))
            suffixes = {_suffix(file) for file in files if form_of(file.name)} - {""}
            below = f"{glob.escape(str(each))}/**/*"
            if suffixes:
                tables.append((each.name, tuple(f"{below}{suffix}" for suffix in sorted(suffixes))))
    if not tables:
        raise ConfigurationError(f"{where}: the folder {_display(path, base)} has no files with tables.", hint=_LINKS)
    return tables


def _absolute(path: str, base: Path) -> str:
    return path if "://" in path else str(base.resolve() / path)


def _literal(path: str) -> str:
    """What is no pattern where there is a file of that name."""
    return glob.escape(path) if glob.has_magic(path) and Path(path).is_file() else path


def _suffix(file: Path) -> str:
    return "".join(file.suffixes[-2 if file.suffix.lower()[1:] in _COMPRESSED else -1 :])


def _stem(path: str) -> str:
    return path.rpartition("/")[2].partition(".")[0] or "data"


def _display(path: str, base: Path) -> str:
    return repr(path.removeprefix(f"{base.resolve()}/"))
