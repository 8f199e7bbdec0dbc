"""Debezium's envelopes: upserts and deletes of a database's rows, in JSON, Avro and Protobuf."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.pipeline.lakehouse.schemas.decoded import encoded, rows_in, table_in
from tests.pipeline.lakehouse.schemas.registries import RegistryServer, avro, json_values, serving
from tests.pipeline.lakehouse.tables import Kind, arguments_of, options_of
from tests.pipeline.lakehouse.upserts.upserted import KeyedWriter
from warmlog.cli.root import root
from warmlog.client.blocking import Client
from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.job_stats import Reporter
from warmlog.pipeline.jobs.table_audit import TableAudit, audit_table
from warmlog.pipeline.lakehouse.job import TableSettings
from warmlog.pipeline.lakehouse.receipts import Receipt
from warmlog.pipeline.lakehouse.schemas.auditing import SchemaSources
from warmlog.pipeline.lakehouse.schemas.formats import Formats, formats_of
from warmlog.pipeline.lakehouse.upserts.job import UpsertJob
from warmlog.pipeline.runner import LocalRunner
from warmlog.testing import Broker

ROW = {"type": "object", "required": ["id"], "properties": {"id": {"type": "integer"}, "city": {"type": "string"}}}
ROW_AVRO = {
    "type": "record",
    "name": "Value",
    "fields": [{"name": "id", "type": "long"}, {"name": "city", "type": ["null", "string"], "default": None}],
}
SOURCE = {"type": "record", "name": "Source", "fields": [{"name": "lsn", "type": "long"}]}
KEY_AVRO = {"type": "record", "name": "Key", "fields": [{"name": "id", "type": "long"}]}


def envelope_avro(row: dict[str, Any] = ROW_AVRO) -> dict[str, Any]:
    fields = [
        {"name": "before", "type": ["null", row], "default": None},
        {"name": "after", "type": ["null", "Value"], "default": None},
        {"name": "source", "type": SOURCE},
        {"name": "op", "type": "string"},
        {"name": "ts_ms", "type": ["null", "long"], "default": None},
    ]
    return {"type": "record", "name": "Envelope", "namespace": "db.customers", "fields": fields}


def change(op: str, before: Any = None, after: Any = None) -> dict[str, Any]:
    return {"before": before, "after": after, "source": {"lsn": 7}, "op": op, "ts_ms": 1_700_000_000_000}


def row(number: int, city: str, **more: Any) -> dict[str, Any]:
    return {"id": number, "city": city, **more}


# Rows 1 and 3 are left: 2 was deleted, with a tombstone after it, as Debezium writes them.
CHANGES: Sequence[tuple[int, Any]] = [
    (1, change("r", after=row(1, "Ulm"))),
    (2, change("c", after=row(2, "Bonn"))),
    (1, change("u", row(1, "Ulm"), row(1, "Kiel"))),
    (2, change("d", row(2, "Bonn"))),
    (2, None),
    (3, change("c", after=row(3, "Jena"))),
]
LEFT = [(2, 1, "Kiel"), (5, 3, "Jena")]


@pytest.fixture
def writer(tmp_path: Path) -> KeyedWriter:
    return KeyedWriter(tmp_path / "data")


@pytest.fixture
def registry() -> Iterator[RegistryServer]:
    with serving() as server:
        yield server


def add(writer: KeyedWriter, changes: Sequence[tuple[int, Any]], write: Any) -> None:
    writer.add(*((b"%d" % key, None if value is None else write(value)) for key, value in changes))


def in_json(value: Any) -> bytes:
    return json.dumps(value).encode()


def wrapped(value: Any) -> bytes:
    """As Kafka Connect's converter with schemas.enable=true."""
    return json.dumps({"schema": {"type": "struct", "name": "Envelope"}, "payload": value}).encode()


def row_file(directory: Path) -> Path:
    path = directory / "row.json"
    path.write_text(json.dumps(ROW))
    return path


def of_json(directory: Path, **more: Any) -> Formats:
    return formats_of(value_format="json", value_schema=row_file(directory), upsert=True, envelope="debezium", **more)


def upserted(writer: KeyedWriter, directory: Path, kind: Kind, formats: Formats) -> list[Receipt]:
    job = UpsertJob(options_of(writer), table_in(directory, kind, formats), TableSettings(formats=formats))
    return list(job.run_until_end(LocalRunner()))


