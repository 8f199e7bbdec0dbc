"""Keys and values of a program's own types."""

import pytest

from warmlog import JSON, TEXT, Client, Format, Serializer, TypedRecord
from warmlog.testing import Broker

ORDERS = Format(key=TEXT, value=JSON)


def test_typed_records_are_stored_and_read(warmlog_broker: Broker) -> None:
    with Client(warmlog_broker.native) as client:
        client.produce("orders", **ORDERS.pack({"apples": 2}, "customer-7"))
        client.produce_many("orders", [ORDERS.message(["é"], headers={"a": b"1"}), ORDERS.message(None, "customer-7")])
        records = [ORDERS.read(record) for record in client.consume("orders", until_end=True)]
        raw = [record.value for record in client.consume("orders", until_end=True)]
    assert [(record.offset, record.key, record.value, record.headers) for record in records] == [
        (0, "customer-7", {"apples": 2}, ()),
        (1, None, ["é"], (("a", b"1"),)),
        (2, "customer-7", None, ()),
    ]
    assert raw[1] == '["é"]'.encode()


def test_own_serializers_raise_their_own_errors(warmlog_broker: Broker) -> None:
    numbers = Format(key=TEXT, value=Serializer(lambda number: b"%d" % number, int))
    with Client(warmlog_broker.native) as client:
        client.produce_many("numbers", [numbers.message(5), b"five"])
        first, second = client.consume("numbers", until_end=True)
    read: TypedRecord[str, int] = numbers.read(first)
    assert read.value == 5
    with pytest.raises(ValueError, match="invalid literal"):
        numbers.read(second)
