"""Transactions: Kafka's requests to the transaction coordinator, and markers from coordinators.

Source: kafka.server.KafkaApis (handleInitProducerIdRequest, handleAddPartitionsToTransactionRequest,
handleAddOffsetsToTxnRequest, handleEndTxnRequest, handleWriteTxnMarkersRequest, handleDescribeTransactionsRequest,
handleListTransactionsRequest).
"""

from collections.abc import Mapping, Sequence
from itertools import chain

import trio

from warmlog.broker.api.context import Context
from warmlog.broker.api.handler import Handler
from warmlog.broker.api.newcomers import Newcomers
from warmlog.broker.api.transactions.admission import OpenGuards, support_of
from warmlog.broker.coordinator.appends import LogProducer
from warmlog.broker.coordinator.runtime import CoordinatorRuntime
from warmlog.broker.groups.commits import Committer, OffsetCommits
from warmlog.broker.groups.shard import GroupShard
from warmlog.broker.groups.topic import TOPIC as OFFSETS_TOPIC
from warmlog.broker.metadata.topic import is_internal
from warmlog.broker.partitions.partitions import Partitions
from warmlog.broker.transactions.coordinator import InitRequest
from warmlog.broker.transactions.effects import Producer
from warmlog.broker.transactions.metadata import Metadata
from warmlog.broker.transactions.service import TransactionService
from warmlog.broker.transactions.verification import offset_commit_error
from warmlog.protocol.errors import ErrorCode, ProtocolError
from warmlog.protocol.groups import CommittedPartition, OffsetToCommit, PartitionEntry
from warmlog.protocol.kafka.messages.transactions import (
    AddedPartitions,
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    PartitionsOfTransaction,
)
from warmlog.protocol.partitions import TopicPartition
from warmlog.protocol.records.layout import NO_SEQUENCE
from warmlog.protocol.records.markers import Outcome
from warmlog.protocol.transactions import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    AddedPartition,
    DescribedTransaction,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    TransactionVersion,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)

FIRST_EPOCH = 0
FIRST_END_THAT_BUMPS = 5
PARTITIONS_PER_STEP = 1000
TRANSACTIONS_PER_STEP = 50  # transactions changed concurrently: each waits until its record is stored


class InvalidProducerError(ProtocolError):
    """A producer id without an epoch or the reverse, or an empty transactional id."""


