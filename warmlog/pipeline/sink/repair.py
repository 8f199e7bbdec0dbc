"""Copy the rows of transactions that were aborted although their commit was decided, from the log.

A transaction times out if the driver was killed between the decision and the commit and is not restarted soon enough.
Its records are still in the log, invisible to readers of committed records. They are copied in a separate transaction,
which also replaces the decision. So they are committed once, even if the copying is repeated.
"""

from collections.abc import Iterator, Sequence

from warmlog.client.errors import broker_error
from warmlog.pipeline.cluster import ClusterConnection
from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.offsets import fetch_once
from warmlog.pipeline.sink.attempts import FETCH_BYTES, Identity
from warmlog.pipeline.sink.decisions import Decision, OpenTransaction, nothing_left
from warmlog.pipeline.sink.sender import BatchSender, SinkBatch
from warmlog.protocol.groups import CoordinatorType, OffsetToCommit
from warmlog.protocol.records.batch import headers
from warmlog.protocol.records.builder import build_batch
from warmlog.protocol.records.layout import CODEC_MASK, Codec
from warmlog.protocol.records.reader import Record, decode_batch
from warmlog.protocol.transactions import TxnOffsetCommitRequest, TxnOffsetCommitResponse

BUFFER_BYTES = 16 << 20


def copy_lost(
    cluster: ClusterConnection, identity: Identity, group: str, decision: Decision, lost: Sequence[OpenTransaction]
) -> None:
    """Write the rows of the lost transactions under an identity, and the note that completes the decision.

    The caller commits. Raises PipelineError, also if the log no longer has all of the rows.
    """
    sender = BatchSender(cluster, identity, Codec.NONE, BUFFER_BYTES)
    owners = {(each.producer_id, each.producer_epoch) for each in lost}
    for (topic, partition), first in decision.first_offsets.items():
        sequence = 0
        for codec, records in _batches(cluster, topic, partition, first, owners):
            encoded = build_batch(
                [(record.timestamp, record.key, record.value, record.headers) for record in records],
                compression=codec,
                producer_id=identity.producer_id,
                producer_epoch=identity.producer_epoch,
                base_sequence=sequence,
                attributes=identity.attributes,
            )
            batch = SinkBatch(
                topic=topic, partition=partition, base_sequence=sequence, count=len(records), encoded=encoded
            )
            sender.send(batch)
            sequence += len(records)
    sender.flush()
    wanted = sum(each.rows for each in lost)
    if sender.tally.rows != wanted:
        raise PipelineError(
            f"{group}: transactions were aborted after the decision to commit them, and of their {wanted} rows the log"
            f" has only {sender.tally.rows}. Delete the group {group} to write all of the micro-batch again, some rows"
            " for a second time"
        )
    _note(cluster, identity, group, decision)


def _batches(
    cluster: ClusterConnection, topic: str, partition: int, offset: int, owners: set[tuple[int, int]]
) -> Iterator[tuple[Codec, list[Record]]]:
    """Yield the batches of these producers, with their compression."""
    while True:
        part = fetch_once(cluster, topic, partition, offset, max_bytes=FETCH_BYTES)
        batches = list(headers(part.records))
        for at, header in batches:
            if (header.producer_id, header.producer_epoch) in owners and not header.is_control:
                yield Codec(header.attributes & CODEC_MASK), list(decode_batch(part.records, at, header))
        if not batches:
            return
        offset = batches[-1][1].next_offset


def _note(cluster: ClusterConnection, identity: Identity, group: str, decision: Decision) -> None:
    note = nothing_left(decision)
    assert identity.transactional_id is not None, "the note is part of a transaction"
    request = TxnOffsetCommitRequest(
        transactional_id=identity.transactional_id,
        group=group,
        producer_id=identity.producer_id,
        producer_epoch=identity.producer_epoch,
        partitions=(
            OffsetToCommit(
                topic=note.topic_partition[0],
                partition=note.topic_partition[1],
                offset=note.number,
                metadata=note.metadata,
            ),
        ),
    )

    def check(reply: TxnOffsetCommitResponse) -> None:
        (committed,) = reply.partitions
        if committed.error:
            raise broker_error(committed.error, committed.message, about=group)

    cluster.ask_coordinator(CoordinatorType.GROUP, group, request, TxnOffsetCommitResponse, check)
