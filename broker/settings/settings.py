"""The broker's static settings: names, types and defaults. `loading.py` has their sources, and checks them together.

A field's name is the setting's name with underscores (`log_segment_bytes` is `log.segment.bytes`). Its environment
variable is the field's name in upper case with the prefix WARMLOG_, written once for settings that begin with
`warmlog.`. Names, meanings and defaults are Kafka's (source: org.apache.kafka.server.config, ServerLogConfigs,
SocketServerConfigs) where Kafka has the setting; a comment explains each default that differs.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from warmlog.broker.settings.types import (
    MAX_INT32,
    BufferBytes,
    Bytes,
    CleanupPolicy,
    ClientMechanism,
    Compression,
    Count,
    Delay,
    GzipLevel,
    Hours,
    IndexBytes,
    Lz4Level,
    Messages,
    MigrationPolicy,
    Millis,
    PositiveDelay,
    PositiveMillis,
    Ratio,
    ReplicaSelector,
    Retention,
    SaslMechanism,
    SegmentBytes,
    TimestampType,
    Whole,
    ZstdLevel,
    parts,
)
from warmlog.protocol.records.record import MAX_INT64

MS_PER_MINUTE = 60_000
MAX_FLUSH_CHECK_MS = 1_000  # the longest delay after `flush.ms`
MIN_FLUSH_CHECK_MS = 50  # a check of a thousand logs takes a fiftieth of this time
MS_PER_HOUR = 3_600_000

_FULL_TRANSACTIONS = 50  # with the maximum of partitions each: about 100 MB


class Settings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Every setting of the broker as configured; properties resolve settings that have aliases."""

    # identity and topics
    node_id: Annotated[int, Meta(ge=0, le=MAX_INT32)] = 1
    log_dirs: str | None = None  # separated by commas
    log_dir: str = "data"
    num_partitions: Count = 1
    auto_create_topics_enable: bool = True
    delete_topic_enable: bool = True
    min_insync_replicas: Count | None = None  # of acks=all; see `default_min_isr` in `settings.topics`

    # listeners
    listeners: str = ""  # empty: `kafka` and `native`, at the addresses of the command line
    advertised_listeners: str = ""
    listener_security_protocol_map: str = ""  # names of protocols are those of Kafka's default
    inter_broker_listener_name: str = ""  # the first listener for Kafka's protocol
    warmlog_native_listener_names: str = "NATIVE"
    ssl_keystore_type: str = "PEM"  # Kafka: JKS, which is not supported
    ssl_keystore_location: str = ""
    ssl_keystore_certificate_chain: str = ""
    ssl_keystore_key: str = ""
    ssl_key_password: str = ""
    ssl_truststore_type: str = "PEM"  # Kafka: JKS, which is not supported
    ssl_truststore_location: str = ""
    ssl_truststore_certificates: str = ""
    ssl_client_auth: Literal["none", "requested", "required"] = "none"
    ssl_enabled_protocols: str = "TLSv1.2,TLSv1.3"
    ssl_cipher_suites: str = ""  # OpenSSL's choice
    ssl_principal_mapping_rules: str = "DEFAULT"

    # authentication
    sasl_enabled_mechanisms: str = "SCRAM-SHA-256,SCRAM-SHA-512"  # Kafka: GSSAPI, which is not supported
    sasl_oauthbearer_jwks_endpoint_url: str = ""
    sasl_oauthbearer_jwks_endpoint_refresh_ms: PositiveMillis = 3_600_000
    sasl_oauthbearer_jwks_endpoint_retry_backoff_ms: PositiveMillis = 100
    sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms: PositiveMillis = 10_000
    sasl_oauthbearer_expected_issuer: str = ""
    sasl_oauthbearer_expected_audience: str = ""
    sasl_oauthbearer_clock_skew_seconds: Delay = 30
    sasl_oauthbearer_sub_claim_name: str = "sub"
    sasl_oauthbearer_scope_claim_name: str = "scope"
    sasl_server_max_receive_size: Annotated[int, Meta(ge=1024, le=MAX_INT32)] = 512 << 10
    connection_failed_authentication_delay_ms: Delay = 100
    connections_max_reauth_ms: Millis = 0
    sasl_mechanism_inter_broker_protocol: SaslMechanism = "SCRAM-SHA-512"  # Kafka: GSSAPI
    warmlog_inter_broker_user: str = ""
    warmlog_inter_broker_password_file: str = ""
    warmlog_sasl_oauthbearer_ca_file: str = ""  # the system's
    warmlog_sasl_plain_without_tls: bool = False
    warmlog_sasl_timeout_ms: PositiveMillis = 10_000

    delegation_token_secret_key: str = ""  # there are no delegation tokens
    delegation_token_max_lifetime_ms: PositiveMillis = 7 * 24 * 3_600_000
    delegation_token_expiry_time_ms: PositiveMillis = 24 * 3_600_000
    delegation_token_expiry_check_interval_ms: PositiveMillis = 3_600_000

    # HTTP
    warmlog_http_security_protocol: Literal["PLAINTEXT", "SSL"] = "PLAINTEXT"
    warmlog_http_authentication: str = ""  # basic, bearer, certificate, separated by commas
    warmlog_http_authentication_without_tls: bool = False
    warmlog_ui: bool = True

    # authorization
    authorizer_class_name: Literal["", "org.apache.kafka.metadata.authorizer.StandardAuthorizer"] = ""
    super_users: str = ""  # separated by semicolons
    allow_everyone_if_no_acl_found: bool = False

    # a cluster
    warmlog_cluster_etcd: str = ""  # http://HOST:PORT,... or https:; empty: a standalone broker
    warmlog_cluster_etcd_ca_file: str = ""  # the system's
    warmlog_cluster_etcd_certificate_file: str = ""
    warmlog_cluster_etcd_key_file: str = ""
    warmlog_cluster_etcd_user: str = ""
    warmlog_cluster_etcd_password_file: str = ""
    warmlog_cluster_id: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,64}$")] = "warmlog"
    warmlog_cluster_mixed_security: bool = False
    warmlog_cluster_lease_ms: Annotated[int, Meta(ge=2_000, le=MAX_INT32)] = 6_000  # etcd's floor: 2 s
    broker_rack: str = ""
    default_replication_factor: Count = 1
    unclean_leader_election_enable: bool = False
    replica_selector_class: ReplicaSelector = ""  # consumers read from the leader
    replica_lag_time_max_ms: PositiveMillis = 30_000
    replica_fetch_max_bytes: Bytes = 1 << 20
    replica_fetch_min_bytes: Count = 1
    replica_fetch_response_max_bytes: Bytes = 10 << 20
    replica_fetch_wait_max_ms: Delay = 500
    leader_replication_throttled_rate: Annotated[int, Meta(ge=0, le=MAX_INT64)] = MAX_INT64
    follower_replication_throttled_rate: Annotated[int, Meta(ge=0, le=MAX_INT64)] = MAX_INT64
    num_replica_fetchers: Annotated[int, Meta(ge=1, le=64)] = 1
    auto_leader_rebalance_enable: bool = True
    leader_imbalance_check_interval_seconds: Count = 300
    leader_imbalance_per_broker_percentage: Annotated[int, Meta(ge=0, le=100)] = 10
    controlled_shutdown_enable: bool = True

    # the log
    log_segment_bytes: SegmentBytes = 1 << 30
    log_roll_ms: PositiveMillis | None = None
    log_roll_hours: Count = 168
    log_roll_jitter_ms: Millis | None = None
    log_roll_jitter_hours: Annotated[int, Meta(ge=0, le=MAX_INT32)] = 0
    log_index_size_max_bytes: IndexBytes = 10 << 20
    log_index_interval_bytes: Bytes = 4096
    message_max_bytes: Bytes = (1 << 20) + 12
    log_message_timestamp_type: TimestampType = "CreateTime"
    log_message_timestamp_before_max_ms: Millis = MAX_INT64
    log_message_timestamp_after_max_ms: Millis = 3_600_000
    compression_type: Compression = "producer"
    compression_gzip_level: GzipLevel = -1
    compression_lz4_level: Lz4Level = 9
    compression_zstd_level: ZstdLevel = 3
    log_preallocate: bool = False
    log_retention_ms: Retention | None = None
    log_retention_minutes: Hours | None = None
    log_retention_hours: Hours = 168
    log_retention_bytes: Retention = -1
    log_retention_check_interval_ms: PositiveMillis = 300_000
    log_initial_task_delay_ms: Millis = 30_000
    log_cleanup_policy: CleanupPolicy = "delete"
    log_cleaner_enable: bool = True
    log_cleaner_threads: Count = 1  # each runs a child process while it has work
    log_cleaner_backoff_ms: Millis = 15_000
    log_cleaner_dedupe_buffer_size: Annotated[int, Meta(ge=1 << 16, le=MAX_INT64)] = 128 << 20
    log_cleaner_io_buffer_size: Annotated[int, Meta(ge=0, le=MAX_INT32)] = 512 << 10
    log_cleaner_io_buffer_load_factor: Annotated[float, Meta(gt=0, le=1)] = 0.9
    log_cleaner_io_max_bytes_per_second: Annotated[float, Meta(gt=0)] = sys.float_info.max
    log_cleaner_min_cleanable_ratio: Ratio = 0.5
    log_cleaner_min_compaction_lag_ms: Millis = 0
    log_cleaner_max_compaction_lag_ms: PositiveMillis = MAX_INT64
    log_cleaner_delete_retention_ms: Millis = 86_400_000
    log_segment_delete_delay_ms: Millis = 60_000
    log_flush_interval_messages: Messages = MAX_INT64
    log_flush_interval_ms: Millis | None = None
    log_flush_scheduler_interval_ms: PositiveMillis = MAX_INT64
    num_recovery_threads_per_data_dir: Count = 2
    log_flush_offset_checkpoint_interval_ms: PositiveMillis = 60_000
    replica_alter_log_dirs_io_max_bytes_per_second: Annotated[int, Meta(ge=0, le=MAX_INT64)] = MAX_INT64
    producer_id_expiration_ms: PositiveMillis = 86_400_000
    producer_id_expiration_check_interval_ms: PositiveMillis = 600_000

    # groups
    # Kafka: 3,000, or 0 with the configuration that it ships. With 0, members that start together rebalance twice, and
    # partitions move 3 s later.
    group_initial_rebalance_delay_ms: Delay = 500
    group_min_session_timeout_ms: Delay = 6_000
    group_max_session_timeout_ms: Delay = 1_800_000
    group_max_size: Count = MAX_INT32
    group_consumer_session_timeout_ms: PositiveDelay = 45_000
    group_consumer_min_session_timeout_ms: PositiveDelay = 45_000
    group_consumer_max_session_timeout_ms: PositiveDelay = 60_000
    group_consumer_heartbeat_interval_ms: PositiveDelay = 5_000
    group_consumer_min_heartbeat_interval_ms: PositiveDelay = 5_000
    group_consumer_max_heartbeat_interval_ms: PositiveDelay = 15_000
    group_consumer_assignment_interval_ms: Delay = 1_000
    group_consumer_min_assignment_interval_ms: Delay = 0
    group_consumer_max_assignment_interval_ms: Delay = 15_000
    group_consumer_max_size: Count = MAX_INT32
    group_consumer_assignors: str = "uniform,range"  # separated by commas; the first is the default
    group_consumer_migration_policy: MigrationPolicy = "bidirectional"
    group_consumer_regex_refresh_interval_ms: PositiveDelay = 600_000
    group_share_delivery_count_limit: Annotated[int, Meta(ge=2, le=10)] = 5
    group_share_min_delivery_count_limit: Annotated[int, Meta(ge=2, le=5)] = 2
    group_share_max_delivery_count_limit: Annotated[int, Meta(ge=5, le=25)] = 10
    group_share_partition_max_record_locks: Annotated[int, Meta(ge=100, le=10_000)] = 2_000
    group_share_min_partition_max_record_locks: Annotated[int, Meta(ge=100, le=2_000)] = 100
    group_share_max_partition_max_record_locks: Annotated[int, Meta(ge=2_000, le=10_000)] = 4_000
    group_share_record_lock_duration_ms: Annotated[int, Meta(ge=1_000, le=3_600_000)] = 30_000
    group_share_min_record_lock_duration_ms: Annotated[int, Meta(ge=1_000, le=30_000)] = 15_000
    group_share_max_record_lock_duration_ms: Annotated[int, Meta(ge=30_000, le=3_600_000)] = 60_000
    group_share_max_share_sessions: Count = 2_000
    errors_deadletterqueue_auto_create_topics_enable: bool = False
    errors_deadletterqueue_topic_name_prefix: str = "dlq."
    offset_metadata_max_bytes: Bytes = 4096
    offsets_commit_timeout_ms: Count = 5_000
    offsets_retention_minutes: Count = 7 * 24 * 60
    offsets_retention_check_interval_ms: PositiveMillis = 600_000
    offsets_topic_num_partitions: Count = 50
    offsets_topic_replication_factor: Count = 3  # in a cluster
    offsets_topic_segment_bytes: SegmentBytes = 100 << 20

    # share groups
    group_share_session_timeout_ms: PositiveDelay = 45_000
    group_share_min_session_timeout_ms: PositiveDelay = 45_000
    group_share_max_session_timeout_ms: PositiveDelay = 60_000
    group_share_heartbeat_interval_ms: PositiveDelay = 5_000
    group_share_min_heartbeat_interval_ms: PositiveDelay = 5_000
    group_share_max_heartbeat_interval_ms: PositiveDelay = 15_000
    group_share_assignment_interval_ms: Delay = 1_000
    group_share_min_assignment_interval_ms: Delay = 0
    group_share_max_assignment_interval_ms: Delay = 15_000
    group_share_initialize_retry_interval_ms: PositiveDelay = 30_000
    group_share_max_size: Annotated[int, Meta(ge=1, le=1_000)] = 200
    group_share_assignors: str = "simple"  # Kafka's only one

    # streams groups
    group_streams_session_timeout_ms: PositiveDelay = 45_000
    group_streams_min_session_timeout_ms: PositiveDelay = 45_000
    group_streams_max_session_timeout_ms: PositiveDelay = 60_000
    group_streams_heartbeat_interval_ms: PositiveDelay = 5_000
    group_streams_min_heartbeat_interval_ms: PositiveDelay = 5_000
    group_streams_max_heartbeat_interval_ms: PositiveDelay = 15_000
    group_streams_assignment_interval_ms: Delay = 1_000
    group_streams_min_assignment_interval_ms: Delay = 0
    group_streams_max_assignment_interval_ms: Delay = 15_000
    group_streams_initial_rebalance_delay_ms: Delay = 3_000
    group_streams_max_size: Count = MAX_INT32
    group_streams_num_standby_replicas: Whole = 0
    group_streams_max_standby_replicas: Whole = 2
    group_streams_assignors: str = "sticky"  # Kafka's only one
    group_streams_rack_aware_assignment_tags: str = ""

    # the state of share groups
    share_coordinator_state_topic_num_partitions: Count = 50
    share_coordinator_state_topic_replication_factor: Count = 3  # in a cluster
    share_coordinator_state_topic_min_isr: Count = 2
    share_coordinator_state_topic_segment_bytes: SegmentBytes = 100 << 20
    share_coordinator_state_topic_prune_interval_ms: Count = 300_000
    share_coordinator_snapshot_update_records_per_snapshot: Bytes = 500
    share_coordinator_cold_partition_snapshot_interval_ms: Count = 300_000
    share_coordinator_write_timeout_ms: Count = 5_000

    # transactions
    add_partitions_to_txn_retry_backoff_max_ms: Millis = 100
    add_partitions_to_txn_retry_backoff_ms: Count = 20
    transaction_abort_timed_out_transaction_cleanup_interval_ms: Count = 10_000
    transaction_max_timeout_ms: Count = 900_000
    transaction_partition_verification_enable: bool = True
    transaction_remove_expired_transaction_cleanup_interval_ms: Count = 3_600_000
    transaction_state_log_min_isr: Count = 2
    transaction_state_log_num_partitions: Count = 50
    transaction_state_log_replication_factor: Count = 3  # in a cluster
    transaction_state_log_segment_bytes: SegmentBytes = 100 << 20
    transactional_id_expiration_ms: Count = 7 * 24 * 3_600_000

    # the network
    socket_request_max_bytes: Annotated[int, Meta(ge=1024, le=MAX_INT32)] = 100 << 20
    socket_send_buffer_bytes: BufferBytes = (
        -1
    )  # Kafka: 100 KiB, which disables the kernel's autotuning and halves the throughput of bulk fetches
    socket_receive_buffer_bytes: BufferBytes = -1  # the same
    socket_listen_backlog_size: Count = 4096  # Kafka: 50, which resets some of 200 simultaneous connections
    max_connections: Count = MAX_INT32
    max_connections_per_ip: Count = MAX_INT32
    max_connections_per_ip_overrides: str = ""
    max_connection_creation_rate: Count = MAX_INT32
    quota_window_num: Annotated[int, Meta(ge=1, le=100)] = 11
    quota_window_size_seconds: Annotated[int, Meta(ge=1, le=3_600)] = 1
    controller_quota_window_num: Annotated[int, Meta(ge=1, le=MAX_INT32)] = 11
    controller_quota_window_size_seconds: Annotated[int, Meta(ge=1, le=MAX_INT32)] = 1
    connections_max_idle_ms: PositiveMillis = 600_000
    queued_max_request_bytes: Annotated[int, Meta(ge=-1, le=MAX_INT64)] = (
        256 << 20
    )  # Kafka: -1, unlimited; here all memory has a budget
    fetch_max_bytes: Annotated[int, Meta(ge=1024, le=MAX_INT32)] = 55 << 20
    max_incremental_fetch_session_cache_slots: Annotated[int, Meta(ge=0, le=MAX_INT32)] = 1000

    # warmlog's own
    warmlog_disk_reserve_bytes: Annotated[int, Meta(ge=-1, le=MAX_INT64)] = -1  # -1: by the size of the file system
    warmlog_open_files: Annotated[int, Meta(ge=-1, le=MAX_INT32)] = -1  # -1: half of the process's limit
    warmlog_index_search: Literal["warm", "plain"] = "warm"
    warmlog_gate: Literal["auto", "cachestat", "nowait", "off"] = "auto"  # off: for demonstrations
    warmlog_gate_threads: Annotated[int, Meta(ge=1, le=64)] = 4  # enough to keep a disk busy
    warmlog_gate_piece_bytes: Annotated[int, Meta(ge=4096, le=1 << 26)] = (
        512 << 10
    )  # a disk of 20 MB/s reads it in 25 ms; larger pieces delay other consumers, smaller ones cost seeks
    warmlog_gate_ahead_bytes: Annotated[int, Meta(ge=4096, le=1 << 30)] = 4 << 20  # several responses of one consumer
    warmlog_gate_drop_passed: bool = True
    warmlog_loop_stall_log_ms: Millis = 100  # the delay that people notice
    warmlog_records_walk: bool = True
    warmlog_loop_write_max_bytes: Bytes = 256 << 10  # a thread costs 0.4 ms more, writing these bytes 0.06
    warmlog_producers_max: Annotated[int, Meta(ge=1, le=MAX_INT32)] = 500_000  # about 0.2 KB each
    warmlog_producers_min_idle_ms: PositiveMillis = 3_600_000  # far above any client's delivery.timeout.ms
    warmlog_transactional_ids_max: Annotated[int, Meta(ge=1, le=MAX_INT32)] = 200_000  # about 0.7 KB each
    warmlog_transaction_partitions_max: Annotated[int, Meta(ge=1, le=100_000)] = 10_000  # each step of one is linear
    warmlog_connection_inflight_requests: Count = 1024
    warmlog_connection_names_max: Count = 100
    warmlog_reply_max_bytes: Annotated[int, Meta(ge=1 << 20, le=MAX_INT32)] = (
        100_000_000  # librdkafka's receive.message.max.bytes; Java's clients take 2 GB
    )
    warmlog_queued_max_reply_bytes: Annotated[int, Meta(ge=-1, le=MAX_INT64)] = 256 << 20
    warmlog_slow_peer_timeout_ms: PositiveMillis = 30_000
    warmlog_slow_peer_bytes: Annotated[int, Meta(ge=1, le=MAX_INT32)] = 16 << 10  # per second
    warmlog_stop_timeout_ms: Millis = 5_000  # container engines kill after 10 s, which includes closing the logs
    warmlog_audit_file: str = ""  # no audit log
    warmlog_audit_file_bytes: Annotated[int, Meta(ge=1 << 20, le=MAX_INT64)] = 50 << 20
    warmlog_audit_file_count: Annotated[int, Meta(ge=1, le=10_000)] = 10
    warmlog_audit_topic: bool = False  # collectors read the file; the topic costs its replicas
    warmlog_audit_topic_num_partitions: Annotated[int, Meta(ge=1, le=1_000)] = 3
    warmlog_audit_topic_retention_bytes: Annotated[int, Meta(ge=-1, le=MAX_INT64)] = 1 << 30  # of each partition
    warmlog_audit_topic_retention_ms: Annotated[int, Meta(ge=-1, le=MAX_INT64)] = 30 * 86_400_000
    warmlog_audit_topic_segment_bytes: Annotated[int, Meta(ge=2 << 20, le=MAX_INT32)] = 100 << 20
    warmlog_mirror_from: str = ""  # HOST:PORT,... of a cluster; empty: nothing is mirrored
    warmlog_mirror_topics: str = ".*"
    warmlog_mirror_groups: str = ""  # empty: no offsets are copied
    warmlog_mirror_delete_topics: bool = False
    warmlog_mirror_interval_ms: PositiveMillis = 5_000
    warmlog_mirror_max_bytes_per_second: Annotated[int, Meta(ge=0, le=MAX_INT64)] = 0  # no limit
    warmlog_mirror_security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    warmlog_mirror_ca_file: str = ""  # the system's
    warmlog_mirror_certificate_file: str = ""
    warmlog_mirror_key_file: str = ""
    warmlog_mirror_sasl_mechanism: ClientMechanism = "SCRAM-SHA-512"
    warmlog_mirror_user: str = ""
    warmlog_mirror_password_file: str = ""
    warmlog_mirror_token_file: str = ""  # for OAUTHBEARER
    warmlog_share_states_memory_max_bytes: Annotated[int, Meta(ge=1 << 20, le=MAX_INT64)] = 256 << 20
    warmlog_groups_memory_max_bytes: Bytes = 1 << 30
    warmlog_metrics_groups_max: Annotated[int, Meta(ge=1, le=MAX_INT32)] = 1_000  # clients choose the names
    warmlog_metrics_partitions: bool = False  # too many series for most installations
    warmlog_container: Literal["auto", "yes", "no"] = "auto"

    def effective(self, name: str) -> Any:
        """Return the value in force of a setting, resolved through its aliases (ms, minutes, hours).

        Raises AttributeError for an unknown name.
        """
        return getattr(self, _COMPUTED.get(name) or name.replace(".", "_"))

    #: Kafka's settings that have no effect here, as text by name.
    without_effect: Mapping[str, str] = msgspec.field(default_factory=dict)
    #: Settings of one listener, as text by name (`listener.name.NAME.…`).
    of_listeners: Mapping[str, str] = msgspec.field(default_factory=dict)

    @property
    def selects_by_rack(self) -> bool:
        """Whether consumers are sent to a replica in their rack: `replica.selector.class`."""
        return self.replica_selector_class != ""

    @property
    def max_transaction_partitions(self) -> int:
        """Maximum number of partitions of all open transactions together, and of offsets that they commit."""
        return _FULL_TRANSACTIONS * self.warmlog_transaction_partitions_max

    @property
    def segment_ms(self) -> int:
        """Return `log.roll.ms`, or `log.roll.hours` if it is not set."""
        return self.log_roll_hours * MS_PER_HOUR if self.log_roll_ms is None else self.log_roll_ms

    @property
    def segment_jitter_ms(self) -> int:
        """Return `log.roll.jitter.ms`, or `log.roll.jitter.hours` if it is not set."""
        return self.log_roll_jitter_hours * MS_PER_HOUR if self.log_roll_jitter_ms is None else self.log_roll_jitter_ms

    @property
    def retention_ms(self) -> int:
        """Return `log.retention.ms`, else `log.retention.minutes`, else `log.retention.hours`; -1 for no limit."""
        if self.log_retention_ms is not None:
            return self.log_retention_ms
        if self.log_retention_minutes is not None:
            return max(-1, self.log_retention_minutes * MS_PER_MINUTE)
        return max(-1, self.log_retention_hours * MS_PER_HOUR)

    @property
    def flush_ms(self) -> int:
        """Return `log.flush.interval.ms`, or `log.flush.scheduler.interval.ms` if it is not set."""
        return (
            self.log_flush_scheduler_interval_ms if self.log_flush_interval_ms is None else self.log_flush_interval_ms
        )

    @property
    def flush_check_ms(self) -> int:
        """Return the interval of checks for logs due by `flush.ms`: `log.flush.scheduler.interval.ms`.

        Kafka never checks if that is not set, regardless of `flush.ms`. Here the default is one second, or less for a
        smaller `log.flush.interval.ms`.
        """
        if self.log_flush_scheduler_interval_ms < MAX_INT64:
            return self.log_flush_scheduler_interval_ms
        return min(max(self.flush_ms, MIN_FLUSH_CHECK_MS), MAX_FLUSH_CHECK_MS)

    @property
    def data_dirs(self) -> str:
        """Return `log.dirs`, or `log.dir` if it is not set."""
        return self.log_dir if self.log_dirs is None else self.log_dirs

    @property
    def data_paths(self) -> tuple[Path, ...]:
        """Return the data directories; the first holds the metadata."""
        return tuple(map(Path, parts(self.data_dirs)))


# Settings that have aliases, and the property that resolves each.
_COMPUTED: Mapping[str, str] = {
    "log.dirs": "data_dirs",
    "log.flush.interval.ms": "flush_ms",
    "log.retention.ms": "retention_ms",
    "log.roll.jitter.ms": "segment_jitter_ms",
    "log.roll.ms": "segment_ms",
}

FIELDS: Mapping[str, msgspec.structs.FieldInfo] = {
    field.name.replace("_", "."): field
    for field in msgspec.structs.fields(Settings)
    if field.name not in {"without_effect", "of_listeners"}
}