class TransactionsApi:
    """Answers the requests of transactional producers and of tools that inspect transactions."""

    def __init__(
        self,
        transactions: TransactionService,
        groups: CoordinatorRuntime[GroupShard],
        commits: OffsetCommits,
        partitions: Partitions,
        newcomers: Newcomers,
    ) -> None:
        """Answer from the coordinator; `groups` is the runtime of the group coordinator, `commits` handles its offsets.

        `newcomers` limits new transactional ids.
        """
        self._newcomers = newcomers
        self._transactions = transactions
        self._coordinator = transactions.coordinator
        self._groups = groups
        self._commits = commits
        self._partitions = partitions
        self._ids = transactions.ids

    def handlers(self) -> Mapping[str, Handler]:
        """Return the handlers by API."""
        return {
            InitProducerIdRequest.api: self.init_producer_id,
            AddPartitionsToTxnRequest.api: self.add_partitions,
            AddOffsetsToTxnRequest.api: self.add_offsets,
            TxnOffsetCommitRequest.api: self.commit_offsets,
            EndTxnRequest.api: self.end,
            DescribeTransactionsRequest.api: self.describe,
        }

    async def init_producer_id(self, request: InitProducerIdRequest, context: Context) -> InitProducerIdResponse:
        """Return a producer id: the one of a transactional id with its next epoch, otherwise a new one.

        An idempotent producer gets a new id even if its request has one: it raises its epoch on its own, and sends this
        request only when its epochs are used up.
        """
        if (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == NO_PRODUCER_EPOCH):
            raise InvalidProducerError("a producer id and an epoch must be given together")
        if request.transactional_id == "":
            raise InvalidProducerError("a transactional id has at least one character")
        if request.transactional_id is None:
            return InitProducerIdResponse(producer_id=await self._ids.next(), producer_epoch=FIRST_EPOCH)
        if context.session.is_native:  # Kafka's clients have found the coordinator, which created its log
            error = await self._transactions.ensure()
            if error is not ErrorCode.NONE:
                return InitProducerIdResponse(error=error)
        expected = None
        if request.producer_id != NO_PRODUCER_ID:
            expected = Producer(request.producer_id, request.producer_epoch)
        if not self._coordinator.knows(request.transactional_id):
            self._newcomers.admit(context.session, request.transactional_id)
        answer = await self._transactions.initialize(
            InitRequest(
                transactional_id=request.transactional_id,
                timeout_ms=request.transaction_timeout_ms,
                expected=expected,
            )
        )
        return InitProducerIdResponse(
            producer_id=answer.producer_id, producer_epoch=answer.producer_epoch, error=answer.error
        )

    async def add_partitions(self, request: AddPartitionsToTxnRequest, context: Context) -> AddPartitionsToTxnResponse:
        """Add partitions to transactions, or verify them."""
        added: list[AddedPartitions] = []
        for start in range(0, len(request.transactions), TRANSACTIONS_PER_STEP):
            step = request.transactions[start : start + TRANSACTIONS_PER_STEP]
            results: list[AddedPartitions | None] = [None] * len(step)

            async def add(
                number: int, requested: PartitionsOfTransaction, results: list[AddedPartitions | None] = results
            ) -> None:
                results[number] = await self._add(requested, context, is_batched=request.is_batched)

            async with trio.open_nursery() as nursery:
                for number, requested in enumerate(step):
                    nursery.start_soon(add, number, requested)
            added += [result for result in results if result is not None]
        return AddPartitionsToTxnResponse(transactions=tuple(added))

    async def _add(self, requested: PartitionsOfTransaction, context: Context, *, is_batched: bool) -> AddedPartitions:
        partitions = await context.map(_topic_partition, requested.partitions)
        errors: Mapping[TopicPartition, ErrorCode] = await self._refused(partitions, context, is_client=not is_batched)
        producer = Producer(requested.producer_id, requested.producer_epoch)
        others = ErrorCode.OPERATION_NOT_ATTEMPTED  # all or none
        if not errors and requested.verify_only:
            errors = await self._verify(requested.transactional_id, producer, partitions, context)
        elif not errors:
            version = TransactionVersion.TV_2 if is_batched else TransactionVersion.TV_0
            added = self._transactions.add_partitions(requested.transactional_id, producer, partitions, version)
            others = await context.wait(added)

        def result(topic_partition: TopicPartition) -> AddedPartition:
            return AddedPartition(
                topic=topic_partition[0], partition=topic_partition[1], error=errors.get(topic_partition, others)
            )

        return AddedPartitions(
            transactional_id=requested.transactional_id, partitions=await context.map(result, partitions)
        )

    async def _verify(
        self, transactional_id: str, producer: Producer, partitions: Sequence[TopicPartition], context: Context
    ) -> Mapping[TopicPartition, ErrorCode]:
        errors: dict[TopicPartition, ErrorCode] = {}
        for start in range(0, len(partitions), PARTITIONS_PER_STEP):
            step = partitions[start : start + PARTITIONS_PER_STEP]
            errors.update(self._coordinator.verify_partitions(transactional_id, producer, step))
            await context.checkpoint()
        return errors

    async def _refused(
        self, partitions: Sequence[TopicPartition], context: Context, *, is_client: bool
    ) -> dict[TopicPartition, ErrorCode]:
        """Return the partitions that do not exist or that a client may not add, with the reasons."""
        refused = {}
        for topic, index in partitions:
            if is_client and is_internal(topic):
                refused[topic, index] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            elif (partition := self._partitions.get(topic, index)) is None:
                if not self._partitions.exists(topic, index):
                    refused[topic, index] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif partition.mirror_of is not None:
                refused[topic, index] = ErrorCode.POLICY_VIOLATION
            await context.checkpoint()
        return refused

    async def add_offsets(self, request: AddOffsetsToTxnRequest, _: Context) -> AddOffsetsToTxnResponse:
        """Add the partition in which a group's offsets are stored."""
        error = await self._groups.ensure()
        if error is ErrorCode.NONE:
            error = await self._transactions.add_partitions(
                request.transactional_id,
                Producer(request.producer_id, request.producer_epoch),
                [(OFFSETS_TOPIC, self._groups.partition_of(request.group))],
                TransactionVersion.TV_0,
            )
        return AddOffsetsToTxnResponse(error=error)

    async def commit_offsets(self, request: TxnOffsetCommitRequest, context: Context) -> TxnOffsetCommitResponse:
        """Commit offsets of a group as part of a transaction, unless none of their partitions exists."""
        existing = await context.map(self._commits.exists, request.partitions)
        if request.partitions and not any(existing):
            refused = await context.map(_refusal, existing, [ErrorCode.NONE] * len(existing))
            return TxnOffsetCommitResponse(partitions=await context.map(_committed, request.partitions, refused))
        support = support_of("txn_offset_commit", context)
        producer = Producer(request.producer_id, request.producer_epoch)
        error = ErrorCode.NONE if request.group else ErrorCode.INVALID_GROUP_ID
        error = error or await context.wait(self._groups.ensure())
        topic_partition = (OFFSETS_TOPIC, self._groups.partition_of(request.group))
        guards = OpenGuards(self._partitions, producer, {topic_partition: NO_SEQUENCE}, restarts=False)
        if error is ErrorCode.NONE:
            admitted = self._transactions.admission.admit(
                request.transactional_id, producer, [topic_partition], support, guards
            )
            refusals = await context.wait(admitted)
            error = offset_commit_error(refusals.get(topic_partition, ErrorCode.NONE), support)
            if error is ErrorCode.NONE and topic_partition not in guards.numbers:
                error = ErrorCode.NOT_COORDINATOR  # it may have become one in the meantime
        if error is not ErrorCode.NONE:
            refused = await context.map(_refusal, existing, [error] * len(existing))
            return TxnOffsetCommitResponse(partitions=await context.map(_committed, request.partitions, refused))
        commit = self._commits.commit(
            request.group,
            Committer(
                generation=request.generation,
                member_id=request.member_id,
                instance_id=request.instance_id,
                holder=context.session.holder,
            ),
            request.partitions,
            retention_ms=None,
            producer=LogProducer(*producer, guards.numbers.get(topic_partition, 0)),
            checkpoint=context.checkpoint,
        )
        errors = await context.wait(commit)
        if context.session.is_native:  # their clients rejoin when their group is gone
            gone = ErrorCode.GROUP_ID_NOT_FOUND
            errors = [ErrorCode.ILLEGAL_GENERATION if error is gone else error for error in errors]
        return TxnOffsetCommitResponse(partitions=await context.map(_committed, request.partitions, errors))

    async def end(self, request: EndTxnRequest, context: Context) -> EndTxnResponse:
        """Commit or abort; answered once the outcome is stored, before the markers are written."""
        bumps = context.session.is_native or context.version >= FIRST_END_THAT_BUMPS
        answer = await self._transactions.end(
            request.transactional_id,
            Producer(request.producer_id, request.producer_epoch),
            Outcome.COMMIT if request.commits else Outcome.ABORT,
            TransactionVersion.TV_2 if bumps else TransactionVersion.TV_0,
        )
        return EndTxnResponse(producer_id=answer.producer_id, producer_epoch=answer.producer_epoch, error=answer.error)

    async def describe(self, request: DescribeTransactionsRequest, context: Context) -> DescribeTransactionsResponse:
        """Describe each id."""

        async def described(transactional_id: str) -> DescribedTransaction:
            return await self._describe(transactional_id, context)

        return DescribeTransactionsResponse(
            transactions=await context.answer_at_length(described, request.transactional_ids)
        )

    async def _describe(self, transactional_id: str, context: Context) -> DescribedTransaction:
        described = self._coordinator.describe(transactional_id)
        if not isinstance(described, Metadata):
            if context.session.is_native and not self._transactions.runtime.partition_count:
                described = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND  # no client has used transactions yet
            return DescribedTransaction(transactional_id=transactional_id, error=described)
        by_topic: dict[str, list[PartitionEntry]] = {}  # the codec groups neighbours of the same topic
        for topic, index in described.partitions:
            by_topic.setdefault(topic, []).append(PartitionEntry(topic=topic, partition=index))
            await context.checkpoint()
        return DescribedTransaction(
            transactional_id=transactional_id,
            state=described.state.label,
            timeout_ms=described.timeout_ms,
            started_ms=described.started_ms,
            producer_id=described.producer_id,
            producer_epoch=described.producer_epoch,
            partitions=tuple(chain.from_iterable([by_topic[topic] for topic in sorted(by_topic)])),
        )


def _topic_partition(requested: PartitionEntry) -> TopicPartition:
    return requested.topic, requested.partition


def _refusal(exists: bool, error: ErrorCode) -> ErrorCode:
    return error if exists else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _committed(requested: OffsetToCommit, error: ErrorCode) -> CommittedPartition:
    return CommittedPartition(topic=requested.topic, partition=requested.partition, error=error)
