"""JSON: converts types of JSON Schemas to Arrow types, and decodes values after validation.

A schema expresses more than a column type: jsonschema-rs validates each value against the whole schema, and each valid
value fits the type, which follows only from the schema's text:

    integer, number, boolean, string    int64, double, boolean, string
    string with format date, date-time  date, timestamp with zone, in us: further digits are truncated
    object with properties              struct of these, in their order; others that the schema allows are omitted
    object without, or additional ones  map if `additionalProperties` is a schema
    array with items                    list
    anything else, several types,       string with its JSON text, in which numbers are as written
    further properties by oneOf or then

Source: JSON Schema, draft 4 to 2020-12.
"""

import json
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, Self

import msgspec

from warmlog.pipeline.lakehouse.schemas.types import BadValueError, SchemaError, list_of, map_of

Convert = Callable[[Any], Any] | None
Typed = tuple[Any, Any, Convert]

BASE = "json-schema:///schema"  # base URL of relative references
NO_SIBLINGS = 7  # last draft in which $ref stands for the whole schema
BRANCHES = ("allOf", "anyOf", "oneOf", "if", "then", "else", "dependentSchemas", "dependencies")
SHOWN = 200  # maximum length of a validator's message
_FURTHER_DIGITS = re.compile(r"(\.\d{6})\d+")


class JsonReader:
    """Reads values of a JSON Schema. `references`: schemas by the names that it uses for them."""

    def __init__(self, text: str, references: Mapping[str, str]) -> None:
        import jsonschema_rs

        try:
            self._schema = json.loads(text)
            others = [(name, json.loads(part)) for name, part in references.items()]
            registry = jsonschema_rs.Registry(resources=others) if others else None
            self._validator = jsonschema_rs.validator_for(
                self._schema, validate_formats=True, offline=True, registry=registry
            )
            resources = jsonschema_rs.Registry(resources=[(BASE, self._schema), *others])
        except (ValueError, TypeError, jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError) as error:
            raise SchemaError(f"not a JSON Schema: {str(error).splitlines()[0]}") from error
        self._invalid: Any = jsonschema_rs.ValidationError
        self._unresolved: Any = jsonschema_rs.ReferencingError
        names = self._schema if isinstance(self._schema, dict) else {}
        self._has_text = False
        base = str(names.get("$id") or names.get("id") or BASE)
        self.type, self.raw_type, self._convert = self._typed(self._schema, resources.resolver(base), "", ())

    def decode(self, data: bytes) -> Any:
        """Return the value. Raises BadValueError for invalid JSON, or a value that the schema does not allow."""
        try:
            value = msgspec.json.decode(data)
            self._validator.validate(value)
        except self._invalid as error:
            path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.instance_path)
            field = f"field {path.lstrip('.')}: " if path else ""
            raise BadValueError(f"{field}{error.message[:SHOWN]}") from error
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise BadValueError(f"not JSON: {error}") from error
        if self._has_text:  # the validator takes plain numbers only
            value = _LITERALS.decode(data)
        return value if self._convert is None else self._convert(value)

    def _typed(self, schema: Any, resolver: Any, path: str, outer: tuple[str, ...]) -> Typed:
        """Return the types of a schema. `outer`: references through which it was reached."""
        schema = schema if isinstance(schema, dict) else {}
        if "$ref" in schema:
            beside = schema.keys() & {"properties", "patternProperties", "items", *BRANCHES}
            if beside and resolver.lookup("").draft > NO_SIBLINGS:
                return self._text()
            return self._referred(schema["$ref"], resolver, path, outer)
        alternatives = schema.get("oneOf") or schema.get("anyOf")
        if alternatives and "properties" not in schema:
            others = [each for each in alternatives if not (isinstance(each, dict) and each.get("type") == "null")]
            return _nullable(self._typed(others[0], resolver, path, outer)) if len(others) == 1 else self._text()
        kind = _kind_of(schema)
        if kind == "object" and not _names_further(schema, schema.get("properties", {}).keys()):
            return self._object(schema, resolver, path, outer)
        if kind == "array" and isinstance(schema.get("items"), dict) and "prefixItems" not in schema:
            inner, raw, convert = self._typed(schema["items"], resolver, f"{path}[]", outer)
            return list_of(inner), list_of(raw), None if convert is None else _each(convert)
        return self._primitive(kind, schema, path)

    def _referred(self, reference: str, resolver: Any, path: str, outer: tuple[str, ...]) -> Typed:
        try:
            resolved = resolver.lookup(reference)
        except self._unresolved as error:
            raise SchemaError(f"field {path or 'value'}: {reference} is not in the schema") from error
        if reference in outer or reference == "#":
            raise SchemaError(f"field {path} contains itself by {reference}: columns cannot be recursive")
        return self._typed(resolved.contents, resolved.resolver, path, (*outer, reference))

    def _object(self, schema: Any, resolver: Any, path: str, outer: tuple[str, ...]) -> Typed:
        import pyarrow as pa

        if schema.get("properties"):
            typed = {
                name: _nullable(self._typed(each, resolver, f"{path}.{name}" if path else name, outer))
                for name, each in schema["properties"].items()
            }
            converts = {name: convert for name, (_, _, convert) in typed.items() if convert is not None}
            return (
                pa.struct([pa.field(name, kind) for name, (kind, _, _) in typed.items()]),
                pa.struct([pa.field(name, raw) for name, (_, raw, _) in typed.items()]),
                _fields(converts, path) if converts or "type" not in schema else None,
            )
        if "patternProperties" not in schema and isinstance(schema.get("additionalProperties"), dict):
            inner, raw, convert = self._typed(schema["additionalProperties"], resolver, f"{path}[]", outer)
            return map_of(pa.string(), inner), map_of(pa.string(), raw), None if convert is None else _values(convert)
        return self._text()

    def _primitive(self, kind: str | None, schema: Any, path: str) -> Typed:
        import pyarrow as pa

        if kind == "string":
            formats = {"date": pa.date32(), "date-time": pa.timestamp("us", "UTC")}
            final = formats.get(schema.get("format", ""), pa.string())
            return final, pa.string(), _time if final == formats["date-time"] else None
        if kind == "number":
            return pa.float64(), pa.float64(), _number_of(path)
        plain = {"integer": pa.int64(), "boolean": pa.bool_()}
        return (plain[kind], plain[kind], None) if kind in plain else self._text()

    def _text(self) -> Typed:
        import pyarrow as pa

        self._has_text = True
        return pa.string(), pa.string(), _text_of


