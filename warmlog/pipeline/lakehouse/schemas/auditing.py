"""Decode a log's records again, by the formats in a table's receipts, to compare them with the table's rows."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.lakehouse.schemas.catalog import SchemaCatalog
from warmlog.pipeline.lakehouse.schemas.decoding import DecodeRules, SchemaKey
from warmlog.pipeline.lakehouse.schemas.formats import SIDES, Format, Formats, format_of, registry_of
from warmlog.pipeline.lakehouse.schemas.registry import RegistryAddress
from warmlog.pipeline.lakehouse.table import Table
from warmlog.pipeline.source.options import COLUMNS


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaSources:
    """Sources of schemas for an audit: a registry, and all files used as `--key-schema` and `--value-schema`."""

    registry: RegistryAddress | None = None
    key: tuple[Path, ...] = ()
    value: tuple[Path, ...] = ()


def sources_of(
    *,
    key_schema: Sequence[Path] = (),
    value_schema: Sequence[Path] = (),
    schema_registry: str | None = None,
    **login: Any,
) -> SchemaSources:
    """Check the sources of schemas, named as the options of `warmlog pipeline audit`. Raises PipelineError."""
    registry = registry_of(schema_registry, **login)
    return SchemaSources(registry=registry, key=tuple(key_schema), value=tuple(value_schema))


class ReceiptSchemas:
    """Rules for decoding the records of each receipt."""

    def __init__(self, sources: SchemaSources, table: Table) -> None:
        self._sources = sources
        self._table = table
        self._catalogs: dict[str, SchemaCatalog] = {}
        self._rules: dict[tuple[str, tuple[str, ...]], DecodeRules] = {}

    def rules(self, formats: Mapping[str, Any], columns: tuple[str, ...]) -> DecodeRules:
        """Return the rules for rows with these columns, from records of these formats. Raises PipelineError."""
        import pyarrow as pa

        name = json.dumps(dict(formats), sort_keys=True)
        if (name, columns) not in self._rules:
            if name not in self._catalogs:
                source = [each for each in COLUMNS if each in columns or each in formats]
                self._catalogs[name] = SchemaCatalog(self._formats(formats), source)
            rules = self._catalogs[name].rules(self._table)
            types = {field.name: field.type for field in (*self._table.fields(), *rules.schema)}
            fields = [pa.field(each, types.get(each, pa.null())) for each in columns]
            self._rules[name, columns] = replace(rules, schema=pa.schema(fields))
        return self._rules[name, columns]

    def learn(self, unknown: Collection[SchemaKey]) -> None:
        """Get schemas that records of the log refer to. Raises PipelineError."""
        for catalog in self._catalogs.values():
            catalog.learn([schema for schema in unknown if catalog.layout.formats.of(schema[0]).name == "confluent"])
        self._rules.clear()

    def _formats(self, form: Mapping[str, Any]) -> Formats:
        key, value = (self._format(side, form[side]) if side in form else Format() for side in SIDES)
        if "confluent" in {key.name, value.name} and self._sources.registry is None:
            raise PipelineError("rows were decoded by schemas of a registry: --schema-registry URL names it")
        return Formats(
            key=key,
            value=value,
            nest_value=bool(form.get("nested")),
            on_bad_row="null",  # receipts name the offsets of dead letters, which the audit omits
            registry=self._sources.registry,
            upsert=bool(form.get("upsert")),
            envelope=form.get("envelope", "none"),
        )

    def _format(self, side: str, form: Sequence[str]) -> Format:
        name = form[0]
        paths = self._sources.key if side == "key" else self._sources.value
        if len(form) == 1:
            return format_of(side, name, None)
        for path in paths:
            try:
                known = format_of(side, name, path, form[2] if len(form) > 2 else None)
            except PipelineError:
                continue  # not a schema of this format: it may belong to another receipt
            if known.form() == list(form):
                return known
        given = f"; {', '.join(map(str, paths))} {'is' if len(paths) == 1 else 'are'} not it" if paths else ""
        raise PipelineError(
            f"rows were decoded by a {name} schema with the digest {form[1]}: --{side}-schema FILE names it{given}"
        )
