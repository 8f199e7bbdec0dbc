"""Statuses of a streams group, which responses to heartbeats carry with an explanation.

Source: Kafka's StreamsGroupHeartbeatResponse.Status (4.4.0).
"""

from enum import IntEnum


class Status(IntEnum):
    """A reason why members get no tasks, or a request to members."""

    STALE_TOPOLOGY = 0
    MISSING_SOURCE_TOPICS = 1
    INCORRECTLY_PARTITIONED_TOPICS = 2
    MISSING_INTERNAL_TOPICS = 3
    SHUTDOWN_APPLICATION = 4
    ASSIGNMENT_DELAYED = 5
    MISSING_CLIENT_TAGS = 6
