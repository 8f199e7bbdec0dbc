"""Keys and values decoded into columns: types, formats, growing schemas, rows that do not fit."""

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from tests.pipeline.conftest import DirectoryWriter
from tests.pipeline.lakehouse.registries import RegistryServer, avro, json_values, serving, with_reference
from tests.pipeline.lakehouse.tables import AnyTable, Kind, catalog_of, copied, files_of, open_in, options_of, query
from tests.pipeline.lakehouse.test_audit import change, messages, total
from tests.pipeline.lakehouse.test_exactly_once import KilledError, Killer, Watched, once
from tests.pipeline.lakehouse.test_stream import source
from tests.pipeline.lakehouse.test_table import read_by_library
from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.job_stats import Reporter
from warmlog.pipeline.jobs.table_audit import TableAudit, audit_table
from warmlog.pipeline.lakehouse.job import TableJob, TableSettings
from warmlog.pipeline.lakehouse.receipts import Receipt, parse_receipt
from warmlog.pipeline.lakehouse.schemas.auditing import SchemaSources
from warmlog.pipeline.lakehouse.schemas.formats import Formats, formats_of
from warmlog.pipeline.lakehouse.schemas.layout import Layout
from warmlog.pipeline.lakehouse.schemas.types import conformed
from warmlog.pipeline.lakehouse.stream import TableSink
from warmlog.pipeline.runner import LocalRunner
from warmlog.pipeline.source.options import COLUMNS

NOON = datetime(2026, 1, 2, 12, 0, 0, 123000, tzinfo=UTC)
ITEM = {"type": "record", "name": "Item", "fields": [{"name": "sku", "type": "string"}, {"name": "n", "type": "int"}]}
EVERY_TYPE = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "int"},
        {"name": "total", "type": ["null", "long"]},
        {"name": "weight", "type": "float"},
        {"name": "volume", "type": "double"},
        {"name": "paid", "type": "boolean"},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "hour", "type": {"type": "int", "logicalType": "time-millis"}},
        {"name": "exact", "type": {"type": "long", "logicalType": "time-micros"}},
        {"name": "sent", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "seen", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}]},
        {"name": "wall", "type": {"type": "long", "logicalType": "local-timestamp-millis"}},
        {"name": "uid", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "DONE"]}},
        {"name": "hash", "type": {"type": "fixed", "name": "Hash", "size": 4}},
        {"name": "items", "type": {"type": "array", "items": ITEM}},
        {"name": "first", "type": ["null", "Item"]},
        {"name": "tags", "type": {"type": "map", "values": "string"}},
        {"name": "any", "type": ["null", "string", "long", "Item"]},
    ],
}
ORDER = {
    "id": 7,
    "total": 1 << 40,
    "weight": 1.5,
    "volume": 0.1,
    "paid": True,
    "price": Decimal("12.34"),
    "day": date(2026, 1, 2),
    "hour": time(1, 2, 3),
    "exact": time(1, 2, 3, 4),
    "sent": NOON,
    "seen": NOON,
    "wall": datetime(2026, 1, 2, 12),  # noqa: DTZ001 - a local time
    "uid": "063c0ccc-40f4-4748-8d9e-00ff4c7734b2",
    "state": "DONE",
    "hash": b"abcd",
    "items": [{"sku": "a", "n": 1}, {"sku": "b", "n": 2}],
    "first": {"sku": "a", "n": 1},
    "tags": {"x": "y"},
    "any": "text",
}


def encoded(schema: Any, *values: Any) -> list[bytes]:
    parsed = fastavro.parse_schema(schema)
    streams = [io.BytesIO() for _ in values]
    for stream, value in zip(streams, values, strict=True):
        fastavro.schemaless_writer(stream, parsed, value)
    return [stream.getvalue() for stream in streams]


def schema_file(directory: Path, schema: Any) -> Path:
    path = directory / "schema.json"
    path.write_text(json.dumps(schema))
    return path


def table_in(directory: Path, kind: Kind, formats: Formats, columns: Sequence[str] = COLUMNS) -> AnyTable:
    return open_in(directory, kind, Layout(formats, columns).plain)


