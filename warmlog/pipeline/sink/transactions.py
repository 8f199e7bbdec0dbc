"""Transactions of a write, whose rows become visible when the driver has committed it.

    task     abort the open transaction of an earlier attempt -> write rows
    driver   store the decision -> commit the transaction of every task -> abort open transactions of earlier runs

Invariants:
1. Each task of a query (or `writeId`) has a transactional id. An attempt at a task fences earlier ones.
2. A write is decided once all of its tasks are complete. From then on its tasks write nothing, even if a repetition has
more tasks: the driver commits exactly the transactions named in the decision.
3. If a transaction named in the decision was aborted, its rows are copied from the log (`repair`).
4. After a commit no transaction of the query is open.
5. A task of a failed job writes nothing, even if Spark lets it continue: the driver first records the failure, then
   fences all tasks that have begun; a task checks for the record after it has begun. The record is a transactional id.
"""

import logging
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

from msgspec.structs import replace

from warmlog.client.errors import BrokerError
from warmlog.client.transactions.admin import TransactionAdmin
from warmlog.pipeline.cluster import ClusterConnection
from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.sink.attempts import Identity
from warmlog.pipeline.sink.decisions import (
    Decision,
    FirstOffsets,
    OpenTransaction,
    decided_number,
    read_decision,
    write_decision,
)
from warmlog.pipeline.sink.ended import ENDED, ENDED_CODES, WRITTEN_AGAIN
from warmlog.pipeline.sink.repair import copy_lost
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import CoordinatorType
from warmlog.protocol.native.messages import NativeRequest
from warmlog.protocol.request import Value
from warmlog.protocol.transactions import (
    DescribedTransaction,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    TransactionState,
)

_log = logging.getLogger(__name__)

R = TypeVar("R", bound=Value)

PREFIX = "warmlog-sink"
COMMITTED_STATES = frozenset({TransactionState.PREPARE_COMMIT.label, TransactionState.COMPLETE_COMMIT.label})


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """One write: the number of a micro-batch of a query, or of a batch of a `writeId`.

    `is_repeatable`: whether it may be repeated later under the same name and number. `run`: unique for each run; None
    if the driver does not record failures.
    """

    name: str
    number: int
    is_repeatable: bool = True
    run: str | None = None

    def __str__(self) -> str:
        return f"write {self.number} of {self.group}"

    @property
    def group(self) -> str:
        """The group whose committed offset is the number of the last decided write."""
        return f"{PREFIX}-{self.name}"

    def transactional_id(self, task: int) -> str:
        """Return the transactional id of a task."""
        return f"{PREFIX}-{self.name}-{task}"

    @property
    def repair_id(self) -> str:
        """The transactional id for copying rows of transactions that were aborted after the decision."""
        return f"{self.group}-repair"

    @property
    def failure_id(self) -> str | None:
        """The transactional id that exists if this run has failed; no records are written under it."""
        return None if self.run is None else f"{PREFIX}-failed-{self.run}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompleteTask:
    """The report of a task to the driver. `transaction`: None if nothing was written.

    `is_decided`: an earlier run has already decided the write, so the task has written nothing.
    """

    write: Write
    transaction: OpenTransaction | None = None
    is_decided: bool = False


@dataclass(slots=True)
class TaskTransaction:
    """The transaction of an attempt at a task. All methods raise PipelineError."""

    cluster: ClusterConnection
    write: Write
    task: int
    timeout_ms: int
    _identity: Identity | None = field(default=None, init=False)

    @property
    def transactional_id(self) -> str:
        """The transactional id of the task."""
        return self.write.transactional_id(self.task)

    def is_decided(self) -> bool:
        """Return whether the driver has decided to commit the write. Raises PipelineError if it decided a later one."""
        last = decided_number(self.cluster, self.write.group)
        if last > self.write.number:
            raise PipelineError(
                f"{self.write.group}: write {last} has been committed already, after {self.write.number}"
            )
        return last == self.write.number

    def hasten(self) -> None:
        """Commit transactions decided in an earlier run before the driver does, since they may soon time out."""
        commit_named(
            self.cluster, self.write, _named(self.cluster, self.write, read_decision(self.cluster, self.write.group))
        )

    def begin(self) -> Identity:
        """Abort the open transaction of an earlier attempt; return the identity to write under.

        Also raises PipelineError if the driver has meanwhile recorded that the write failed.
        """
        self._check_not_failed()  # checked also before an attempt of a later run is fenced
        try:
            self._identity = _begin(self.cluster, self.transactional_id, self.timeout_ms)
        except PipelineError as error:
            if _code(error) is ErrorCode.INVALID_TRANSACTION_TIMEOUT:
                raise PipelineError(
                    f"option transactionTimeoutMs: the broker accepts less than {self.timeout_ms} ms"
                    " (its setting transaction.max.timeout.ms)"
                ) from error
            raise
        self._check_not_failed()
        return self._identity

    def complete(self, first_offsets: FirstOffsets, rows: int) -> OpenTransaction | None:
        """Return the transaction for the driver to end; None if nothing was written."""
        identity = self._identity
        assert identity is not None, "call `begin` first"
        if not rows:
            return None
        return OpenTransaction(
            task=self.task,
            producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch,
            rows=rows,
            first_offsets=first_offsets,
        )

    def abandon(self) -> None:
        """Abort the transaction if anything was written."""
        if self._identity is not None:
            identity, self._identity = self._identity, None
            end(self.cluster, identity, commits=False)

    def _check_not_failed(self) -> None:
        if self.write.failure_id is not None and _exists(self.cluster, self.write.failure_id):
            raise PipelineError(f"{self.transactional_id}: the job has failed already, so this task writes nothing")


