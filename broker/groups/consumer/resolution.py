"""Decide when a group's regular expressions are matched with the names of all topics.

One `Resolve` runs at a time, at least 10 s after the previous one: for expressions that were never resolved, for new
topics, or because the last result is too old.

Source: Kafka's GroupMetadataManager.maybeUpdateRegularExpressions.
"""

from collections.abc import Mapping

from warmlog.broker.groups.automaton import Instant
from warmlog.broker.groups.consumer.effects import Resolve
from warmlog.broker.groups.consumer.stored.subscriptions import Subscriptions
from warmlog.protocol.kafka.consumer_group_records import ResolvedRegex

MIN_INTERVAL_MS = 10_000


class Resolution:
    """The refresh of one group's expressions."""

    __slots__ = ("_subscriptions", "has_new_topics", "is_running", "started_ms")

    def __init__(self, subscriptions: Subscriptions) -> None:
        self._subscriptions = subscriptions
        self.is_running = False
        self.started_ms = 0  # on the wall clock
        self.has_new_topics = True  # after loading: newer than the records' version

    def begin_if_due(self, max_age_ms: int, now: Instant) -> Resolve | None:
        """Return the effect that resolves expressions, if it is due."""
        subscriptions = self._subscriptions
        if self.is_running or not subscriptions.has_regexes:
            return None
        resolved = next(iter(subscriptions.resolved.values()), None)
        if resolved is not None:
            age_ms = now.wall_ms - resolved.timestamp_ms
            if 0 <= age_ms <= MIN_INTERVAL_MS:
                return None
            if not (subscriptions.has_unresolved or self.has_new_topics or not 0 <= age_ms <= max_age_ms):
                return None
        self.is_running, self.has_new_topics, self.started_ms = True, False, now.wall_ms
        return Resolve(subscriptions.regexes)

    def end(self, results: Mapping[str, tuple[str, ...]], version: int) -> dict[str, ResolvedRegex]:
        """Return the topics to store for each expression, sorted; `results` is empty if matching failed."""
        self.is_running = False
        self.has_new_topics |= not results
        return {
            regex: ResolvedRegex(topics=topics, version=version, timestamp_ms=self.started_ms)
            for regex, topics in results.items()
            if self._subscriptions.subscribers(regex)
        }
