"""A real schema registry, a real broker and Confluent's client: what they write is in tables, and read by others."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from interop import apicurio
from interop.kafka_node import MissingToolError
from tests.pipeline.lakehouse.schemas.test_protobuf import message_class
from tests.pipeline.lakehouse.tables import Kind, arguments_of, query
from tests.pipeline.lakehouse.test_table import read_by_library
from tests.requires import lacks
from warmlog.cli.pipeline.audit import audit as audit_command
from warmlog.cli.pipeline.table import table as table_command
from warmlog.testing import Broker

pytestmark = pytest.mark.interop

RECORDS = 300
PROTO = (
    'syntax = "proto3"; package shop; message Reading { string sensor = 1; int64 number = 2; repeated double x = 3; }'
)
FIELDS = [
    {"name": "sensor", "type": "string"},
    {"name": "number", "type": "long"},
    {"name": "x", "type": {"type": "array", "items": "double"}},
]
AVRO = {"type": "record", "name": "Reading", "fields": FIELDS}
NEWER = {**AVRO, "fields": [*FIELDS, {"name": "note", "type": ["null", "string"], "default": None}]}
JSON = {
    "title": "Reading",
    "type": "object",
    "required": ["sensor"],
    "properties": {
        "sensor": {"type": "string"},
        "number": {"type": "integer"},
        "x": {"type": "array", "items": {"type": "number"}},
    },
}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    try:
        with apicurio.running(tmp_path_factory.mktemp("registry") / "log") as started:
            yield started
    except MissingToolError as error:
        lacks(error)


def produce(broker: Broker, topic: str, serializer: Any, first: int, record: Any) -> None:
    producer = Producer({"bootstrap.servers": broker.kafka})
    context = SerializationContext(topic, MessageField.VALUE)
    for number in range(first, first + RECORDS):
        producer.produce(topic, key=str(number), value=serializer(record(number), context))
    assert producer.flush(60) == 0


def plain(number: int, **more: Any) -> dict[str, Any]:
    return {"sensor": f"s{number % 3}", "number": number, "x": [number / 2, -1.0], **more}


@pytest.fixture
def registry(url: str) -> Iterator[SchemaRegistryClient]:
    with SchemaRegistryClient({"url": url}) as client:
        yield client


def test_what_confluents_serializers_write_is_in_one_table(
    url: str, registry: SchemaRegistryClient, kind: Kind, tmp_path: Path
) -> None:
    message = message_class(PROTO, "shop.Reading")
    serializers = [
        (AvroSerializer(registry, json.dumps(AVRO)), plain),
        (JSONSerializer(json.dumps(JSON), registry), plain),
        (
            ProtobufSerializer(message, registry, {"use.deprecated.format": False}),
            lambda number: message(**plain(number)),
        ),
        (AvroSerializer(registry, json.dumps(NEWER)), lambda number: plain(number, note="new")),
    ]
    topics = [f"{kind}-{name}" for name in ("avro", "json", "protobuf", "avro")]
    where = arguments_of(tmp_path, kind)
    with Broker(data_dir=tmp_path / "data") as broker:
        for at, (serializer, record) in enumerate(serializers):
            produce(broker, topics[at], serializer, at * RECORDS, record)
            source = [topics[at], *where, "--bootstrap", broker.native, "--schema-registry", url]
            given = ["--value-format", "confluent", "--key-format", "string", "--until-end"]
            done = CliRunner().invoke(table_command, [*source, *given], catch_exceptions=False)
            assert done.exit_code == 0, done.output
            assert f"committed {RECORDS} records of {RECORDS} offsets" in done.output
        for topic in set(topics):
            source = [topic, *where, "--bootstrap", broker.native, "--schema-registry", url]
            audit = CliRunner().invoke(audit_command, source, catch_exceptions=False)
            assert "nothing wrong" in audit.output
    table = read_by_library(tmp_path, kind).sort_by("number")
    expected = [plain(number, note="new" if number >= 3 * RECORDS else None) for number in range(4 * RECORDS)]
    assert table.select(["sensor", "number", "x", "note"]).to_pylist() == expected
    assert table.column("key").to_pylist() == [str(number) for number in range(4 * RECORDS)]
    assert query(tmp_path, kind, "SELECT count(*), sum(number), count(DISTINCT sensor) FROM data") == [
        (4 * RECORDS, sum(range(4 * RECORDS)), 3)
    ]