def decoded(writer: DirectoryWriter, directory: Path, kind: Kind, formats: Formats, **options: Any) -> list[Receipt]:
    table = table_in(directory, kind, formats)
    return copied(table, options_of(writer, **options), TableSettings(formats=formats))


def rows_in(directory: Path, kind: Kind, *names: str) -> list[tuple[Any, ...]]:
    listed = ", ".join(f'"{name}"' for name in names)
    return query(directory, kind, f'SELECT {listed} FROM data ORDER BY "partition", "offset"')


def columns_of(directory: Path, kind: Kind) -> dict[str, str]:
    return {
        field.name: str(field.type) for field in table_in(directory, kind, Formats(), ("partition", "offset")).fields()
    }


@pytest.fixture
def writer(tmp_path: Path) -> DirectoryWriter:
    return DirectoryWriter(tmp_path / "data")


@pytest.fixture
def registry() -> Iterator[RegistryServer]:
    with serving() as server:
        yield server


def test_every_type_of_avro_is_a_column(writer: DirectoryWriter, kind: Kind, tmp_path: Path) -> None:
    other = {**ORDER, "total": None, "seen": None, "first": None, "items": [], "any": {"sku": "z", "n": 3}}
    writer.segment(encoded(EVERY_TYPE, ORDER, other), [None])  # type: ignore[list-item]
    formats = formats_of(value_format="avro", value_schema=schema_file(tmp_path, EVERY_TYPE))
    (receipt,) = decoded(writer, tmp_path, kind, formats)
    assert receipt.formats["value"][0] == "avro"
    assert parse_receipt(receipt.text(), "test") == receipt
    expected = dict(ORDER)
    if kind == "delta":  # which has no times of day: microseconds
        expected |= {"hour": 3_723_000_000, "exact": 3_723_000_004}
    expected["any"] = {"string": "text", "long": None, "Item": None}
    first, second, tombstone = rows_in(tmp_path, kind, *ORDER)
    assert dict(zip(ORDER, first, strict=True)) == expected
    assert [dict(zip(ORDER, second, strict=True))[name] for name in ("total", "seen", "first")] == [None] * 3
    assert second[-1] == {"string": None, "long": None, "Item": {"sku": "z", "n": 3}}
    assert tombstone == (None,) * len(ORDER)
    table = read_by_library(tmp_path, kind).sort_by("offset")
    assert [table.column(name)[0].as_py() for name in ("id", "price", "day", "sent", "wall", "state")] == [
        ORDER[name] for name in ("id", "price", "day", "sent", "wall", "state")
    ]
    assert table.column("items")[0].as_py() == ORDER["items"]
    assert {"key", "topic", "partition", "offset", "timestamp"} <= set(table.column_names)
    assert "value" not in table.column_names


def test_json_becomes_columns_by_its_schema(writer: DirectoryWriter, kind: Kind, tmp_path: Path) -> None:
    schema = {
        "type": "object",
        "required": ["id"],
        "properties": {
            "id": {"type": "integer"},
            "price": {"type": ["number", "null"]},
            "day": {"type": "string", "format": "date"},
            "sent": {"type": "string", "format": "date-time"},
            "items": {"type": "array", "items": {"$ref": "#/definitions/item"}},
            "tags": {"type": "object", "additionalProperties": {"type": "string"}},
            "extra": {},
        },
        "definitions": {"item": {"type": "object", "properties": {"sku": {"type": "string"}}}},
    }
    full = {
        "id": 1,
        "price": 1,
        "day": "2026-01-02",
        "sent": "2026-01-02T13:00:00.123456789+01:00",
        "items": [{"sku": "a"}, {}],
        "tags": {"x": "y"},
        "extra": [1, {"a": None}],
        "more": "not in the schema",
    }
    writer.segment([json.dumps(full).encode(), b'{"id": 2}'])
    formats = formats_of(value_format="json", value_schema=schema_file(tmp_path, schema))
    decoded(writer, tmp_path, kind, formats)
    first, second = rows_in(tmp_path, kind, "id", "price", "day", "sent", "items", "tags", "extra")
    sent = datetime(2026, 1, 2, 12, 0, 0, 123456, tzinfo=UTC)
    assert first == (1, 1.0, date(2026, 1, 2), sent, [{"sku": "a"}, {"sku": None}], {"x": "y"}, '[1,{"a":null}]')
    assert second == (2, None, None, None, None, None, None)
    assert "more" not in columns_of(tmp_path, kind)


