"""`__share_group_state` described as the topic of a coordinator.

It is not compacted, because updates add to earlier records. Records before the oldest needed snapshot are deleted
instead (`service.py`).

Source: org.apache.kafka.coordinator.share.ShareCoordinatorService (shareGroupStateTopicConfigs),
org.apache.kafka.server.share.SharePartitionKey (asCoordinatorKey).
"""

import re
from typing import NamedTuple

from warmlog.broker.coordinator.topic import CoordinatorTopic, TopicLayout
from warmlog.broker.settings.settings import Settings
from warmlog.protocol.kafka.messages.common import topic_id_text
from warmlog.protocol.kafka.share_state_records import SharePartitionKey, ShareRecord, decode_record

TOPIC = "__share_group_state"
_PARTS = 3
_TOPIC_ID = re.compile(r"[A-Za-z0-9_-]{22}={0,2}")
_NUMBER = re.compile(r"[+-]?[0-9]{1,10}")


class StateRow(NamedTuple):
    """A record of a share-partition; None deletes its state."""

    key: SharePartitionKey
    record: ShareRecord | None


def name_of(key: SharePartitionKey) -> str:
    """Return the text whose hash chooses the log partition of a key, which is also its key for FindCoordinator."""
    return f"{key.group}:{topic_id_text(key.topic_id)}:{key.partition}"


def is_name(text: str) -> bool:
    """Return whether a text has the form of `name_of`: a group without colons, a topic id in base64, and a number."""
    group, topic_id, partition = parts if len(parts := text.split(":")) == _PARTS else ("", "", "")
    return bool(group.strip() and _TOPIC_ID.fullmatch(topic_id) and _NUMBER.fullmatch(partition))


def _decode(key: bytes, value: bytes | None) -> tuple[str, StateRow] | None:
    decoded = decode_record(key, value)
    return None if decoded is None else (name_of(decoded[0]), StateRow(*decoded))


def _decode_tombstone(key: bytes) -> tuple[str, StateRow] | None:
    return _decode(key, None)


def _layout(settings: Settings) -> TopicLayout:
    factor = settings.share_coordinator_state_topic_replication_factor
    min_isr = min(settings.share_coordinator_state_topic_min_isr, factor)
    return TopicLayout(
        settings.share_coordinator_state_topic_num_partitions,
        {
            "cleanup.policy": "delete",
            "compression.type": "producer",
            "retention.ms": "-1",
            "segment.bytes": str(settings.share_coordinator_state_topic_segment_bytes),
            **({"min.insync.replicas": str(min_isr)} if settings.warmlog_cluster_etcd else {}),
        },
        factor,
    )


SHARE_STATE_TOPIC = CoordinatorTopic(
    name=TOPIC,
    keeps="share-partition",
    count_setting="share.coordinator.state.topic.num.partitions",
    layout=_layout,
    decode=_decode,
    decode_tombstone=_decode_tombstone,
)