def audited(writer: KeyedWriter, directory: Path, kind: Kind, sources: SchemaSources) -> TableAudit:
    table = table_in(directory, kind, Formats(), ("partition", "offset"))
    return audit_table(LocalRunner(), options_of(writer), table, Reporter("audit"), sources=sources)


@pytest.mark.parametrize("write", [in_json, wrapped], ids=["without a schema", "with a schema"])
def test_rows_of_a_database_from_json(write: Any, writer: KeyedWriter, kind: Kind, tmp_path: Path) -> None:
    """The audit takes envelopes apart in the same way."""
    add(writer, CHANGES[:4], write)
    formats = of_json(tmp_path)
    upserted(writer, tmp_path, kind, formats)
    add(writer, CHANGES[4:], write)
    upserted(writer, tmp_path, kind, formats)
    assert rows_in(tmp_path, kind, "offset", "id", "city") == LEFT
    audit = audited(writer, tmp_path, kind, SchemaSources(value=(row_file(tmp_path),)))
    (partition,) = audit.partitions
    assert audit.findings == []
    assert (partition.proved.in_log, partition.superseded, partition.deletes, partition.empty) == (2, 3, 1, 0)


def test_rows_of_a_database_from_avro_with_a_registry(
    writer: KeyedWriter, registry: RegistryServer, kind: Kind, tmp_path: Path
) -> None:
    """Keys are decoded, too; a column that the database gets becomes one of the table, and old rows have null there."""
    wider = {**ROW_AVRO, "fields": [*ROW_AVRO["fields"], {"name": "age", "type": ["null", "int"], "default": None}]}
    schemas = {False: envelope_avro(), True: envelope_avro(wider)}

    def pairs(changes: Sequence[tuple[int, Any]], *, is_wider: bool) -> None:
        keys = avro(registry.url, KEY_AVRO, [{"id": key} for key, _ in changes])
        values = [None if value is None else avro(registry.url, schemas[is_wider], [value])[0] for _, value in changes]
        writer.add(*zip(keys, values, strict=True))

    formats = formats_of(
        key_format="confluent",
        value_format="confluent",
        schema_registry=registry.url,
        upsert=True,
        envelope="debezium",
    )
    pairs(CHANGES, is_wider=False)
    upserted(writer, tmp_path, kind, formats)
    assert rows_in(tmp_path, kind, "offset", "key", "city") == [(2, {"id": 1}, "Kiel"), (5, {"id": 3}, "Jena")]
    pairs(
        [(3, change("u", after=row(3, "Gera", age=40))), (4, change("c", after=row(4, "Hof", age=30)))], is_wider=True
    )
    upserted(writer, tmp_path, kind, formats)
    found = rows_in(tmp_path, kind, "offset", "city", "age")
    assert found == [(2, "Kiel", None), (6, "Gera", 40), (7, "Hof", 30)]
    audit = audited(writer, tmp_path, kind, SchemaSources(registry=formats.registry))
    assert (audit.findings, audit.partitions[0].proved.in_log) == ([], 3)


def test_rows_of_a_database_from_json_with_a_registry(
    writer: KeyedWriter, registry: RegistryServer, kind: Kind, tmp_path: Path
) -> None:
    nullable = {"oneOf": [{"type": "null"}, ROW]}
    schema = {
        "title": "Envelope",
        "type": "object",
        "properties": {"before": nullable, "after": nullable, "op": {"type": "string"}, "ts_ms": {"type": "integer"}},
    }
    add(writer, CHANGES, lambda value: json_values(registry.url, schema, [value])[0])
    formats = formats_of(value_format="confluent", schema_registry=registry.url, upsert=True, envelope="debezium")
    upserted(writer, tmp_path, kind, formats)
    assert rows_in(tmp_path, kind, "offset", "id", "city") == LEFT


def test_rows_of_a_database_from_avro_and_protobuf_files(writer: KeyedWriter, kind: Kind, tmp_path: Path) -> None:
    schema = tmp_path / "envelope.avsc"
    schema.write_text(json.dumps(envelope_avro()))
    add(writer, CHANGES, lambda value: encoded(envelope_avro(), value)[0])
    formats = formats_of(value_format="avro", value_schema=schema, upsert=True, envelope="debezium")
    upserted(writer, tmp_path, kind, formats)
    assert rows_in(tmp_path, kind, "offset", "id", "city") == LEFT
    proto = tmp_path / "envelope.proto"
    proto.write_text(
        'syntax = "proto3"; message Value { int64 id = 1; string city = 2; }'
        " message Envelope { Value before = 1; Value after = 2; string op = 3; }"
    )
    other = KeyedWriter(tmp_path / "other")
    other.add(
        (b"1", b"\x12\x07\x08\x01\x12\x03Ulm\x1a\x01c"),
        (b"2", b"\x12\x07\x08\x02\x12\x03Hof\x1a\x01c"),
        (b"1", b"\x0a\x07\x08\x01\x12\x03Ulm\x1a\x01d"),
    )
    formats = formats_of(
        value_format="protobuf", value_schema=proto, value_message="Envelope", upsert=True, envelope="debezium"
    )
    upserted(other, tmp_path / "proto", kind, formats)
    assert rows_in(tmp_path / "proto", kind, "offset", "id", "city") == [(1, 2, "Hof")]


