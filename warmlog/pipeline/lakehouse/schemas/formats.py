"""A user's choices: formats of keys and values, sources of schemas, and the handling of rows that do not fit."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast, get_args

from warmlog.pipeline.brokers import Brokers
from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.lakehouse.schemas.dead_letters import DeadLetterTopic
from warmlog.pipeline.lakehouse.schemas.protobuf_files import descriptors_in, messages_of
from warmlog.pipeline.lakehouse.schemas.readers import Kind, WriterSchema, reader_of
from warmlog.pipeline.lakehouse.schemas.registry import RegistryAddress
from warmlog.pipeline.session import check_libraries

FormatName: TypeAlias = Literal["binary", "string", "json", "avro", "protobuf", "confluent"]
Side: TypeAlias = Literal["key", "value"]
OnBadRow: TypeAlias = Literal["fail", "null", "dead-letter"]

Envelope: TypeAlias = Literal["none", "debezium"]

ENVELOPES: tuple[Envelope, ...] = get_args(Envelope)
FORMATS: tuple[FormatName, ...] = get_args(FormatName)
ON_BAD_ROW: tuple[OnBadRow, ...] = get_args(OnBadRow)
SIDES: tuple[Side, ...] = get_args(Side)
OF_FILES: tuple[Kind, ...] = ("json", "avro", "protobuf")  # formats whose schema is in a file

LIBRARIES = {
    "json": ("jsonschema_rs",),
    "avro": ("fastavro",),
    "protobuf": ("grpc_tools",),
    "confluent": ("confluent_kafka", "fastavro", "grpc_tools", "httpx2", "jsonschema_rs"),
}
PASSWORD = "WARMLOG_SCHEMA_REGISTRY_PASSWORD"  # noqa: S105 - the name of a variable
ERROR_COLUMN = "decodeError"  # for rows that do not fit, if they are stored
RAW_COLUMNS = {"key": "rawKey", "value": "rawValue"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """The format of keys or values. `schema`: the schema of all values, or None if each value has a schema id."""

    name: FormatName = "binary"
    schema: WriterSchema | None = field(default_factory=lambda: WriterSchema(kind="binary"))

    @property
    def is_decoded(self) -> bool:
        """Whether decoding replaces the source's binary column."""
        return self.name != "binary"

    def form(self) -> list[str]:
        """Return the format as in receipts: its name, a digest of its schema if it is from a file, and the message."""
        if self.name not in OF_FILES or self.schema is None:
            return [self.name]
        form = [self.name, sha256(self.schema.text.encode()).hexdigest()[:16]]
        return [*form, self.schema.message] if self.schema.message else form


@dataclass(frozen=True, slots=True, kw_only=True)
class Formats:
    """Formats of a table's rows. `nest_value`: whether the fields of values form one column of structs.

    `upsert`: whether the table has one row for each key, and a record without a value deletes it. `envelope`: name of
    the envelope that values are in, "none" for rows as they are.
    """

    key: Format = field(default_factory=Format)
    value: Format = field(default_factory=Format)
    nest_value: bool = False
    on_bad_row: OnBadRow = "fail"
    registry: RegistryAddress | None = None
    dead_letters: DeadLetterTopic | None = None
    upsert: bool = False
    envelope: Envelope = "none"

    @property
    def decoded(self) -> tuple[Side, ...]:
        """The sides that are decoded."""
        return tuple(side for side in SIDES if self.of(side).is_decoded)

    def form(self) -> dict[str, Any]:
        """Return the formats as in receipts; empty if nothing is decoded."""
        sides: dict[str, Any] = {side: self.of(side).form() for side in self.decoded}
        decoded = {**sides, "nested": self.nest_value, "onBadRow": self.on_bad_row} if sides else {}
        enveloped = {"envelope": self.envelope} if self.envelope != "none" else {}
        return {**decoded, **enveloped, "upsert": True} if self.upsert else decoded

    def of(self, side: Side) -> Format:
        """Return the format of keys or of values."""
        return self.key if side == "key" else self.value

    def enveloped(self, side: Side, schema: WriterSchema) -> WriterSchema:
        """Return the schema that reads the rows of a side, given the schema of its values."""
        if side == "key" or self.envelope == "none":
            return schema
        return replace(schema, envelope=self.envelope, is_of_rows=self.value.name == "json")


BINARY = Formats()


