"""Positions of streams and tables: the next offset to read, and the log to which it belongs.

    {"orders": {"topicId": "AAAAAAAAAAAAAAAAAAAABw",
                "partitions": {"0": {"offset": 1200, "leaderEpoch": 3}, "1": {"offset": 994, "leaderEpoch": 3}}}}
    {"orders": {"0": 1200, "1": 994}}                       as written by version 0.1, still read
    {"orders": {..., "start": {"topicId": ..., "partitions": ...}}}    start of a query's first micro-batch

The topic id distinguishes a topic from a deleted one of the same name. When the position was recorded, no record before
the offset had a higher leader epoch: if a record has one now, the log was truncated and written again (KIP-320).

Spark's checkpoint has the end of each micro-batch, and each begins at the end of the previous one. After a restart,
Spark queries the source again for the start of the first micro-batch, although "earliest" or "latest" may have moved.
The end of the first micro-batch therefore also contains its start.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from warmlog.pipeline.source.ranges import Extent
from warmlog.pipeline.source.reading import deleted, recreated
from warmlog.protocol.partitions import TopicPartition

OffsetsForm: TypeAlias = dict[str, Any]
Positions: TypeAlias = Mapping[TopicPartition, "Position"]
# Called with a description of the loss and its number of offsets; raises DataLossError, or logs and counts them.
Lose: TypeAlias = Callable[[str, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """The next offset to read of a partition. `topic_id`, `leader_epoch`: None if unknown."""

    offset: int
    topic_id: str | None = None
    leader_epoch: int | None = None


def position_at(extent: Extent, offset: int, before: Position | None = None) -> Position:
    """Return the position at an offset; `before` itself if offset and topic are the same, whatever the leader epoch."""
    if before is not None and (before.offset, before.topic_id) == (offset, extent.topic_id):
        return before
    return Position(offset=offset, topic_id=extent.topic_id, leader_epoch=extent.epoch_before(offset))


def continue_at(extent: Extent, position: Position, end: int, lose: Lose) -> int:
    """Return the offset at which to continue reading a log that ends at `end`; report losses to `lose`."""
    name = f"{extent.topic}-{extent.partition}"
    if is_recreated(extent, position):
        lose(f"{name}: {recreated(position.topic_id, extent.topic_id)}", 0)
        return extent.start_offset
    offset, start = position.offset, extent.start_offset
    if offset < start:
        lose(f"{name}: {deleted(offset, start)}", start - offset)
        return start
    rewritten = _rewritten_from(extent, position, end)
    if rewritten is not None:
        lose(f"{name}: offsets {rewritten} to {offset - 1} were truncated and written again", offset - rewritten)
        return rewritten
    if offset > end:
        lose(f"{name}: offset {offset} no longer exists: the log ends at {end}", offset - end)
        return end
    return offset


def is_recreated(extent: Extent, position: Position) -> bool:
    """Whether the topic was recreated since the position was recorded; False if either id is unknown."""
    return None not in {extent.topic_id, position.topic_id} and extent.topic_id != position.topic_id


def _rewritten_from(extent: Extent, position: Position, end: int) -> int | None:
    """Return the first offset before the position that has a later leader epoch; None if there is none.

    Epochs increase with offsets, so a bisection finds it. A position whose last record was compacted away is trusted.
    """
    epoch, last = position.leader_epoch, min(position.offset, end) - 1
    newest = extent.epoch_before(end)
    if epoch is None or newest is None or newest <= epoch or last < extent.start_offset:
        return None
    batch = extent.batch_at(last)
    if batch is None or batch.base_offset > last or batch.leader_epoch <= epoch:
        return None
    first, later = extent.start_offset, batch.base_offset
    while first < later:  # the batch at `later` has a later epoch; no batch before `first` has one
        middle = (first + later) // 2
        header = extent.batch_at(middle)
        if header is None or header.leader_epoch > epoch:
            later = middle
        else:
            first = header.next_offset
    return later


def positions_of(form: OffsetsForm) -> dict[TopicPartition, Position]:
    """Parse offsets from a checkpoint."""
    positions: dict[TopicPartition, Position] = {}
    for topic, listed in form.items():
        partitions = listed.get("partitions")
        if partitions is None:
            positions |= {(topic, int(partition)): Position(offset=offset) for partition, offset in listed.items()}
            continue
        for partition, stored in partitions.items():
            position = Position(offset=stored["offset"], leader_epoch=stored.get("leaderEpoch"))
            positions[topic, int(partition)] = replace(position, topic_id=listed.get("topicId"))
    return positions


def start_of(form: OffsetsForm) -> OffsetsForm | None:
    """Return the start of the micro-batch that ends here; None unless it is a query's first."""
    starts = {topic: listed["start"] for topic, listed in form.items() if "start" in listed}
    return starts or None


def with_start(form: OffsetsForm, start: OffsetsForm) -> OffsetsForm:
    """Return the end of a query's first micro-batch, which begins at `start`."""
    return {topic: {**listed, "start": start[topic]} if topic in start else listed for topic, listed in form.items()}


def form_of(positions: Positions) -> OffsetsForm:
    """Format offsets for a checkpoint."""
    form: OffsetsForm = {}
    for (topic, partition), position in sorted(positions.items()):
        listed = form.setdefault(topic, {"partitions": {}})
        if position.topic_id is not None:
            listed["topicId"] = position.topic_id
        entry = listed["partitions"][str(partition)] = {"offset": position.offset}
        if position.leader_epoch is not None:
            entry["leaderEpoch"] = position.leader_epoch
    return form
