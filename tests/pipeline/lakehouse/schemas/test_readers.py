"""Readers of schemas: JSON Schemas in which a type follows from several keywords, and unions of Avro."""

import json
from typing import Any

import pyarrow as pa
import pytest

from tests.pipeline.lakehouse.schemas.decoded import ITEM, encoded
from warmlog.pipeline.lakehouse.schemas.avro import AvroReader
from warmlog.pipeline.lakehouse.schemas.json_schema import JsonReader
from warmlog.pipeline.lakehouse.schemas.types import BadValueError, conformed

X = {"type": "integer"}
DRAFT_7 = "http://json-schema.org/draft-07/schema#"


def value_of(reader: Any, data: bytes) -> Any:
    return conformed(pa.array([reader.decode(data)], reader.raw_type), reader.type).to_pylist()[0]


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "array", "prefixItems": [{"type": "string"}], "items": {"type": "number"}}, ["a", 1]),
        (
            {"type": "object", "patternProperties": {"^s": {"type": "string"}}, "additionalProperties": X},
            {"s": "x", "n": 1},
        ),
        ({"type": "object", "properties": {"x": X}, "oneOf": [{"properties": {"y": X}}]}, {"x": 1, "y": 2}),
        ({"type": "object", "properties": {"x": X}, "if": {}, "then": {"properties": {"y": X}}}, {"x": 1, "y": 2}),
        ({"properties": {"x": X}, "dependentSchemas": {"x": {"properties": {"y": X}}}}, {"x": 1, "y": 2}),
        ({"properties": {"x": X}, "anyOf": [{"$ref": "#/$defs/y"}], "$defs": {"y": {"required": ["x"]}}}, {"x": 1}),
        ({"$ref": "#/$defs/o", "properties": {"y": X}, "$defs": {"o": {"properties": {"x": X}}}}, {"x": 1, "y": 2}),
    ],
)
def test_json_whose_type_several_keywords_decide_is_text(schema: Any, value: Any) -> None:
    reader = JsonReader(json.dumps(schema), {})
    assert reader.type == pa.string()
    assert json.loads(value_of(reader, json.dumps(value).encode())) == value


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"x": X, "z": X}, "oneOf": [{"required": ["x"]}, {"required": ["z"]}]},
        {"type": "object", "properties": {"x": X, "z": X}, "if": {"properties": {"x": {"const": 1}}}, "else": False},
        {"type": "object", "properties": {"x": X, "z": X}, "dependencies": {"z": ["x"]}},
        {
            "$schema": DRAFT_7,
            "$ref": "#/definitions/o",
            "properties": {"y": X},
            "definitions": {"o": {"properties": {"x": X, "z": X}}},
        },
    ],
)
def test_keywords_that_only_restrict_an_object_leave_its_columns(schema: Any) -> None:
    assert value_of(JsonReader(json.dumps(schema), {}), b'{"x": 1}') == {"x": 1, "z": None}


@pytest.mark.parametrize("data", [b"3", b"[]", b'[["x", 1]]', b'"x"'])
@pytest.mark.parametrize("kind", [X, {}])
def test_a_value_of_a_schema_without_type_that_is_no_object_does_not_fit(data: bytes, kind: Any) -> None:
    reader = JsonReader(json.dumps({"properties": {"x": kind}}), {})
    assert value_of(reader, b"null") is None
    with pytest.raises(BadValueError, match=r"^field value is not an object$"):
        reader.decode(data)


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
