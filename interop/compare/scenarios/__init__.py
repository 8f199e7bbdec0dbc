"""The hand-written requests: each function sends those of one area over a `Session`.

A scenario is run once for each level of versions, against each broker.
"""

from collections.abc import Callable, Mapping

from interop.compare.scenarios import (
    cluster,
    configs,
    fetch,
    groups,
    members,
    offsets,
    produce,
    producers,
    races,
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
    "static": members.static,
    "races": races.requests,
    "transactions": transactions.requests,
}
