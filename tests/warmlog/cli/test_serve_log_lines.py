import json
import logging
import sys

from warmlog.cli.serve import JsonLines, TextLines


def record(message: str, **extra: object) -> logging.LogRecord:
    made = logging.makeLogRecord(
        {
            "name": "warmlog.broker.app",
            "levelname": "INFO",
            "levelno": 20,
            "msg": message,
            "args": (),
            "created": 1.5,
            **extra,
        }
    )
    assert made.getMessage() == message
    return made


def test_text_lines_carry_the_time_in_utc() -> None:
    assert TextLines().format(record("ready")) == "1970-01-01T00:00:01.500Z INFO warmlog.broker.app ready"


def test_json_lines_carry_extra_fields() -> None:
    line = JsonLines().format(record("rolled ä", partition=3, path=object))
    assert json.loads(line) == {
        "time": "1970-01-01T00:00:01.500Z",
        "level": "info",
        "logger": "warmlog.broker.app",
        "message": "rolled ä",
        "partition": 3,
        "path": str(object),
    }


def test_json_lines_hold_a_traceback_in_one_line() -> None:
    try:
        int("broken")
    except ValueError:
        line = JsonLines().format(record("failed", exc_info=sys.exc_info()))
    assert "\n" not in line
    assert "ValueError: invalid literal" in json.loads(line)["exception"]