def commit(cluster: ClusterConnection, tasks: Sequence[CompleteTask], timeout_ms: int) -> None:
    """Commit a write whose tasks are all complete. Raises PipelineError.

    `timeout_ms`: timeout of the transaction needed if others were aborted.
    """
    write, transactions = tasks[0].write, [task.transaction for task in tasks if task.transaction is not None]
    if not write.is_repeatable:
        for transaction in transactions:
            end(cluster, identity_of(write, transaction), commits=True)
        return
    named: Sequence[OpenTransaction] = []
    if any(task.is_decided for task in tasks):
        named = _finish(cluster, write, timeout_ms)
    elif transactions:
        _decide(cluster, write, transactions)
        named = _finish(cluster, write, timeout_ms)
    _abort_others(cluster, write, named)


def _decide(cluster: ClusterConnection, write: Write, transactions: Sequence[OpenTransaction]) -> None:
    """Store the decision to commit the transactions. Raises PipelineError if one of them is no longer open."""
    for transaction, described in zip(transactions, _described(cluster, write, transactions), strict=True):
        if not _is_open(transaction, described):
            if decided_number(cluster, write.group) == write.number:
                return  # already decided by this call, whose reply was lost
            raise PipelineError(f"{described.transactional_id}: {ENDED}; {WRITTEN_AGAIN}")
    write_decision(cluster, write.group, write.number, transactions)


def _finish(cluster: ClusterConnection, write: Write, timeout_ms: int) -> Sequence[OpenTransaction]:
    """Commit the decided transactions; return all transactions named in the decision. Raises PipelineError."""
    decision = read_decision(cluster, write.group)
    if decision.number != write.number:
        raise PipelineError(f"{write}: another run has decided on write {decision.number} meanwhile")
    named = _named(cluster, write, decision)
    if commit_named(cluster, write, named):
        _repair(cluster, write, timeout_ms)
    return named


def _repair(cluster: ClusterConnection, write: Write, timeout_ms: int) -> None:
    """Copy rows of transactions that were decided but aborted from the log, and commit them. Raises PipelineError."""
    identity = _begin(cluster, write.repair_id, timeout_ms)
    decision = read_decision(cluster, write.group, is_stable=True)  # a killed repair may have replaced it
    lost = commit_named(cluster, write, _named(cluster, write, decision))
    if not lost:
        return
    _log.warning("%s: %d transactions were aborted after the decision; copying their rows", write, len(lost))
    try:
        copy_lost(cluster, identity, write.group, decision, lost)
    except BaseException:
        with suppress(PipelineError):
            end(cluster, identity, commits=False)
        raise
    end(cluster, identity, commits=True)


def _named(cluster: ClusterConnection, write: Write, decision: Decision) -> Sequence[OpenTransaction]:
    """Return the transactions named in a decision. Raises PipelineError."""
    if decision.transactions is None:
        if _open_ids(cluster, write):
            raise PipelineError(
                f"{write} was decided by an earlier version of warmlog: run it once more with that version"
            )
        return ()
    return decision.transactions


def commit_named(cluster: ClusterConnection, write: Write, named: Sequence[OpenTransaction]) -> list[OpenTransaction]:
    """Commit transactions that are still open; return those that were aborted. Raises PipelineError."""
    lost = []
    for transaction, described in zip(named, _described(cluster, write, named), strict=True):
        if _is_open(transaction, described):
            end(cluster, identity_of(write, transaction), commits=True)
        elif described.state not in COMMITTED_STATES:
            lost.append(transaction)
    return lost


