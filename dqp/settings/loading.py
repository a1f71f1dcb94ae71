"""Loads the settings of a federation from a file, a mapping, or the address of a database."""

from __future__ import annotations

import dataclasses
import glob
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dai.config.data_files import is_files
from dai.config.database_files import near, url_of
from dai.config.values import parsed
from dai.errors import ConfigurationError, ParameterError
from dqp.settings.federation import FederationSettings, parse


def load(
    federation: Path | str | Mapping[str, Any], environment: Mapping[str, str] | None = None
) -> FederationSettings:
    """The settings in a file, or in a document of the same shape; relative paths count from the file's directory. A
    database, by its URL or its file, is a federation of one source, which has the name of the database.

    ConfigurationError names the key that is wrong, and the nearest that would be right.
    """
    environment = os.environ if environment is None else environment
    if isinstance(federation, Mapping):
        known = {each.name for each in dataclasses.fields(FederationSettings)} | {"sources", "replicas", "registry"}
        if federation and not known & federation.keys() and all(isinstance(each, str) for each in federation.values()):
            raise ConfigurationError(
                "Put the sources under the key 'sources'.", hint='dqp.connect({"sources": {"alias": "field.db"}})'
            )
        return _federation(federation, Path(), environment)
    named = str(federation)
    if is_files(named):
        return _federation({"sources": {_alias_of_files(named): named}}, Path(), environment)
    url = named if "://" in named else url_of(federation)
    if url is not None:
        return _federation({"sources": {_alias(url): url}}, Path(), environment)
    path = Path(federation)
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        hint = "Name a federation.toml, a file of SQLite or DuckDB, files of tables, or the URL of a federation."
        hint = near(path) or hint
        raise ConfigurationError(f"The federation {path} cannot be read: {error.strerror}.", hint=hint) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        hint = None
        if path.suffix.lower() in (".db", ".sqlite", ".sqlite3", ".duckdb"):
            hint = "It is not a file of SQLite or DuckDB either; is it damaged, or only partly downloaded?"
        raise ConfigurationError(f"The federation {path} is not TOML: {error}.", hint=hint) from error
    return _federation(document, path.parent, environment)


def settings_of(federation: Any, token: str | None) -> FederationSettings:
    """Of a federation that runs in this process. ConfigurationError for what cannot be one."""
    if token is not None:
        raise ParameterError(
            "token= is for a federation that a service offers; this one runs in your process.",
            hint='Give the token to its source: {"sources": {"a": {"url": "http://…", "token": "env:NAME"}}}; '
            "DAI_TOKEN and profiles apply to all sources.",
        )
    if isinstance(federation, FederationSettings):
        return federation
    if isinstance(federation, str | os.PathLike | Mapping):
        return load(federation if isinstance(federation, Mapping) else os.fspath(federation))
    raise ConfigurationError(
        f"A federation is a path, a mapping or a URL, not {type(federation).__name__}.",
        hint='Several sources: dqp.connect({"sources": {"a": "field.db", "b": "http://127.0.0.1:8080/data"}}).',
    )


def _federation(document: Mapping[str, Any], base: Path, environment: Mapping[str, str]) -> FederationSettings:
    sections = document.get("federations")
    if sections is None:
        return parse(document, base=base, environment=environment)
    if not isinstance(sections, Mapping) or len(sections) != 1:
        raise ConfigurationError(
            "The file must have exactly one [federations.NAME].", hint="Put each federation into a file of its own."
        )
    ((name, section),) = sections.items()
    return parse(section, name=name, where=f"federations.{name}", base=base, environment=environment)


def _alias(url: str) -> str:
    database = parsed(url, "This").database or ""
    return _as_alias(Path(database).stem)


def _alias_of_files(path: str) -> str:
    """The name of the file or the folder, of a pattern that of the folder before it."""
    parts = [each for each in path.split("/") if each not in ("", ".", "..") and not glob.has_magic(each)]
    return _as_alias(parts[-1].partition(".")[0] if parts else "data")


def _as_alias(text: str) -> str:
    name = re.sub(r"\W", "_", text, flags=re.ASCII)
    return name if name and not name[0].isdigit() else f"db{name}"
