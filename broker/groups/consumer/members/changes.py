"""Changes that heartbeats and deadlines make to a group: its members, their subscriptions, its epoch.

Source: Kafka's GroupMetadataManager (4.4: hasMemberSubscriptionChanged, updateSubscriptionMetadata, replaceMember,
consumerGroupFenceMembers).
"""

from collections.abc import Iterable, Mapping, Sequence

from warmlog.broker.groups.consumer.effects import ClassicMember
from warmlog.broker.groups.consumer.members.declarations import rejoined
from warmlog.broker.groups.consumer.stored.group import StoredGroup
from warmlog.broker.groups.consumer.stored.holding import MemberState, held_partitions
from warmlog.broker.groups.modern.assignment import Topics
from warmlog.broker.groups.modern.journal import Journal
from warmlog.broker.groups.modern.target import target_of
from warmlog.protocol.kafka.consumer_group_records import (
    ConsumerGroupKey,
    ConsumerGroupValue,
    CurrentAssignment,
    CurrentKey,
    EpochKey,
    GroupEpoch,
    MemberKey,
    MemberMetadata,
    PartitionMetadataKey,
    RegexKey,
    TargetEpoch,
    TargetEpochKey,
    TargetKey,
)


class Changes:
    """Puts changes of one group into its journal, as parts of a decision.

    `topics`: the cluster's, as of the last call that had them. `topics_changed`: whether the group's topics may differ
    from those of its epoch.
    """

    __slots__ = ("_group", "_group_id", "_journal", "_subscriptions", "topics", "topics_changed")

    def __init__(self, group: StoredGroup, journal: Journal[ConsumerGroupKey, ConsumerGroupValue]) -> None:
        self.topics: Topics | None = None
        self.topics_changed = True
        self._group = group
        self._group_id = group.group_id
        self._journal = journal
        self._subscriptions = group.subscriptions

    def subscribe(
        self, member_id: str, known: MemberMetadata | None, metadata: MemberMetadata, assignors: Sequence[str]
    ) -> bool:
        """Set a member's declaration; raise the epoch if necessary. Returns whether its topics may have changed.

        `known`: its previous declaration. `assignors`: the names that the group may use.
        """
        subscriptions = self._subscriptions
        assignor = subscriptions.assignor(assignors)
        self._journal.put(MemberKey(self._group_id, member_id), metadata)
        old_topics, old_regex = ((), "") if known is None else (known.topics, known.regex or "")
        topics_changed, regex_changed = metadata.topics != old_topics, (metadata.regex or "") != old_regex
        if regex_changed and old_regex and not subscriptions.subscribers(old_regex):
            self._journal.put(RegexKey(self._group_id, old_regex), None)
        # An unresolved expression raises the epoch when it is resolved.
        is_resolved = regex_changed and (not metadata.regex or metadata.regex in subscriptions.resolved)
        if topics_changed or is_resolved or subscriptions.assignor(assignors) != assignor:
            self.raise_epoch()
        elif not self._group.is_stored:
            self._journal.put(EpochKey(self._group_id), self._group.epoch)  # the group exists by this record
        return topics_changed or regex_changed

    def raise_epoch(self) -> None:
        """Begin the group's next epoch."""
        current = self._group.epoch
        topics_hash = current.metadata_hash if self.topics is None else self._subscriptions.topics.hash(self.topics)
        self._journal.put(EpochKey(self._group_id), GroupEpoch(epoch=current.epoch + 1, metadata_hash=topics_hash))
        self._forget_partition_metadata()
        self.topics_changed = False

    def refresh_topics(self) -> None:
        """Raise the epoch if the topics that the group subscribes to differ from those of its epoch."""
        assert self.topics is not None, "heartbeats bring the topics"
        if self._subscriptions.topics.hash(self.topics) != self._group.epoch.metadata_hash:
            self.raise_epoch()
        self._forget_partition_metadata()
        self.topics_changed = False

    def _forget_partition_metadata(self) -> None:
        if self._group.has_partition_metadata:
            self._journal.put(PartitionMetadataKey(self._group_id), None)

    def remove(self, member_ids: Iterable[str]) -> None:
        """Remove members, with the topics of expressions that no other member subscribes to, and raise the epoch."""
        regexes: dict[str, None] = {}
        for member_id in member_ids:
            metadata = self._group.metadata.get(member_id)
            self._delete(member_id)
            if metadata is not None and metadata.regex:
                regexes[metadata.regex] = None
        for regex in regexes:
            if not self._subscriptions.subscribers(regex):
                self._journal.put(RegexKey(self._group_id, regex), None)
        self.raise_epoch()
        if not self._group.metadata:  # there is nothing to assign, and the next member need not wait
            self._journal.put(TargetEpochKey(self._group_id), TargetEpoch(epoch=self._group.epoch.epoch))

    def replace(self, old_id: str, member_id: str) -> None:
        """Assign a new id to a restarted static member. It keeps its partitions, and begins in epoch 0."""
        group = self._group
        metadata, target, current = group.metadata[old_id], group.target(old_id), group.current(old_id)
        self._delete(old_id)
        self._journal.put(MemberKey(self._group_id, member_id), metadata)
        self._journal.put(TargetKey(self._group_id, member_id), target.value)
        self._journal.put(CurrentKey(self._group_id, member_id), rejoined(current))

    def take_over(self, generation: int, members: Mapping[str, ClassicMember], topics: Topics) -> None:
        """Begin with the members of a classic group, all of which have their targets.

        Source: Kafka's ConsumerGroup.fromClassicGroup, createConsumerGroupRecords.
        """
        group_id, put = self._group_id, self._journal.put
        for member_id, member in members.items():
            put(MemberKey(group_id, member_id), member.metadata)
        put(EpochKey(group_id), GroupEpoch(epoch=generation, metadata_hash=self._subscriptions.topics.hash(topics)))
        for member_id, member in members.items():
            put(TargetKey(group_id, member_id), target_of(member.assignment))
        put(TargetEpochKey(group_id), TargetEpoch(epoch=generation))
        for member_id, member in members.items():
            held = {topic: dict.fromkeys(numbers, generation) for topic, numbers in member.assignment.items()}
            current = CurrentAssignment(
                epoch=generation,
                previous_epoch=generation,
                state=int(MemberState.STABLE),
                assigned=held_partitions(held),
            )
            put(CurrentKey(group_id, member_id), current)

    def _delete(self, member_id: str) -> None:
        """Delete a member's records, in an order in which Kafka can read them."""
        self._journal.put(CurrentKey(self._group_id, member_id), None)
        self._journal.put(TargetKey(self._group_id, member_id), None)
        self._journal.put(MemberKey(self._group_id, member_id), None)
