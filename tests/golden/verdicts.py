"""What Kafka answered to unusual and wrong batches (see interop/generate_verdicts.py), and where we differ from it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from warmlog.protocol.errors import ErrorCode

#: Where this broker differs by intention: Kafka's error (-1: an exception that nobody expected there), and ours.
DIFFERENCES = {
    # Kafka changes these, or stores what readers or its cleaner then stumble over.
    "marked as append time": (0, ErrorCode.INVALID_TIMESTAMP),
    "delete horizon": (0, ErrorCode.INVALID_RECORD),
    "offsets out of order": (0, ErrorCode.INVALID_RECORD),
    "producer with sequence 0 and epoch -1": (0, ErrorCode.INVALID_RECORD),
    "bytes after the batch": (0, ErrorCode.CORRUPT_MESSAGE),
    "a cut batch": (87, ErrorCode.CORRUPT_MESSAGE),
    # Kafka's sum of base and delta turns negative; ours is beyond 64 bits.
    "time past 64 bits": (32, ErrorCode.INVALID_RECORD),
    "codec 5": (-1, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
    "codec 6": (-1, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
    "codec 7": (-1, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
    # What is wrong in a compressed batch is named.
    "gzip, not gzip": (-1, ErrorCode.CORRUPT_MESSAGE),
    "gzip, offsets out of order": (-1, ErrorCode.INVALID_RECORD),
}

#: What Produce refuses, and a log takes from native clients.
ONLY_PRODUCE_REFUSES = {"two batches"}


def verdicts(fixtures: Path) -> Iterator[dict[str, Any]]:
    with (fixtures / "verdicts.jsonl").open(encoding="ascii") as lines:
        yield from map(json.loads, lines)


def expected_error(line: dict[str, Any]) -> int:
    """The error that is ours for a line: Kafka's, or that of the difference where Kafka's is the one it is from."""
    kafkas, ours = DIFFERENCES.get(line["name"], (None, None))
    return int(line["error"] if line["error"] != kafkas or ours is None else ours)


def tells_records(line: dict[str, Any]) -> bool:
    """Whether the records that are told must be Kafka's: of a marked batch all are wrong, and none is told here."""
    return expected_error(line) == line["error"] and not line["name"].startswith("marked as append time")
