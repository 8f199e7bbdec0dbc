"""`__transaction_state` described as the topic of a coordinator.

Source: kafka.coordinator.transaction.TransactionStateManager.transactionTopicConfigs,
org.apache.kafka.coordinator.transaction.TransactionLogConfig.
"""

from warmlog.broker.coordinator.topic import CoordinatorTopic, TopicLayout
from warmlog.broker.settings.settings import Settings
from warmlog.protocol.kafka.transaction_records import (
    StoredTransaction,
    UnknownKey,
    UnknownValue,
    decode_transaction,
    decode_transaction_key,
)

TOPIC = "__transaction_state"


def _decode(key: bytes, value: bytes) -> tuple[str, StoredTransaction] | None:
    decoded, state = decode_transaction_key(key), decode_transaction(value)
    if isinstance(decoded, UnknownKey) or isinstance(state, UnknownValue):
        return None
    return decoded.transactional_id, state


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


STATE_TOPIC = CoordinatorTopic(
    name=TOPIC,
    keeps="transactional id",
    count_setting="transaction.state.log.num.partitions",
    layout=_layout,
    decode=_decode,
)
