"""Readers of schemas: unions of Avro."""

import json
from typing import Any

import pyarrow as pa

from tests.pipeline.lakehouse.schemas.decoded import ITEM, encoded
from warmlog.pipeline.lakehouse.schemas.avro import AvroReader
from warmlog.pipeline.lakehouse.schemas.types import conformed

def value_of(reader: Any, data: bytes) -> Any:
    return conformed(pa.array([reader.decode(data)], reader.raw_type), reader.type).to_pylist()[0]


def test_a_union_of_avro_may_name_types_that_are_no_records() -> None:
    named = [
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "DONE"]}},
        {"name": "hash", "type": {"type": "fixed", "name": "Hash", "size": 2}},
        {"name": "any", "type": {"type": "array", "items": ["null", "State", "Hash", ITEM]}},
    ]
    schema = {"type": "record", "name": "R", "namespace": "shop", "fields": named}
    value = {"state": "NEW", "hash": b"ab", "any": ["DONE", b"cd", {"sku": "a", "n": 1}, None]}
    (data,) = encoded(schema, value)
    assert value_of(AvroReader(json.dumps(schema), {}), data)["any"] == [
        {"string": "DONE", "bytes": None, "Item": None},
        {"string": None, "bytes": b"cd", "Item": None},
        {"string": None, "bytes": None, "Item": {"sku": "a", "n": 1}},
        None,
    ]
