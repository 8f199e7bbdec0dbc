"""Protobuf decoded into columns: types, .proto files, descriptors, and Confluent's wire format."""

from base64 import b64decode
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from tests.pipeline.conftest import DirectoryWriter
from tests.pipeline.lakehouse.schemas.decoded import audited_with, confluent, decoded, rows_in
from tests.pipeline.lakehouse.schemas.registries import RegistryServer
from tests.pipeline.lakehouse.tables import Kind
from tests.pipeline.lakehouse.test_audit import total
from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.lakehouse.schemas.auditing import SchemaSources
from warmlog.pipeline.lakehouse.schemas.formats import formats_of
from warmlog.pipeline.lakehouse.schemas.protobuf import split_indexes
from warmlog.pipeline.lakehouse.schemas.protobuf_files import compiled
from warmlog.pipeline.lakehouse.schemas.types import BadValueError

ORDER = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
import "google/protobuf/struct.proto";
message Order {
  message Item { string sku = 1; }
  enum State { NEW = 0; DONE = 1; }
  int32 id = 1;
  uint32 size = 2;
  uint64 total = 3;
  string city = 4;
  bytes hash = 5;
  State state = 6;
  repeated Item items = 7;
  map<string, int64> tags = 8;
  oneof paid { string card = 9; int64 cash = 10; }
  optional int32 rank = 11;
  google.protobuf.Timestamp sent = 12;
  google.protobuf.BoolValue gift = 13;
  google.protobuf.Struct extra = 14;
}
message Event { string name = 1; Order order = 2; message Inner { double x = 1; } }
"""
STRUCT_NAMES = ("city", "d", "f10", "f9", "h", "i")
STRUCT = ", ".join(['"a": [1.0]', *(f'"{name}": {{"b": null, "{name}": true}}' for name in STRUCT_NAMES)])
COLUMNS = (
    *("id", "size", "total", "city", "hash", "state", "items", "tags"),
    *("card", "cash", "rank", "sent", "gift", "extra"),
)
FULL = (
    *(7, (1 << 32) - 1, Decimal((1 << 64) - 1), "Ulm", b"ab", "DONE", [{"sku": "a"}], {"x": 1}),
    *(None, 5, 0, datetime(2026, 1, 2, 12, tzinfo=UTC), False, f"{{{STRUCT}}}"),
)
EMPTY = (0, 0, Decimal(0), "", b"", "NEW", [], {}, *[None] * 6)


def message_class(text: str, name: str) -> Any:
    pool = descriptor_pool.DescriptorPool()
    descriptors = descriptor_pb2.FileDescriptorSet.FromString(b64decode(compiled({"order.proto": text}, "order.proto")))
    for file in descriptors.file:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


def full_order() -> Any:
    order = message_class(ORDER, "shop.Order")(
        id=7, size=(1 << 32) - 1, total=(1 << 64) - 1, city="Ulm", hash=b"ab", state=1, cash=5, rank=0, tags={"x": 1}
    )
    order.items.add(sku="a")
    order.sent.FromDatetime(datetime(2026, 1, 2, 12, tzinfo=UTC))
    order.gift.value = False
    order.extra["a"] = [1]
    for name in reversed(STRUCT_NAMES):
        order.extra[name] = {name: True, "b": None}
    return order


def serialized(registry: RegistryServer, messages: Sequence[Any]) -> list[bytes]:
    """As Confluent's serializer writes them, which registers descriptors."""
    client = SchemaRegistryClient({"url": registry.url})
    context = SerializationContext("orders", MessageField.VALUE)
    serializer = ProtobufSerializer(type(messages[0]), client, {"use.deprecated.format": False})
    return [serializer(message, context) for message in messages]


@pytest.mark.parametrize("form", ["proto", "descriptors"])
def test_every_type_is_a_column(writer: DirectoryWriter, kind: Kind, tmp_path: Path, form: str) -> None:
    path = tmp_path / ("order.proto" if form == "proto" else "order.bin")
    path.write_bytes(ORDER.encode() if form == "proto" else b64decode(compiled({"o.proto": ORDER}, "o.proto")))
    writer.segment([full_order().SerializeToString(), b""])
    formats = formats_of(value_format="protobuf", value_schema=path, value_message="shop.Order")
    (receipt,) = decoded(writer, tmp_path, kind, formats)
    assert receipt.formats["value"][2] == "shop.Order"
    assert rows_in(tmp_path, kind, *COLUMNS) == [FULL, EMPTY]
    audit = audited_with(tmp_path, kind, writer, SchemaSources(value=(path,)))
    assert (audit.findings, total(audit).in_log) == ([], 2)


