"""`__consumer_offsets` described as the topic of a coordinator.

Source: org.apache.kafka.coordinator.group.GroupCoordinatorService.groupMetadataTopicConfigs.
"""

from warmlog.broker.coordinator_log.topic import CoordinatorTopic, TopicLayout
from warmlog.broker.settings.settings import Settings

TOPIC = "__consumer_offsets"


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


OFFSETS_TOPIC = CoordinatorTopic(name=TOPIC, keeps="group", layout=_layout)
