"""Transactions of a write: its rows become visible when the driver has committed it.

    task     abort what an earlier attempt left open -> write rows -> complete: note the write in the transaction
    driver   note that the write is decided -> commit the transaction of every task

A note is a committed offset: the number of the write, in the group of the task's transactional id or of the query.

Invariants:
1. Each task of a query (or `writeId`) has a transactional id. An attempt at a task fences earlier ones.
2. A write is decided once all of its tasks are complete. From then on a repeated task writes nothing: its transaction
   is left to the driver, or was committed before. Only what was aborted meanwhile, by a timeout, is written again.
3. A task's own note counts only if its transaction is committed, so rows that are visible are not written again.
4. A transaction is complete if it contains its note: an attempt that died before has none.
5. A task of a job that has failed writes nothing, even if Spark lets it run on: the driver first notes the failure,
   then fences all tasks that have begun; a task looks for the note after it has begun. The note is a transactional id.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from warmlog.client.errors import BrokerError
from warmlog.pipeline.broker import RetryingBroker, reply_error
from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.sink.attempts import Identity
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import (
    NO_OFFSET,
    CommittedPartition,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchGroup,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetToCommit,
)
from warmlog.protocol.transaction_requests import (
    DescribedTransaction,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)
from warmlog.protocol.transactions import TransactionState

OFFSETS_TOPIC = "__consumer_offsets"
PREFIX = "warmlog-sink"
ENDED = (
    "the transaction was open for longer than transactionTimeoutMs, or another attempt at the task has begun;"
    " a query writes it again when it is started again"
)
ENDED_CODES = frozenset(
    {
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.TRANSACTION_ABORTABLE,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """One write: the number of a micro-batch of a query, or of a batch of a `writeId`.

    `is_repeatable`: whether it may be run again later under the same name and number. `run`: differs from run to run;
    None if the driver does not know of failures.
    """

    name: str
    number: int
    is_repeatable: bool = True
    run: str | None = None

    @property
    def group(self) -> str:
        """The group whose offset says which write was decided last."""
        return f"{PREFIX}-{self.name}"

    def transactional_id(self, task: int) -> str:
        """Return the transactional id of a task, which is also the group of its note."""
        return f"{PREFIX}-{self.name}-{task}"

    @property
    def failure_id(self) -> str | None:
        """The transactional id that exists if this run has failed; nothing is written under it."""
        return None if self.run is None else f"{PREFIX}-failed-{self.run}"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTransaction:
    """A task's complete transaction, to be ended by the driver. `place`: a partition that it has written to."""

    write: Write
    transactional_id: str
    producer_id: int
    producer_epoch: int
    place: tuple[str, int]


@dataclass(slots=True)
class TaskTransaction:
    """The transaction of an attempt at a task. All methods raise PipelineError."""

    broker: RetryingBroker
    write: Write
    task: int
    timeout_ms: int
    _identity: Identity | None = field(default=None, init=False)

    @property
    def transactional_id(self) -> str:
        """The transactional id of the task."""
        return self.write.transactional_id(self.task)

    def is_stored(self) -> bool:
        """Whether an earlier attempt has written the rows for good: the write is decided, and the rows are committed.

        Otherwise `left` returns a complete transaction, or the rows must be written.
        """
        return noted(self.broker, self.transactional_id) >= self.write.number

    def left(self) -> OpenTransaction | None:
        """Return the complete transaction of an earlier attempt that the driver has decided to commit.

        Ask before `is_stored`: the driver may commit it in between.
        """
        found = described(self.broker, self.transactional_id)
        if found is None or found.state != TransactionState.ONGOING.label:
            return None
        places = [(place.topic, place.partition) for place in found.partitions]
        written = [place for place in places if place[0] != OFFSETS_TOPIC]
        if len(written) == len(places) or not written:
            return None
        return self._open(found.producer_id, found.producer_epoch, written[0])

    def is_decided(self) -> bool:
        """Whether the driver has decided to commit the write; PipelineError if it has decided on a later one."""
        last = noted(self.broker, self.write.group)
        if last > self.write.number:
            raise PipelineError(
                f"{self.write.group}: write {last} has been committed already, after {self.write.number}"
            )
        return last == self.write.number

    def begin(self) -> Identity:
        """Abort what an earlier attempt has left open; return the identity to write under.

        PipelineError also if the driver has noted meanwhile that the write has failed.
        """
        self._check_not_failed()  # also before an attempt of a later run is fenced
        request = InitProducerIdRequest(transactional_id=self.transactional_id, transaction_timeout_ms=self.timeout_ms)
        try:
            reply = self.broker.ask(request, InitProducerIdResponse)
        except PipelineError as error:
            if _code(error) is ErrorCode.INVALID_TRANSACTION_TIMEOUT:
                raise PipelineError(
                    f"option transactionTimeoutMs: the broker accepts less than {self.timeout_ms} ms"
                    " (its setting transaction.max.timeout.ms)"
                ) from error
            raise
        self._identity = Identity(
            producer_id=reply.producer_id,
            producer_epoch=reply.producer_epoch,
            transactional_id=self.transactional_id,
        )
        self._check_not_failed()
        return self._identity

    def complete(self, place: tuple[str, int]) -> OpenTransaction:
        """Note the write in the transaction, after all rows are stored. `place`: a partition that was written to."""
        identity = self._identity
        assert identity is not None
        if self.write.is_repeatable:
            request = TxnOffsetCommitRequest(
                transactional_id=self.transactional_id,
                group=self.transactional_id,
                producer_id=identity.producer_id,
                producer_epoch=identity.producer_epoch,
                partitions=(OffsetToCommit(topic=place[0], partition=place[1], offset=self.write.number),),
            )
            check = partial(_check_committed, about=self.transactional_id)
            self.broker.ask(request, TxnOffsetCommitResponse, lambda reply: check(reply.partitions))
        return self._open(identity.producer_id, identity.producer_epoch, place)

    def abandon(self) -> None:
        """Abort what was written, if anything was."""
        if self._identity is not None:
            identity, self._identity = self._identity, None
            end(self.broker, self._open(identity.producer_id, identity.producer_epoch, ("", 0)), commits=False)

    def _check_not_failed(self) -> None:
        failure_id = self.write.failure_id
        if failure_id is not None and described(self.broker, failure_id) is not None:
            raise PipelineError(f"{self.transactional_id}: the job has failed already, so this task writes nothing")

    def _open(self, producer_id: int, producer_epoch: int, place: tuple[str, int]) -> OpenTransaction:
        return OpenTransaction(
            write=self.write,
            transactional_id=self.transactional_id,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            place=place,
        )


