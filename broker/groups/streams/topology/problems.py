"""Problems of a topology, or of the topics that it needs."""

from typing import NamedTuple

from warmlog.broker.groups.streams.status import Status


class InvalidTopologyError(Exception):
    """The topology is invalid regardless of the topics (Kafka's StreamsInvalidTopologyException)."""


class TopicProblem(NamedTuple):
    """The reason why the tasks of a topology cannot run, as a group status with an explanation."""

    status: Status
    detail: str


class TopicsError(Exception):
    """The existing topics do not fit the topology."""

    def __init__(self, status: Status, detail: str) -> None:
        super().__init__(detail)
        self.problem = TopicProblem(status, detail)


def incorrectly_partitioned(detail: str) -> TopicsError:
    """Return the error for topics with a wrong number of partitions."""
    return TopicsError(Status.INCORRECTLY_PARTITIONED_TOPICS, detail)
