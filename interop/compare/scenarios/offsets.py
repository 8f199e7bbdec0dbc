"""ListOffsets and OffsetForLeaderEpoch."""

from interop.compare.session import Session

EARLIEST, LATEST, MAX, LOCAL, TIERED, PENDING = -2, -1, -3, -4, -5, -6


def requests(s: Session) -> None:
    """Run all requests of this area."""
    topic = s.topic("t", 3)
    s.fill(topic, s.batch(5), s.batch(5, at=100), s.batch(5, at=50))
    s.fill(topic, s.batch(3, at=10), partition=1)
    s.quietly(
        "DeleteRecords", topics=[{"name": topic, "partitions": [{"partition_index": 1, "offset": 1}]}], timeout_ms=5000
    )

    def times(
        label: str,
        time: int,
        *,
        name: str = topic,
        partitions: tuple[int, ...] = (0, 1, 2),
        epoch: int = -1,
        isolation: int = 0,
    ) -> None:
        asked = [{"partition_index": index, "timestamp": time, "current_leader_epoch": epoch} for index in partitions]
        topics = [{"name": name, "partitions": asked}]
        s.ask(label, "ListOffsets", replica_id=-1, isolation_level=isolation, topics=topics, timeout_ms=5000)

    for isolation in (0, 1):
        for special in (EARLIEST, LATEST, MAX, LOCAL, TIERED, PENDING, -7, -100):
            times(f"time {special} isolation {isolation}", special, isolation=isolation)
    for since in (-1, 0, 1, 4, 5, 10, 52, 54, 55, 100, 103, 104, 105, 10_000):
        times(f"time T+{since}", s.base_time + since)
    times("time 0", 0)
    times("the greatest time", 2**63 - 1)
    times("an unknown partition", LATEST, partitions=(0, 9))
    times("a negative partition", LATEST, partitions=(-1,))
    times("an unknown topic", LATEST, name=s.name("no"))
    times("a bad topic", LATEST, name="a b")
    times("an empty topic", LATEST, name="")
    times("no partitions", LATEST, partitions=())
    times("one partition twice", LATEST, partitions=(0, 0))
    times("isolation 2", LATEST, isolation=2)
    for epoch in (0, 1, 5, -2):
        times(f"epoch {epoch}", LATEST, epoch=epoch)
    s.ask("no topics", "ListOffsets", replica_id=-1, topics=[], timeout_ms=5000)
    for replica in (1, 5, -2, -3):
        latest = {"partition_index": 0, "timestamp": LATEST, "current_leader_epoch": -1}
        topics = [{"name": topic, "partitions": [latest]}]
        s.ask(f"replica {replica}", "ListOffsets", replica_id=replica, topics=topics, timeout_ms=5000)

    for current in (-1, 0, 3):
        for epoch in (-1, 0, 1, 7, -5):
            asked = [
                {"partition": index, "current_leader_epoch": current, "leader_epoch": epoch} for index in (0, 1, 2, 9)
            ]
            s.ask(
                f"end of epoch {epoch} at {current}",
                "OffsetForLeaderEpoch",
                replica_id=-1,
                topics=[{"topic": topic, "partitions": asked}],
            )
    asked = [{"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}]
    s.ask(
        "end of epoch of unknown",
        "OffsetForLeaderEpoch",
        replica_id=-1,
        topics=[{"topic": s.name("no"), "partitions": asked}],
    )
    s.ask(
        "end of epoch of a bad name",
        "OffsetForLeaderEpoch",
        replica_id=-1,
        topics=[{"topic": "a b", "partitions": asked}],
    )
    s.ask("end of epoch of none", "OffsetForLeaderEpoch", replica_id=-1, topics=[])
