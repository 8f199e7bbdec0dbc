"""Where a broker's own log goes: standard error, as text for people or as JSON for machines.

Owns: the two line formats. Must not know: who logs what.

JSON: one object a line with `time` (ISO 8601, UTC), `level`, `logger`, `message`, `exception` where there is one, and
whatever a caller passed as `extra`.
"""

import logging
import sys
from datetime import UTC, datetime
from typing import Any

LEVELS = ("debug", "info", "warning", "error")
STANDARD_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def write_log_to_stderr(level: str, *, as_json: bool) -> None:
    """Send the process's log to standard error from `level` (one of LEVELS) on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if as_json else TextLines())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def iso_time(created: float) -> str:
    """A record's time, to the millisecond, in UTC."""
    return datetime.fromtimestamp(created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class TextLines(logging.Formatter):
    """`2026-11-20T10:00:00.000Z INFO broker.app message`."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s")

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: ARG002, N802  # the base class's
        """The time in UTC, so that logs of several machines can be laid side by side."""
        return iso_time(record.created)


class JsonLines(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """Encode the record; a value that JSON does not know is written as its text."""
        import json  # only those who ask for JSON pay for it

        fields: dict[str, Any] = {
            "time": iso_time(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        fields.update({name: value for name, value in vars(record).items() if name not in STANDARD_FIELDS})
        return json.dumps(fields, default=str, ensure_ascii=False)
