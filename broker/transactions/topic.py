"""`__transaction_state` described as the topic of a coordinator.

Source: kafka.coordinator.transaction.TransactionStateManager.transactionTopicConfigs,
org.apache.kafka.coordinator.transaction.TransactionLogConfig.
"""

from broker.coordinator_log.log import CoordinatorTopic, TopicLayout
from broker.settings.settings import Settings

TOPIC = "__transaction_state"
PARTITIONS = 50  # transaction.state.log.num.partitions
SEGMENT_BYTES = 100 << 20  # transaction.state.log.segment.bytes


def _layout(_: Settings) -> TopicLayout:
    return TopicLayout(
        PARTITIONS,
        {
            "cleanup.policy": "compact",
            "compression.type": "uncompressed",
            "unclean.leader.election.enable": "false",
            "segment.bytes": str(SEGMENT_BYTES),
        },
    )


STATE_TOPIC = CoordinatorTopic(name=TOPIC, keeps="transactional id", layout=_layout)