def test_text_is_a_column_of_text(writer: DirectoryWriter, kind: Kind, tmp_path: Path) -> None:
    writer.segment(["grün".encode(), b"y"])
    decoded(writer, tmp_path, kind, formats_of(key_format="string", value_format="string"))
    assert rows_in(tmp_path, kind, "key", "value") == [("k0", "grün"), ("k1", "y")]


def test_a_value_that_is_no_record_is_in_the_column_value(writer: DirectoryWriter, kind: Kind, tmp_path: Path) -> None:
    writer.segment(encoded("long", 5, -6))
    decoded(writer, tmp_path, kind, formats_of(value_format="avro", value_schema=schema_file(tmp_path, "long")))
    assert rows_in(tmp_path, kind, "value") == [(5,), (-6,)]


V1 = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "int"}, {"name": "item", "type": ITEM}]}
V2_ITEM = {**ITEM, "fields": [*ITEM["fields"], {"name": "note", "type": ["null", "string"], "default": None}]}
V2 = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "int"},
        {"name": "item", "type": V2_ITEM},
        {"name": "city", "type": ["null", "string"], "default": None},
    ],
}
WIDE = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
OTHER = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "string"}]}


def order(number: int, **more: Any) -> dict[str, Any]:
    return {"id": number, "item": {"sku": "a", "n": number}, **more}


def confluent(registry: RegistryServer, **more: Any) -> Formats:
    return formats_of(value_format="confluent", schema_registry=registry.url, **more)


def test_fields_of_new_schemas_become_columns(
    writer: DirectoryWriter, registry: RegistryServer, kind: Kind, tmp_path: Path
) -> None:
    formats = confluent(registry)
    writer.segment(avro(registry.url, V1, [order(1), order(2)]))
    decoded(writer, tmp_path, kind, formats)
    assert set(columns_of(tmp_path, kind)) == {*COLUMNS, "id", "item"} - {"value"}
    old = avro(registry.url, V1, [order(5)])
    new = avro(registry.url, V2, [{**order(3), "item": {"sku": "a", "n": 3, "note": "n"}, "city": "Ulm"}])
    writer.segment(old + new + old)
    decoded(writer, tmp_path, kind, formats)
    writer.segment(old)
    decoded(writer, tmp_path, kind, formats)
    table = read_by_library(tmp_path, kind).sort_by("offset")
    assert table.column("id").to_pylist() == [1, 2, 5, 3, 5, 5]
    assert table.column("city").to_pylist() == [None, None, None, "Ulm", None, None]
    assert [item.get("note") for item in table.column("item").to_pylist()] == [None, None, None, "n", None, None]
    assert registry.requests.count("/schemas/ids/1") <= 5, "each run gets a schema once, and serializers do"


def test_numbers_are_widened_where_the_table_can(
    writer: DirectoryWriter, registry: RegistryServer, kind: Kind, tmp_path: Path
) -> None:
    formats = confluent(registry)
    writer.segment(avro(registry.url, V1, [order(1)]))
    decoded(writer, tmp_path, kind, formats)
    writer.segment(avro(registry.url, WIDE, [{"id": 1 << 40}]))
    if kind == "delta":
        with pytest.raises(PipelineError, match=r"value of schema 2: field id is int32 in .*, and int64 in the schema"):
            decoded(writer, tmp_path, kind, formats)
        assert len(rows_in(tmp_path, kind, "offset")) == 1
        return
    decoded(writer, tmp_path, kind, formats)
    writer.segment(avro(registry.url, V1, [order(3)]))
    decoded(writer, tmp_path, kind, formats)
    table = read_by_library(tmp_path, kind).sort_by("offset")
    assert table.column("id").to_pylist() == [1, 1 << 40, 3]


