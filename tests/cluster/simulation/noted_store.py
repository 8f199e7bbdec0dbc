"""The contents of the simulated store, with a trace of its changes and an image that follows them."""

from collections.abc import Callable, Iterable

from tests.broker.cluster.memory import MemoryCluster
from warmlog.broker.cluster.image import EMPTY, ClusterImage
from warmlog.broker.cluster.store import Changes, Event
from warmlog.broker.cluster.values import Member, PartitionState
from warmlog.protocol.partitions import TopicIdPartition


class NotedStore(MemoryCluster):
    """Notes changes of partitions and brokers, and counts elections."""

    def __init__(self, note: Callable[[str], None]) -> None:
        super().__init__()
        self.image = ClusterImage(EMPTY)
        self.elections = 0  # changes of a partition's leader to another broker
        self._note = note
        self._leaders: dict[TopicIdPartition, int] = {}  # the latest ones

    def _record(self, revision: int, events: list[Event]) -> None:
        super()._record(revision, events)
        if events:
            delta = self.image.apply(Changes(revision, tuple(events)))
            for key in delta.partitions:
                state = self.image.partitions.get(key)
                if state is not None:
                    self._count_election(key, state)
                text = "gone" if state is None else _text_of(state)
                self._note(f"{revision}: {self.image.names.get(key.topic_id)}-{key.partition}: {text}")
            for each in delta.brokers:
                registration = self.image.brokers.get(each)
                text = "gone" if registration is None else f"{registration.since} to {registration.epoch}"
                self._note(f"{revision}: broker {each}: {text}")

    def _count_election(self, key: TopicIdPartition, state: PartitionState) -> None:
        if state.leader is not None:
            if self._leaders.get(key, state.leader_id) != state.leader_id:
                self.elections += 1
            self._leaders[key] = state.leader_id


def _text_of(state: PartitionState) -> str:
    isr, elr = _members(state.isr), _members(state.elr)
    leader = "nobody" if state.leader is None else _members([state.leader])
    text = f"{leader} leads in {state.leader_epoch}, ISR {isr}, ELR {elr}, replicas {state.replicas}"
    return text + (f", adding {state.adding}, removing {state.removing}" if state.adding or state.removing else "")


def _members(members: Iterable[Member]) -> str:
    return " ".join(f"{member.broker}@{member.epoch}" for member in members)
