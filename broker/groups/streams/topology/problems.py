"""What is wrong with a topology, or with the topics that it needs."""

from typing import NamedTuple

from warmlog.broker.groups.streams.status import Status


class InvalidTopologyError(Exception):
    """The topology makes no sense, whatever topics there are (Kafka's StreamsInvalidTopologyException)."""


class TopicProblem(NamedTuple):
    """Why the tasks of a topology cannot run: as a status of the group, with its explanation."""

    status: Status
    detail: str


class TopicsError(Exception):
    """The topics that exist do not fit the topology."""

    def __init__(self, status: Status, detail: str) -> None:
        super().__init__(detail)
        self.problem = TopicProblem(status, detail)


def incorrectly_partitioned(detail: str) -> TopicsError:
    """Return the error for topics with a wrong number of partitions."""
    return TopicsError(Status.INCORRECTLY_PARTITIONED_TOPICS, detail)