def test_a_schema_that_does_not_go_with_the_table_stops_the_job_or_is_of_bad_rows(
    writer: DirectoryWriter, registry: RegistryServer, kind: Kind, tmp_path: Path
) -> None:
    writer.segment(avro(registry.url, V1, [order(1)]) + avro(registry.url, OTHER, [{"id": "x"}]))
    wrong = "value of schema 2: field id is int32 so far, and string in the schema"
    with pytest.raises(PipelineError, match=wrong):
        decoded(writer, tmp_path, kind, confluent(registry))
    assert rows_in(tmp_path, kind, "offset") == []
    formats = confluent(registry, on_bad_row="null")
    (receipt,) = decoded(writer, tmp_path / "kept", kind, formats)
    assert receipt.rows == 2
    good, bad = rows_in(tmp_path / "kept", kind, "id", "decodeError", "rawValue")
    assert good == (1, None, None)
    assert bad == (
        None,
        "schema 2: field id is int32 so far, and string in the schema",
        avro(registry.url, OTHER, [{"id": "x"}])[0],
    )


def test_json_and_avro_of_a_registry_go_into_one_table(
    writer: DirectoryWriter, registry: RegistryServer, kind: Kind, tmp_path: Path
) -> None:
    schema = {"title": "Order", "type": "object", "properties": {"city": {"type": "string"}}}
    writer.segment(avro(registry.url, V1, [order(1)]) + json_values(registry.url, schema, [{"city": "Ulm"}]))
    decoded(writer, tmp_path, kind, confluent(registry))
    assert rows_in(tmp_path, kind, "id", "city") == [(1, None), (None, "Ulm")]


def test_schemas_that_refer_to_others_are_resolved(
    writer: DirectoryWriter, registry: RegistryServer, kind: Kind, tmp_path: Path
) -> None:
    whole = {"type": "record", "name": "Order", "fields": [{"name": "item", "type": "Item"}]}
    of_avro = with_reference(registry.url, whole, "Item", ITEM, "AVRO")
    head = b"\0" + of_avro.to_bytes(4)
    values = [head + value for value in encoded({**whole, "fields": [{"name": "item", "type": ITEM}]}, order(4))]
    writer.segment(values)
    decoded(writer, tmp_path, kind, confluent(registry))
    assert rows_in(tmp_path, kind, "item") == [({"sku": "a", "n": 4},)]


def test_keys_are_decoded_into_the_column_key(
    writer: DirectoryWriter, registry: RegistryServer, kind: Kind, tmp_path: Path
) -> None:
    writer.segment([b"1", b"2"])
    decoded(writer, tmp_path, kind, formats_of(key_format="string", value_format="binary"))
    assert rows_in(tmp_path, kind, "key", "value") == [("k0", b"1"), ("k1", b"2")]


def test_nested_values_stay_in_their_column(
    writer: DirectoryWriter, registry: RegistryServer, kind: Kind, tmp_path: Path
) -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "Offset", "type": "long"}]}
    writer.segment(avro(registry.url, schema, [{"Offset": 9}]))
    with pytest.raises(
        PipelineError, match=r"field Offset of the value has the name of the column offset: --nest-value"
    ):
        decoded(writer, tmp_path, kind, confluent(registry))
    decoded(writer, tmp_path, kind, confluent(registry, nest_value=True))
    assert rows_in(tmp_path, kind, "value") == [({"Offset": 9},)]


def test_a_bad_row_names_its_record_and_nothing_is_committed(
    writer: DirectoryWriter, registry: RegistryServer, kind: Kind, tmp_path: Path
) -> None:
    good = avro(registry.url, V1, [order(1)] * 50)
    writer.segment(good, [*good[:7], good[0] + b"!", *good[:7]])
    message = r"orders-0: offset 57: value of schema 1: .*1 bytes follow the value \(--on-bad-row says"
    with pytest.raises(PipelineError, match=message):
        decoded(writer, tmp_path, kind, confluent(registry))
    assert files_of(tmp_path, kind) == []
    assert list(tmp_path.rglob("*.parquet")) == []


