"""Schemas by id from a registry with Confluent's interface, read with Confluent's own client.

A value in Confluent's wire format is a zero byte, the schema id in four bytes, and the data; before Protobuf data,
indexes select a message of the schema's file. The job reads the schemas and passes their texts to tasks, so workers
need neither the registry nor a password.

Source: Confluent's documentation, "Wire format" and "Schema Registry API".
"""

import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from warmlog.pipeline.errors import PipelineError, UnavailableError
from warmlog.pipeline.lakehouse.schemas.protobuf_files import descriptors_of
from warmlog.pipeline.lakehouse.schemas.readers import Kind, WriterSchema
from warmlog.pipeline.lakehouse.schemas.types import BadValueError, SchemaError

MAGIC = 0
HEADER = struct.Struct(">bI")
TIMEOUT_S = 10.0
RETRIES = 3
UNKNOWN_STATUS = 404
KINDS = {"AVRO": "avro", "JSON": "json", "PROTOBUF": "protobuf"}  # an old registry omits the type of Avro schemas


def schema_id_of(data: bytes) -> int:
    """Return the schema id of a value in Confluent's wire format. Raises BadValueError."""
    if len(data) < HEADER.size or data[0] != MAGIC:
        raise BadValueError("not in Confluent's wire format: it does not begin with a zero byte and a schema id")
    return int(HEADER.unpack_from(data)[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryAddress:
    """The address of a registry, and how to log in. `url`: one or several, separated by commas. `ca`: a CA file.

    `certificate`: a file with the client's private key and certificate in PEM format.
    """

    url: str
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    ca: str | None = None
    certificate: str | None = None

    def __post_init__(self) -> None:
        if not all(part.strip().startswith(("http://", "https://")) for part in self.url.split(",")):
            raise PipelineError(f"schema registry {self.url}: not a URL that begins with http:// or https://")
        if "@" in self.url:
            raise PipelineError("schema registry: a password in the URL is visible to others; name a user and a file")
        if self.password is not None and self.user is None:
            raise PipelineError("schema registry: a password needs a user: --schema-registry-user NAME")
        for path in (self.ca, self.certificate):
            if path is not None and not Path(path).is_file():
                raise PipelineError(f"schema registry: {path}: no such file")


class Registry:
    """Gets schemas by id. The constructor raises PipelineError for an address that cannot be used."""

    def __init__(self, address: RegistryAddress) -> None:
        given = {
            "url": address.url,
            "basic.auth.user.info": None if address.user is None else f"{address.user}:{address.password}",
            "ssl.ca.location": address.ca,
            "ssl.certificate.location": address.certificate,
            "timeout": TIMEOUT_S,
            "max.retries": RETRIES,
        }
        self._url = address.url
        self._settings = {name: each for name, each in given.items() if each is not None}
        self._schemas: dict[int, WriterSchema] = {}
        try:
            self._connect().close()
        except (ValueError, OSError) as error:
            raise PipelineError(f"schema registry {address.url}: {error}") from error

    def _connect(self) -> Any:
        from confluent_kafka.schema_registry import SchemaRegistryClient

        return SchemaRegistryClient(self._settings)

    def schema(self, schema_id: int) -> WriterSchema:
        """Return a schema. Raises SchemaError if the registry does not have it, UnavailableError, PipelineError."""
        if schema_id not in self._schemas:
            with self._connect() as client:  # schemas are few: each uses a new connection, closed immediately
                self._schemas[schema_id] = self._get(client, schema_id)
        return self._schemas[schema_id]

    def _get(self, client: Any, schema_id: int) -> WriterSchema:
        schema = self._call(f"schema {schema_id}", lambda: client.get_schema(schema_id))
        kind = KINDS.get(schema.schema_type or "AVRO")
        if kind is None:
            raise SchemaError(f"schema {schema_id} is of type {schema.schema_type}, which is not supported")
        references: dict[str, str] = {}
        self._add_references(client, schema, references)
        text = schema.schema_str
        if kind == "protobuf":
            text, references = descriptors_of(text, references), {}
        return WriterSchema(kind=cast("Kind", kind), text=text, references=tuple(references.items()))

    def _add_references(self, client: Any, schema: Any, references: dict[str, str]) -> None:
        """Add the schemas that a schema refers to, dependencies first."""
        for reference in schema.references or ():
            if reference.name in references:
                continue
            what = f"version {reference.version} of {reference.subject}"
            version = self._call(what, lambda at=reference: client.get_version(at.subject, at.version))
            self._add_references(client, version.schema, references)
            references.setdefault(reference.name, version.schema.schema_str)

    def _call(self, what: str, act: Any) -> Any:
        from confluent_kafka.schema_registry.error import SchemaRegistryError

        try:
            return act()
        except SchemaRegistryError as error:
            if error.http_status_code == UNKNOWN_STATUS:
                raise SchemaError(f"schema registry {self._url} has no {what}") from error
            kind = UnavailableError if error.http_status_code >= 500 or error.http_status_code == 429 else PipelineError
            text = str(error.error_message)[:200]
            raise kind(f"schema registry {self._url}: {what}: status {error.http_status_code}, {text}") from error
        except Exception as error:  # the HTTP library's error, whose name depends on the client's version
            raise UnavailableError(f"schema registry {self._url}: {what}: {error}") from error
