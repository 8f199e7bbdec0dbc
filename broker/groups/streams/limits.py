"""Settings that streams groups depend on."""

from dataclasses import dataclass

from warmlog.protocol.kafka.messages.groups.streams import KeyValue

STANDBY_REPLICAS = "num.standby.replicas"
RACK_TAGS = "rack.aware.assignment.tags"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsLimits:
    """Settings of one group (`group.streams.*`, or the group's own). Times are in ms.

    task_offset_interval_ms: how often members report the offsets of their tasks.
    acceptable_recovery_lag: the largest lag, in offsets, of a replica that counts as caught up.
    rack_tags: client tags by which an assignor may spread replicas.
    """

    session_timeout_ms: int
    heartbeat_interval_ms: int
    assignment_interval_ms: int  # minimum interval between computations of the target assignment
    initial_rebalance_delay_ms: int  # delay from the first member of an empty group to its first target assignment
    max_size: int  # members
    standby_replicas: int
    task_offset_interval_ms: int = 60_000  # Kafka's defaults: there are no warm-up tasks yet (4.4)
    acceptable_recovery_lag: int = 10_000
    rack_tags: tuple[str, ...] = ()

    @property
    def assignment_configs(self) -> tuple[KeyValue, ...]:
        """The assignor's settings, as stored with the group's epoch (streamsGroupAssignmentConfigs)."""
        configs = [KeyValue(key=STANDBY_REPLICAS, value=str(self.standby_replicas))]
        if self.rack_tags:
            configs.append(KeyValue(key=RACK_TAGS, value=",".join(self.rack_tags)))
        return tuple(configs)