BAD: Mapping[str, tuple[bytes, str]] = {
    "short": (b"\0\0", "not in Confluent's wire format"),
    "other byte": (b"\1\0\0\0\1\2", "not in Confluent's wire format"),
    "unknown schema": (b"\0\0\0\0\x63\2", "has no schema 99"),
    "truncated": (b"\0\0\0\0\1\2", "not a value of its Avro schema"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_rows_are_kept_with_the_reason(
    writer: DirectoryWriter, registry: RegistryServer, kind: Kind, tmp_path: Path, name: str
) -> None:
    data, reason = BAD[name]
    good = avro(registry.url, V1, [order(1), order(2)])
    writer.segment([good[0], data, good[1]])
    decoded(writer, tmp_path, kind, confluent(registry, on_bad_row="null"))
    first, bad, last = rows_in(tmp_path, kind, "id", "decodeError", "rawValue", "key")
    assert (first, last) == ((1, None, None, b"k0"), (2, None, None, b"k2"))
    assert (bad[0], bad[2], bad[3]) == (None, data, b"k1")
    assert reason in bad[1]


def test_a_value_outside_of_its_type_is_named_by_its_field(writer: DirectoryWriter, kind: Kind, tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "integer"}}}}
    writer.segment([b'{"a": [1]}', b'{"a": [1, 99999999999999999999]}', b'{"a": ["x"]}', b"{", b"\xff"])
    formats = formats_of(value_format="json", value_schema=schema_file(tmp_path, schema), on_bad_row="null")
    decoded(writer, tmp_path, kind, formats)
    errors = [error for (error,) in rows_in(tmp_path, kind, "decodeError")]
    assert errors[0] is None
    assert errors[1].startswith("field a[1]: ")
    assert errors[2] == 'field a[0]: "x" is not of type "integer"'
    assert [error.startswith("not JSON") for error in errors[3:]] == [True, True]


def test_a_registry_may_need_a_login(
    writer: DirectoryWriter, kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving("ann:s3cret") as server:
        writer.segment(avro(server.url, V1, [order(1)], "ann:s3cret"))
        with pytest.raises(PipelineError, match=r"schema registry http.*: schema 1: status 401, Unauthorized"):
            decoded(writer, tmp_path, kind, confluent(server))
        password = tmp_path / "password"
        password.write_text("s3cret\n")
        password.chmod(0o600)
        formats = confluent(server, schema_registry_user="ann", schema_registry_password_file=password)
        assert "s3cret" not in repr(formats)
        decoded(writer, tmp_path, kind, formats)
        monkeypatch.setenv("WARMLOG_SCHEMA_REGISTRY_PASSWORD", "s3cret")
        decoded(writer, tmp_path / "second", kind, confluent(server, schema_registry_user="ann"))
        assert rows_in(tmp_path / "second", kind, "id") == [(1,)]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"value_format": "xml"}, "format xml is none of binary, string, json, avro, protobuf or confluent"),
        ({"value_format": "json"}, "format json needs a schema, from which columns follow: --value-schema FILE"),
        ({"key_format": "avro"}, "format avro needs a schema, from which columns follow: --key-schema FILE"),
        ({"value_format": "string", "value_schema": "x"}, "--value-schema is for the formats json, avro or protobuf"),
        ({"value_format": "avro", "value_schema": "/no/file"}, "/no/file: No such file or directory"),
        ({"value_format": "confluent"}, "needs the URL of a schema registry"),
        ({"schema_registry": "http://127.0.0.1:1"}, "is for the format confluent"),
        ({"value_format": "confluent", "schema_registry": "127.0.0.1:1"}, "not a URL"),
        ({"value_format": "confluent", "schema_registry": "http://a:b@127.0.0.1"}, "a password in the URL"),
        ({"schema_registry_user": "ann"}, "options of a schema registry need its URL"),
        (
            {"value_format": "confluent", "schema_registry": "http://127.0.0.1:1", "schema_registry_user": "ann"},
            "needs --schema-registry-password-file",
        ),
        (
            {"value_format": "confluent", "schema_registry": "http://127.0.0.1:1", "schema_registry_ca": "/no/file"},
            "/no/file: no such file",
        ),
        ({"nest_value": True}, "--nest-value is for values that are decoded"),
        ({"on_bad_row": "null"}, "--on-bad-row is for keys or values that are decoded"),
        ({"value_format": "string", "on_bad_row": "skip"}, "on-bad-row skip is none of fail, null or dead-letter"),
    ],
)
def test_formats_that_make_no_sense_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(PipelineError) as raised:
        formats_of(**given)
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("{", "not an Avro schema"),
        ({"type": "record", "name": "R", "fields": []}, "record R has no fields"),
        ({"type": "record", "name": "R", "fields": [{"name": "r", "type": ["null", "R"]}]}, "cannot be recursive"),
        ({"type": "record", "name": "R", "fields": [{"name": "x", "type": "null"}]}, "field x is of type null"),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 40, "scale": 2},
            "is a decimal of 40 digits, and tables have 38",
        ),
        ({"type": "record", "name": "R", "fields": [{"name": "x", "type": ["string", "Gone"]}]}, "not an Avro schema"),
    ],
)
def test_schemas_without_columns_are_refused(tmp_path: Path, schema: Any, message: str) -> None:
    path = tmp_path / "schema.avsc"
    path.write_text(schema if isinstance(schema, str) else json.dumps(schema))
    with pytest.raises(PipelineError) as raised:
        formats_of(value_format="avro", value_schema=path)
    assert str(raised.value).startswith(f"{path}: ")
    assert message in str(raised.value)


