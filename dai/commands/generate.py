"""``dai schemas``: the files that are written from the code."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dai.commands import FAILED, OK


def add(commands: Any) -> None:
    schemas = commands.add_parser(
        "schemas", help="print the XML schema of perform documents; or check or write all generated files"
    )
    action = schemas.add_mutually_exclusive_group()
    action.add_argument("--check", action="store_true", help="list the generated files that are stale; exit 1 if any")
    action.add_argument("--write", action="store_true", help="write the generated files")
    schemas.add_argument("--directory", type=Path, default=Path(), help="the project's directory (default: this one)")
    schemas.set_defaults(run=run_schemas)


def _perform_xsd() -> bytes:
    from dai.perform.parser import xsd

    return xsd()


def _perform_2005_xsd() -> bytes:
    from dai.perform.parser import WSI, xsd

    return xsd(WSI)


def _perform_preview_xsd() -> bytes:
    from dai.perform.parser import PREVIEW, xsd

    return xsd(PREVIEW)


def _activities_page() -> bytes:
    from dai.perform.reference import activities_page

    return activities_page().encode()


def _openapi() -> bytes:
    from dai.api.app import create_app

    described = create_app().openapi()
    return (json.dumps(described, indent=2, ensure_ascii=False, sort_keys=True) + "\n").encode()


def _fixed(name: str) -> Callable[[], bytes]:
    def content() -> bytes:
        from dai.perform.xsd import fixed

        return fixed()[name]

    return content


_FIXED = (
    "database-schema.xsd",
    "response-2003-07.xsd",
    "response-2005-10.xsd",
    "response-preview.xsd",
    "webrowset.xsd",
)
GENERATED: dict[str, Callable[[], bytes]] = {
    "schemas/perform.xsd": _perform_xsd,
    "schemas/perform-2005-10.xsd": _perform_2005_xsd,
    "schemas/perform-preview.xsd": _perform_preview_xsd,
    "schemas/openapi.json": _openapi,
    **{f"schemas/{name}": _fixed(name) for name in _FIXED},
    "docs/activities.md": _activities_page,
}
"""Path in the project to what stands there."""


def run_schemas(arguments: argparse.Namespace) -> int:
    if not (arguments.check or arguments.write):
        sys.stdout.buffer.write(_perform_xsd())
        return OK
    stale = 0
    for name, content in GENERATED.items():
        path = arguments.directory / name
        fresh = content()
        if path.exists() and path.read_bytes() == fresh:
            continue
        if arguments.write:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(fresh)
            print(f"wrote {path}")
        else:
            stale += 1
            print(f"{path} is stale; write it with: dai schemas --write", file=sys.stderr)
    return FAILED if stale else OK
