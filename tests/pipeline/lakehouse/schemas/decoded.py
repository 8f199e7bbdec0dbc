"""Tables of decoded records for tests: schemas, values, and what to read of them."""

import io
import json
from collections.abc import Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro

from tests.pipeline.conftest import DirectoryWriter
from tests.pipeline.lakehouse.schemas.registries import RegistryServer
from tests.pipeline.lakehouse.tables import AnyTable, Kind, copied, open_in, options_of, query
from warmlog.pipeline.job_stats import Reporter
from warmlog.pipeline.jobs.table_audit import TableAudit, audit_table
from warmlog.pipeline.lakehouse.job import TableSettings
from warmlog.pipeline.lakehouse.receipts import Receipt
from warmlog.pipeline.lakehouse.schemas.auditing import SchemaSources
from warmlog.pipeline.lakehouse.schemas.formats import Formats, formats_of
from warmlog.pipeline.lakehouse.schemas.layout import Layout
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


def audited_with(directory: Path, kind: Kind, writer: DirectoryWriter, sources: SchemaSources) -> TableAudit:
    table = table_in(directory, kind, Formats(), ("partition", "offset"))
    return audit_table(LocalRunner(), options_of(writer), table, Reporter("audit"), sources=sources)