def commit(broker: RetryingBroker, transactions: Sequence[OpenTransaction]) -> None:
    """Commit the transactions of a write, all of whose tasks are complete. Raises PipelineError."""
    if not transactions:
        return
    first = transactions[0]
    if first.write.is_repeatable:
        topic, partition = first.place
        decided = OffsetToCommit(topic=topic, partition=partition, offset=first.write.number)
        request = OffsetCommitRequest(group=first.write.group, partitions=(decided,))
        check = partial(_check_committed, about=first.write.group)
        broker.ask(request, OffsetCommitResponse, lambda reply: check(reply.partitions))
    for transaction in transactions:
        end(broker, transaction, commits=True)


def abort(broker: RetryingBroker, write: Write) -> None:
    """Abort the open transactions of a write that has failed, unless it is decided. Raises PipelineError.

    Tasks that Spark has killed may still run: those that have begun are found by their ids and fenced, later ones find
    the note of the failure.
    """
    if write.is_repeatable and noted(broker, write.group) >= write.number:
        return  # the tasks that run again leave them to be committed
    if write.failure_id is not None:
        broker.ask(InitProducerIdRequest(transactional_id=write.failure_id), InitProducerIdResponse)
    pattern = re.escape(f"{write.group}-") + "[0-9]+"
    for listed in broker.ask(ListTransactionsRequest(pattern=pattern), ListTransactionsResponse).transactions:
        broker.ask(InitProducerIdRequest(transactional_id=listed.transactional_id), InitProducerIdResponse)


def end(broker: RetryingBroker, transaction: OpenTransaction, *, commits: bool) -> None:
    """Commit or abort a transaction. Raises PipelineError, also if it has ended otherwise."""
    request = EndTxnRequest(
        transactional_id=transaction.transactional_id,
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        commits=commits,
    )
    try:
        broker.ask(request, EndTxnResponse)
    except PipelineError as error:
        if _code(error) not in ENDED_CODES:
            raise
        if commits:
            raise PipelineError(f"{transaction.transactional_id}: {ENDED}: {error}") from error


def described(broker: RetryingBroker, transactional_id: str) -> DescribedTransaction | None:
    """Return the state of a transactional id, None if it does not exist. Raises PipelineError."""

    def check(reply: DescribeTransactionsResponse) -> None:
        (found,) = reply.transactions
        if found.error not in {ErrorCode.NONE, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND}:
            raise reply_error(found.error, None, about=transactional_id)

    request = DescribeTransactionsRequest(transactional_ids=(transactional_id,))
    (found,) = broker.ask(request, DescribeTransactionsResponse, check).transactions
    return None if found.error else found


def noted(broker: RetryingBroker, group: str) -> int:
    """Return the number of the last write noted in a group, -1 if there is none. Raises PipelineError."""

    def check(reply: OffsetFetchResponse) -> None:
        (found,) = reply.groups
        for error in (found.error, *[each.error for each in found.partitions]):
            if error:
                raise reply_error(error, None, about=group)

    request = OffsetFetchRequest(groups=(OffsetFetchGroup(group=group),), require_stable=True)
    (found,) = broker.ask(request, OffsetFetchResponse, check).groups
    return max((each.offset for each in found.partitions), default=NO_OFFSET)


def _check_committed(partitions: Sequence[CommittedPartition], about: str) -> None:
    for each in partitions:
        if each.error:
            raise reply_error(each.error, each.message, about=about)


def _code(error: PipelineError) -> ErrorCode | None:
    return error.__cause__.code if isinstance(error.__cause__, BrokerError) else None
