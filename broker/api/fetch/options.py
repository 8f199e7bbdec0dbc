"""The parameters of a fetch request besides its partitions, and the refusal of one that does not fit its session."""

from collections.abc import Hashable

from msgspec.structs import replace

from warmlog.broker.api.fetch.session import FetchSessionError
from warmlog.protocol.kafka.messages.records.fetch import KafkaFetchRequest, KafkaFetchResponse
from warmlog.protocol.request import FetchRequest


def is_of_follower(request: FetchRequest) -> bool:
    """Return whether the sender is another broker."""
    return isinstance(request, KafkaFetchRequest) and request.replica.broker >= 0


def limited(request: FetchRequest, most: int | None) -> FetchRequest:
    """Limit a request to the bytes that a quota allows in one response: more would always be throttled."""
    if most is None or request.max_bytes <= most:
        return request
    return replace(request, max_bytes=most, min_bytes=min(request.min_bytes, most))


def kind_of(request: FetchRequest) -> Hashable:
    """Return the fields of a request, besides its partitions, on which the result of each partition depends."""
    if isinstance(request, KafkaFetchRequest):
        return (
            request.isolation,
            request.replica,
            request.uses_topic_ids,
            request.knows_followers,
            request.rack,
        )
    return request.isolation


def refused(error: FetchSessionError) -> KafkaFetchResponse:
    """Return the response to a request that does not fit its session."""
    return KafkaFetchResponse(partitions=(), error=error.code, requested=())
