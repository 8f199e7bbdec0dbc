"""The rights that each request needs: one row per API of both protocols, from which a page of the docs is generated.

A row has the check and its description; a test compares the description with the rights that the check queries. Source:
kafka.server.KafkaApis, ControllerApis, AclApis, ConfigHelper; docs/security.html, "Protocols".
"""

from collections.abc import Mapping
from typing import NamedTuple

from warmlog.broker.api.authorization import cluster, groups, share_groups, streams_groups, tokens, topics, transactions
from warmlog.broker.api.authorization.parts import Check
from warmlog.broker.security.acls import Operation as Op
from warmlog.protocol.kafka.messages.cluster.configs import (
    AlterConfigsResponse,
    AlteredConfigs,
    DescribeConfigsResponse,
    DescribedConfigs,
)
from warmlog.protocol.kafka.messages.records.offsets import (
    DeletedRecords,
    DeleteRecordsResponse,
    EpochEnd,
    OffsetForLeaderEpochResponse,
)
from warmlog.protocol.kafka.messages.topics.changes import CreatePartitionsResponse
from warmlog.protocol.native.producers import DescribeProducerResponse, ProducerPosition
from warmlog.protocol.response import ListedOffset, ListOffsetsResponse
from warmlog.protocol.transactions import DescribedProducers, DescribeProducersResponse

NOTHING = "nothing"


class Row(NamedTuple):
    """An API: its name in Kafka or in the native protocol, the required rights, and the check.

    `check` is None where the dispatcher itself checks. `missing`: the result for a sender without the right.
    """

    name: str
    needs: str
    check: Check | None
    missing: str = "an error"


_EACH = "an error for each"
_HIDDEN = "left out"


def _open(name: str, needs: str = NOTHING) -> Row:
    return Row(name, needs, cluster.unchecked, "")


def _cluster(name: str, operation: Op) -> Row:
    return Row(name, f"{operation.name} Cluster", cluster.cluster(operation))


def _peers(name: str) -> Row:
    return Row(name, "CLUSTER_ACTION Cluster", cluster.cluster(Op.CLUSTER_ACTION), _EACH)


def _group(name: str, operation: Op) -> Row:
    return Row(name, f"{operation.name} Group", groups.named_group(operation))