def audited_with(directory: Path, kind: Kind, writer: DirectoryWriter, sources: SchemaSources) -> TableAudit:
    table = table_in(directory, kind, Formats(), ("partition", "offset"))
    return audit_table(LocalRunner(), options_of(writer), table, Reporter("audit"), sources=sources)


def test_the_audit_decodes_records_again(
    writer: DirectoryWriter, registry: RegistryServer, kind: Kind, tmp_path: Path
) -> None:
    """Over several commits, in which columns came and numbers were widened."""
    formats = confluent(registry, on_bad_row="null")
    old, wide = avro(registry.url, V1, [order(1), order(2)]), avro(registry.url, WIDE, [{"id": 1 << 40}])
    new = avro(registry.url, V2, [{**order(3), "item": {"sku": "a", "n": 3, "note": "n"}, "city": "Ulm"}])
    other = avro(registry.url, OTHER, [{"id": "x"}])
    for values in (old, new + old + other, [*wide, b"bad"], old + other, [None, *new]):
        writer.segment(values)  # type: ignore[arg-type]
        decoded(writer, tmp_path, kind, formats)
    sources = SchemaSources(registry=formats.registry)
    audit = audited_with(tmp_path, kind, writer, sources)
    assert (audit.findings, total(audit).in_log) == ([], 13)
    with pytest.raises(PipelineError, match="decoded by schemas of a registry: --schema-registry URL"):
        audited_with(tmp_path, kind, writer, SchemaSources())


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("id", 8),
        ("id", None),
        ("price", Decimal("12.35")),
        ("volume", 0.2),
        ("paid", False),
        ("day", date(2026, 1, 3)),
        ("tags", [("x", "z")]),
        ("items", [{"sku": "a", "n": 1}, {"sku": "b", "n": None}]),
        ("first", None),
        ("any", {"string": None, "long": 3, "Item": None}),
        ("hash", b"abce"),
    ],
)
def test_the_audit_names_a_value_that_was_altered(
    writer: DirectoryWriter, kind: Kind, tmp_path: Path, column: str, value: Any
) -> None:
    writer.segment(encoded(EVERY_TYPE, *[ORDER] * 20))
    path = schema_file(tmp_path, EVERY_TYPE)
    decoded(writer, tmp_path, kind, formats_of(value_format="avro", value_schema=path))
    sources = SchemaSources(value=(path,))
    audit = audited_with(tmp_path, kind, writer, sources)
    assert (audit.findings, total(audit).in_log) == ([], 20)

    def edit(table: Any) -> Any:
        values = table.column(column).to_pylist()
        values[7] = value
        at = table.schema.get_field_index(column)
        return table.set_column(at, table.schema.field(at), pa.array(values, table.schema.field(at).type))

    (file,) = files_of(tmp_path, kind)
    change(file, edit)
    audit = audited_with(tmp_path, kind, writer, sources)
    assert messages(audit) == [f"offset 7 is not as in the log: {file}"]


