"""Transactions: requests to the coordinator, batches and offsets of transactions, and requests of tools."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from interop.compare.session import WAIT_S, Session
from warmlog.protocol.records.layout import CONTROL_BIT, TRANSACTIONAL_BIT

_FIRST_BATCHED = 4
_FIRST_WITH_PRODUCER = 3  # InitProducerId
_TIMEOUT_MS = 60_000

Producer = Mapping[str, Any]


class Transactions:
    """The requests of transactional producers as steps of a session."""

    def __init__(self, session: Session) -> None:
        self.s = session

    def init(self, label: str, name: str, **fields: Any) -> Producer:
        """Initialize a producer; return its identity as fields of further requests."""
        asked = {
            "transactional_id": name,
            "transaction_timeout_ms": _TIMEOUT_MS,
            "producer_id": -1,
            "producer_epoch": -1,
            **fields,
        }
        given = self.s.ask(label, "InitProducerId", **asked)
        return {
            "transactional_id": name,
            "producer_id": given.get("producer_id", -1),
            "producer_epoch": given.get("producer_epoch", -1),
        }

    def add(self, label: str, producer: Producer, *partitions: tuple[str, int], verify: bool = False) -> None:
        """Add partitions, in the version's form."""
        topics = [
            {"name": name, "partitions": [index for topic, index in partitions if topic == name]}
            for name in dict(partitions)
        ]
        if self.s.version("AddPartitionsToTxn") >= _FIRST_BATCHED:
            transaction = {**producer, "verify_only": verify, "topics": topics}
            self.s.ask(label, "AddPartitionsToTxn", transactions=[transaction])
        else:
            fields = {f"v3_and_below_{name}": value for name, value in producer.items()}
            self.s.ask(label, "AddPartitionsToTxn", **fields, v3_and_below_topics=topics)

    def send(self, label: str, producer: Producer, topic: str, *, sequence: int = 0, **fields: Any) -> None:
        """Produce a record of the transaction to partition 0."""
        records = self.s.batch(
            1,
            producer_id=producer["producer_id"],
            producer_epoch=producer["producer_epoch"],
            base_sequence=sequence,
            attributes=fields.pop("attributes", TRANSACTIONAL_BIT),
        )
        self.s.produce(label, topic, records, **{"transactional_id": producer["transactional_id"], **fields})

    def add_offsets(self, label: str, producer: Producer, group: str) -> None:
        """Add a group's partition of the offsets topic."""
        self.s.ask(label, "AddOffsetsToTxn", **producer, group_id=group)

    def commit_offset(self, label: str, producer: Producer, group: str, topic: str, **fields: Any) -> None:
        """Commit offset 5 of partition 0 within the transaction."""
        offset = {"partition_index": 0, "committed_offset": 5, "committed_metadata": "m", "committed_leader_epoch": -1}
        asked = {"generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None, **fields}
        topics = [{**self.s.both(topic), "partitions": [offset]}]
        self.s.ask(label, "TxnOffsetCommit", **producer, group_id=group, topics=topics, **asked)

    def end(self, label: str, producer: Producer, *, commits: bool = True) -> Producer:
        """End a transaction, and wait for its markers; return the producer of the next one."""
        given = self.s.ask(label, "EndTxn", **producer, committed=commits)
        self.settle(producer["transactional_id"])
        if given.get("error_code") == 0 and given.get("producer_id", -1) != -1:
            return {**producer, "producer_id": given["producer_id"], "producer_epoch": given["producer_epoch"]}
        return producer

    def settle(self, name: str) -> None:
        """Wait until no transaction of an id is being completed."""
        deadline = time.monotonic() + WAIT_S
        while True:
            (found,) = self.s.quietly("DescribeTransactions", transactional_ids=[name])["transaction_states"]
            if not found["transaction_state"].startswith("Prepare"):
                return
            if time.monotonic() > deadline:
                raise TimeoutError(f"the transaction of {name} is not completed")

    def describe(self, label: str, *names: str) -> None:
        """Describe transactional ids."""
        self.s.ask(label, "DescribeTransactions", transactional_ids=list(names))

    def list(self, label: str, **filters: Any) -> None:
        """List the transactional ids that the filters select."""
        self.s.ask(label, "ListTransactions", **{"state_filters": [], "producer_id_filters": [], **filters})

    def look(self, label: str, topic: str) -> None:
        """Read partition 0 with both isolation levels, and list its end offsets."""
        for isolation, kind in ((1, "committed"), (0, "all")):
            self.s.fetch(f"{label}: {kind}", [(topic, 0, 0)], isolation_level=isolation)
            asked = [{"name": topic, "partitions": [{"partition_index": 0, "timestamp": -1}]}]
            if self.s.version("ListOffsets") > 1:
                self.s.ask(
                    f"{label}: end of {kind}", "ListOffsets", replica_id=-1, topics=asked, isolation_level=isolation
                )

    def offsets(self, label: str, group: str, topic: str) -> None:
        """Fetch committed offsets, with and without `require_stable`."""
        topics = [{"name": topic, "partition_indexes": [0]}]
        for stable in (True, False):
            self.s.ask(
                f"{label}: stable {stable}",
                "OffsetFetch",
                version=7,
                group_id=group,
                topics=topics,
                require_stable=stable,
            )


def requests(s: Session) -> None:
    """Run all requests of this area."""
    t = Transactions(s)
    for each in (_initialization, _story, _partitions, _zombies, _offsets, _batches, _lists, _markers):
        each(s, t)


def _initialization(s: Session, t: Transactions) -> None:
    name = s.name("init")
    first = t.init("a producer", name)
    t.describe("a new id", name)
    t.init("its successor", name)
    for label, timeout_ms in (("no", 0), ("a negative", -1), ("the longest", 900_000), ("too long a", 900_001)):
        t.init(f"a producer with {label} timeout", s.name(f"timeout{timeout_ms}"), transaction_timeout_ms=timeout_ms)
    if s.version("InitProducerId") >= _FIRST_WITH_PRODUCER:
        producer_id = first["producer_id"]
        for label, who, epoch in (
            ("the present epoch", producer_id, 1),
            ("the same again", producer_id, 1),
            ("a former epoch", producer_id, 0),
            ("a later epoch", producer_id, 9),
            ("an unknown producer", 777_777, 0),
            ("no epoch", producer_id, -1),
            ("no producer", -1, 2),
        ):
            t.init(f"a producer that names {label}", name, producer_id=who, producer_epoch=epoch)
        t.init("a new id that names a producer", s.name("init-named"), producer_id=777_777, producer_epoch=3)


def _story(s: Session, t: Transactions) -> None:
    name, topic = s.name("story"), s.topic("story")
    producer = t.init("the producer", name)
    for label, commits in (("a commit", True), ("an abort", False)):
        producer = t.end(f"{label} of nothing", producer, commits=commits)
        t.describe(f"after {label} of nothing", name)
    sequence = 0
    for number, commits in enumerate((True, False, True)):
        t.add(f"add in transaction {number}", producer, (topic, 0))
        t.add(f"add again in transaction {number}", producer, (topic, 0))
        t.describe(f"transaction {number} is open", name)
        t.send(f"record in transaction {number}", producer, topic, sequence=sequence)
        t.look(f"transaction {number} is open", topic)
        before = producer
        producer = t.end(f"end of transaction {number}", producer, commits=commits)
        sequence = sequence + 1 if producer == before else 0
        t.describe(f"transaction {number} has ended", name)
        t.look(f"transaction {number} has ended", topic)
        for label, again in (("the same", commits), ("the other", not commits)):
            s.ask(f"{label} end of transaction {number} again", "EndTxn", **before, committed=again)
            t.settle(name)
        producer = t.init(f"the producer after transaction {number}", name)
        sequence = 0
    s.ask("producers", "DescribeProducers", topics=[{"name": topic, "partition_indexes": [0]}])


def _partitions(s: Session, t: Transactions) -> None:
    name, topic = s.name("partitions"), s.topic("partitions", 3)
    producer = t.init("a producer of partitions", name)
    t.add("several partitions", producer, (topic, 2), (topic, 0))
    t.describe("several partitions are added", name)
    if s.version("AddPartitionsToTxn") >= _FIRST_BATCHED:
        t.add("verify one that is added and one that is not", producer, (topic, 0), (topic, 1), verify=True)
        t.add("verify as another", {**producer, "producer_id": 777_777}, (topic, 0), verify=True)
        t.add("verify with an old epoch", {**producer, "producer_epoch": 7}, (topic, 0), verify=True)
        t.add("verify an unknown id", {**producer, "transactional_id": s.name("no")}, (topic, 0), verify=True)
    else:
        t.add("a partition that does not exist", producer, (topic, 1), (topic, 9))
        t.add("a topic that does not exist", producer, (topic, 1), (s.name("no"), 0))
        t.add("an internal topic", producer, ("__transaction_state", 0), (topic, 1))
    t.add("none", producer)
    t.describe("after refusals", name)
    t.end("end of the partitions", producer, commits=False)


def _zombies(s: Session, t: Transactions) -> None:
    name, topic, group = s.name("zombie"), s.topic("zombie"), s.group("zombies")
    zombie = t.init("a producer to be fenced", name)
    t.add("its partition", zombie, (topic, 0))
    t.send("its record", zombie, topic)
    s.ask(
        "a successor while a transaction is open",
        "InitProducerId",
        transactional_id=name,
        transaction_timeout_ms=_TIMEOUT_MS,
        producer_id=-1,
        producer_epoch=-1,
    )
    t.settle(name)
    successor = t.init("the successor", name)
    t.look("the zombie's transaction is aborted", topic)
    for label, producer in (
        ("the zombie", zombie),
        ("a later epoch", {**successor, "producer_epoch": 99}),
        ("another producer", {**successor, "producer_id": 777_777}),
        ("an unknown id", {**successor, "transactional_id": s.name("unknown")}),
        ("an empty id", {**successor, "transactional_id": ""}),
    ):
        t.add(f"{label} adds", producer, (topic, 0))
        t.add_offsets(f"{label} adds offsets", producer, group)
        t.commit_offset(f"{label} commits an offset", producer, group, topic)
        t.send(f"{label} sends", producer, topic, sequence=1)
        t.end(f"{label} commits", producer)
        t.end(f"{label} aborts", producer, commits=False)
    t.describe("the zombie has changed nothing", name)


def _offsets(s: Session, t: Transactions) -> None:
    name, topic, group = s.name("offsets"), s.topic("offsets"), s.group("readers")
    producer = t.init("a producer of offsets", name)
    t.commit_offset("an offset before its group is added", producer, group, topic)
    producer = t.end("end without offsets", producer, commits=False)
    for commits in (True, False):
        kind = "committed" if commits else "aborted"
        t.add_offsets(f"add offsets to be {kind}", producer, group)
        t.commit_offset(f"an offset to be {kind}", producer, group, topic)
        t.offsets(f"while it may be {kind}", group, topic)
        t.commit_offset(f"an offset of an unknown topic to be {kind}", producer, group, s.name("no"))
        member = {"member_id": "given-m", "generation_id_or_member_epoch": 1}
        t.commit_offset(f"an offset of a member to be {kind}", producer, group, topic, **member)
        t.commit_offset(f"an offset of a member of no group to be {kind}", producer, s.group("no"), topic, **member)
        producer = t.end(f"end of offsets to be {kind}", producer, commits=commits)
        t.offsets(f"once it is {kind}", group, topic)
    t.add_offsets("add offsets of no group", producer, "")
    t.commit_offset("an offset of no group", producer, "", topic)


def _batches(s: Session, t: Transactions) -> None:
    name, topic = s.name("batches"), s.topic("batches")
    producer = t.init("a producer of batches", name)
    t.send("a batch without its id", producer, topic, transactional_id=None)
    t.send("a batch without its id of no topic", producer, s.name("no"), transactional_id=None)
    t.send("a batch with another's id", producer, topic, transactional_id=s.name("no"))
    t.send("a batch that is not of the transaction", producer, topic, attributes=0)
    t.send("a batch of a partition that was not added", producer, topic)
    t.send("a control batch", producer, topic, attributes=TRANSACTIONAL_BIT | CONTROL_BIT)
    t.describe("after the batches", name)
    t.end("end of the batches", producer, commits=False)
    t.look("the batches", topic)


def _lists(s: Session, t: Transactions) -> None:
    names: Sequence[str] = [s.name(f"list-{number}") for number in range(3)]
    topic = s.topic("list")
    producers = [t.init(f"listed producer {number}", name) for number, name in enumerate(names)]
    t.add("an open one", producers[0], (topic, 0))
    t.list("all")
    t.list("the open ones", state_filters=["Ongoing"])
    t.list("open and empty ones", state_filters=["Ongoing", "Empty"])
    t.list("an unknown state", state_filters=["Nope", "Ongoing"])
    t.list("only unknown states", state_filters=["Nope", "ongoing", ""])
    t.list("dead ones", state_filters=["Dead", "PrepareEpochFence"])
    t.list("of a producer", producer_id_filters=[producers[1]["producer_id"], 777_777])
    t.list("of a producer in a state", producer_id_filters=[producers[1]["producer_id"]], state_filters=["Ongoing"])
    if s.version("ListTransactions") > 0:
        for duration in (0, 10_000_000):
            t.list(f"longer than {duration}", duration_filter=duration)
    if s.level == "highest":
        for pattern in (".*list-[12]", "list", f"{s.name('list')}-.", "(", "", r"(?i).*LIST-\d", r"(.)\1", "(?<=x)y"):
            t.list(f"by pattern {pattern.removeprefix(s.name(''))!r}", transactional_id_pattern=pattern)
    t.describe("several, two of them unknown", *names[:2], s.name("no"), "")
    t.describe("one twice", names[1], names[1])
    t.describe("none")
    t.end("end of the listed one", producers[0], commits=False)


def _markers(s: Session, t: Transactions) -> None:
    name, topic = s.name("markers"), s.topic("markers", 2)
    producer = t.init("a producer of markers", name)
    t.add("its partitions", producer, (topic, 0))
    t.send("a record to be marked", producer, topic)

    def mark(label: str, *partitions: int, epoch: int = 0, coordinator: int = 0, **fields: Any) -> None:
        marker = {
            "producer_id": producer["producer_id"],
            "producer_epoch": epoch,
            "transaction_result": False,
            "topics": [{"name": topic, "partition_indexes": list(partitions)}],
            "coordinator_epoch": coordinator,
            **fields,
        }
        s.ask(label, "WriteTxnMarkers", markers=[marker])

    mark("an abort by a tool", 0)
    t.look("after the tool's abort", topic)
    mark("the same again", 0)
    mark("a partition without the producer", 1)
    mark("an unknown partition", 9)
    mark("a coordinator that has a successor", 0, coordinator=-1)
    mark("a later coordinator", 0, coordinator=3)
    mark("the former coordinator", 0, coordinator=2)
    mark("an old epoch", 0, epoch=-1, coordinator=3)
    s.ask("no markers", "WriteTxnMarkers", markers=[])
    t.look("after the markers", topic)
