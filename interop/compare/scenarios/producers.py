"""Idempotent producers: ids, epochs and sequences."""

from interop.compare.session import Session


def requests(s: Session) -> None:
    """Run all requests of this area."""
    topic = s.topic("t", 2)
    given = s.ask(
        "an id",
        "InitProducerId",
        transactional_id=None,
        transaction_timeout_ms=60_000,
        producer_id=-1,
        producer_epoch=-1,
    )
    s.ask(
        "another id",
        "InitProducerId",
        transactional_id=None,
        transaction_timeout_ms=60_000,
        producer_id=-1,
        producer_epoch=-1,
    )
    s.ask(
        "an id with an empty transactional id",
        "InitProducerId",
        transactional_id="",
        transaction_timeout_ms=60_000,
        producer_id=-1,
        producer_epoch=-1,
    )
    if s.level != "lowest":
        for label, producer, epoch in (
            ("of its own", given["producer_id"], 0),
            ("without an epoch", given["producer_id"], -1),
            ("of an unknown", 123_456, 3),
            ("with an epoch alone", -1, 3),
            ("at its last", given["producer_id"], 32_766),
        ):
            s.ask(
                f"an id {label}",
                "InitProducerId",
                transactional_id=None,
                transaction_timeout_ms=60_000,
                producer_id=producer,
                producer_epoch=epoch,
            )
    s.ask(
        "an id without time",
        "InitProducerId",
        transactional_id=None,
        transaction_timeout_ms=-1,
        producer_id=-1,
        producer_epoch=-1,
    )
    producer = given["producer_id"]

    def send(
        label: str,
        sequence: int,
        *,
        epoch: int = 0,
        count: int = 1,
        by: int = producer,
        partition: int = 0,
        attributes: int = 0,
        to: str = topic,
    ) -> None:
        records = s.batch(count, producer_id=by, producer_epoch=epoch, base_sequence=sequence, attributes=attributes)
        s.produce(label, to, records, partition=partition)

    send("sequence 0", 0)
    send("sequence 0 again", 0)
    send("sequence 1 to 3", 1, count=3)
    send("sequence 1 to 3 again", 1, count=3)
    send("part of what was", 2, count=2)
    send("more than what was", 1, count=5)
    send("a gap", 7)
    for sequence in range(4, 10):
        send(f"sequence {sequence}", sequence)
    send("the sixth but last", 4)
    send("the fifth but last", 5)
    send("the second", 1, count=3)
    send("another epoch in the middle", 10, epoch=1)
    send("another epoch from 0", 0, epoch=1)
    send("the former epoch", 10)
    send("the former epoch from 0", 0)
    send("the next of the epoch", 1, epoch=1)
    send("an epoch further", 0, epoch=5)
    send("a negative epoch", 0, epoch=-1)
    send("a negative sequence", -1, epoch=5)
    send("to another partition in the middle", 5, epoch=5, partition=1)
    send("to another partition from 0", 0, epoch=5, partition=1)
    send("an unknown producer", 0, by=777_777)
    send("an unknown producer in the middle", 3, by=888_888)
    send("a producer without epoch", 0, by=999_999, epoch=-1, to=s.topic("unfenced"))
    send("the last sequence", 2**31 - 1, by=555_555)
    send("after the last sequence", 0, by=555_555)
    send("over the end of sequences", 2**31 - 2, by=444_444, count=4)
    send("after it", 2, by=444_444)
    send("without a transaction", 0, by=333_333, attributes=16)
    records = s.batch(1, producer_id=666_666, producer_epoch=0, base_sequence=0)
    s.produce(
        "two batches of a producer", topic, records + s.batch(1, producer_id=666_666, producer_epoch=0, base_sequence=1)
    )
    s.produce("two plain batches in one", topic, s.batch(1) + s.batch(1))
    for label, partitions in (
        ("producers", [0, 1]),
        ("producers of an unknown partition", [9]),
        ("producers of none", []),
    ):
        s.ask(label, "DescribeProducers", topics=[{"name": topic, "partition_indexes": partitions}])
    s.ask("producers of unknown", "DescribeProducers", topics=[{"name": s.name("no"), "partition_indexes": [0]}])
    s.ask("producers of a bad name", "DescribeProducers", topics=[{"name": "a b", "partition_indexes": [0]}])
    s.fetch("all", [(topic, 0, 0), (topic, 1, 0)])
