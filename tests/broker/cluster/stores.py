"""Contents of a store without a store, for tests of pure decisions."""

from collections.abc import Iterable, Sequence
from uuid import UUID

from msgspec import Struct

from warmlog.broker.cluster import rules
from warmlog.broker.cluster.image import ClusterImage
from warmlog.broker.cluster.keys import broker_key, configs_key, draining_key, encode, partition_key, topic_key
from warmlog.broker.cluster.rules import Change, Refusal
from warmlog.broker.cluster.store import Changes, Deleted, KeyValue, Put, Range, StoreTransaction
from warmlog.broker.cluster.values import Configs, Endpoint, Member, PartitionState, Registration, TopicState
from warmlog.protocol.partitions import TopicIdPartition

TOPIC = UUID(int=7)
KEY = TopicIdPartition(TOPIC, 0)


def registration(broker: int, since: int = -1) -> Registration:
    return Registration(
        broker=broker,
        since=since,
        directories=(UUID(int=broker),),
        endpoints=(Endpoint(listener="kafka", host="h", port=broker),),
    )


class Contents:
    """Keys with revisions; `image` is what a broker makes of them."""

    def __init__(self) -> None:
        self.revision = 0
        self.items: dict[str, KeyValue] = {}

    def put(self, key: str, value: Struct | bytes) -> int:
        self.revision += 1
        found = self.items.get(key)
        created = self.revision if found is None else found.create_revision
        data = value if isinstance(value, bytes) else encode(value)
        self.items[key] = KeyValue(key, data, created, self.revision)
        return self.revision

    def delete(self, key: str) -> None:
        self.revision += 1
        del self.items[key]

    def commit(self, transaction: StoreTransaction) -> bool:
        """Commit a transaction if its comparisons hold."""
        revisions = {key: self.items[key].mod_revision if key in self.items else 0 for key, _ in transaction.compares}
        if any(revisions[key] != revision for key, revision in transaction.compares):
            return False
        keys = [operation.key for operation in transaction.operations]
        assert len(keys) == len(set(keys)) <= 128, "a key is written once, within the store's limit"
        assert len(transaction.compares) <= 128
        self.revision += 1
        for operation in transaction.operations:
            if isinstance(operation, Put):
                found = self.items.get(operation.key)
                created = self.revision if found is None else found.create_revision
                self.items[operation.key] = KeyValue(operation.key, operation.value, created, self.revision)
            else:
                self.items.pop(operation.key, None)
        return True

    @property
    def contents(self) -> Range:
        return Range(self.revision, tuple([self.items[key] for key in sorted(self.items)]))

    @property
    def image(self) -> ClusterImage:
        return ClusterImage(self.contents)


class OnePartition(Contents):
    """Brokers 1 to 4 with their ids as epochs, and a partition on 1, 2 and 3, all in sync, that 1 leads."""

    def __init__(self, **configs: str) -> None:
        super().__init__()
        for broker in range(1, 5):
            self.register(broker)
        settings = {name.replace("_", "."): value for name, value in configs.items()}
        self.put(topic_key("t"), TopicState(id=TOPIC, partitions=1, configs=settings))
        self.set_state((1, 2, 3), isr=(1, 2, 3))

    def register(self, broker: int, since: int = -1) -> Member:
        return Member(broker, self.put(broker_key(broker), registration(broker, since)))

    def end(self, *brokers: int) -> None:
        """End registrations."""
        for broker in brokers:
            self.delete(broker_key(broker))

    def drain(self, *brokers: int) -> None:
        for broker in brokers:
            self.put(draining_key(broker), b"")

    def set_defaults(self, **configs: str) -> None:
        self.put(configs_key(), Configs(values={name.replace("_", "."): value for name, value in configs.items()}))

    def set_state(
        self,
        replicas: Sequence[int],
        *,
        isr: Iterable[int],
        leader: int | None = 1,
        elr: Iterable[int] = (),
        epoch: int = 0,
        adding: Sequence[int] = (),
        removing: Sequence[int] = (),
    ) -> None:
        """Write a state whose members have the epochs in which they registered first."""
        state = PartitionState(
            replicas=tuple(replicas),
            leader=None if leader is None else Member(leader, leader),
            leader_epoch=epoch,
            isr=tuple([Member(broker, broker) for broker in isr]),
            elr=tuple([Member(broker, broker) for broker in elr]),
            adding=tuple(adding),
            removing=tuple(removing),
        )
        self.put(partition_key(KEY), state)

    @property
    def state(self) -> PartitionState:
        return self.image.partitions[KEY]

    def apply(self, change: Change | Refusal) -> PartitionState:
        """Commit a change, and return the state afterwards."""
        assert isinstance(change, Change), change
        assert self.commit(rules.transaction([change])), "a comparison does not hold"
        return self.state


def changes_between(old: Range, new: Range) -> Changes:
    """Return what a watch would report in one step."""
    before, after = set(old.items), {item.key for item in new.items}
    gone = [Deleted(item.key) for item in old.items if item.key not in after]
    return Changes(new.revision, (*gone, *[item for item in new.items if item not in before]))


def brokers_of(members: Iterable[Member]) -> list[int]:
    return [member.broker for member in members]
