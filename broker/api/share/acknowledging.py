"""Validate the acknowledgements of a request, begin to store them, and collect the outcomes."""

from collections.abc import Callable, Sequence

from warmlog.broker.api.context import Context
from warmlog.broker.partitions.partitions import Partitions
from warmlog.broker.share.deliveries import Deliveries
from warmlog.broker.share.partitions.delivery import Status
from warmlog.broker.share.partitions.state import AcknowledgeError
from warmlog.broker.share.partitions.writes import Stored
from warmlog.broker.share.persister import Outcome
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.messages.share.fetch import (
    REJECT,
    RENEW,
    AcknowledgedPartition,
    AcknowledgedRange,
    AcknowledgeResult,
    ShareAcknowledgeRequest,
    ShareFetchRequest,
)
from warmlog.protocol.kafka.share_state_records import SharePartitionKey

_FIRST_WITH_RENEWAL = 2
TYPES_PER_CHECK = 10_000


def is_acknowledged(partition: AcknowledgedPartition) -> bool:
    """Return whether a partition of a request has acknowledgements."""
    return bool(partition.acknowledgements)


class Acknowledged:
    """The acknowledgements of one request, some of which are still being stored."""

    def __init__(self) -> None:
        self._begun: list[tuple[AcknowledgedPartition, Stored | Outcome]] = []

    def add(self, partition: AcknowledgedPartition, begun: Stored | Outcome) -> None:
        """Add a partition's pending store, or its error."""
        self._begun.append((partition, begun))

    async def results(self, context: Context) -> Sequence[AcknowledgeResult]:
        """Wait until everything is stored; return the outcomes in the order of the request."""
        results = []
        for partition, begun in self._begun:
            outcome = begun if isinstance(begun, Outcome) else await context.wait(begun.wait())
            results.append(
                AcknowledgeResult(
                    topic_id=partition.topic_id,
                    partition=partition.partition,
                    error=outcome.error,
                    message=outcome.message,
                )
            )
            await context.checkpoint()
        return results


async def acknowledge(
    request: ShareFetchRequest | ShareAcknowledgeRequest,
    context: Context,
    deliveries: Deliveries,
    partitions: Partitions,
    may_read: Callable[[str], bool],
) -> Acknowledged:
    """Check the acknowledgements of each partition, and begin to store them."""
    acknowledged = Acknowledged()
    most = RENEW if context.version >= _FIRST_WITH_RENEWAL else REJECT
    for partition in request.partitions:
        if is_acknowledged(partition):
            begun = await _check(partition, most, context, request_renews=request.is_renewal)
            if begun is None:
                begun = _check_topic(partition, partitions, may_read)
            acknowledged.add(partition, begun or await _begin(request, partition, context, deliveries))
        await context.checkpoint()
    return acknowledged


async def _check(
    partition: AcknowledgedPartition, most: int, context: Context, *, request_renews: bool
) -> Outcome | None:
    """Return why acknowledgements are invalid, or None. Source: KafkaApis.validateAcknowledgementBatches."""
    previous = -1
    for each in partition.acknowledgements:
        problem = _problem(each, previous)
        for begin in range(0, 0 if problem else len(each.types), TYPES_PER_CHECK):
            kinds = each.types[begin : begin + TYPES_PER_CHECK]
            if min(kinds) < 0 or max(kinds) > most:
                problem = f"unknown type of acknowledgement in {sorted(set(kinds))}"
            elif not request_renews and RENEW in kinds:
                problem = "the request is not marked as one that renews locks"
            await context.checkpoint()
        if problem:
            return Outcome(ErrorCode.INVALID_REQUEST, problem)
        previous = each.last_offset
    return None


def _problem(each: AcknowledgedRange, previous: int) -> str:
    first, last, types = each.first_offset, each.last_offset, each.types
    if first > last:
        return f"the batch of acknowledgements ends at offset {last}, before its first one, {first}"
    if first < previous:
        return f"the batches of acknowledgements overlap at offset {first}"
    if not types or (len(types) > 1 and len(types) != last - first + 1):
        return f"{len(types)} types of acknowledgement for the offsets {first} to {last}"
    return ""


def _check_topic(
    partition: AcknowledgedPartition, partitions: Partitions, may_read: Callable[[str], bool]
) -> Outcome | None:
    """Return why the sender cannot acknowledge records of a partition, or None."""
    topic = partitions.topic_name(partition.topic_id)
    if topic is None:
        return Outcome(ErrorCode.UNKNOWN_TOPIC_ID, "this broker knows no topic with this id")
    if not may_read(topic):
        return Outcome(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "not authorized: READ on the topic")
    if not partitions.exists(topic, partition.partition):
        return Outcome(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"no partition {topic}-{partition.partition}")
    return None


async def _begin(
    request: ShareFetchRequest | ShareAcknowledgeRequest,
    partition: AcknowledgedPartition,
    context: Context,
    deliveries: Deliveries,
) -> Stored | Outcome:
    delivery = deliveries.find(SharePartitionKey(request.group, partition.topic_id, partition.partition))
    if delivery is None:
        return Outcome(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "the group fetches nothing of this partition here")
    if delivery.status is not Status.ACTIVE:
        return Outcome(ErrorCode.INVALID_RECORD_STATE, "no record of the batch is in flight")
    try:
        return await delivery.acknowledge(request.member_id, partition.acknowledgements, context.checkpoint)
    except AcknowledgeError as error:
        return Outcome(error.code, str(error))
