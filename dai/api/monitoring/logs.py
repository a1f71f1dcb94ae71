"""Logs: one JSON object a line, on standard error. Neither SQL nor secrets are in one of level info or above."""

from __future__ import annotations

import datetime
import logging
import sys

import orjson

_OWN = frozenset(vars(logging.makeLogRecord({})))


class JsonFormatter(logging.Formatter):
    """Time, level, logger and message, then the members of ``extra``."""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        values: dict[str, object] = {
            "time": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        values.update((name, value) for name, value in vars(record).items() if name not in _OWN)
        values.pop("color_message", None)
        if record.exc_info:
            values["exception"] = self.formatException(record.exc_info)
        return orjson.dumps(values, default=str).decode()


def configure(level: int = logging.INFO) -> None:
    """For the process of a service: everything to standard error. Programs that embed a service set up their own."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)
