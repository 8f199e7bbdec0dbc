"""The blocking face of transactions."""

import pytest

from warmlog import Client, ClosedError
from warmlog.testing import Broker


def test_consume_transform_produce(warmlog_broker: Broker) -> None:
    with Client(warmlog_broker.native) as client:
        client.produce_many("in", [b"%d" % number for number in range(10)])
        client.create_topic("out")
        with client.consume("in", group="g", auto_commit=False, until_end=True) as stream:
            for record in stream:
                with client.transaction("t") as transaction:
                    transaction.produce("out", value=record.value)
                    transaction.produce_nowait("out", value=b"second")
                    transaction.produce_many("out", [b"third"])
                    transaction.flush()
                    transaction.commit_offsets(stream)
                    if record.offset % 2:
                        transaction.abort()
        values = [record.value for record in client.consume("out", until_end=True, isolation="read_committed")]
        assert values == [each for number in range(0, 10, 2) for each in (b"%d" % number, b"second", b"third")]


def test_an_error_aborts_and_an_explicit_commit_ends(warmlog_broker: Broker) -> None:
    with Client(warmlog_broker.native) as client:
        client.create_topic("out")
        with pytest.raises(ZeroDivisionError), client.transaction("t") as transaction:
            transaction.produce("out", value=b"never")
            raise ZeroDivisionError
        with client.transaction("t") as transaction:
            transaction.produce("out", value=b"kept")
            transaction.commit()
            assert transaction.has_ended
            assert transaction.transactional_id == "t"
            with pytest.raises(ClosedError):
                transaction.produce("out", value=b"late")
            with pytest.raises(ClosedError):
                transaction.produce_nowait("out", value=b"late")
        values = [record.value for record in client.consume("out", until_end=True, isolation="read_committed")]
        assert values == [b"kept"]


def test_nothing_handed_over_before_an_abort_appears_in_the_next_transaction(warmlog_broker: Broker) -> None:
    with Client(warmlog_broker.native, linger_ms=60_000) as client:
        with client.transaction("t") as transaction:
            dropped = [transaction.produce_nowait("new", value=b"aborted") for _ in range(1000)]
            transaction.abort()
        assert all(isinstance(delivery.exception(), ClosedError) for delivery in dropped)
        with client.transaction("t") as transaction:
            kept = [transaction.produce_nowait("new", value=b"kept") for _ in range(1000)]
        assert all(delivery.done() for delivery in kept)
        values = [record.value for record in client.consume("new", until_end=True, isolation="read_committed")]
        assert values == [b"kept"] * 1000


def test_a_record_that_cannot_be_added_aborts_the_transaction(warmlog_broker: Broker) -> None:
    with Client(warmlog_broker.native) as client:
        client.create_topic("out")
        with pytest.raises(ValueError, match="partitions 0 to 0"), client.transaction("t") as transaction:
            transaction.produce_nowait("out", value=b"x")
            transaction.produce_nowait("out", value=b"x", partition=3)
        assert list(client.consume("out", until_end=True, isolation="read_committed")) == []
