"""Fetch requests, and sessions of fetches."""

from typing import Any

from interop.compare.session import Session


def requests(s: Session) -> None:
    """Fetch without a session."""
    topic, other = s.topic("t", 2), s.topic("u")
    s.fill(topic, *[s.batch(5, at=place, size=200) for place in range(6)])
    s.fill(topic, s.batch(2), partition=1)
    s.fill(other, s.batch(2, size=5000), s.batch(2, size=5000))
    for offset in (0, 3, 5, 29, 30, 31, -1, -2, 2**62):
        s.fetch(f"from {offset}", [(topic, 0, offset)])
    s.fetch("two partitions", [(topic, 0, 0), (topic, 1, 0)])
    s.fetch("two topics", [(topic, 0, 10), (other, 0, 0)])
    s.fetch("one partition twice", [(topic, 1, 0), (topic, 1, 1)])
    s.fetch("an unknown partition", [(topic, 7, 0), (topic, 1, 0)])
    s.fetch("a negative partition", [(topic, -1, 0)])
    s.fetch("an unknown topic", [(s.name("no"), 0, 0), (topic, 1, 0)])
    if s.version("Fetch") < 13:
        s.fetch("a bad topic", [("a b", 0, 0)])
        s.fetch("an empty topic", [("", 0, 0)])
    s.fetch("nothing", [])
    for size in (0, 1, 100, 1200, 2600, 100_000):
        s.fetch(f"{size} bytes of a partition", [(topic, 0, 0)], each={"partition_max_bytes": size})
        s.fetch(f"{size} bytes in all", [(topic, 0, 2), (topic, 1, 0)], max_bytes=size)
        s.fetch(f"{size} bytes in all, large first", [(other, 0, 0), (topic, 0, 0)], max_bytes=size)
    s.fetch("negative bytes", [(topic, 0, 0)], max_bytes=-1)
    s.fetch("negative bytes of a partition", [(topic, 0, 0)], each={"partition_max_bytes": -1})
    for isolation in (0, 1, 2, -1):
        s.fetch(f"isolation {isolation}", [(topic, 0, 25)], isolation_level=isolation)
    for epoch in (0, 1, 9, -2):
        s.fetch(f"leader epoch {epoch}", [(topic, 0, 25)], each={"current_leader_epoch": epoch})
        s.fetch(f"last fetched epoch {epoch}", [(topic, 0, 25)], each={"last_fetched_epoch": epoch})
    s.fetch("last fetched epoch beyond the end", [(topic, 0, 99)], each={"last_fetched_epoch": 0})
    s.fetch("an error that does not wait", [(topic, 9, 0)], max_wait_ms=20_000, min_bytes=1)
    s.fetch("a bad offset that does not wait", [(topic, 0, 999)], max_wait_ms=20_000, min_bytes=1)
    s.fetch("a wait that ends", [(topic, 0, 30)], max_wait_ms=30, min_bytes=1)
    s.fetch("a wait for more than there is", [(topic, 0, 25)], max_wait_ms=30, min_bytes=100_000)
    s.fetch("a negative wait", [(topic, 0, 30)], max_wait_ms=-5, min_bytes=1)
    s.fetch("a rack", [(topic, 0, 25)], rack_id="somewhere")
    for replica in (1, 7):
        state = {"replica_id": replica, "replica_epoch": -1}
        s.fetch(f"as replica {replica}", [(topic, 0, 25)], replica_id=replica, replica_state=state)
    if s.version("Fetch") >= 13:
        unknown = [{"topic_id": bytes(16), "partitions": [{"partition": 0, "partition_max_bytes": 100}]}]
        s.fetch("the zero id", [], topics=unknown)


def sessions(s: Session) -> None:
    """Fetch in sessions, if the version has them."""
    if s.version("Fetch") < 7:
        return
    topic, other = s.topic("t", 3), s.topic("u")
    for partition in range(3):
        s.fill(topic, s.batch(4), partition=partition)

    def forget(name: str, *partitions: int) -> list[dict[str, Any]]:
        return [{**s.both(name, "topic"), "partitions": list(partitions)}]

    everything = [(topic, 0, 0), (topic, 1, 0), (topic, 2, 0), (other, 0, 0)]
    session = s.fetch("full", everything, session_epoch=0)["session_id"]

    def step(label: str, epoch: int, partitions: list[tuple[str, int, int]] | None = None, **fields: Any) -> None:
        s.fetch(label, partitions or [], **{"session_id": session, "session_epoch": epoch, **fields})

    step("nothing has changed", 1, [(topic, 0, 4), (topic, 1, 4), (topic, 2, 4)])
    s.fill(topic, s.batch(2), partition=1)
    step("one has more", 2)
    step("it still has", 3)
    step("it is read", 4, [(topic, 1, 6)])
    step("forget one", 5, forgotten_topics_data=forget(topic, 1))
    s.fill(topic, s.batch(2), partition=1)
    step("the forgotten has more", 6)
    step("forget what is not there", 7, forgotten_topics_data=forget(s.name("no"), 1))
    step("add it again", 8, [(topic, 1, 6)])
    step("an error in the session", 9, [(topic, 0, 99)])
    step("the error stays", 10)
    step("the error is gone", 11, [(topic, 0, 4)])
    step("add an unknown partition", 12, [(topic, 8, 0)])
    step("it stays unknown", 13)
    step("forget the unknown", 14, forgotten_topics_data=forget(topic, 8))
    step("add an unknown topic", 15, [(s.name("no"), 0, 0)])
    step("it stays unknown, too", 16)
    step("an epoch that was", 16)
    step("an epoch too far", 30)
    step("the right epoch after that", 17)
    s.quietly(
        "DeleteRecords", topics=[{"name": topic, "partitions": [{"partition_index": 2, "offset": 2}]}], timeout_ms=5000
    )
    step("a log start that moved", 18)
    s.quietly("DeleteTopics", topics=[{"name": other, "topic_id": bytes(16)}], timeout_ms=5000)
    s.settle()
    step("a topic that was deleted", 19)
    step("forget and fetch at once", 20, [(topic, 0, 0)], forgotten_topics_data=forget(topic, 0))
    step("close", -1)
    step("it is closed", 21)
    s.fetch("an unknown session", [(topic, 0, 0)], session_id=123_456, session_epoch=5)
    s.fetch("an unknown session, full", [(topic, 0, 4)], session_id=123_456, session_epoch=0)
    s.fetch("an epoch without a session", [(topic, 0, 0)], session_id=0, session_epoch=5)
    s.fetch("a negative epoch", [(topic, 0, 0)], session_id=0, session_epoch=-5)
    session = s.fetch("full without partitions", [], session_epoch=0)["session_id"]
    session = s.fetch("full again", everything[:2], session_epoch=0)["session_id"]
    session = s.fetch("full instead of it", everything[1:3], session_id=session, session_epoch=0)["session_id"]
    step("incremental of that", 1, [(topic, 0, 0)], max_bytes=1)