def _names_further(schema: Mapping[str, Any], known: Collection[str]) -> bool:
    """Return whether branches of a schema may name properties other than these."""
    if "allOf" in schema:
        return True
    for name in BRANCHES:
        inner = schema.get(name, ())
        parts = inner.values() if isinstance(inner, dict) and name.startswith("depend") else inner
        for part in parts if isinstance(parts, Collection) and not isinstance(parts, dict) else [parts]:
            if isinstance(part, dict) and (
                part.keys() & {"$ref", "$dynamicRef", "patternProperties"}
                or any(each not in known for each in part.get("properties", ()))
                or _names_further(part, known)
            ):
                return True
    return False


def _kind_of(schema: Any) -> str | None:
    """Return the only type of a schema other than null, or None if there is not exactly one."""
    kinds = schema.get("type", "object" if "properties" in schema else None)
    names = {kind for kind in (kinds if isinstance(kinds, list) else [kinds]) if kind != "null"}
    if names == {"integer", "number"}:
        return "number"
    return next(iter(names)) if len(names) == 1 else None


class _Literal(float):
    """A number with a fraction or an exponent, and its text."""

    def __new__(cls, text: str) -> Self:
        """Return the nearest double of a number's text."""
        literal = super().__new__(cls, text)
        literal.text = text
        return literal

    text: str


def _raw(literal: Any) -> msgspec.Raw:
    return msgspec.Raw(literal.text.encode())


_LITERALS = msgspec.json.Decoder(float_hook=_Literal)
_TEXTS = msgspec.json.Encoder(enc_hook=_raw)


def _text_of(value: Any) -> str:
    return _TEXTS.encode(value).decode()


def _number_of(path: str) -> Callable[[Any], float | None]:
    def convert(value: Any) -> float | None:
        try:
            return None if value is None else float(value)  # the nearest double of a large integer
        except OverflowError as error:
            raise BadValueError(f"field {path or 'value'}: a number beyond the range of a double") from error

    return convert


def _time(text: str | None) -> str | None:
    """Return a time of RFC 3339 as Arrow parses it: in upper case, with six digits of a second's fraction at most."""
    return None if text is None else _FURTHER_DIGITS.sub(r"\1", text.upper())


def _nullable(typed: Typed) -> Typed:
    kind, raw, convert = typed
    return kind, raw, None if convert is None else (lambda value: None if value is None else convert(value))


def _each(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda values: None if values is None else [convert(value) for value in values]


def _values(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda values: None if values is None else {name: convert(value) for name, value in values.items()}


def _fields(converts: Mapping[str, Callable[[Any], Any]], path: str) -> Callable[[Any], Any]:
    def convert(record: Any) -> Any:
        if record is None:
            return None
        if not isinstance(record, dict):  # a schema without a type allows it
            raise BadValueError(f"field {path or 'value'} is not an object")
        return {**record, **{name: change(record[name]) for name, change in converts.items() if name in record}}

    return convert
