"""Keys and values decoded into columns: types, formats, registries, rows that do not fit."""

import json
import ssl
from collections.abc import Mapping
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.broker.cluster.certificates import Authority
from tests.pipeline.conftest import NOW_MS, DirectoryWriter
from tests.pipeline.lakehouse.schemas.decoded import (
    EVERY_TYPE,
    ITEM,
    ORDER,
    V1,
    V2,
    audited_with,
    columns_of,
    confluent,
    decoded,
    encoded,
    order,
    rows_in,
    schema_file,
    table_in,
)
from tests.pipeline.lakehouse.schemas.registries import RegistryServer, avro, json_values, serving, with_reference
from tests.pipeline.lakehouse.tables import Kind, catalog_of, copied, files_of
from tests.pipeline.lakehouse.test_stream import source
from tests.pipeline.lakehouse.test_table import read_by_library
from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.lakehouse.job import TableSettings
from warmlog.pipeline.lakehouse.receipts import parse_receipt
from warmlog.pipeline.lakehouse.schemas.auditing import SchemaSources
from warmlog.pipeline.lakehouse.schemas.formats import formats_of
from warmlog.pipeline.lakehouse.stream import TableSink
from warmlog.pipeline.source.options import read_options
from warmlog.protocol.records.builder import build_batch


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


def test_a_registry_may_have_tls_and_want_a_certificate(
    writer: DirectoryWriter, registry: RegistryServer, kind: Kind, tmp_path: Path
) -> None:
    authority = Authority(tmp_path / "ca")
    own, server, client = tmp_path / "own.pem", authority.issue("server"), authority.issue("client")
    own.write_text(client.key.read_text() + client.certificate.read_text())
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=authority.ca)
    context.load_cert_chain(server.certificate, server.key)
    context.verify_mode = ssl.CERT_REQUIRED
    writer.segment(avro(registry.url, V1, [order(1)]))
    with serving(tls=context) as secure:
        secure.add("orders-value", {"schema": json.dumps(V1)})
        formats = confluent(secure, schema_registry_ca=authority.ca, schema_registry_certificate=own)
        decoded(writer, tmp_path, kind, formats)
        assert rows_in(tmp_path, kind, "id") == [(1,)]
        with pytest.raises(PipelineError, match="CERTIFICATE_VERIFY_FAILED"):
            decoded(writer, tmp_path / "second", kind, confluent(secure))
        own.write_text("no certificate")
        with pytest.raises(PipelineError, match=f"schema registry {secure.url}: "):
            decoded(writer, tmp_path / "third", kind, formats)


def test_a_schema_may_be_of_keys_and_of_values(registry: RegistryServer, kind: Kind, tmp_path: Path) -> None:
    directory = DirectoryWriter(tmp_path / "data").directory
    (data,) = avro(registry.url, V1, [order(1)])
    rows = [(NOW_MS, data, None, ()), (NOW_MS, None, data, ()), (NOW_MS, data, data, ())]
    (directory / f"{0:020d}.log").write_bytes(build_batch(rows, base_offset=0))
    formats = confluent(registry, key_format="confluent")
    options = read_options({"path": str(directory.parent), "topic": "orders"})
    copied(table_in(tmp_path, kind, formats), options, TableSettings(formats=formats))
    assert rows_in(tmp_path, kind, "key", "id") == [(order(1), None), (None, 1), (order(1), 1)]
