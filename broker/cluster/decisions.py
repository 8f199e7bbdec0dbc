"""The result of a rule: a transaction, or a refusal."""

from typing import NamedTuple, TypeAlias

from warmlog.broker.cluster.store import StoreTransaction


class Refusal(NamedTuple):
    """A change that is not allowed; `reason` is one line for users."""

    reason: str


Decision: TypeAlias = StoreTransaction | Refusal
