"""Files in which results are saved: the suffix decides format and compression, and a file appears when it is
complete."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dai.errors import NotAcceptableError, RequestError
from dai.formats import suffixes

IDENTITY = "identity"
CODINGS = {".gz": "gzip", ".zst": "zstd"}


def format_of_path(path: str | os.PathLike[str], form: str | None = None) -> tuple[str | None, str]:
    """The form and the content coding that the name of a file says, unless ``form`` does; None without a suffix.

    Raises NotAcceptableError for a suffix that is no format's.
    """
    name = Path(path).name
    coding = CODINGS.get(Path(name).suffix.lower(), IDENTITY)
    suffix = Path(Path(name).stem if coding != IDENTITY else name).suffix.lower()
    if form is None and suffix:
        form = suffixes().get(suffix)
    if form is None and (suffix or coding != IDENTITY):
        known = f"Known: {', '.join(suffixes())}; each with {' or '.join(CODINGS)} behind it, too"
        raise NotAcceptableError(f"The name {name!r} does not tell the format.", hint=f"{known}.")
    return form, coding


def save_file(path: str | os.PathLike[str], chunks: Iterable[Any], coding: str) -> int:
    """The chunks in a file that appears under its name when all are there; the number of its bytes. Where that fails,
    what stood at ``path`` stays."""
    folder = Path(path).parent
    if not folder.is_dir():
        raise RequestError(
            f"There is no folder {str(folder)!r} to save {Path(path).name!r} in.", hint="Create it first."
        )
    if Path(path).is_dir():
        inside = os.path.join(path, "result.parquet")
        raise RequestError(f"{os.fspath(path)!r} is a folder.", hint=f"Name a file: save({inside!r}).")
    if coding != IDENTITY:
        from dai.formats.compression import compress

        chunks = compress(chunks, coding)
    part, size = f"{os.fspath(path)}.part", 0
    try:
        with open(part, "wb") as file:
            for chunk in chunks:
                size += file.write(chunk)
        os.replace(part, path)
    except BaseException:
        if os.path.exists(part):
            os.unlink(part)
        raise
    return size
