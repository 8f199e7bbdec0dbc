"""Types of setting values: ranges, and conversion from text and to text.

Values are parsed as Kafka parses them (source: org.apache.kafka.common.config.ConfigDef): surrounding white space is
ignored, and a list is text separated by commas.
"""

import re
from collections.abc import Iterable
from enum import Enum
from functools import cache
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec
from msgspec import Meta

from warmlog.protocol.records.record import MAX_INT64

MAX_INT32 = (1 << 31) - 1
MAX_HINTED_LENGTH = 100  # of an unknown name; comparing a longer one with all known names takes milliseconds

Count = Annotated[int, Meta(ge=1, le=MAX_INT32)]
Bytes = Annotated[int, Meta(ge=0, le=MAX_INT32)]
Millis = Annotated[int, Meta(ge=0, le=MAX_INT64)]
Whole = Annotated[int, Meta(ge=0, le=MAX_INT32)]
Delay = Annotated[int, Meta(ge=0, le=MAX_INT32)]  # milliseconds, where Kafka's type is an int
PositiveDelay = Annotated[int, Meta(ge=1, le=MAX_INT32)]
BufferBytes = Annotated[int, Meta(ge=-1, le=MAX_INT32)]  # -1: the operating system's default
SegmentBytes = Annotated[
    int, Meta(ge=14, le=MAX_INT32)
]  # Kafka's floor before KIP-1030, which tests and small disks need
IndexBytes = Annotated[int, Meta(ge=24, le=MAX_INT32)]  # two time index entries, one of them reserved for the roll
PositiveMillis = Annotated[int, Meta(ge=1, le=MAX_INT64)]
Messages = Annotated[int, Meta(ge=1, le=MAX_INT64)]
Retention = Annotated[int, Meta(ge=-1, le=MAX_INT64)]  # -1: no bound
Hours = Annotated[int, Meta(ge=-1, le=MAX_INT32)]
Ratio = Annotated[float, Meta(ge=0, le=1)]
# A list without duplicates; the empty list keeps everything (allowed by Kafka since 4.2, KIP-1161).
CleanupPolicy = Literal["delete", "compact", "compact,delete", "delete,compact", ""]
# gzip's default level (-1), or an explicit one.
GzipLevel = Literal[-1, 1, 2, 3, 4, 5, 6, 7, 8, 9]
Lz4Level = Annotated[int, Meta(ge=1, le=17)]
ZstdLevel = Annotated[int, Meta(ge=-131072, le=22)]
TimestampType = Literal["CreateTime", "LogAppendTime"]
Compression = Literal["producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"]
SaslMechanism = Literal["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"]
ClientMechanism = Literal["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN", "OAUTHBEARER"]
MigrationPolicy = Literal["disabled", "upgrade", "downgrade", "bidirectional"]
ReplicaSelector = Literal["", "org.apache.kafka.common.replica.RackAwareReplicaSelector"]

LIST_TYPES = (CleanupPolicy,)
# What Java's Double.parseDouble accepts, except hexadecimal digits, infinities and NaN, which no setting takes.
_DECIMAL = re.compile(r"([+-]?(?:[0-9]{1,400}\.?[0-9]{0,400}|\.[0-9]{1,400})(?:[eE][+-]?[0-9]{1,9})?)[fFdD]?")
_INTEGER = re.compile(r"[+-]?[0-9]{1,40}")  # bounded: int() refuses text of thousands of digits


class Kind(Enum):
    """The type of a setting's value as Kafka's protocol reports it, without its range."""

    BOOLEAN = "boolean"
    INT = "int"  # of 32 bits
    LONG = "long"
    DOUBLE = "double"
    STRING = "string"
    LIST = "list"


class SettingError(Exception):
    """A setting is unknown or out of range.

    `str()` is one line that names the setting, where its value came from, and what is valid.
    """


def check_value(name: str, value: Any, value_type: Any, *, origin: str) -> Any:
    """Convert a value or its text to its type. Raises SettingError, which names the setting and what is valid."""
    if isinstance(value, str) and "\0" in value:  # which no path or address may have
        raise SettingError(f"{origin}: {name}: expected text without NUL characters, not {value!r}")
    try:
        return msgspec.convert(_plain(value, value_type), value_type, strict=False)
    except msgspec.ValidationError as error:
        choices = get_args(value_type) if get_origin(value_type) is Literal else ()
        expected = f"expected one of {str(choices)[1:-1]}" if choices else _in_words(str(error))
        raise SettingError(f"{origin}: {name}: {expected}, not {value!r}") from None


def as_text(value: Any) -> str | None:
    """Return a value as Kafka's protocol writes it, or None for a setting without a value."""
    if value is None:
        return None
    if isinstance(value, float):
        return str(value).replace("e+", "E").replace("e", "E")  # the exponent as Java writes it
    return str(value).lower() if isinstance(value, bool) else str(value)


def parts(text: str) -> list[str]:
    """Return the members of a list, without duplicates."""
    return list(dict.fromkeys(filter(None, (part.strip() for part in text.split(",")))))


@cache
def kind_of(value_type: Any) -> Kind:
    """Return the kind of a type's values."""
    if value_type in LIST_TYPES:
        return Kind.LIST
    if get_origin(value_type) is Annotated:
        base, meta = get_args(value_type)[:2]
        if base is int:
            return Kind.LONG if meta.le is None or meta.le > MAX_INT32 else Kind.INT
        return kind_of(base)
    if get_origin(value_type) is Literal:
        return Kind.INT if all(isinstance(choice, int) for choice in get_args(value_type)) else Kind.STRING
    if value_type in _KINDS:
        return _KINDS[value_type]
    return next(kind_of(member) for member in get_args(value_type) if member is not type(None))  # an optional type


_KINDS = {bool: Kind.BOOLEAN, int: Kind.LONG, float: Kind.DOUBLE, str: Kind.STRING}


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a hint naming the most similar known name, or an empty string."""
    if len(name) > MAX_HINTED_LENGTH:
        return ""
    import difflib  # not needed unless a name is unknown

    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else ""


def _plain(value: Any, value_type: Any) -> Any:
    """Normalize text: strip white space, leading zeros and plus signs, and drop duplicates from lists."""
    if not isinstance(value, str):
        return value
    kind, text = kind_of(value_type), value.strip()
    if kind is Kind.LIST:
        return ",".join(parts(text))
    if kind in {Kind.INT, Kind.LONG}:  # digits only: the converter would also accept 7.0 and 1e3
        return int(text) if _INTEGER.fullmatch(text) else [text]
    if kind is Kind.DOUBLE:
        match = _DECIMAL.fullmatch(text)
        return [text] if match is None else float(match[1])
    return text


def _in_words(error: str) -> str:
    return error.replace("`", "").replace("Expected", "expected").split(", got")[0].split(" - at")[0]