def _is_open(transaction: OpenTransaction, described: DescribedTransaction) -> bool:
    """Return whether the state of a transactional id is that of this transaction, and the transaction is open."""
    identity = transaction.producer_id, transaction.producer_epoch
    return (
        described.state == TransactionState.ONGOING.label
        and (described.producer_id, described.producer_epoch) == identity
    )


def _abort_others(cluster: ClusterConnection, write: Write, named: Sequence[OpenTransaction]) -> None:
    """Abort open transactions of earlier runs under ids other than these. Raises PipelineError."""
    for transactional_id in _open_ids(cluster, write) - {write.transactional_id(each.task) for each in named}:
        _begin(cluster, transactional_id)


def _open_ids(cluster: ClusterConnection, write: Write) -> set[str]:
    """Return the transactional ids of the write's tasks that have an open transaction."""
    return set(_list(cluster, write, TransactionState.ONGOING.label))


def _list(cluster: ClusterConnection, write: Write, *states: str) -> list[str]:
    """Return the transactional ids of the write's tasks."""
    pattern = re.escape(f"{write.group}-") + "[0-9]+"
    listed = cluster.call(lambda client: TransactionAdmin(client).select(states, (), None, pattern))
    return [each.transactional_id for each in listed]


def abort(cluster: ClusterConnection, write: Write) -> None:
    """Abort the open transactions of a failed write, unless it is decided. Raises PipelineError.

    Tasks that Spark has killed may still run: tasks that have begun are found by their ids and fenced; tasks that begin
    later find the record of the failure.
    """
    if write.is_repeatable and decided_number(cluster, write.group) >= write.number:
        return  # they are committed when the write is repeated
    if write.failure_id is not None:
        _begin(cluster, write.failure_id)
    for transactional_id in _list(cluster, write):
        _begin(cluster, transactional_id)


def _begin(cluster: ClusterConnection, transactional_id: str, timeout_ms: int | None = None) -> Identity:
    """Abort the open transaction of an id, fence its producer, and return the next identity to write under."""
    request = InitProducerIdRequest(transactional_id=transactional_id)
    if timeout_ms is not None:
        request = replace(request, transaction_timeout_ms=timeout_ms)
    reply = _ask_coordinator(cluster, transactional_id, request, InitProducerIdResponse)
    return Identity(
        producer_id=reply.producer_id, producer_epoch=reply.producer_epoch, transactional_id=transactional_id
    )


def _ask_coordinator(
    cluster: ClusterConnection, transactional_id: str, request: NativeRequest, response_type: type[R]
) -> R:
    return cluster.ask_coordinator(CoordinatorType.TRANSACTION, transactional_id, request, response_type)


def identity_of(write: Write, transaction: OpenTransaction) -> Identity:
    """Return the producer of a transaction."""
    return Identity(
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        transactional_id=write.transactional_id(transaction.task),
    )


def end(cluster: ClusterConnection, identity: Identity, *, commits: bool) -> None:
    """Commit or abort a transaction. Raises PipelineError, also if it has already ended in another way."""
    assert identity.transactional_id is not None, "it writes in a transaction"
    request = EndTxnRequest(
        transactional_id=identity.transactional_id,
        producer_id=identity.producer_id,
        producer_epoch=identity.producer_epoch,
        commits=commits,
    )
    try:
        _ask_coordinator(cluster, identity.transactional_id, request, EndTxnResponse)
    except PipelineError as error:
        if _code(error) not in ENDED_CODES:
            raise
        if commits:
            raise PipelineError(f"{identity.transactional_id}: {ENDED}: {error}") from error


def _described(
    cluster: ClusterConnection, write: Write, transactions: Sequence[OpenTransaction]
) -> Sequence[DescribedTransaction]:
    return describe(cluster, [write.transactional_id(each.task) for each in transactions])


def describe(cluster: ClusterConnection, transactional_ids: Sequence[str]) -> Sequence[DescribedTransaction]:
    """Return the states of transactional ids. Raises PipelineError, also if one does not exist."""
    return cluster.call(lambda client: TransactionAdmin(client).describe(transactional_ids))


def _exists(cluster: ClusterConnection, transactional_id: str) -> bool:
    try:
        return bool(describe(cluster, [transactional_id]))
    except PipelineError as error:
        if _code(error) is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            return False
        raise


def _code(error: PipelineError) -> ErrorCode | None:
    return error.__cause__.code if isinstance(error.__cause__, BrokerError) else None
