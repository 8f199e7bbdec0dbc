"""The producer of one transactional id, from transaction to transaction.

    begin -> [init_producer_id] -> records, offsets -> end_txn -> the epoch of the next transaction

Invariants:
1. At most one transaction is open. Each has a separate epoch, so a late batch of an earlier one is rejected.
2. After an end with unknown outcome, the next transaction begins with `init_producer_id`, which completes the previous
   one, or aborts it if its end was never received.
3. A fenced producer stays fenced: another client continues with its id.

Source: org.apache.kafka.clients.producer.internals.TransactionManager; KIP-98, KIP-360, KIP-447, KIP-890.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from operator import attrgetter
from random import Random
from typing import TypeVar

import anyio

from warmlog.client.connection.background import TaskStarter
from warmlog.client.connection.cluster import Cluster
from warmlog.client.connection.request_parts import parts
from warmlog.client.errors import BrokerError, ClosedError, ProducerFencedError, WarmlogError, broker_error
from warmlog.client.groups.group_offsets import Member
from warmlog.client.producing.handoff import ClientThread, Handoff
from warmlog.client.producing.identity import ProducerIdentity
from warmlog.client.producing.producer import Producer
from warmlog.client.settings import Settings
from warmlog.protocol.groups import CoordinatorType, OffsetToCommit
from warmlog.protocol.native.messages import NativeRequest
from warmlog.protocol.partitions import TopicPartition
from warmlog.protocol.request import Value
from warmlog.protocol.transactions import (
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)

ABORT_TIMEOUT_S = 5.0  # time limit for aborting a cancelled transaction, which the broker eventually aborts

R = TypeVar("R", bound=Value)


class TransactionalProducer:
    """The producer of a transactional id. `run` it in a task, `close` it at the end. Not thread-safe."""

    def __init__(
        self,
        cluster: Cluster,
        tasks: TaskStarter,
        settings: Settings,
        random: Random,
        transactional_id: str,
        *,
        now_ms: Callable[[], int],
    ) -> None:
        self.transactional_id = transactional_id
        self._cluster = cluster
        self._settings = settings
        self._random = random
        self.identity = ProducerIdentity(transactional_id)
        with_acks = replace(settings, acks="all")
        self.records = Producer(cluster, tasks, with_acks, random, now_ms=now_ms, identity=self.identity)
        self._timeout_ms = -1
        self._must_initialize = True
        self._has_offsets = False
        self._fenced: ProducerFencedError | None = None
        self.is_open = False

    async def run(self) -> None:
        """Send batches. Runs until cancelled."""
        await self.records.run()

    def close(self) -> None:
        """Fail every record that is not settled."""
        self.records.close()

    def handoff(self, thread: ClientThread) -> Handoff:
        """Return a queue into the producer for other threads. `thread`: the client's thread."""
        return Handoff(self.records, self._cluster, self._settings.buffer_bytes, thread)

    async def begin(self, timeout_s: float) -> None:
        """Begin a transaction, which the broker aborts after `timeout_s`.

        Raises RuntimeError if one is open, ProducerFencedError, and other WarmlogErrors.
        """
        if self.is_open:
            raise RuntimeError(f"transactional id {self.transactional_id!r}: a transaction of this client is open")
        if self._fenced is not None:
            raise self._fenced
        self.is_open = True
        try:
            timeout_ms = round(timeout_s * 1000)
            if self._must_initialize or timeout_ms != self._timeout_ms:
                await self._initialize(timeout_ms)
            else:
                self._begin_epoch(self.identity.producer_id, self.identity.producer_epoch)
        except BaseException:
            self.is_open = False
            raise

    async def _initialize(self, timeout_ms: int) -> None:
        self._must_initialize = True
        request = InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=timeout_ms,
            producer_id=self.identity.producer_id,
            producer_epoch=self.identity.producer_epoch,
        )
        try:
            reply = await self._ask_coordinator(request, InitProducerIdResponse)
        except WarmlogError as error:
            raise self._explained(error) from None
        self._begin_epoch(reply.producer_id, reply.producer_epoch)
        self._must_initialize, self._timeout_ms = False, timeout_ms

    def _begin_epoch(self, producer_id: int, producer_epoch: int) -> None:
        self.identity.begin(producer_id, producer_epoch)
        self._has_offsets = False

    async def commit_offsets(self, member: Member, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit a group's offsets with the transaction. Raises GroupMovedOnError, WarmlogError."""
        self._has_offsets = True
        partitions = [
            OffsetToCommit(topic=topic, partition=partition, offset=offset)
            for (topic, partition), offset in offsets.items()
        ]
        try:
            for part in parts(partitions, attrgetter("topic")):
                await self._commit_part(member, part)
        except WarmlogError as error:
            self.identity.error = self.identity.error or error
            raise self._explained(error) from None

    async def _commit_part(self, member: Member, part: tuple[OffsetToCommit, ...]) -> None:
        request = TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group=member.group,
            producer_id=self.identity.producer_id,
            producer_epoch=self.identity.producer_epoch,
            generation=member.generation,
            member_id=member.member_id,
            instance_id=member.instance_id,
            partitions=part,
        )

        def check(reply: TxnOffsetCommitResponse) -> None:
            failed = next((each for each in reply.partitions if each.error), None)
            if failed is not None:
                about = f"group {member.group!r}, {failed.topic}-{failed.partition}"
                raise broker_error(failed.error, failed.message, about=about)

        kind = CoordinatorType.GROUP
        await self._cluster.ask_coordinator(kind, member.group, request, TxnOffsetCommitResponse, check=check)

    async def _ask_coordinator(self, request: NativeRequest, response_type: type[R]) -> R:
        kind = CoordinatorType.TRANSACTION
        return await self._cluster.ask_coordinator(kind, self.transactional_id, request, response_type)

    async def commit(self) -> None:
        """Store the produced records, and commit. A transaction that cannot be committed is aborted.

        Raises the reason, or ConnectionLostError or RequestTimeoutError if the outcome is unknown.
        """
        try:
            await self.records.flush()
        except WarmlogError as error:
            await self._abort_quietly(error)
            raise self._explained(error) from None
        except BaseException as error:
            await self._abort_quietly(error)
            raise
        await self._end(commits=True)

    async def abort(self) -> None:
        """Discard the produced records. Raises WarmlogError; the broker then aborts the transaction at its timeout."""
        self.records.abandon(ClosedError("the transaction was aborted"))
        await self._end(commits=False)

    async def _abort_quietly(self, reason: BaseException) -> None:
        """Abort because of an error that the caller will see, even if it is a cancellation."""
        with anyio.move_on_after(ABORT_TIMEOUT_S, shield=True):
            try:
                await self.abort()
            except WarmlogError as error:
                reason.add_note(f"the transaction could not be aborted: {error.message}")

    async def leave(self, error: BaseException) -> None:
        """Abort, unless the transaction has ended, because of an error in the program."""
        if self.is_open:
            await self._abort_quietly(error)

    async def _end(self, *, commits: bool) -> None:
        try:
            if self.identity.has_sent or self._has_offsets:
                self._must_initialize = True  # until the outcome is known
                request = EndTxnRequest(
                    transactional_id=self.transactional_id,
                    producer_id=self.identity.producer_id,
                    producer_epoch=self.identity.producer_epoch,
                    commits=commits,
                )
                reply = await self._ask_coordinator(request, EndTxnResponse)
                self._begin_epoch(reply.producer_id, reply.producer_epoch)
                self._must_initialize = False
        except WarmlogError as error:
            raise self._explained(error) from None
        finally:
            self.is_open = False

    def _explained(self, error: WarmlogError) -> WarmlogError:
        """Return the error with the transactional id added, and record whether the producer was fenced."""
        about = f"transactional id {self.transactional_id!r}"
        if isinstance(error, BrokerError) and not error.message.startswith(about):
            error.message = f"{about}: {error.message}"
            error.args = (error.message,)
        if isinstance(error, ProducerFencedError):
            self._fenced = error
        return error
