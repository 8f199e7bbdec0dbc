"""The subscriptions of a group's members: topics, regular expressions with matching topics, assignors.

Source: Kafka's ModernGroup (subscribedTopicNames, computeMetadataHash), ConsumerGroup (subscribedRegularExpressions,
serverAssignors).
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from warmlog.broker.groups.modern.subscribed_topics import SubscribedTopics
from warmlog.protocol.kafka.consumer_group_records import MemberMetadata, ResolvedRegex


class Subscriptions:
    """Counts of what the members of one group subscribe to."""

    __slots__ = ("_assignors", "_protocols", "_regexes", "classic", "resolved", "topics")

    def __init__(self) -> None:
        self.resolved: dict[str, ResolvedRegex] = {}
        self.topics = SubscribedTopics()  # names of members, and of resolved expressions
        self._regexes: Counter[str] = Counter()  # members per expression
        self._assignors: Counter[str] = Counter()
        self.classic = 0  # members of the classic protocol
        self._protocols: Counter[str] = Counter()  # of classic members, per supported protocol

    def __contains__(self, topic: object) -> bool:
        return topic in self.topics

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Subscriptions) and all(
            getattr(self, name) == getattr(other, name)
            for name in ("resolved", "topics", "_regexes", "_assignors", "classic", "_protocols")
        )

    __hash__ = None  # type: ignore[assignment]

    @property
    def regexes(self) -> frozenset[str]:
        """The expressions that members subscribe to."""
        return frozenset(self._regexes)

    @property
    def has_regexes(self) -> bool:
        """Whether a member subscribes to an expression."""
        return bool(self._regexes)

    @property
    def has_unresolved(self) -> bool:
        """Whether an expression has not been resolved yet, or a resolved expression has no subscriber left."""
        return len(self._regexes) != len(self.resolved)

    def subscribers(self, regex: str) -> int:
        """Return how many members subscribe to an expression."""
        return self._regexes.get(regex, 0)

    def topics_of(self, metadata: MemberMetadata) -> Iterator[str]:
        """Yield the names that a member subscribes to, some of them possibly twice."""
        yield from metadata.topics
        resolved = self.resolved.get(metadata.regex or "")
        if resolved is not None:
            yield from resolved.topics

    def assignor(self, supported: Sequence[str]) -> str:
        """Return the assignor that most members request; the first of several, or of all without requests."""
        return max(supported, key=self._assignors.__getitem__)

    def supports_any(self, protocols: Iterable[str]) -> bool:
        """Return whether all members of the classic protocol support one of these protocols."""
        return any(self._protocols.get(name, 0) == self.classic for name in protocols)

    # -- changes --

    def add(self, metadata: MemberMetadata) -> None:
        """Count a member."""
        self.topics.count(metadata.topics, 1)
        self._count_protocols(metadata, 1)
        if metadata.regex:
            self._regexes[metadata.regex] += 1
        if metadata.assignor is not None:
            self._assignors[metadata.assignor] += 1

    def remove(self, metadata: MemberMetadata) -> None:
        """Remove a member from the counts."""
        self.topics.count(metadata.topics, -1)
        self._count_protocols(metadata, -1)
        for counter, name in ((self._regexes, metadata.regex), (self._assignors, metadata.assignor)):
            if name:
                counter[name] -= 1
                if not counter[name]:
                    del counter[name]

    def resolve(self, regex: str, resolved: ResolvedRegex | None) -> ResolvedRegex | None:
        """Set, or with None delete, the topics that an expression matches. Returns those before."""
        before = self.resolved.pop(regex, None)
        if before is not None:
            self.topics.count(before.topics, -1)
        if resolved is not None:
            self.resolved[regex] = resolved
            self.topics.count(resolved.topics, 1)
        return before

    def _count_protocols(self, metadata: MemberMetadata, change: int) -> None:
        if metadata.classic is None:
            return
        self.classic += change
        for name in {protocol.name for protocol in metadata.classic.protocols}:
            self._protocols[name] += change
            if not self._protocols[name]:
                del self._protocols[name]
