"""`__consumer_offsets` described as the topic of a coordinator.

Source: org.apache.kafka.coordinator.group.GroupCoordinatorService.groupMetadataTopicConfigs, GroupCoordinatorShard
(replay).
"""

from typing import NamedTuple, TypeAlias

from warmlog.broker.coordinator.topic import CoordinatorTopic, TopicLayout
from warmlog.broker.settings.settings import Settings
from warmlog.protocol.kafka.group_records import (
    GroupKey,
    OffsetAndMetadata,
    OffsetKey,
    StoredGroup,
    decode_group,
    decode_key,
    decode_offset,
)

TOPIC = "__consumer_offsets"


class StoredOffset(NamedTuple):
    """A committed offset as its record describes it."""

    topic: str
    partition: int
    value: OffsetAndMetadata


GroupRow: TypeAlias = StoredGroup | StoredOffset


def _decode(key: bytes, value: bytes) -> tuple[str, GroupRow] | None:
    decoded = decode_key(key)
    if isinstance(decoded, OffsetKey):
        return decoded.group, StoredOffset(decoded.topic, decoded.partition, decode_offset(value))
    if isinstance(decoded, GroupKey):
        return decoded.group, decode_group(value)
    return None  # of a newer group protocol


def _layout(settings: Settings) -> TopicLayout:
    return TopicLayout(
        settings.offsets_topic_num_partitions,
        {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": str(settings.offsets_topic_segment_bytes),
        },
        settings.offsets_topic_replication_factor,
    )


OFFSETS_TOPIC = CoordinatorTopic(
    name=TOPIC, keeps="group", count_setting="offsets.topic.num.partitions", layout=_layout, decode=_decode
)
