"""Names on the disk: partition directories, the files of a segment, topic ids.

Owns their form, in both directions. Must not know what stands in them.

    <topic>-<partition>                    a partition; the last dash parts them, topics may hold dashes
    <topic>-<partition>.<32 hex>-delete    one that is being deleted (-future, -stray: Kafka's, while it moves or has
    lost one) <base offset, 20 digits>.<suffix>      a file of a segment: log, index, timeindex, txnindex; .snapshot of
    producer state ....deleted .cleaned .swap .tmp        such a file on its way out or in

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

MAX_NAME_SIZE = 255  # of a file, on every file system of Linux
OFFSET_DIGITS = 20

_MOVED = re.compile(r"(?P<name>\S+)\.(?P<unique>\S+)(?P<kind>-delete|-future|-stray)")
_NUMBER = re.compile(r"\d+", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class PartitionName:
    """What a directory's name says.

    `moved` is "delete", "future" or "stray" for a directory that is no partition in service.
    """

    topic: str
    partition: int
    moved: str | None = None


def parse_partition_directory(name: str) -> PartitionName | None:
    """The partition that a directory's name stands for, or None if it is no partition's."""
    moved = _MOVED.fullmatch(name)
    if moved is None and name.endswith(("-delete", "-future", "-stray")):
        return None
    topic, dash, number = (moved["name"] if moved else name).rpartition("-")
    if not topic or not dash or _NUMBER.fullmatch(number) is None or int(number) >= 1 << 31:
        return None
    return PartitionName(topic=topic, partition=int(number), moved=moved["kind"][1:] if moved else None)


def partition_directory(topic: str, partition: int) -> str:
    """The name of a partition's directory."""
    return f"{topic}-{partition}"


def deleted_directory(topic: str, partition: int) -> str:
    """A new name for a directory that is being deleted; a long topic name is cut so that it fits into a file name."""
    suffix = f"-{partition}.{uuid4().hex}{DELETED_DIRECTORY_SUFFIX}"
    return topic[: MAX_NAME_SIZE - len(suffix)] + suffix


def future_directory(topic: str, partition: int) -> str:
    """A new name for the copy of a partition that moves to another data directory.

    With a long topic name it is longer than MAX_NAME_SIZE, as in Kafka: then the partition cannot be moved.
    """
    return f"{partition_directory(topic, partition)}.{uuid4().hex}{FUTURE_DIRECTORY_SUFFIX}"


def segment_path(directory: str, base_offset: int, suffix: str) -> str:
    """The path of a segment's file."""
    return f"{directory}/{base_offset:020d}{suffix}"


def base_offset_of(name: str) -> int | None:
    """The base offset that a segment file's name begins with, or None if it is none."""
    digits = name[:OFFSET_DIGITS]
    if len(name) > OFFSET_DIGITS and name[OFFSET_DIGITS] == "." and digits.isascii() and digits.isdigit():
        return int(digits)
    return None


def encode_topic_id(topic_id: UUID) -> str:
    """A topic id as Kafka writes it: url-safe base64 of its 16 bytes, without padding (22 characters)."""
    return base64.urlsafe_b64encode(topic_id.bytes).decode().rstrip("=")


def decode_topic_id(text: str) -> UUID:
    """The topic id for what `encode_topic_id` gave. Raises ValueError."""
    try:
        data = base64.b64decode(text + "==", altchars=b"-_", validate=True)
    except ValueError as error:
        raise ValueError(f"{text!r} is no topic id") from error
    if len(data) != 16:
        raise ValueError(f"{text!r} is no topic id")
    return UUID(bytes=data)
