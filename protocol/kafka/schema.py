"""Tables of fields; see `codec/schema.py`."""

from protocol.kafka.codec.schema import (
    BOOLEAN,
    DATA,
    FLOAT64,
    INT8,
    INT16,
    INT32,
    INT64,
    STRING,
    UINT16,
    UUID,
    Array,
    Field,
    Primitive,
    Struct,
    array,
)

__all__ = [
    "BOOLEAN",
    "DATA",
    "FLOAT64",
    "INT8",
    "INT16",
    "INT32",
    "INT64",
    "STRING",
    "UINT16",
    "UUID",
    "Array",
    "Field",
    "Primitive",
    "Struct",
    "array",
]
