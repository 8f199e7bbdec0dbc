"""The hand-written requests: each function sends the requests of one area over a `Session`.

A scenario is run once for each level of versions, against each broker.
"""

from collections.abc import Callable, Mapping

from interop.compare.scenarios import (
    cluster,
    configs,
    consumer_groups,
    fetch,
    groups,
    members,
    offsets,
    produce,
    producers,
    races,
    share_fetch,
    share_groups,
    share_state,
    streams_groups,
    topics,
    transactions,
)
from interop.compare.session import Session

AREAS: Mapping[str, Callable[[Session], None]] = {
    "cluster": cluster.requests,
    "security": cluster.security,
    "topics": topics.requests,
    "configs": configs.requests,
    "produce": produce.requests,
    "producers": producers.requests,
    "offsets": offsets.requests,
    "fetch": fetch.requests,
    "sessions": fetch.sessions,
    "groups": groups.requests,
    "members": members.requests,
    "consumer-groups": consumer_groups.requests,
    "static": members.static,
    "races": races.requests,
    "share-groups": share_groups.requests,
    "share-fetch": share_fetch.requests,
    "share-state": share_state.requests,
    "streams-groups": streams_groups.requests,
    "transactions": transactions.requests,
}
