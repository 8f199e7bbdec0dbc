"""Readers of schemas: the Arrow type of a schema, and a function from bytes to a Python object of that type."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal, Protocol, TypeAlias

Kind: TypeAlias = Literal["binary", "string", "json", "avro", "protobuf"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterSchema:
    """A schema that records were written with. `text`: as in its file or registry, empty for binary and string.

    `references`: texts of the schemas that it refers to, dependencies first. For Protobuf, `text` contains descriptors
    in base64, and `message` selects one of them: a full name, or indexes such as `0` or `2.0`. `envelope`: name of the
    envelope that rows are in, if any. `is_of_rows`: whether the schema is of these rows, not of the envelope.
    """

    kind: Kind
    text: str = ""
    references: tuple[tuple[str, str], ...] = ()
    message: str = ""
    envelope: str = ""
    is_of_rows: bool = False


class Reader(Protocol):
    """Reads keys or values of one schema."""

    @property
    def type(self) -> Any:
        """The Arrow type in the table."""

    @property
    def raw_type(self) -> Any:
        """The Arrow type of the objects that `decode` returns."""

    def decode(self, data: bytes) -> Any:
        """Return an object that pyarrow accepts for `raw_type`. Raises BadValueError."""


@dataclass(frozen=True, slots=True)
class PlainReader:
    """Reads bytes or UTF-8 text."""

    type: Any
    raw_type: Any = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "raw_type", self.type)

    def decode(self, data: bytes) -> Any:
        """Return the bytes unchanged; pyarrow checks that text is UTF-8."""
        return data


@lru_cache(maxsize=1024)
def reader_of(schema: WriterSchema) -> Reader:
    """Return the reader of a schema. Raises SchemaError if a table cannot hold the schema's type."""
    import pyarrow as pa

    if schema.envelope:
        from warmlog.pipeline.lakehouse.upserts.envelopes import EnvelopeReader, JsonEnvelopeReader

        inner = reader_of(replace(schema, envelope=""))
        return JsonEnvelopeReader(inner) if schema.is_of_rows else EnvelopeReader(inner)
    if schema.kind in {"binary", "string"}:
        return PlainReader(pa.binary() if schema.kind == "binary" else pa.string())
    references: Mapping[str, str] = dict(schema.references)
    if schema.kind == "avro":
        from warmlog.pipeline.lakehouse.schemas.avro import AvroReader

        return AvroReader(schema.text, references)
    if schema.kind == "json":
        from warmlog.pipeline.lakehouse.schemas.json_schema import JsonReader

        return JsonReader(schema.text, references)
    from warmlog.pipeline.lakehouse.schemas.protobuf import ProtobufReader

    return ProtobufReader(schema.text, schema.message)
