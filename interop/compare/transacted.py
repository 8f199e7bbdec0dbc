"""Operations of generated sequences with transactions, and a few others on the same topics and groups."""

from typing import Any

from hypothesis import strategies as st

from interop.compare.operations import GROUP, MEMBER, OFFSET, TOPIC, Player
from interop.compare.scenarios.transactions import Producer, Transactions
from interop.compare.session import NO_ERROR, Session
from warmlog.protocol.records.layout import TRANSACTIONAL_BIT

CONCURRENT_TRANSACTIONS = 51
_STRANGER = 777_777
_LONG_MS = 600_000

_ID = st.sampled_from(("x", "x", "x", "y"))
#: A producer of an id: its latest, the one before (a zombie), one with the next epoch, one with another's id.
_WHO = st.sampled_from(("now",) * 16 + ("before", "before", "later", "stranger"))
_ISOLATION = st.sampled_from((0, 1))
_PARTITION = st.sampled_from((0, 0, 0, 0, 1, 1, 2))
_SEQUENCE = st.sampled_from(("next",) * 8 + ("again", "gap", "first"))
#: Kinds of batches: in the transaction, without its id, with another's id, outside transactions.
_KIND = st.sampled_from(("own",) * 12 + ("none", "other", "plain"))
_BY = st.sampled_from((None, None, None, 0, 1))
#: The version of an API as a fraction of its range; current clients use the last ones.
_NEWNESS = st.sampled_from((0.0, 0.3, 0.5, 0.7, 0.9, 1.0, 1.0, 1.0))


def _weighted(*operations: tuple[int, st.SearchStrategy[Any]]) -> st.SearchStrategy[Any]:
    """Choose among strategies in proportion to their weights."""
    return st.sampled_from([each for weight, each in operations for _ in range(weight)]).flatmap(lambda each: each)


# These are sent in every version that a broker supports; topics and groups change rarely.
_WITH_VERSIONS = _weighted(
    (3, st.tuples(st.just("init"), _ID, st.sampled_from((None, None, None, "now", "before", "later", "stranger")))),
    (5, st.tuples(st.just("add"), _ID, _WHO, TOPIC, _PARTITION, st.sampled_from((False, False, False, True)))),
    (14, st.tuples(st.just("send"), _ID, _WHO, TOPIC, _PARTITION, _SEQUENCE, _KIND)),
    (3, st.tuples(st.just("add_offsets"), _ID, _WHO, GROUP)),
    (6, st.tuples(st.just("commit_within"), _ID, _WHO, GROUP, TOPIC, _PARTITION, OFFSET, _BY)),
    (8, st.tuples(st.just("end"), _ID, _WHO, st.booleans())),
    (2, st.tuples(st.just("states"), st.sampled_from((None, "Ongoing", "Empty", "CompleteCommit", "Dead")))),
    (6, st.tuples(st.just("read"), TOPIC, _PARTITION, OFFSET, _ISOLATION)),
    (3, st.tuples(st.just("edge"), TOPIC, _PARTITION, st.sampled_from((-1, -2, -3, "time")), _ISOLATION)),
    (2, st.tuples(st.just("mark"), _ID, _WHO, TOPIC, _PARTITION, st.booleans())),
)
_OF_ONE_VERSION = _weighted(
    (4, st.tuples(st.just("state"), _ID)),
    (4, st.tuples(st.just("producers"), TOPIC, _PARTITION)),
    (4, st.tuples(st.just("stable"), GROUP)),
    (2, st.tuples(st.just("produce"), TOPIC, _PARTITION, st.sampled_from((1, 3)))),
    (2, st.tuples(st.just("commit"), GROUP, TOPIC, _PARTITION, OFFSET, _BY)),
    (2, st.tuples(st.just("committed"), GROUP)),
    (1, st.tuples(st.just("forget"), GROUP, TOPIC, _PARTITION)),
    (3, st.tuples(st.just("join"), GROUP, MEMBER)),
    (2, st.tuples(st.just("sync"), GROUP, MEMBER)),
    (1, st.tuples(st.just("leave"), GROUP, MEMBER)),
    (1, st.tuples(st.just("describe"), GROUP)),
    (2, st.tuples(st.just("drop"), GROUP)),
    (2, st.tuples(st.just("records"), TOPIC, _PARTITION, OFFSET)),
    (1, st.tuples(st.just("create"), TOPIC, st.just(2))),
    (1, st.tuples(st.just("delete"), TOPIC)),
    (1, st.tuples(st.just("grow"), TOPIC, st.just(3))),
)
TRANSACTED = _weighted((3, st.tuples(_NEWNESS, _WITH_VERSIONS)), (1, st.tuples(st.just(1.0), _OF_ONE_VERSION)))


