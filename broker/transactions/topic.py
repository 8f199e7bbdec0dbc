"""`__transaction_state` described as the topic of a coordinator.

Source: kafka.coordinator.transaction.TransactionStateManager.transactionTopicConfigs,
org.apache.kafka.coordinator.transaction.TransactionLogConfig.
"""

from warmlog.broker.coordinator_log.topic import CoordinatorTopic, TopicLayout
from warmlog.broker.settings.settings import Settings

TOPIC = "__transaction_state"


def _layout(settings: Settings) -> TopicLayout:
    min_isr = min(settings.transaction_state_log_min_isr, settings.transaction_state_log_replication_factor)
    return TopicLayout(
        settings.transaction_state_log_num_partitions,
        {
            "cleanup.policy": "compact",
            "compression.type": "uncompressed",
            "unclean.leader.election.enable": "false",
            "segment.bytes": str(settings.transaction_state_log_segment_bytes),
            **({"min.insync.replicas": str(min_isr)} if settings.warmlog_cluster_etcd else {}),
        },
        settings.transaction_state_log_replication_factor,
    )


STATE_TOPIC = CoordinatorTopic(name=TOPIC, keeps="transactional id", layout=_layout)
