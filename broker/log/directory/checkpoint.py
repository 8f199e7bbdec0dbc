"""Read and write checkpoints, small text files that record a log's state for the next startup.

The formats are Kafka's (source: org.apache.kafka.server.common.CheckpointFile and its users). A checkpoint is a hint,
which its reader limits to the offsets of the log.

    a checkpoint             0                       version
                             2                       number of entries
                             words 0 1200            topic, partition, offset       (in the data directory)
                             words 1 994
    leader-epoch-checkpoint  the same with           epoch, its first offset        (in a partition's directory)
    contiguous-offset-checkpoint (warmlog's)
                             the same with           an offset                      (in a partition's directory)
    partition.metadata       version: 0
                             topic_id: <url-safe base64 of 16 bytes, without padding>
    .kafka_cleanshutdown     {"version":0,"brokerEpoch":7}

Files are replaced as a whole: written under a temporary name, synced if requested, renamed.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from uuid import UUID

from warmlog.broker.log.errors import CheckpointError
from warmlog.broker.log.io.directory_names import decode_topic_id, encode_topic_id
from warmlog.broker.log.io.disk import Disk, read_file, replace_file
from warmlog.protocol.partitions import TopicPartition

RECOVERY_POINTS = "recovery-point-offset-checkpoint"
LOG_STARTS = "log-start-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
CLEANER_POINTS = "cleaner-offset-checkpoint"
LEADER_EPOCHS = "leader-epoch-checkpoint"
CONTIGUOUS_OFFSET = "contiguous-offset-checkpoint"
PARTITION_METADATA = "partition.metadata"
CLEAN_MARKER = ".kafka_cleanshutdown"

VERSION = 0
UNKNOWN_BROKER_EPOCH = -1
FIRST_STOP_MS = 10**12  # in 2001; Kafka's broker epochs, offsets of its metadata log, are far lower


def read_offsets(disk: Disk, path: str) -> dict[TopicPartition, int]:
    """Return offsets by topic and partition; empty if there is no file. Raises CheckpointError, OSError."""
    offsets: dict[TopicPartition, int] = {}
    for line in _read_entries(disk, path):
        fields = line.split()
        if len(fields) != 3:
            raise _malformed(path, line)
        offsets[fields[0], _number(path, line, fields[1])] = _number(path, line, fields[2])
    return offsets


def write_offsets(disk: Disk, path: str, offsets: Mapping[TopicPartition, int], *, sync: bool = True) -> None:
    """Replace a checkpoint of offsets. Raises OSError."""
    lines = [f"{topic} {partition} {offset}" for (topic, partition), offset in sorted(offsets.items())]
    _write_entries(disk, path, lines, sync=sync)


def read_epochs(disk: Disk, path: str) -> list[tuple[int, int]]:
    """Return (epoch, first offset) pairs in file order; empty if there is no file. Raises CheckpointError, OSError."""
    epochs = []
    for line in _read_entries(disk, path):
        fields = line.split()
        if len(fields) != 2:
            raise _malformed(path, line)
        epochs.append((_number(path, line, fields[0]), _number(path, line, fields[1])))
    return epochs


def write_epochs(disk: Disk, path: str, epochs: Iterable[tuple[int, int]], *, sync: bool = False) -> None:
    """Replace a checkpoint of leader epochs, which can be rebuilt from batch headers. Raises OSError."""
    _write_entries(disk, path, [f"{epoch} {offset}" for epoch, offset in epochs], sync=sync)


def read_offset(disk: Disk, path: str) -> int | None:
    """Return the offset in a checkpoint of a single one; None without a file. Raises CheckpointError, OSError."""
    entries = _read_entries(disk, path)
    if len(entries) > 1:
        raise _malformed(path, entries[1])
    return _number(path, entries[0], entries[0]) if entries else None


def write_offset(disk: Disk, path: str, offset: int) -> None:
    """Replace a checkpoint of a single offset. The file is synced, its name is not. Raises OSError."""
    _write_entries(disk, path, [str(offset)], sync=True)


def read_topic_id(disk: Disk, path: str) -> UUID | None:
    """Return the topic id in a `partition.metadata`; None if there is no file. Raises CheckpointError, OSError."""
    text = _read_text(disk, path)
    if text is None:
        return None
    fields = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)
    if _number(path, text, fields.get("version", "")) < VERSION:
        raise CheckpointError(f"{path}: unknown version")
    try:
        return decode_topic_id(fields.get("topic_id", ""))
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}") from error


def write_topic_id(disk: Disk, path: str, topic_id: UUID, *, sync: bool) -> None:
    """Replace a `partition.metadata`. Raises OSError."""
    replace_file(disk, path, f"version: {VERSION}\ntopic_id: {encode_topic_id(topic_id)}".encode(), sync=sync)


def read_clean_marker(disk: Disk, path: str) -> int | None:
    """Return the broker epoch in a clean-shutdown marker, or None if there is no marker. Raises OSError.

    A marker without a readable epoch counts, too, and gives UNKNOWN_BROKER_EPOCH.
    """
    try:
        text = _read_text(disk, path)
        if text is None:
            return None
        epoch = json.loads(text)["brokerEpoch"]
    except (CheckpointError, ValueError, KeyError, TypeError):
        return UNKNOWN_BROKER_EPOCH
    return epoch if isinstance(epoch, int) else UNKNOWN_BROKER_EPOCH


def is_own_marker(disk: Disk, path: str) -> bool:
    """Return whether a standalone broker wrote a clean-shutdown marker: its epoch is the time of the stop, or unknown.

    Kafka's marker has the broker's epoch, or is empty. Raises OSError.
    """
    try:
        text = _read_text(disk, path)
    except CheckpointError:
        return False
    epoch = read_clean_marker(disk, path)
    if epoch is None or FIRST_STOP_MS > epoch != UNKNOWN_BROKER_EPOCH:
        return False
    return text == _marker(epoch)


def write_clean_marker(disk: Disk, path: str, broker_epoch: int = UNKNOWN_BROKER_EPOCH) -> None:
    """Write a clean-shutdown marker. Raises OSError."""
    replace_file(disk, path, _marker(broker_epoch).encode(), sync=True)


def _marker(broker_epoch: int) -> str:
    return json.dumps({"version": VERSION, "brokerEpoch": broker_epoch}, separators=(",", ":"))


def _read_entries(disk: Disk, path: str) -> list[str]:
    text = _read_text(disk, path)
    lines = text.splitlines() if text else []
    if len(lines) < 2:  # Kafka creates an empty file before the first write
        return []
    version, count, entries = _number(path, lines[0], lines[0]), _number(path, lines[1], lines[1]), lines[2:]
    if version != VERSION:
        raise CheckpointError(f"{path}: version {version}, expected {VERSION}")
    if count != len(entries):
        raise CheckpointError(f"{path}: {len(entries)} entries, expected {count}")
    return entries


def _write_entries(disk: Disk, path: str, lines: Sequence[str], *, sync: bool) -> None:
    text = "\n".join([str(VERSION), str(len(lines)), *lines, ""])
    replace_file(disk, path, text.encode(), sync=sync)


def _read_text(disk: Disk, path: str) -> str | None:
    try:
        return read_file(disk, path).decode()
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path} is not text") from error


def _number(path: str, line: str, text: str) -> int:
    """Parse a decimal number in the range of a Java long."""
    digits = text[1:] if text[:1] in {"-", "+"} else text
    if not (digits.isascii() and digits.isdigit()) or not -(1 << 63) <= int(text) < 1 << 63:
        raise _malformed(path, line)
    return int(text)


def _malformed(path: str, line: str) -> CheckpointError:
    return CheckpointError(f"{path}: malformed line {line[:80]!r}")
