"""The schemas that the job has found in records of its batches, and the columns that follow from them.

1. Columns follow only from the schemas that records were written with, never from values. A table gets the columns of a
schema with the commit of the first records that have it.
2. A column has the least type that holds both the table's and the schema's type. If there is none, it is an error, or
rows of the schema count as rows that do not fit.
"""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.lakehouse.schemas.decoding import DecodeRules, SchemaKey
from warmlog.pipeline.lakehouse.schemas.formats import Formats, Side
from warmlog.pipeline.lakehouse.schemas.layout import Layout
from warmlog.pipeline.lakehouse.schemas.readers import WriterSchema, reader_of
from warmlog.pipeline.lakehouse.schemas.registry import Registry
from warmlog.pipeline.lakehouse.schemas.types import SchemaError, merged_fields
from warmlog.pipeline.lakehouse.table import Table


class SchemaCatalog:
    """Schemas of a topic's records, and the rules by which tasks decode. The constructor raises PipelineError."""

    def __init__(self, formats: Formats, columns: Collection[str]) -> None:
        self.layout = Layout(formats, tuple(columns))
        for side in formats.decoded:
            if side not in columns:
                raise PipelineError(f"--{side}-format needs the column {side}, which -o columns=NAME,... leaves out")
        self._formats = formats
        self._registry = None if formats.registry is None else Registry(formats.registry)
        self._schemas: dict[int, WriterSchema] = {}
        self._met: dict[SchemaKey, None] = {}
        self._unusable: dict[SchemaKey, str] = {}

    def known_schema(self, table: Table) -> Any:
        """Return the columns of rows as far as they are known before the first record. Raises SchemaError."""
        import pyarrow as pa

        sides = []
        for side in self.layout.decoded:
            schema = self._formats.of(side).schema
            fields = [] if schema is None else self.layout.fields(side, reader_of(schema).type)
            sides.append([pa.field(field.name, table.stored_type(field.type)) for field in fields])
            for field in sides[-1]:
                table.check_change(None, field)
        return self.layout.schema(sides, table.stored_type)

    def learn(self, unknown: Collection[SchemaKey]) -> None:
        """Get the schemas that tasks have reported as unknown. Raises PipelineError."""
        for key in sorted(unknown):
            assert self._registry is not None, "only values with ids of schemas have unknown ones"
            _, schema_id, message = key
            try:
                schema = self._registry.schema(schema_id)
                if schema.kind == "protobuf" and message:
                    reader_of(replace(schema, message=message))
            except SchemaError as error:
                self._refuse(self._unusable, key, error)
            else:
                self._schemas[schema_id] = schema
                if schema.kind != "protobuf" or message:  # otherwise tasks report it again, with the message
                    self._met[key] = None

    def rules(self, table: Table) -> DecodeRules:
        """Return the rules for records of the schemas that are known. Raises PipelineError.

        Their columns may be wider than the table's, or missing in the table so far.
        """
        import pyarrow as pa

        growing = _Columns(self.layout, table)
        refused = dict(self._unusable)
        for side in self.layout.decoded:
            schema = self._formats.of(side).schema
            if schema is not None:
                try:
                    growing.add(side, self._formats.enveloped(side, schema))
                except SchemaError as error:
                    raise SchemaError(
                        f"{table.name}: {error}: use a schema that fits, or copy the topic to another table"
                    ) from error
        for side, schema_id, message in self._met:
            try:
                schema = self._formats.enveloped(side, replace(self._schemas[schema_id], message=message))
                growing.add(side, schema)
            except SchemaError as error:
                self._refuse(refused, (side, schema_id, message), error)
        fields = {side: growing.fields(side) for side in self.layout.decoded}
        schema = self.layout.schema(list(fields.values()), table.stored_type)
        return DecodeRules(
            layout=self.layout,
            schema=schema,
            fields={side: pa.struct(listed) for side, listed in fields.items()},
            schemas=dict(self._schemas),
            refused=refused,
            met=frozenset(self._met),
        )

    def _refuse(self, refused: dict[SchemaKey, str], key: SchemaKey, error: SchemaError) -> None:
        """Record why rows of a schema do not fit. Raises PipelineError if such rows have to stop the job."""
        if self._formats.on_bad_row == "fail":
            raise PipelineError(f"{key[0]} of schema {key[1]}: {error}") from error
        refused[key] = str(error)


class _Columns:
    """Columns of a table, extended by schemas."""

    def __init__(self, layout: Layout, table: Table) -> None:
        self._layout = layout
        self._table = table
        self._in_table = {field.name: field for field in table.fields()}
        self._known = dict(self._in_table)
        self._names: dict[Side, dict[str, None]] = {side: {} for side in layout.decoded}

    def add(self, side: Side, schema: WriterSchema) -> None:
        """Add the columns of a schema, and widen known ones. Changes nothing if it raises SchemaError."""
        import pyarrow as pa

        wanted = [
            pa.field(field.name, self._table.stored_type(field.type))
            for field in self._layout.fields(side, reader_of(schema).type)
        ]
        grown = {field.name: field for field in merged_fields(list(self._known.values()), wanted)}
        for field in wanted:
            self._table.check_change(self._in_table.get(field.name), grown[field.name])
        self._known = grown
        self._names[side] |= dict.fromkeys(field.name for field in wanted)

    def fields(self, side: Side) -> list[Any]:
        """Return the columns of a side."""
        return [self._known[name] for name in self._names[side]]
