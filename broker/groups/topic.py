"""`__consumer_offsets` described as the topic of a coordinator.

Source: org.apache.kafka.coordinator.group.GroupCoordinatorService.groupMetadataTopicConfigs, GroupCoordinatorShard
(replay).
"""

from typing import NamedTuple, TypeAlias

from warmlog.broker.coordinator.topic import CoordinatorTopic, TopicLayout
from warmlog.broker.settings.settings import Settings
from warmlog.protocol.kafka.consumer_group_records import ConsumerGroupKey, ConsumerGroupValue, decode_consumer_value
from warmlog.protocol.kafka.group_records import (
    ForeignKey,
    GroupKey,
    OffsetAndMetadata,
    OffsetKey,
    StoredGroup,
    decode_group,
    decode_key,
    decode_offset,
)
from warmlog.protocol.kafka.share_group_records import ShareGroupKey, ShareGroupValue, decode_share_value
from warmlog.protocol.kafka.streams_group_records import StreamsGroupKey, StreamsGroupValue, decode_streams_value

TOPIC = "__consumer_offsets"


class StoredOffset(NamedTuple):
    """A committed offset as its record describes it."""

    topic: str
    partition: int
    value: OffsetAndMetadata


class ConsumerGroupRow(NamedTuple):
    """A record of a consumer group."""

    key: ConsumerGroupKey
    value: ConsumerGroupValue | None


class ShareGroupRow(NamedTuple):
    """A record of a share group."""

    key: ShareGroupKey
    value: ShareGroupValue


class StreamsGroupRow(NamedTuple):
    """A record of a streams group."""

    key: StreamsGroupKey
    value: StreamsGroupValue


GroupRow: TypeAlias = StoredGroup | StoredOffset | ConsumerGroupRow | ShareGroupRow | StreamsGroupRow


def _decode(key: bytes, value: bytes) -> tuple[str, GroupRow] | None:
    decoded = decode_key(key)
    if isinstance(decoded, OffsetKey):
        return decoded.group, StoredOffset(decoded.topic, decoded.partition, decode_offset(value))
    if isinstance(decoded, GroupKey):
        return decoded.group, decode_group(value)
    if isinstance(decoded, ShareGroupKey):
        return decoded.group, ShareGroupRow(decoded, decode_share_value(decoded, value))
    if isinstance(decoded, StreamsGroupKey):
        return decoded.group, StreamsGroupRow(decoded, decode_streams_value(decoded, value))
    if isinstance(decoded, ForeignKey):
        return None
    return decoded.group, ConsumerGroupRow(decoded, decode_consumer_value(decoded, value))


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
