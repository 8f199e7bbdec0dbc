"""Requests that race on two connections."""

from typing import Any

from interop.compare.scenarios.topics import new
from interop.compare.session import Session


def requests(s: Session) -> None:
    """Run all requests of this area."""
    topic = s.topic("t")
    s.send("fetch that waits", "Fetch", on=1, **s.fetch_fields([(topic, 0, 0)], max_wait_ms=20_000, min_bytes=1))
    s.fill(topic, s.batch(3))
    s.receive(on=1)
    at_end = s.fetch_fields([(topic, 0, 3)], max_wait_ms=4000, min_bytes=1)  # longer than a deletion takes
    s.send("fetch of a deleted topic", "Fetch", on=1, **at_end)
    s.ask("delete it", "DeleteTopics", topics=[{"name": topic}], topic_names=[topic], timeout_ms=5000)
    s.receive(on=1)

    created = s.name("created")
    for on in (1, 2, 3):
        s.send("create at once", "CreateTopics", on=on, version=7, topics=[new(created)], timeout_ms=5000)
    outcomes = sorted(s.quiet_receive(on=on)["topics"][0]["error_code"] for on in (1, 2, 3))
    s.note("outcomes of creating at once", outcomes)
    s.settle()
    s.load(created)

    for on in (1, 2, 3):
        s.send("produce at once", "Produce", on=on, **_produce(s, created, s.batch(2)))
    offsets = sorted(
        s.quiet_receive(on=on)["responses"][0]["partition_responses"][0]["base_offset"] for on in (1, 2, 3)
    )
    s.note("offsets of producing at once", offsets)

    same = s.batch(2, producer_id=4242, producer_epoch=0, base_sequence=0)
    for on in (1, 2):
        s.send("the same batch at once", "Produce", on=on, **_produce(s, created, same))
    both = sorted(s.quiet_receive(on=on)["responses"][0]["partition_responses"][0]["base_offset"] for on in (1, 2))
    s.note("offsets of the same batch at once", both)

    for place in range(4):
        sequenced = s.batch(1, producer_id=4343, producer_epoch=0, base_sequence=place)
        s.send(f"pipelined {place}", "Produce", on=1, **_produce(s, created, sequenced))
    for _ in range(4):
        s.receive(on=1)

    for on in (1, 2):
        s.send("delete at once", "DeleteTopics", on=on, version=5, topic_names=[created], timeout_ms=5000)
    s.note(
        "outcomes of deleting at once", sorted(s.quiet_receive(on=on)["responses"][0]["error_code"] for on in (1, 2))
    )
    s.settle()
    s.ask("what is left", "Metadata", topics=[{"name": created}], allow_auto_topic_creation=False)


def _produce(s: Session, topic: str, records: bytes) -> dict[str, Any]:
    data = [{**s.both(topic), "partition_data": [{"index": 0, "records": records}]}]
    return {"acks": -1, "timeout_ms": 5000, "topic_data": data}