def test_messages_of_a_registry_are_told_apart_by_their_indexes(
    writer: DirectoryWriter, registry: RegistryServer, kind: Kind, tmp_path: Path
) -> None:
    event = message_class(ORDER, "shop.Event")
    inner = message_class(ORDER, "shop.Event.Inner")
    orders = serialized(registry, [full_order()])
    writer.segment([*orders, *serialized(registry, [event(name="e")]), *serialized(registry, [inner(x=0.5)]), *orders])
    formats = confluent(registry)
    decoded(writer, tmp_path, kind, formats)
    assert rows_in(tmp_path, kind, "id", "name", "x") == [
        (7, None, None),
        (None, "e", None),
        (None, None, 0.5),
        (7, None, None),
    ]
    audit = audited_with(tmp_path, kind, writer, SchemaSources(registry=formats.registry))
    assert (audit.findings, total(audit).in_log) == ([], 4)


def test_text_of_a_registry_is_compiled_with_what_it_imports(
    writer: DirectoryWriter, registry: RegistryServer, kind: Kind, tmp_path: Path
) -> None:
    client = SchemaRegistryClient({"url": registry.url})
    client.register_schema("item", Schema('syntax = "proto3"; message Item { string sku = 1; }', "PROTOBUF"))
    whole = 'syntax = "proto3"; import "shop/item.proto"; message Order { Item item = 1; }'
    reference = SchemaReference("shop/item.proto", "item", 1)
    number = client.register_schema("orders-value", Schema(whole, "PROTOBUF", [reference]))
    writer.segment([b"\0" + number.to_bytes(4) + b"\0" + b"\x0a\x03\x0a\x01a"])
    decoded(writer, tmp_path, kind, confluent(registry))
    assert rows_in(tmp_path, kind, "item") == [({"sku": "a"},)]


def test_bad_messages_are_bad_rows(
    writer: DirectoryWriter, registry: RegistryServer, kind: Kind, tmp_path: Path
) -> None:
    (good,) = serialized(registry, [full_order()])
    client = SchemaRegistryClient({"url": registry.url})
    broken = client.register_schema("broken", Schema('syntax = "proto3"; message A { B b = 1; }', "PROTOBUF"))
    of_broken = b"\0" + broken.to_bytes(4) + b"\0"
    writer.segment([good, good[:-1], good[:5] + b"\x02\x08", good[:5] + b"\x80", of_broken])
    decoded(writer, tmp_path, kind, confluent(registry, on_bad_row="null"))
    rows = rows_in(tmp_path, kind, "id", "decodeError")
    assert rows[0] == (7, None)
    for (number, error), reason in zip(
        rows[1:],
        (
            "not a message of its Protobuf schema",
            "not a Protobuf schema with message 4",
            "the indexes of its message are cut off",
            "not a Protobuf schema: warmlog_schema.proto:",
        ),
        strict=True,
    ):
        assert number is None
        assert reason in error


def changed_order(change: Callable[[Any], Any]) -> bytes:
    message = message_class(ORDER, "shop.Order")(id=7)
    change(message)
    data: bytes = message.SerializeToString()
    return data


ODD = [
    (changed_order(lambda order: order.extra.update({"a": float("nan")})), "field extra has no JSON text"),
    (changed_order(lambda order: order.extra.update({"a": [float("inf")]})), "field extra has no JSON text"),
    (changed_order(lambda order: setattr(order.sent, "seconds", 1 << 62)), "field sent: a time of 4611686018427387904"),
    (changed_order(lambda order: setattr(order.sent, "seconds", -(1 << 62))), "field sent: a time of -461168601842738"),
    (b"\x08\x07\x22\x02\xff\xfe", "not a message of its Protobuf schema"),
    (changed_order(lambda order: setattr(order.sent, "nanos", -5)), None),
    (changed_order(lambda order: setattr(order.sent, "seconds", 253_402_300_800)), None),
    (changed_order(lambda order: setattr(order.sent, "seconds", -62_135_596_801)), None),
    (changed_order(lambda order: order.extra.fields["unset"].SetInParent()), None),
    (b"\x08\x07\x30\x63", None),
]