class TransactionalPlayer(Player):
    """Plays a sequence to one broker; after each request it waits until no transaction is being ended.

    Both topics and both transactional ids exist from the start.
    """

    def __init__(self, s: Session) -> None:
        super().__init__(s)
        self.t = Transactions(s)
        self._given: dict[str, list[tuple[int, int]]] = {}
        self._sequences: dict[tuple[int, int, bytes, int], int] = {}
        s.topic("a", 2)
        s.topic("b", 2)
        for name in ("x", "y"):
            self._init(f"the first producer of {name}", name, None)

    def play(self, place: int, name: Any, *arguments: Any) -> None:
        """Carry out an operation, given as the newness of its versions followed by the operation."""
        self.s.newness = name
        ((kind, *rest),) = arguments
        super().play(place, kind, *rest)

    def _init(self, label: str, name: str, who: str | None) -> None:
        fields: dict[str, Any] = {"transactional_id": self.s.name(name), "transaction_timeout_ms": _LONG_MS}
        fields |= {"producer_id": -1, "producer_epoch": -1} if who is None else self._identity(name, who)
        while True:
            answer = self.s.ask(label, "InitProducerId", **fields)
            self._settle()
            if answer["error_code"] != CONCURRENT_TRANSACTIONS:
                break
        if answer["error_code"] == NO_ERROR:
            self._learn(name, answer)

    def _add(self, label: str, name: str, who: str, *asked: Any) -> None:
        topic, partition, verify = asked
        self.t.add(label, self._producer(name, who), (self.s.name(topic), partition), verify=verify)

    def _send(self, label: str, name: str, who: str, topic: str, partition: int, *shape: str) -> None:
        sequence_of, kind = shape
        producer = self._producer(name, who)
        whole = self.s.name(topic)
        key = (
            producer["producer_id"],
            producer["producer_epoch"],
            self.s.topic_ids.get(whole, b""),
            partition,
        )
        following = self._sequences.get(key, 0)
        sequence = {"next": following, "again": max(0, following - 1), "gap": following + 2, "first": 0}[sequence_of]
        records = self.s.batch(
            1,
            producer_id=producer["producer_id"],
            producer_epoch=producer["producer_epoch"],
            base_sequence=sequence,
            attributes=0 if kind == "plain" else TRANSACTIONAL_BIT,
        )
        named = {"none": None, "other": self.s.name("z")}.get(kind, producer["transactional_id"])
        answer = self.s.produce(label, whole, records, partition=partition, transactional_id=named)
        if answer and answer["responses"][0]["partition_responses"][0]["error_code"] == NO_ERROR:
            self._sequences[key] = max(following, sequence + 1)

    def _add_offsets(self, label: str, name: str, who: str, group: str) -> None:
        self.t.add_offsets(label, self._producer(name, who), self.s.group(group))

    def _commit_within(self, label: str, name: str, who: str, group: str, topic: str, *what: Any) -> None:
        partition, offset, member = what
        member_id, generation = ("", -1) if member is None else self._member(group, member)
        one = {
            "partition_index": partition,
            "committed_offset": offset,
            "committed_leader_epoch": -1,
            "committed_metadata": "m",
        }
        topics = [{**self.s.both(self.s.name(topic)), "partitions": [one]}]
        fields: dict[str, Any] = {
            "member_id": member_id,
            "generation_id_or_member_epoch": generation,
            "group_instance_id": None,
        }
        producer = self._producer(name, who)
        self.s.ask(label, "TxnOffsetCommit", **producer, group_id=self.s.group(group), topics=topics, **fields)

    def _end(self, label: str, name: str, who: str, commits: bool) -> None:
        answer = self.s.ask(label, "EndTxn", **self._producer(name, who), committed=commits)
        self._settle()
        if answer.get("error_code") == NO_ERROR and answer.get("producer_id", -1) != -1:
            self._learn(name, answer)

    def _states(self, label: str, state: str | None) -> None:
        self.t.list(label, state_filters=[] if state is None else [state])

    def _state(self, label: str, name: str) -> None:
        self.t.describe(label, self.s.name(name))

    def _read(self, label: str, topic: str, partition: int, *how: int) -> None:
        offset, isolation = how
        self.s.fetch(label, [(self.s.name(topic), partition, offset)], isolation_level=isolation)

    def _edge(self, label: str, topic: str, partition: int, time: Any, isolation: int) -> None:
        asked = {
            "partition_index": partition,
            "timestamp": self.s.base_time if time == "time" else time,
            "current_leader_epoch": -1,
        }
        topics = [{"name": self.s.name(topic), "partitions": [asked]}]
        self.s.ask(label, "ListOffsets", replica_id=-1, topics=topics, isolation_level=isolation, timeout_ms=5000)

    def _producers(self, label: str, topic: str, partition: int) -> None:
        topics = [{"name": self.s.name(topic), "partition_indexes": [partition]}]
        self.s.ask(label, "DescribeProducers", topics=topics)

    def _stable(self, label: str, group: str) -> None:
        groups = [{"group_id": self.s.group(group), "topics": None, "member_epoch": -1}]
        self.s.ask(label, "OffsetFetch", version=9, groups=groups, require_stable=True)

    def _mark(self, label: str, name: str, who: str, topic: str, *where: Any) -> None:
        partition, commits = where
        marker = {
            **self._identity(name, who),
            "transaction_result": commits,
            "topics": [{"name": self.s.name(topic), "partition_indexes": [partition]}],
            "coordinator_epoch": 0,
        }
        self.s.ask(label, "WriteTxnMarkers", markers=[marker])

    def _settle(self) -> None:
        for name in ("x", "y"):
            self.t.settle(self.s.name(name))

    def _learn(self, name: str, answer: dict[str, Any]) -> None:
        given = answer["producer_id"], answer["producer_epoch"]
        known = self._given.setdefault(name, [])
        if given not in known[-1:]:
            known.append(given)

    def _producer(self, name: str, who: str) -> Producer:
        return {"transactional_id": self.s.name(name), **self._identity(name, who)}

    def _identity(self, name: str, who: str) -> dict[str, int]:
        known = self._given.get(name, [(_STRANGER, 0)])
        producer_id, epoch = known[-2:][0] if who == "before" else known[-1]
        if who == "stranger":
            producer_id = _STRANGER
        return {"producer_id": producer_id, "producer_epoch": epoch + 1 if who == "later" else epoch}
