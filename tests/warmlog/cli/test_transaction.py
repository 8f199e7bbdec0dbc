"""`warmlog transaction` against a broker."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import trio

from tests.broker.api.transactions.asking import create, produce
from tests.broker.kafka_client import kafka_client
from warmlog import Client, ProducerFencedError
from warmlog.testing import Broker

Run = Callable[..., Any]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(
        settings={"transaction.state.log.num.partitions": 1, "transaction.partition.verification.enable": False}
    ) as running:
        yield running


@pytest.fixture
def client(broker: Broker) -> Iterator[Client]:
    with Client(broker.native) as client:
        yield client


def test_an_open_transaction_is_listed_described_and_aborted(run: Run, client: Client) -> None:
    client.create_topic("orders", partitions=2)
    with pytest.raises(ProducerFencedError), client.transaction("shop-1") as transaction:
        transaction.produce("orders", value=b"1", partition=1)
        (listed,) = run("transaction", "list", "--state", "Ongoing", "--pattern", "shop-.*", "--json").json()
        assert listed == {"transactional_id": "shop-1", "producer_id": listed["producer_id"], "state": "Ongoing"}
        assert b"shop-1" in run("transaction", "list", "--producer-id", listed["producer_id"]).out
        assert run("transaction", "list", "--min-duration", 1000, "--json").json() == []
        (described,) = run("transaction", "describe", "shop-1", "--json").json()
        assert described["partitions"] == [{"topic": "orders", "partition": 1}]
        assert described["started_ms"] > 0
        assert b"orders-1" in run("transaction", "describe", "shop-1").out
        assert run("transaction", "find-hanging", "--max-timeout", 0).out == b"no hanging transactions\n"
        assert run("transaction", "abort", "shop-1").out == b"shop-1 aborted\n"
        transaction.produce("orders", value=b"2", partition=0)
    failed = run("transaction", "abort", "shop-1")
    assert failed.status == 1
    assert "transactional id 'shop-1' has no open transaction: its state is Empty" in failed.err


def test_a_hanging_transaction_is_found_and_aborted(run: Run, client: Client, broker: Broker) -> None:
    """A batch of a producer that no coordinator knows: accepted since verification is off."""

    async def produce_unverified() -> None:
        async with kafka_client(broker.kafka) as raw:
            await create(raw, "words")
            producer = {"transactional_id": "lost", "producer_id": 4000, "producer_epoch": 2}
            await produce(raw, producer, 9)

    trio.run(produce_unverified)
    client.produce("words", value=b"behind it")
    committed = [record.value for record in client.consume("words", until_end=True, isolation="read_committed")]
    assert committed == []
    assert run("transaction", "find-hanging").out == b"no hanging transactions\n"  # the record is young
    (hanging,) = run("transaction", "find-hanging", "--topic", "words", "--max-timeout", 0, "--json").json()
    assert hanging["last_timestamp"] > 0
    assert hanging == hanging | {
        "topic": "words", "partition": 0, "start_offset": 0, "producer_id": 4000, "producer_epoch": 2,
        "transactional_id": None,
    }  # fmt: skip
    assert b"words" in run("transaction", "find-hanging", "--max-timeout", 0).out
    failed = run("transaction", "abort", "--topic", "words", "--partition", 0, "--start-offset", 1)
    assert "words-0 has no transaction open from offset 1 on (open: 0)" in failed.err
    done = run("transaction", "abort", "--topic", "words", "--partition", 0, "--start-offset", 0)
    assert done.out == b"words-0: transaction of producer 4000 aborted\n"
    committed = [record.value for record in client.consume("words", until_end=True, isolation="read_committed")]
    assert committed == [b"behind it"]
    assert run("transaction", "find-hanging", "--max-timeout", 0, "--json").out == b""


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("list", "--state", "Nowhere"), 2, "unknown states Nowhere; there are Empty, Ongoing"),
        (("list", "--pattern", "("), 1, "is not a valid regular expression"),
        (("describe", "missing"), 1, "transactional id 'missing': the transactional id does not exist"),
        (("abort", "missing"), 1, "transactional id 'missing': the transactional id does not exist"),
        (("abort", "x", "--topic", "t"), 2, "Give either an ID, or --topic, --partition and --start-offset."),
        (("abort", "--topic", "t"), 2, "Give either an ID, or --topic, --partition and --start-offset."),
        (("abort", "--topic", "none", "--partition", 0, "--start-offset", 0), 1, "none-0: "),
        (("find-hanging", "--partition", 0), 2, "--partition needs exactly one --topic."),
    ],
)
def test_errors_say_what_is_wrong(run: Run, arguments: tuple[object, ...], status: int, message: str) -> None:
    done = run("transaction", *arguments)
    assert done.status == status
    assert message in done.err