BAD = {
    "truncated": (change("t"), "op t: the source's table was truncated, which deletes no row here"),
    "a message": (change("m"), "op m: a message, not a change of a row"),
    "no envelope": ({"id": 1}, "not an envelope of Debezium: op is None"),
    "no row": (change("u"), "op u: it has no row after the change"),
    "another row": (change("c", after={"id": "x"}), 'field id: "x" is not of type "integer"'),
    "no object": ([1], "not an envelope in JSON: "),
}


@pytest.mark.parametrize("name", BAD)
def test_an_envelope_that_does_not_fit_stops_the_job(name: str, writer: KeyedWriter, tmp_path: Path) -> None:
    value, reason = BAD[name]
    add(writer, [(1, value)], in_json)
    with pytest.raises(PipelineError, match="orders-0: offset 0: value") as caught:
        upserted(writer, tmp_path, "delta", of_json(tmp_path))
    assert reason in str(caught.value)


def test_an_envelope_that_does_not_fit_is_kept_as_the_row_of_its_key(
    writer: KeyedWriter, kind: Kind, tmp_path: Path
) -> None:
    add(writer, [*CHANGES, (3, change("t"))], in_json)
    upserted(writer, tmp_path, kind, of_json(tmp_path, on_bad_row="null"))
    rows = rows_in(tmp_path, kind, "offset", "id", "decodeError")
    assert rows == [(2, 1, None), (6, None, BAD["truncated"][1])]
    audit = audited(writer, tmp_path, kind, SchemaSources(value=(row_file(tmp_path),)))
    assert audit.findings == []


def test_a_dead_letter_leaves_the_row_of_its_key(tmp_path: Path, kind: Kind) -> None:
    """So does a record without a key. The audit knows them by their receipts."""
    with Broker(data_dir=tmp_path / "data") as broker, Client(broker.native) as client:
        client.create_topic("orders", partitions=1)
        client.create_topic("dlq.orders", partitions=1)
        for key, value in (*CHANGES, (3, change("t"))):
            client.produce("orders", key=b"%d" % key, value=None if value is None else in_json(value))
        client.produce("orders", key=None, value=in_json(change("c", after=row(9, "Nowhere"))))
        common = [
            *arguments_of(tmp_path, kind),
            "--bootstrap",
            broker.native,
            "--value-schema",
            str(row_file(tmp_path)),
        ]
        letters = ["--on-bad-row", "dead-letter", "--dead-letter-topic", "dlq.orders"]
        upsert = ["--upsert", "--envelope", "debezium", "--value-format", "json", "--until-end"]
        done = CliRunner().invoke(root, ["pipeline", "table", "orders", *common, *upsert, *letters])
        assert "2 records became dead letters" in done.stdout, done.output
        assert rows_in(tmp_path, kind, "offset", "id", "city") == LEFT
        assert len(list(client.consume("dlq.orders", until_end=True))) == 2
        audit = CliRunner().invoke(root, ["pipeline", "audit", "orders", *common])
        assert "1 partition, 2 rows: nothing wrong" in audit.stdout, audit.output


def test_an_envelope_needs_a_schema_of_envelopes_and_the_mode(tmp_path: Path) -> None:
    schema = tmp_path / "row.avsc"
    schema.write_text(json.dumps(ROW_AVRO))
    refusals: dict[str, dict[str, Any]] = {
        "--envelope debezium is for --upsert": {"value_format": "json", "value_schema": row_file(tmp_path)},
        "--envelope debezium is for values that are decoded": {"upsert": True},
        "not the schema of Debezium's envelopes": {"upsert": True, "value_format": "avro", "value_schema": schema},
    }
    for message, given in refusals.items():
        with pytest.raises(PipelineError, match=message):
            formats_of(envelope="debezium", **given)