def test_odd_messages_are_rows_or_bad_rows(writer: DirectoryWriter, kind: Kind, tmp_path: Path) -> None:
    path = tmp_path / "order.proto"
    path.write_text(ORDER)
    writer.segment([data for data, _ in ODD])
    given: dict[str, Any] = {"value_format": "protobuf", "value_schema": path, "value_message": "shop.Order"}
    with pytest.raises(PipelineError, match=r"orders-0: offset 0: value: field extra has no JSON text: .*NaN"):
        decoded(writer, tmp_path, kind, formats_of(**given))
    decoded(writer, tmp_path, kind, formats_of(**given, on_bad_row="null"))
    rows = rows_in(tmp_path, kind, "id", "decodeError", "rawValue")
    for (number, error, raw), (data, reason) in zip(rows, ODD, strict=True):
        assert (number, raw) == ((7, None) if reason is None else (None, data))
        assert (error is None) if reason is None else reason in error
    assert rows_in(tmp_path, kind, "state")[-1] == ("99",)
    audit = audited_with(tmp_path, kind, writer, SchemaSources(value=(path,)))
    assert (audit.findings, total(audit).in_log) == ([], len(ODD))


def test_text_of_proto2_that_is_not_utf8_is_a_bad_row(writer: DirectoryWriter, kind: Kind, tmp_path: Path) -> None:
    path = tmp_path / "tags.proto"
    path.write_text('syntax = "proto2"; message Tags { map<string, string> tags = 1; optional string name = 2; }')
    writer.segment([b"\x0a\x06\x0a\x01\xff\x12\x01a", b"\x12\x01\xff", b"\x12\x01a"])
    decoded(writer, tmp_path, kind, formats_of(value_format="protobuf", value_schema=path, on_bad_row="null"))
    first, second, third = rows_in(tmp_path, kind, "name", "decodeError")
    assert "a field of the message cannot be read" in first[1]
    assert "field name" in second[1]
    assert third == ("a", None)


@pytest.mark.parametrize(
    ("text", "given", "message"),
    [
        (ORDER, {}, "name the message of the values by --value-message: shop.Order, shop.Event"),
        (ORDER, {"value_message": "shop.Gone"}, "not a Protobuf schema with message shop.Gone"),
        ('syntax = "proto3"; message A { A a = 1; }', {}, "contains its own message A: columns cannot be recursive"),
        ('syntax = "proto3"; message A {}', {}, "message A has no fields"),
        ('syntax = "proto3"; message A {', {}, "not a Protobuf schema: order.proto:"),
        ('syntax = "proto3"; import "gone.proto";', {}, "not a Protobuf schema: gone.proto: File not found"),
    ],
)
def test_files_without_columns_are_refused(tmp_path: Path, text: str, given: dict[str, str], message: str) -> None:
    path = tmp_path / "order.proto"
    path.write_text(text)
    with pytest.raises(PipelineError) as raised:
        formats_of(value_format="protobuf", value_schema=path, **given)
    assert message in str(raised.value)


def test_a_file_that_is_no_schema_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "order.bin"
    path.write_bytes(b"\xff")
    with pytest.raises(PipelineError, match=r"neither a \.proto file nor a set of descriptors"):
        formats_of(value_format="protobuf", value_schema=path)
    with pytest.raises(PipelineError, match="--value-message is for the format protobuf, and the value is string"):
        formats_of(value_format="string", value_message="A")


def test_indexes_of_messages_are_read_as_confluent_writes_them() -> None:
    assert split_indexes(b"\x00rest") == ("0", b"rest")
    assert split_indexes(b"\x02\x00rest") == ("0", b"rest")
    assert split_indexes(b"\x04\x02\x80\x02rest") == ("1.128", b"rest")
    for data in (b"", b"\x04\x02", b"\xff\xff\xff\xff\xff\xff"):
        with pytest.raises(BadValueError, match="cut off"):
            split_indexes(data)