def test_the_audit_needs_the_schemas_of_files_that_were_used(
    writer: DirectoryWriter, kind: Kind, tmp_path: Path
) -> None:
    first = schema_file(tmp_path, WIDE)
    writer.segment(encoded(WIDE, {"id": 1}))
    decoded(writer, tmp_path, kind, formats_of(value_format="avro", value_schema=first))
    (tmp_path / "second").mkdir()
    second = schema_file(tmp_path / "second", V2)
    writer.segment(encoded(WIDE, {"id": 2}))
    with pytest.raises(PipelineError, match=rf"--value-schema FILE names it; {second} is not it"):
        audited_with(tmp_path, kind, writer, SchemaSources(value=(second,)))
    audit = audited_with(tmp_path, kind, writer, SchemaSources(value=(second, first)))
    assert (audit.findings, total(audit).in_log, audit.partitions[0].behind) == ([], 1, 1)


def test_rows_that_retention_removed_from_the_log_are_proved_by_receipts_of_narrower_columns(
    writer: DirectoryWriter, registry: RegistryServer, kind: Kind, tmp_path: Path
) -> None:
    formats = confluent(registry)
    first = writer.segment(avro(registry.url, V1, [order(1), order(2)]))
    decoded(writer, tmp_path, kind, formats)
    writer.segment(avro(registry.url, V2, [{**order(3), "item": {"sku": "a", "n": 3, "note": "n"}, "city": "Ulm"}]))
    decoded(writer, tmp_path, kind, formats)
    for path in first.parent.glob(f"{first.stem}.*"):
        path.unlink()
    rewrite(tmp_path, kind)
    audit = audited_with(tmp_path, kind, writer, SchemaSources(registry=formats.registry))
    assert (audit.findings, total(audit).in_log, total(audit).by_receipt) == ([], 1, 2)


def rewrite(directory: Path, kind: Kind) -> None:
    """Write the files of a table again with the columns that it has now, as compaction does."""
    for path in files_of(directory, kind):
        names = [field.name for field in table_in(directory, kind, Formats(), ("partition", "offset")).fields()]
        types = {field.name: field for field in table_in(directory, kind, Formats(), ("offset",)).fields()}

        def edit(table: Any, names: list[str] = names, types: dict[str, Any] = types) -> Any:
            batch = table.combine_chunks().to_batches()[0]
            columns = [
                conformed(batch.column(name), types[name].type)
                if name in batch.schema.names
                else pa.nulls(batch.num_rows, types[name].type)
                for name in names
            ]
            return pa.Table.from_arrays(columns, schema=pa.schema([types[name] for name in names]))

        change(path, edit)


def test_killed_at_every_step_while_columns_come_it_neither_loses_nor_doubles(
    writer: DirectoryWriter, registry: RegistryServer, kind: Kind, tmp_path: Path
) -> None:
    formats = confluent(registry)
    new = avro(registry.url, V2, [{**order(3), "item": {"sku": "a", "n": 3, "note": "n"}, "city": "Ulm"}])
    writer.segment(avro(registry.url, V1, [order(1), order(2)]), new * 2)
    options, settings = options_of(writer, maxOffsetsPerTrigger=3), TableSettings(formats=formats)
    steps, names = 0, set()
    while True:
        lake, killer = tmp_path / f"{steps}", Killer(steps)
        with suppress(KilledError):
            copied(Watched(table_in(lake, kind, formats), killer), options, settings)
            break
        names.add(killer.name)
        copied(table_in(lake, kind, formats), options, settings)
        table = read_by_library(lake, kind).sort_by("offset")
        assert table.column("offset").to_pylist() == [0, 1, 2, 3], f"killed {killer.name}, step {steps}"
        assert table.column("city").to_pylist() == [None, None, "Ulm", "Ulm"]
        steps += 1
    assert {"before commit", "after commit", "before plan_columns", "after plan_columns"} <= names


