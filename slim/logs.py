"""Logging: one line per event, for people or as JSON, on standard error. Knows no other module of slim.

Callers pass structured values as `extra={"fields": {...}}`. Whatever a value holds, it can't break a line or send
control codes to a terminal.
"""

import json
import logging
from datetime import UTC, datetime
from math import isfinite


def configure(level: str, as_json: bool) -> None:
    """Send every log line to standard error, in place of what was set up before.

    `level` counts for slim. Other libraries are heard from WARNING up: at DEBUG an HTTP/2 library logs each header,
    keys included. A line that can't be written (a broken pipe) is lost, and nothing else is said about it.
    """
    logging.raiseExceptions = False
    # No line shows its caller, thread or process; finding them costs a third of a line (logging HOWTO, Optimization).
    logging._srcfile = None
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if as_json else TextFormatter())
    logging.basicConfig(
        level=max(logging.WARNING, logging.getLevelNamesMapping()[level]), handlers=[handler], force=True
    )
    logging.getLogger("slim").setLevel(level)


class TextFormatter(logging.Formatter):
    """`13:08:02.169 INFO    message {'field': 1}`, in local time. A traceback follows in lines that are indented."""

    def format(self, record: logging.LogRecord) -> str:
        clock = f"{self.formatTime(record, '%H:%M:%S')}.{int(record.msecs):03d}"
        fields = _fields(record)
        event = f"{clock} {record.levelname:<7} {record.getMessage()}{f' {fields}' if fields else ''}"
        below = self.formatException(record.exc_info).split("\n") if record.exc_info else []
        return "\n    ".join(_printable(line) for line in [event, *below])


class JsonFormatter(logging.Formatter):
    """One object: time (ISO 8601, UTC), level, logger, message, the fields, and `exception` with the traceback."""

    def format(self, record: logging.LogRecord) -> str:
        head = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields = {name: _finite(value) for name, value in _fields(record).items()}
        trace = {"exception": self.formatException(record.exc_info)} if record.exc_info else {}
        return json.dumps({**head, **fields, **head, **trace}, default=str)


def _fields(record: logging.LogRecord) -> dict[str, object]:
    return getattr(record, "fields", {})


def _finite(value: object) -> object:
    # JSON has no word for these, and one NaN makes a line unreadable for its reader.
    return str(value) if isinstance(value, float) and not isfinite(value) else value


def _printable(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
