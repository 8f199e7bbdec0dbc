"""Parse the options of a read or a write: strings by name, ignoring the case of names.

An unknown name or an invalid value is an error that names the option. Tables of options are in `source.options` and
`sink.options`; this module has the parsers of values.
"""

import json
import re
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from datetime import datetime
from difflib import get_close_matches
from typing import Any, TypeVar

from warmlog.pipeline.errors import PipelineError

T = TypeVar("T")

# Accepted names from Spark's Kafka connector, and the corresponding options.
CONNECTOR_NAMES = {"kafka.bootstrap.servers": "bootstrap"}

# The most common settings of Kafka clients, and the options to suggest instead in errors.
_INSTEAD = "bootstrap, tlsCa, user, passwordFile, group and isolationLevel"
_SECRET = frozenset({"password"})

_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)")


class OptionTexts:
    """The user's options, checked against a table that describes the values of each option.

    `kind` completes error messages ("of a read"). `aliases`: further names of options. `ignored`: names, in lower case,
    of options of Spark itself.
    """

    def __init__(
        self,
        given: Mapping[str, str],
        table: Mapping[str, str],
        kind: str,
        *,
        aliases: Mapping[str, str] | None = None,
        ignored: AbstractSet[str] = frozenset(),
    ) -> None:
        self._table = table
        self._texts: dict[str, str] = {}
        known = {name.lower(): name for name in table} | dict(aliases or {})
        for name, text in given.items():
            if name.lower() in ignored:
                continue
            option = known.get(name.lower())
            if option is None:
                raise PipelineError(f"no option {name!r} {kind}{_nearest(name, known, table)}")
            if self._texts.get(option, text) != text:
                twice = "" if option in _SECRET else f", as {self._texts[option]!r} and {text!r}"
                raise PipelineError(f"option {option} is given twice{twice}")
            self._texts[option] = text

    def __contains__(self, name: str) -> bool:
        return name in self._texts

    def __iter__(self) -> Any:
        return iter(self._texts)

    def text(self, name: str) -> str | None:
        """Return a value unparsed, or None."""
        return self._texts.get(name)

    def parsed(self, name: str, parse: Callable[[str], T], default: T) -> T:
        """Return a parsed value, or the default if none was given. Raises PipelineError for an invalid value."""
        if name not in self._texts:
            return default
        try:
            return parse(self._texts[name])
        except (ValueError, TypeError, KeyError, AttributeError, re.error):
            raise self.bad(name) from None

    def bad(self, name: str) -> PipelineError:
        """Return the error for an invalid value."""
        shown = "what was given" if name in _SECRET else repr(self._texts[name])
        return PipelineError(f"option {name}: {shown} is not {self._table[name]}")


def _nearest(name: str, known: Mapping[str, str], table: Mapping[str, str]) -> str:
    if name.lower().startswith("kafka."):
        return f"; settings of a Kafka client do not apply here: use {_INSTEAD}"
    close = get_close_matches(name.lower(), known, n=1)
    return f"; did you mean {known[close[0]]}?" if close else f"; known options: {', '.join(table)}"


def nonempty(text: str) -> str:
    """Return the text without surrounding whitespace. Raises ValueError if it is empty."""
    if not text.strip():
        raise ValueError("empty")
    return text.strip()


def flag(text: str) -> bool:
    """Parse `true` or `false`."""
    return {"true": True, "false": False}[text.strip().lower()]


def ordinal(text: str) -> int:
    """Parse an integer of at least 0."""
    number = int(text)
    if number < 0:
        raise ValueError("negative")
    return number


def count(text: str) -> int:
    """Parse an integer of at least 1."""
    number = ordinal(text)
    if number == 0:
        raise ValueError("zero")
    return number


def word(*words: str) -> Callable[[str], str]:
    """Return a parser for one of these words, ignoring case."""
    return lambda text: {each: each for each in words}[text.strip().lower()]


def bootstrap(text: str) -> str:
    """Check `host:port`, or several separated by commas. Raises ValueError."""
    from warmlog.client.settings import parse_bootstrap  # takes 0.25 s, and is not needed for directories

    parse_bootstrap(text)
    return text


def time_ms(text: str) -> int:
    """Parse milliseconds since the epoch, or ISO 8601 (local time if it names no zone)."""
    if re.fullmatch(r"-?\d+", text.strip()):
        return int(text)
    return round(datetime.fromisoformat(text.strip()).timestamp() * 1000)


def duration_ms(text: str, *, default_unit: str = "ms") -> int:
    """Parse a duration such as `15m`, `30s`, `500ms`, `1h`, `1d`. Raises ValueError, or KeyError for an unknown unit.

    `default_unit`: unit of a number without one; if empty, such a number is an error.
    """
    match = _DURATION.fullmatch(text.strip().lower())
    if match is None:
        raise ValueError("not a duration")
    return round(float(match[1]) * _UNITS_MS[match[2] or default_unit])


def numbers(text: str) -> dict[str, dict[int, int]]:
    """Parse `{"topic": {"0": 23}}`."""
    return {
        topic: {int(partition): integer(number) for partition, number in listed.items()}
        for topic, listed in json.loads(text).items()
    }


def assignment(text: str) -> dict[str, tuple[int, ...]]:
    """Parse `{"topic": [0, 1]}`; neither may be empty."""
    partitions = {
        topic: tuple(integer(partition) for partition in listed) for topic, listed in json.loads(text).items()
    }
    if not partitions or not all(partitions.values()):
        raise ValueError("nothing is assigned")
    return partitions


def integer(number: Any) -> int:
    """Return a value unchanged if it is an int. Raises TypeError."""
    if not isinstance(number, int) or isinstance(number, bool):
        raise TypeError("not an integer")
    return number