def test_two_writers_may_bring_columns_at_once(
    writer: DirectoryWriter, registry: RegistryServer, kind: Kind, tmp_path: Path
) -> None:
    """The other one brings its own before this one commits, and before its attempts after that."""
    formats = confluent(registry)
    new = avro(registry.url, V2, [{**order(3), "item": {"sku": "a", "n": 3, "note": "n"}, "city": "Ulm"}])
    writer.segment(avro(registry.url, V1, [order(1), order(2)]), new * 2)
    options, settings = options_of(writer, maxOffsetsPerTrigger=1), TableSettings(formats=formats)
    other = TableJob(options, table_in(tmp_path, kind, formats), settings)
    taken = []

    def step(at: str) -> None:
        if at in {"before commit", "before plan_columns"} and len(taken) < 3:
            taken.append(other.step(LocalRunner()))

    copied(Watched(table_in(tmp_path, kind, formats), step), options, settings)
    table = read_by_library(tmp_path, kind).sort_by("offset")
    assert table.column("offset").to_pylist() == [0, 1, 2, 3]
    assert table.column("city").to_pylist() == [None, None, "Ulm", "Ulm"]
    assert len(list(tmp_path.rglob("*.parquet"))) == len(files_of(tmp_path, kind)) == 4
    audit = audited_with(tmp_path, kind, writer, SchemaSources(registry=formats.registry))
    assert (audit.findings, total(audit).in_log) == ([], 4)


def test_columns_of_another_topic_that_come_meanwhile_make_the_batch_be_written_again(
    writer: DirectoryWriter, registry: RegistryServer, kind: Kind, tmp_path: Path
) -> None:
    """Ids of Iceberg's fields follow from those that are there."""
    second = DirectoryWriter(tmp_path / "data", "events")
    second.segment(avro(registry.url, OTHER_FIELDS, [{"place": "Ulm"}]))
    writer.segment(avro(registry.url, V1, [order(1)]))
    formats = confluent(registry)
    settings = TableSettings(formats=formats)
    others = options_of(second, topic="events")
    step = once("before commit", lambda: copied(table_in(tmp_path, kind, formats), others, settings))
    copied(Watched(table_in(tmp_path, kind, formats), step), options_of(writer), settings)
    table = read_by_library(tmp_path, kind).sort_by("topic")
    assert table.select(["topic", "place", "id"]).to_pylist() == [
        {"topic": "events", "place": "Ulm", "id": None},
        {"topic": "orders", "place": None, "id": 1},
    ]


OTHER_FIELDS = {"type": "record", "name": "Event", "fields": [{"name": "place", "type": "string"}]}


def test_a_stream_of_spark_is_decoded_in_its_tasks(
    spark: Any, writer: DirectoryWriter, registry: RegistryServer, kind: Kind, tmp_path: Path
) -> None:
    new = avro(registry.url, V2, [{**order(3), "item": {"sku": "a", "n": 3, "note": "n"}, "city": "Ulm"}])
    writer.segment(avro(registry.url, V1, [order(1)]), new, [b"bad"])
    where: dict[str, Any] = {"target": str(tmp_path / "delta")}
    if kind == "iceberg":
        where = {"target": "db.orders", **catalog_of(tmp_path)}
    given = {"value_format": "confluent", "schema_registry": registry.url}
    frame = source(spark.read, writer)
    with pytest.raises(PipelineError, match="orders-0: offset 2: value: not in Confluent's wire format"):
        TableSink(**where, **given)(frame, 0)
    TableSink(**where, **given, on_bad_row="null")(frame, 0)
    assert rows_in(tmp_path, kind, "id", "city", "rawValue") == [
        (1, None, None),
        (3, "Ulm", None),
        (None, None, b"bad"),
    ]
    sources = SchemaSources(registry=confluent(registry).registry)
    assert audited_with(tmp_path, kind, writer, sources).findings == []