# fmt: off
ROWS: Mapping[str, Row] = {
    # records
    "produce": Row("Produce", "WRITE TransactionalId in a transaction; WRITE Topic; to create one, CREATE Cluster or "
                   "CREATE Topic; to write to an internal topic, ALTER Cluster", None, _EACH),
    "fetch": Row("Fetch", "READ Topic; as a follower CLUSTER_ACTION Cluster", None, _EACH),
    "list_offsets": Row("ListOffsets", "DESCRIBE Topic; as a broker CLUSTER_ACTION Cluster",
        topics.each_partition_or_peer(Op.DESCRIBE, ListedOffset, ListOffsetsResponse, of_replicas=True), _EACH),
    "offset_for_leader_epoch": Row("OffsetForLeaderEpoch", "CLUSTER_ACTION Cluster or DESCRIBE Topic",
        topics.each_partition_or_peer(Op.DESCRIBE, EpochEnd, OffsetForLeaderEpochResponse), _EACH),
    "delete_records": Row("DeleteRecords", "DELETE Topic",
        topics.each_partition(Op.DELETE, DeletedRecords, DeleteRecordsResponse), _EACH),
    "explain": Row("explain", "READ Topic", topics.named_topic(Op.READ)),
    # topics
    "metadata": Row("Metadata", "DESCRIBE Topic; to create one, CREATE Cluster or CREATE Topic; for the operations on "
                    "the cluster DESCRIBE Cluster", topics.metadata, "an error for each; left out of a list of all"),
    "describe_topic_partitions": Row("DescribeTopicPartitions", "DESCRIBE Topic", topics.describe_partitions,
                                     "an error for each; left out of a list of all"),
    "create_topics": Row("CreateTopics", "CREATE Cluster or CREATE Topic; for the settings in the response "
                         "DESCRIBE_CONFIGS Topic", topics.create, _EACH),
    "delete_topics": Row("DeleteTopics", "DELETE Cluster or DELETE Topic; to see the name of an id DESCRIBE Topic",
                         topics.delete, _EACH),
    "create_partitions": Row("CreatePartitions", "ALTER Topic",
                             topics.each_named(Op.ALTER, CreatePartitionsResponse), _EACH),
    "describe_topics": Row("describe_topics", "DESCRIBE and DESCRIBE_CONFIGS Topic", topics.describe, _EACH),
    "alter_topics": Row("alter_topics", "ALTER_CONFIGS Topic for settings; ALTER Topic for partitions",
                        topics.alter, _EACH),
    "describe_log_dirs": _cluster("DescribeLogDirs", Op.DESCRIBE),
    "alter_replica_log_dirs": _cluster("AlterReplicaLogDirs", Op.ALTER),
    "elect_leaders": _cluster("ElectLeaders", Op.ALTER),
    "alter_partition_reassignments": _cluster("AlterPartitionReassignments", Op.ALTER),
    "list_partition_reassignments": _cluster("ListPartitionReassignments", Op.DESCRIBE),
    "describe_mirror": _cluster("describe_mirror", Op.DESCRIBE),
    "promote_topics": _cluster("promote_topics", Op.ALTER),
    # groups
    "find_coordinator": Row("FindCoordinator", "DESCRIBE Group or DESCRIBE TransactionalId; of a share group "
                            "CLUSTER_ACTION Cluster", groups.find_coordinator, _EACH),
    "join_group": _group("JoinGroup", Op.READ),
    "sync_group": _group("SyncGroup", Op.READ),
    "heartbeat": _group("Heartbeat", Op.READ),
    "leave_group": _group("LeaveGroup", Op.READ),
    "join_consumer_group": Row("join_consumer_group", "READ Group; DESCRIBE Topic", groups.join_native),
    "heartbeat_consumer_group": Row("heartbeat_consumer_group", "READ Group; DESCRIBE Topic",
                                    groups.consumer_heartbeat),
    "offset_commit": Row("OffsetCommit", "READ Group; READ Topic", groups.commit, _EACH),
    "offset_fetch": Row("OffsetFetch", "DESCRIBE Group; DESCRIBE Topic", groups.fetch_offsets,
                        "an error for each; left out of a list of all"),
    "offset_delete": Row("OffsetDelete", "DELETE Group; READ Topic", groups.delete_offsets, _EACH),
    "list_groups": Row("ListGroups", "DESCRIBE Cluster or DESCRIBE Group", groups.list_groups, _HIDDEN),
    "describe_groups": Row("DescribeGroups", "DESCRIBE Group", groups.describe, _EACH),
    "describe_consumer_groups": Row("describe_consumer_groups", "DESCRIBE Group; DESCRIBE Topic",
                                    groups.describe_native, "an error for each group; topics are left out"),
    "delete_groups": Row("DeleteGroups", "DELETE Group", groups.delete, _EACH),
    "consumer_group_heartbeat": Row("ConsumerGroupHeartbeat", "READ Group; DESCRIBE Topic",
                                    groups.consumer_heartbeat),
    "consumer_group_describe": Row("ConsumerGroupDescribe", "DESCRIBE Group; DESCRIBE Topic",
                                   groups.describe_consumer_groups, _EACH),
    # share groups
    "share_group_heartbeat": Row("ShareGroupHeartbeat", "READ Group; DESCRIBE Topic", groups.share_heartbeat),
    "share_group_describe": Row("ShareGroupDescribe", "DESCRIBE Group; DESCRIBE Topic",
                                share_groups.describe, _EACH),
    "describe_share_group_offsets": Row("DescribeShareGroupOffsets", "DESCRIBE Group; DESCRIBE Topic",
                                        share_groups.describe_offsets, "an error for each; left out of a list of all"),
    "alter_share_group_offsets": Row("AlterShareGroupOffsets", "READ Group; READ Topic",
                                     share_groups.alter_offsets, _EACH),
    "delete_share_group_offsets": Row("DeleteShareGroupOffsets", "DELETE Group; READ Topic",
                                      share_groups.delete_offsets, _EACH),
    "share_fetch": Row("ShareFetch", "READ Group; READ Topic", groups.named_group(Op.READ),
                       "an error, or an error for each topic"),
    "share_acknowledge": Row("ShareAcknowledge", "READ Group; READ Topic", groups.named_group(Op.READ),
                             "an error, or an error for each topic"),
    "heartbeat_share_group": Row("heartbeat_share_group", "READ Group; DESCRIBE Topic", groups.consumer_heartbeat),
    "fetch_share_group": Row("fetch_share_group", "READ Group; READ Topic", share_groups.native_records, _EACH),
    "acknowledge_share_group": Row("acknowledge_share_group", "READ Group; READ Topic",
                                   share_groups.native_records, _EACH),
    "reset_share_group": Row("reset_share_group", "READ Group; READ Topic", share_groups.reset, _EACH),
    "alter_groups": Row("alter_groups", "ALTER_CONFIGS Group", share_groups.alter_groups, _EACH),
    "initialize_share_group_state": _peers("InitializeShareGroupState"),
    "read_share_group_state": _peers("ReadShareGroupState"),
    "write_share_group_state": _peers("WriteShareGroupState"),
    "delete_share_group_state": _peers("DeleteShareGroupState"),
    "read_share_group_state_summary": _peers("ReadShareGroupStateSummary"),
    # streams groups
    "streams_group_heartbeat": Row("StreamsGroupHeartbeat", "READ Group; DESCRIBE Topic; for internal topics CREATE "
                                   "Cluster or CREATE Topic", streams_groups.heartbeat,
                                   "an error; without CREATE, internal topics are not created"),
    "streams_group_describe": Row("StreamsGroupDescribe", "DESCRIBE Group; DESCRIBE Topic",
                                  streams_groups.describe, _EACH),
    "streams_group_topology_description_update": _group("StreamsGroupTopologyDescriptionUpdate", Op.READ),
    # transactions and producers
    "init_producer_id": Row("InitProducerId", "WRITE TransactionalId; without one, IDEMPOTENT_WRITE Cluster or WRITE "
                            "on some Topic", transactions.init_producer_id),
    "add_partitions_to_txn": Row("AddPartitionsToTxn", "WRITE TransactionalId and WRITE Topic up to version 3; "
                                 "CLUSTER_ACTION Cluster from version 4 on", transactions.add_partitions, _EACH),
    "add_offsets_to_txn": Row("AddOffsetsToTxn", "WRITE TransactionalId; READ Group",
                              transactions.named_transactional_id(with_group=True)),
    "txn_offset_commit": Row("TxnOffsetCommit", "WRITE TransactionalId; READ Group; READ Topic",
                             transactions.commit_offsets, _EACH),
    "end_txn": Row("EndTxn", "WRITE TransactionalId", transactions.named_transactional_id()),
    "write_txn_markers": Row("WriteTxnMarkers", "ALTER Cluster or CLUSTER_ACTION Cluster", transactions.write_markers),
    "describe_transactions": Row("DescribeTransactions", "DESCRIBE TransactionalId; DESCRIBE Topic",
                                 transactions.describe, "an error for each; topics are left out"),
    "list_transactions": Row("ListTransactions", "DESCRIBE TransactionalId", transactions.list_all, _HIDDEN),
    "describe_producers": Row("DescribeProducers", "READ Topic",
        topics.each_partition(Op.READ, DescribedProducers, DescribeProducersResponse), _EACH),
    "describe_producer": Row("describe_producer", "READ Topic",
        topics.each_partition(Op.READ, ProducerPosition, DescribeProducerResponse), _EACH),
    # settings
    "describe_configs": Row("DescribeConfigs", "DESCRIBE_CONFIGS on the Topic or Group; on the Cluster for others",
        cluster.each_resource(Op.DESCRIBE_CONFIGS, DescribedConfigs, DescribeConfigsResponse), _EACH),
    "alter_configs": Row("AlterConfigs, IncrementalAlterConfigs", "ALTER_CONFIGS on the Topic or Group; on the Cluster "
                         "for others", cluster.each_resource(Op.ALTER_CONFIGS, AlteredConfigs, AlterConfigsResponse),
                         _EACH),
    "list_config_resources": _cluster("ListConfigResources", Op.DESCRIBE_CONFIGS),
    # the cluster
    "describe_cluster": Row("DescribeCluster", "nothing; for the operations on the cluster DESCRIBE Cluster",
                            cluster.describe_cluster, ""),
    "describe_quorum": _cluster("DescribeQuorum", Op.DESCRIBE),
    "update_features": _cluster("UpdateFeatures", Op.ALTER),
    "unregister_broker": _cluster("UnregisterBroker", Op.ALTER),
    "unregister_controller": _cluster("UnregisterController", Op.ALTER),
    "add_raft_voter": _cluster("AddRaftVoter", Op.ALTER),
    "remove_raft_voter": _cluster("RemoveRaftVoter", Op.ALTER),
    # security
    "describe_acls": _cluster("DescribeAcls", Op.DESCRIBE),
    "create_acls": _cluster("CreateAcls", Op.ALTER),
    "delete_acls": _cluster("DeleteAcls", Op.ALTER),
    "describe_client_quotas": _cluster("DescribeClientQuotas", Op.DESCRIBE_CONFIGS),
    "alter_client_quotas": _cluster("AlterClientQuotas", Op.ALTER_CONFIGS),
    "describe_user_scram_credentials": _cluster("DescribeUserScramCredentials", Op.DESCRIBE),
    "alter_user_scram_credentials": _cluster("AlterUserScramCredentials", Op.ALTER),
    "create_delegation_token": Row("CreateDelegationToken", "for another owner, CREATE_TOKENS User",
                                   tokens.create),
    "renew_delegation_token": _open("RenewDelegationToken", "nothing: for owners and renewers"),
    "expire_delegation_token": _open("ExpireDelegationToken", "nothing: for owners and renewers"),
    "describe_delegation_token": Row("DescribeDelegationToken", "for tokens of others, DESCRIBE "
                                     "DelegationToken or DESCRIBE_TOKENS User", tokens.describe, _HIDDEN),
    # the connection
    "hello": _open("hello"),
    "api_versions": _open("ApiVersions"),
    "sasl_handshake": _open("SaslHandshake"),
    "sasl_authenticate": _open("SaslAuthenticate"),
    "authenticate": _open("authenticate"),
}
# fmt: on

#: Paths of HTTP that need a right, which `net.http.access` checks: an operation on the cluster.
HTTP_PATHS: Mapping[str, Op] = {"/metrics": Op.DESCRIBE}