def formats_of(
    *,
    key_format: str = "binary",
    value_format: str = "binary",
    key_schema: str | Path | None = None,
    value_schema: str | Path | None = None,
    key_message: str | None = None,
    value_message: str | None = None,
    nest_value: bool = False,
    on_bad_row: str = "fail",
    schema_registry: str | None = None,
    schema_registry_user: str | None = None,
    schema_registry_password_file: str | Path | None = None,
    schema_registry_ca: str | Path | None = None,
    schema_registry_certificate: str | Path | None = None,
    dead_letter_topic: str | None = None,
    brokers: Brokers | None = None,
    upsert: bool = False,
    envelope: str = "none",
) -> Formats:
    """Check formats, and read their schemas. Arguments are named as the options of `warmlog pipeline table`.

    The password of a registry is read from a file, or from the variable WARMLOG_SCHEMA_REGISTRY_PASSWORD. `brokers`:
    the brokers of the dead-letter topic. Raises PipelineError.
    """
    sides = {
        "key": format_of("key", key_format, key_schema, key_message),
        "value": format_of("value", value_format, value_schema, value_message),
    }
    names = [each.name for each in sides.values()]
    registry = registry_of(
        schema_registry,
        schema_registry_user=schema_registry_user,
        schema_registry_password_file=schema_registry_password_file,
        schema_registry_ca=schema_registry_ca,
        schema_registry_certificate=schema_registry_certificate,
    )
    if "confluent" in names and registry is None:
        raise PipelineError("format confluent needs the URL of a schema registry: --schema-registry URL")
    if registry is not None and "confluent" not in names:
        raise PipelineError("a schema registry is for the format confluent: --value-format confluent")
    if nest_value and not sides["value"].is_decoded:
        raise PipelineError("--nest-value is for values that are decoded: name their --value-format")
    if on_bad_row not in ON_BAD_ROW:
        raise PipelineError(f"on-bad-row {on_bad_row} is none of {_listed(ON_BAD_ROW)}")
    if on_bad_row != "fail" and set(names) == {"binary"} and not (upsert and on_bad_row == "dead-letter"):
        raise PipelineError("--on-bad-row is for keys or values that are decoded: name their format")
    formats = Formats(
        key=sides["key"],
        value=sides["value"],
        nest_value=nest_value,
        on_bad_row=on_bad_row,
        registry=registry,
        dead_letters=_dead_letters(on_bad_row, dead_letter_topic, brokers),
        upsert=upsert,
        envelope=_envelope(envelope, sides["value"], upsert=upsert),
    )
    if formats.value.schema is not None:
        try:
            reader_of(formats.enveloped("value", formats.value.schema))
        except PipelineError as error:
            raise PipelineError(f"{value_schema}: {error}") from error
    return formats


def _envelope(name: str, value: Format, *, upsert: bool) -> Envelope:
    if name not in ENVELOPES:
        raise PipelineError(f"envelope {name} is none of {_listed(ENVELOPES)}")
    if name != "none" and not upsert:
        raise PipelineError(f"--envelope {name} is for --upsert")
    if name != "none" and value.name in {"binary", "string"}:
        raise PipelineError(f"--envelope {name} is for values that are decoded: name their --value-format")
    return name


def _dead_letters(on_bad_row: str, topic: str | None, brokers: Brokers | None) -> DeadLetterTopic | None:
    if on_bad_row != "dead-letter":
        if topic is not None:
            raise PipelineError("--dead-letter-topic is for --on-bad-row dead-letter")
        return None
    if topic is None:
        raise PipelineError("--on-bad-row dead-letter needs a topic for them: --dead-letter-topic TOPIC")
    if brokers is None:
        raise PipelineError("dead letters need a broker to write them to: --bootstrap H:P")
    return DeadLetterTopic(topic=topic, brokers=brokers)


def registry_of(
    url: str | None,
    *,
    schema_registry_user: str | None = None,
    schema_registry_password_file: str | Path | None = None,
    schema_registry_ca: str | Path | None = None,
    schema_registry_certificate: str | Path | None = None,
) -> RegistryAddress | None:
    """Return the address of a registry, or None without a URL. Arguments as for `formats_of`. Raises PipelineError."""
    user, password_file = schema_registry_user, schema_registry_password_file
    files = {"ca": schema_registry_ca, "certificate": schema_registry_certificate}
    if url is None:
        if user is not None or password_file is not None or any(files.values()):
            raise PipelineError("options of a schema registry need its URL: --schema-registry URL")
        return None
    password = os.environ.get(PASSWORD) if user is not None else None
    if password_file is not None:
        from warmlog.client.files import read_password  # imports the client

        try:
            password = read_password(Path(password_file))
        except ValueError as error:
            raise PipelineError(str(error)) from error
    if user is not None and not password:
        raise PipelineError(f"user {user} of the schema registry needs --schema-registry-password-file, or {PASSWORD}")
    paths = {name: None if path is None else str(path) for name, path in files.items()}
    return RegistryAddress(url=url, user=user, password=password, **paths)


def format_of(side: str, name: str, schema: str | Path | None, message: str | None = None) -> Format:
    """Return a format, with the schema of a file if required. `message`: Protobuf's type. Raises PipelineError."""
    if name in LIBRARIES:
        check_libraries(*LIBRARIES[name], extra="schemas")
    option = f"--{side}-schema"
    if name not in FORMATS:
        raise PipelineError(f"format {name} is none of {_listed(FORMATS)}")
    if message is not None and name != "protobuf":
        raise PipelineError(f"--{side}-message is for the format protobuf, and the {side} is {name}")
    kind = cast("Kind", name)
    if name not in OF_FILES:
        if schema is not None:
            raise PipelineError(f"{option} is for the formats {_listed(OF_FILES)}, and the {side} is {name}")
        return Format(name=name, schema=None if name == "confluent" else WriterSchema(kind=kind))
    if schema is None:
        hint = " (format string keeps the text as it is)" if name == "json" else ""
        raise PipelineError(f"format {name} needs a schema, from which columns follow: {option} FILE{hint}")
    try:
        if name == "protobuf":
            text = descriptors_in(Path(schema))
            written = WriterSchema(kind=kind, text=text, message=_message(side, text, message))
        else:
            written = WriterSchema(kind=kind, text=Path(schema).read_text())
        reader_of(written)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise PipelineError(f"{schema}: {reason}") from error
    except PipelineError as error:
        raise PipelineError(f"{schema}: {error}") from error
    return Format(name=name, schema=written)


def _message(side: str, descriptors: str, message: str | None) -> str:
    names = messages_of(descriptors)
    if message is not None:
        return message
    if len(names) != 1:
        raise PipelineError(f"name the message of the {side}s by --{side}-message: {', '.join(names) or 'it has none'}")
    return names[0]


def _listed(names: Sequence[Any]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"
