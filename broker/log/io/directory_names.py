"""Format and parse names on the disk: partition directories, the files of a segment, topic ids.

    <topic>-<partition>                    a partition; the last dash separates them, topics may contain dashes
    <topic>-<partition>.<32 hex>-delete    a partition that is being deleted
                                -future    a copy that is being moved here
                                -stray     a partition that is kept but no longer served here
    <base offset, 20 digits>.<suffix>      a segment's file: log, index, timeindex, txnindex; snapshot: producer state
    ....deleted .cleaned .swap .tmp        such a file while it is removed, written or replaced

Source: org.apache.kafka.storage.internals.log.LogFileUtils, kafka.log.LocalLog; topic ids:
org.apache.kafka.common.Uuid.
"""

import base64
import re
from dataclasses import dataclass
from uuid import UUID, uuid4

LOG_SUFFIX = ".log"
OFFSET_INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
TRANSACTION_INDEX_SUFFIX = ".txnindex"
SNAPSHOT_SUFFIX = ".snapshot"
INDEX_SUFFIXES = (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX)
DELETED_SUFFIX = ".deleted"
CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"
DELETED_DIRECTORY_SUFFIX = "-delete"
FUTURE_DIRECTORY_SUFFIX = "-future"
STRAY_DIRECTORY_SUFFIX = "-stray"

MAX_NAME_SIZE = 255  # bytes of a file name on Linux file systems
OFFSET_DIGITS = 20

_MOVED = re.compile(r"(?P<name>\S+)\.(?P<unique>\S+)(?P<kind>-delete|-future|-stray)")
_NUMBER = re.compile(r"\d+", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class PartitionName:
    """A parsed directory name. `moved`: "delete", "future" or "stray" for a directory that is not in service."""

    topic: str
    partition: int
    moved: str | None = None


def parse_partition_directory(name: str) -> PartitionName | None:
    """Parse a partition directory's name; return None for other names."""
    moved = _MOVED.fullmatch(name)
    if moved is None and name.endswith(("-delete", "-future", "-stray")):
        return None
    topic, dash, number = (moved["name"] if moved else name).rpartition("-")
    if not topic or not dash or _NUMBER.fullmatch(number) is None or int(number) >= 1 << 31:
        return None
    return PartitionName(topic=topic, partition=int(number), moved=moved["kind"][1:] if moved else None)


def partition_directory(topic: str, partition: int) -> str:
    """Return the name of a partition's directory."""
    return f"{topic}-{partition}"


def deleted_directory(topic: str, partition: int) -> str:
    """Return a new name for a directory that is being deleted; a long topic name is shortened to MAX_NAME_SIZE."""
    return _shortened(topic, f"-{partition}.{uuid4().hex}{DELETED_DIRECTORY_SUFFIX}")


def stray_directory(topic: str, partition: int) -> str:
    """Return a new name for a directory that is kept but not served; shortened as for a deleted one."""
    return _shortened(topic, f"-{partition}.{uuid4().hex}{STRAY_DIRECTORY_SUFFIX}")


def _shortened(topic: str, suffix: str) -> str:
    return topic[: MAX_NAME_SIZE - len(suffix)] + suffix


def future_directory(topic: str, partition: int) -> str:
    """Return a new name for the copy of a partition that moves to another data directory.

    It exceeds MAX_NAME_SIZE for a long topic name, as in Kafka: such a partition cannot be moved.
    """
    return f"{partition_directory(topic, partition)}.{uuid4().hex}{FUTURE_DIRECTORY_SUFFIX}"


def segment_path(directory: str, base_offset: int, suffix: str) -> str:
    """Return the path of a segment's file."""
    return f"{directory}/{base_offset:020d}{suffix}"


def base_offset_of(name: str) -> int | None:
    """Return the base offset in a segment file's name, or None for other names."""
    digits = name[:OFFSET_DIGITS]
    if len(name) > OFFSET_DIGITS and name[OFFSET_DIGITS] == "." and digits.isascii() and digits.isdigit():
        return int(digits)
    return None


def encode_topic_id(topic_id: UUID) -> str:
    """Encode a topic id as Kafka does: url-safe base64 of its 16 bytes, without padding (22 characters)."""
    return base64.urlsafe_b64encode(topic_id.bytes).decode().rstrip("=")


def decode_topic_id(text: str) -> UUID:
    """Decode the text form of a topic id. Raises ValueError."""
    try:
        data = base64.b64decode(text + "==", altchars=b"-_", validate=True)
    except ValueError as error:
        raise ValueError(f"{text!r} is no topic id") from error
    if len(data) != 16:
        raise ValueError(f"{text!r} is no topic id")
    return UUID(bytes=data)
