"""Decisions of a driver to commit the transactions of a write, stored as notes in the group of the query.

The metadata of the note is the number of further notes, and transactions and positions as compressed JSON:

    {"transactions": [[task, producer id, producer epoch, rows], ...], "topics": {topic: {partition: first offset}}}

Text that exceeds the metadata of one note is in the groups `-names-1` and so on, written before the decision.
"""

import json
import zlib
from base64 import b85decode, b85encode
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from warmlog.pipeline.cluster import ClusterConnection
from warmlog.pipeline.sink.notes import METADATA_BYTES, Note, last_note, write_note
from warmlog.protocol.groups import NO_OFFSET
from warmlog.protocol.partitions import TopicPartition

FirstOffsets: TypeAlias = dict[TopicPartition, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTransaction:
    """The open transaction of a task. `first_offsets`: first offset of its records in each partition."""

    task: int
    producer_id: int
    producer_epoch: int
    rows: int = 0
    first_offsets: FirstOffsets = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The last decided write. `first_offsets`: the offset in each partition before which the write has no records.

    `transactions`: None if the decision is from an earlier version of warmlog, which did not name them.
    """

    number: int = NO_OFFSET
    transactions: tuple[OpenTransaction, ...] | None = ()
    first_offsets: FirstOffsets = field(default_factory=dict)
    topic_partition: TopicPartition = ("", 0)


def decided_number(cluster: ClusterConnection, group: str) -> int:
    """Return the number of the last write decided in a group. Raises PipelineError."""
    return last_note(cluster, group).number


def read_decision(cluster: ClusterConnection, group: str, *, is_stable: bool = False) -> Decision:
    """Return the last decision in a group. Raises PipelineError. `is_stable`: see `last_note`."""
    note = last_note(cluster, group, is_stable=is_stable)
    if note.number == NO_OFFSET:
        return Decision()
    count, _, text = note.metadata.partition(";")
    if not text:
        return Decision(number=note.number, transactions=None, topic_partition=note.topic_partition)
    for at in range(1, int(count) + 1):
        text += last_note(cluster, _names_group(group, at)).metadata
    transactions, first_offsets = _decode(text)
    return Decision(
        number=note.number, transactions=transactions, first_offsets=first_offsets, topic_partition=note.topic_partition
    )


def write_decision(
    cluster: ClusterConnection, group: str, number: int, transactions: Sequence[OpenTransaction]
) -> None:
    """Store the decision to commit the transactions of a write. Raises PipelineError."""
    names, topic_partition = _encode(transactions), next(iter(transactions[0].first_offsets))
    first, *more = (names[at : at + METADATA_BYTES] for at in range(0, len(names), METADATA_BYTES))
    for at, text in enumerate(more, start=1):
        write_note(
            cluster, _names_group(group, at), Note(number=number, topic_partition=topic_partition, metadata=text)
        )
    write_note(cluster, group, Note(number=number, topic_partition=topic_partition, metadata=f"{len(more)};{first}"))


def nothing_left(decision: Decision) -> Note:
    """Return the note that replaces a decision when all of its rows are committed."""
    return Note(number=decision.number, topic_partition=decision.topic_partition, metadata=f"0;{_encode(())}")


def _names_group(group: str, at: int) -> str:
    return f"{group}-names-{at}"


def _encode(transactions: Sequence[OpenTransaction]) -> str:
    """Encode transactions as text: five to ten characters for each."""
    topics: dict[str, dict[int, int]] = {}
    for transaction in transactions:
        for (topic, partition), offset in transaction.first_offsets.items():
            partitions = topics.setdefault(topic, {})
            partitions[partition] = min(partitions.get(partition, offset), offset)
    listed = [(each.task, each.producer_id, each.producer_epoch, each.rows) for each in transactions]
    text = json.dumps({"transactions": listed, "topics": topics}, separators=(",", ":"))
    return b85encode(zlib.compress(text.encode(), 9)).decode()


def _decode(text: str) -> tuple[tuple[OpenTransaction, ...], FirstOffsets]:
    given = json.loads(zlib.decompress(b85decode(text)))
    transactions = tuple(
        OpenTransaction(task=task, producer_id=owner, producer_epoch=epoch, rows=rows)
        for task, owner, epoch, rows in given["transactions"]
    )
    first_offsets = {
        (topic, int(partition)): offset
        for topic, partitions in given["topics"].items()
        for partition, offset in partitions.items()
    }
    return transactions, first_offsets
