"""Checks of requests about transactions and producers."""

from functools import partial
from typing import Any

from msgspec.structs import replace

from warmlog.broker.api.access import Access, refusal
from warmlog.broker.api.authorization.groups import offsets_of_group
from warmlog.broker.api.authorization.parts import Check, CheckedCall, answer_allowed, without_hidden
from warmlog.broker.metadata.topic import is_internal
from warmlog.broker.security.acls import Operation, ResourceType
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.messages.transactions import (
    AddedPartitions,
    AddPartitionsToTxnResponse,
    PartitionsOfTransaction,
)
from warmlog.protocol.transactions import (
    AddedPartition,
    DescribedTransaction,
    DescribeTransactionsResponse,
    TxnOffsetCommitResponse,
)

_commit = offsets_of_group(Operation.READ, TxnOffsetCommitResponse)


async def init_producer_id(call: CheckedCall) -> Any:
    """Check WRITE on the transactional id; without one, IDEMPOTENT_WRITE on the cluster or WRITE on any topic."""
    access, transactional_id = call.access, call.request.transactional_id
    if transactional_id is not None:
        access.require(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id)
    elif not access.cluster(Operation.IDEMPOTENT_WRITE) and not access.some_topic(Operation.WRITE):
        raise refusal(Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER)
    return await call.answer()


async def add_partitions(call: CheckedCall) -> Any:
    """Check WRITE on the transactional id and the topics: all or none. Brokers need CLUSTER_ACTION."""
    request, access = call.request, call.access
    if request.is_batched:
        access.require(Operation.CLUSTER_ACTION, ResourceType.CLUSTER)
        return await call.answer()
    refused = [each for transaction in request.transactions if (each := await _refused(call, transaction)) is not None]
    return AddPartitionsToTxnResponse(transactions=tuple(refused)) if refused else await call.answer()


async def _refused(call: CheckedCall, transaction: PartitionsOfTransaction) -> AddedPartitions | None:
    """Return the result of a refused transaction, or None."""
    access, transactional_id = call.access, transaction.transactional_id
    if not access.transactional_id(Operation.WRITE, transactional_id):
        code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        errors: dict[str, ErrorCode] = {each.topic: code for each in transaction.partitions}
    else:
        errors = {
            each.topic: ErrorCode.TOPIC_AUTHORIZATION_FAILED
            for each in transaction.partitions
            if is_internal(each.topic) or not access.topic(Operation.WRITE, each.topic)
        }
    if not errors:
        return None

    def result(each: Any) -> AddedPartition:
        error = errors.get(each.topic, ErrorCode.OPERATION_NOT_ATTEMPTED)
        return AddedPartition(topic=each.topic, partition=each.partition, error=error)

    partitions = await call.context.map(result, transaction.partitions)
    return AddedPartitions(transactional_id=transactional_id, partitions=partitions)


def named_transactional_id(*, with_group: bool = False) -> Check:
    """Return a check of WRITE on the transactional id, and of READ on the group."""

    async def check(call: CheckedCall) -> Any:
        request = call.request
        call.access.require(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id)
        if with_group:
            call.access.require(Operation.READ, ResourceType.GROUP, request.group)
        return await call.answer()

    return check


async def commit_offsets(call: CheckedCall) -> Any:
    """Check WRITE on the transactional id, and READ on the group and the topics."""
    call.access.require(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, call.request.transactional_id)
    return await _commit(call)


async def write_markers(call: CheckedCall) -> Any:
    """Check ALTER or CLUSTER_ACTION on the cluster."""
    if not call.access.cluster(Operation.ALTER):
        call.access.require(Operation.CLUSTER_ACTION, ResourceType.CLUSTER)
    return await call.answer()


async def describe(call: CheckedCall) -> Any:
    """Check DESCRIBE on each transactional id; partitions of topics without it are omitted."""
    access = call.access

    def refuse(transactional_id: str) -> DescribedTransaction:
        code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        return DescribedTransaction(transactional_id=transactional_id, error=code)

    response = await answer_allowed(
        call,
        "transactional_ids",
        partial(access.transactional_id, Operation.DESCRIBE),
        refuse,
        DescribeTransactionsResponse(transactions=()),
        results="transactions",
    )
    shown = partial(_is_shown, access)
    transactions = [await without_hidden(call, each, "partitions", shown) for each in response.transactions]
    return replace(response, transactions=tuple(transactions))


def _is_shown(access: Access, item: Any) -> bool:
    return access.topic(Operation.DESCRIBE, item.topic)


async def list_all(call: CheckedCall) -> Any:
    """List the transactional ids on which the sender has DESCRIBE."""
    may = call.access.transactional_id

    def is_shown(item: Any) -> bool:
        return may(Operation.DESCRIBE, item.transactional_id)

    return await without_hidden(call, await call.answer(), "transactions", is_shown)
