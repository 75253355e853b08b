"""Logging: one line per event, for people or as JSON, on standard error. Knows no other module of slim.

Callers pass structured values as `extra={"fields": {...}}`. Whatever a value holds, it can't break a line or send
control codes to a terminal.
"""

import json
import logging
import os
import re
import select
import stat
import sys
from contextlib import suppress
from datetime import UTC, datetime
from math import isfinite
from typing import TextIO


def configure(level: str, as_json: bool) -> None:
    """Send every log line to standard error, in place of what was set up before.

    `level` counts for slim. Other libraries are heard from WARNING up: at DEBUG an HTTP/2 library logs each header,
    keys included. A line that can't be written to a broken pipe is lost, and nothing else is said about it.
    """
    logging.raiseExceptions = False
    # No line shows its caller, thread or process; finding them costs a third of a line (logging HOWTO, Optimization).
    logging._srcfile = None
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    handler = PatientHandler()
    handler.setFormatter(JsonFormatter() if as_json else TextFormatter())
    logging.basicConfig(
        level=max(logging.WARNING, logging.getLevelNamesMapping()[level]), handlers=[handler], force=True
    )
    logging.getLogger("slim").setLevel(level)


class PatientHandler(logging.StreamHandler[TextIO]):
    """Writes to standard error and never waits for its reader, which would stop the whole server.

    A line that would have to wait is dropped; the next one that gets through says how many were.
    """

    PIECE = 4096
    """Bytes that a pipe takes at once when it takes any (PIPE_BUF)."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)
        self._lost = 0
        self._poll: select.poll | None = None
        with suppress(AttributeError, OSError, ValueError):  # not on Windows; a stream without a descriptor
            if not stat.S_ISREG(os.fstat(self.stream.fileno()).st_mode):  # a file never waits for a reader
                poll = select.poll()
                poll.register(self.stream.fileno(), select.POLLOUT)
                self._poll = poll

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record, or count it as lost."""
        try:
            line = self.format(record)
            if self._lost:
                line = f"{self._lost} log lines were lost: standard error took no more\n{line}"
            self._lost = 0 if self._write(line + self.terminator) else self._lost + 1
        except Exception:
            self.handleError(record)  # a broken pipe; says nothing, see `configure`

    def _write(self, text: str) -> bool:
        """False when standard error did not take all of it."""
        for start in range(0, len(text), self.PIECE):
            if self._poll is not None and not self._poll.poll(0):
                return False
            self.stream.write(text[start : start + self.PIECE])
            self.flush()
        return True


class TextFormatter(logging.Formatter):
    """`13:08:02.169 INFO    message field=1`, in local time. A traceback follows in lines that are indented."""

    def format(self, record: logging.LogRecord) -> str:
        clock = f"{self.formatTime(record, '%H:%M:%S')}.{int(record.msecs):03d}"
        fields = "".join(f" {name}={_word(value)}" for name, value in _fields(record).items() if value is not None)
        event = f"{clock} {record.levelname:<7} {record.getMessage()}{fields}"
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


def _word(value: object) -> str:
    """As it is where no reader can take it for more than one word."""
    text = str(value)
    return text if re.fullmatch(r"[^\s\"'=]+", text) else json.dumps(text, ensure_ascii=False)


def _fields(record: logging.LogRecord) -> dict[str, object]:
    return getattr(record, "fields", {})


def _finite(value: object) -> object:
    # JSON has no word for these, and one NaN makes a line unreadable for its reader.
    return str(value) if isinstance(value, float) and not isfinite(value) else value


def _printable(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
