"""Read the topics of a Kafka node from its metadata log, `__cluster_metadata-0`.

    snapshot    <offset>-<epoch>.checkpoint: all metadata before an offset, as record batches
    log         the changes from that offset on, as in any other partition

A record's value is an unsigned varint 1, an API key and a version as unsigned varints, then the fields.

Source: Kafka's TopicRecord.json (API key 2), PartitionRecord.json (3), PartitionChangeRecord.json (5) and
RemoveTopicRecord.json (9).
"""

import struct
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from uuid import UUID

from warmlog.broker.log.directory.names import METADATA_TOPIC
from warmlog.broker.log.io.directory_names import LOG_SUFFIX
from warmlog.protocol.errors import ProtocolError
from warmlog.protocol.records.reader import records_in

METADATA_DIRECTORY = f"{METADATA_TOPIC}-0"
TOPIC, PARTITION, PARTITION_CHANGE, REMOVE_TOPIC = 2, 3, 5, 9
REPLICAS_TAG = 2  # tag of a field in PartitionChangeRecord
UUID_BYTES = 16

_INT32 = struct.Struct(">i")


class MetadataLog:
    """Names of topics by id, and the number of replicas of each partition by topic id."""

    def __init__(self, directory: Path) -> None:
        """Read the metadata in a node's data directory. Raises OSError, ProtocolError, ValueError."""
        self.names: dict[UUID, str] = {}
        self.replicas: dict[UUID, dict[int, int]] = {}
        for value in _values(directory / METADATA_DIRECTORY):
            self._apply(value)

    def _apply(self, value: bytes) -> None:
        fields = _Fields(value)
        fields.number()
        kind, _ = fields.number(), fields.number()
        if kind == TOPIC:
            name = fields.taken(fields.number() - 1).decode()
            topic_id = fields.uuid()
            self.names[topic_id] = name
            self.replicas[topic_id] = {}
        elif kind == PARTITION:
            partition, topic_id = fields.int32(), fields.uuid()
            self.replicas[topic_id][partition] = fields.number() - 1
        elif kind == PARTITION_CHANGE:
            partition, topic_id = fields.int32(), fields.uuid()
            for tag, data in fields.tagged():
                if tag == REPLICAS_TAG and topic_id in self.replicas:
                    self.replicas[topic_id][partition] = _Fields(data).number() - 1
        elif kind == REMOVE_TOPIC:
            topic_id = fields.uuid()
            self.names.pop(topic_id, None)
            self.replicas.pop(topic_id, None)


def _values(directory: Path) -> Iterator[bytes]:
    """Yield the values of all metadata records, from the last snapshot and the log after it."""
    first = 0
    if snapshots := sorted(directory.glob("*.checkpoint")):
        first = int(snapshots[-1].name.partition("-")[0])
        yield from (record.value or b"" for record in records_in(snapshots[-1].read_bytes()))
    logs = sorted(directory.glob(f"*{LOG_SUFFIX}"))
    for log, following in zip_longest(logs, logs[1:]):
        if following is not None and int(following.stem) <= first:
            continue
        try:
            yield from (record.value or b"" for record in records_in(log.read_bytes(), from_offset=first))
        except ProtocolError:
            if following is not None:
                raise
            return  # the last batch is still being written


class _Fields:
    """Reads the fields of a record in sequence. Raises ValueError; struct.error beyond the end of the record."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self) -> int:
        """Read an unsigned varint."""
        value, shift = 0, 0
        while True:
            byte = self.taken(1)[0]
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def int32(self) -> int:
        value: int = _INT32.unpack(self.taken(_INT32.size))[0]
        return value

    def uuid(self) -> UUID:
        return UUID(bytes=self.taken(UUID_BYTES))

    def tagged(self) -> Iterator[tuple[int, bytes]]:
        for _ in range(self.number()):
            tag = self.number()
            yield tag, self.taken(self.number())

    def taken(self, count: int) -> bytes:
        data = self._data[self._at : self._at + count]
        if len(data) < count:
            raise ValueError("a metadata record ends early")
        self._at += count
        return data
