"""Notes that a query leaves at the broker for its next run: a number and a text, as the committed offset of a group."""

from dataclasses import dataclass

from warmlog.client.errors import broker_error
from warmlog.pipeline.cluster import ClusterConnection
from warmlog.protocol.groups import (
    NO_OFFSET,
    CoordinatorType,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchGroup,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetToCommit,
)
from warmlog.protocol.partitions import TopicPartition

METADATA_BYTES = 4000  # metadata bytes of one committed offset; offset.metadata.max.bytes is 4096 by default


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """A committed offset, of `topic_partition`, and its metadata."""

    number: int = NO_OFFSET
    topic_partition: TopicPartition = ("", 0)
    metadata: str = ""


def last_note(cluster: ClusterConnection, group: str, *, is_stable: bool = False) -> Note:
    """Return the note of a group with the highest number. Raises PipelineError.

    `is_stable`: wait for a transaction that may replace it.
    """

    def check(reply: OffsetFetchResponse) -> None:
        (fetched,) = reply.groups
        for error in (fetched.error, *[each.error for each in fetched.partitions]):
            if error:
                raise broker_error(error, None, about=group)

    request = OffsetFetchRequest(groups=(OffsetFetchGroup(group=group),), require_stable=is_stable)
    (fetched,) = cluster.ask_coordinator(CoordinatorType.GROUP, group, request, OffsetFetchResponse, check).groups
    notes = [
        Note(number=each.offset, topic_partition=(each.topic, each.partition), metadata=each.metadata or "")
        for each in fetched.partitions
    ]
    return max(notes, key=lambda note: note.number, default=Note())


def write_note(cluster: ClusterConnection, group: str, note: Note) -> None:
    """Commit a note. Raises PipelineError."""
    topic, partition = note.topic_partition
    offset = OffsetToCommit(topic=topic, partition=partition, offset=note.number, metadata=note.metadata)

    def check(reply: OffsetCommitResponse) -> None:
        (committed,) = reply.partitions
        if committed.error:
            raise broker_error(committed.error, committed.message, about=group)

    request = OffsetCommitRequest(group=group, partitions=(offset,))
    cluster.ask_coordinator(CoordinatorType.GROUP, group, request, OffsetCommitResponse, check)
