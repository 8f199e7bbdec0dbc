"""Responses of random content to any request, by the types of the values: what an encoder may be given."""

import enum
import random
import types
import typing
from collections.abc import Iterable
from typing import Any

import msgspec

from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.api import Api
from warmlog.protocol.response import ErrorResponse

ERRORS = (
    ErrorCode.NONE, ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID,
)  # fmt: skip
TEXTS = ("", "alpha", "x" * 130, "é" * 3)
TOPIC_IDS = ("YWFhYWFhYWFhYWFhYWFhYQ", "YmJiYmJiYmJiYmJiYmJiYg")
# Entries that answer those of the request, one each: (field of the response, field of the request).
ANSWERS = {
    "partitions": "partitions", "topics": "topics", "groups": "groups", "resources": "resources",
    "coordinators": "keys", "results": "alterations",
}  # fmt: skip
NAMES = ("topic", "partition", "name", "resource_type", "group", "key")


def response_to(api: Api, request: Any, source: random.Random) -> Any:
    """A response of the API's type with random content, with an entry for each entry of the request."""
    kind = type(api.failed(request, ErrorResponse(error=ErrorCode.NONE)))
    values = {}
    for field in msgspec.structs.fields(kind):
        asked = getattr(request, ANSWERS.get(field.name, "none"), None)
        arguments = typing.get_args(field.type)
        if field.name == "requested":
            values[field.name] = None
        elif asked is not None and arguments and _is_struct(arguments[0]):
            values[field.name] = tuple(_answers(asked, arguments[0], source))
        else:
            values[field.name] = _value(field.type, field.name, source)
    return kind(**values)


def _answers(asked: Iterable[Any], kind: Any, source: random.Random) -> Iterable[Any]:
    for one in asked:
        answer = _value(kind, "", source)
        named = {
            name: one if isinstance(one, str) and isinstance(getattr(answer, name), str) else getattr(one, name)
            for name in NAMES
            if hasattr(answer, name) and (isinstance(one, str) or hasattr(one, name))
            and (not isinstance(one, str) or isinstance(getattr(answer, name), str))
        }  # fmt: skip
        within = getattr(one, "partitions", None)
        parts = [typing.get_args(field.type) for field in msgspec.structs.fields(kind) if field.name == "partitions"]
        if within is not None and parts and parts[0]:
            named["partitions"] = tuple(_answers(within, parts[0][0], source))
        yield msgspec.structs.replace(answer, **named)


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _fields_of(kind: Any) -> dict[str, Any]:
    """Return the types of the fields of a struct or a NamedTuple."""
    if _is_struct(kind):
        return {field.name: field.type for field in msgspec.structs.fields(kind)}
    return typing.get_type_hints(kind)


def _value(kind: Any, name: str, source: random.Random) -> Any:
    origin = typing.get_origin(kind)
    if origin is typing.Annotated:
        return _value(typing.get_args(kind)[0], name, source)
    if origin in {typing.Union, types.UnionType}:
        chosen = source.choice([one for one in typing.get_args(kind) if one is not msgspec.UnsetType])
        return _value(chosen, name, source)
    if origin is tuple:
        arguments = typing.get_args(kind)
        if arguments[-1] is Ellipsis:
            return tuple([_value(arguments[0], name, source) for _ in range(source.randrange(4))])
        return tuple([_value(one, name, source) for one in arguments])
    if _is_struct(kind) or (isinstance(kind, type) and issubclass(kind, tuple)):
        return kind(**{name: _value(of, name, source) for name, of in _fields_of(kind).items()})
    return _plain(kind, name, source)


def _plain(kind: Any, name: str, source: random.Random) -> Any:
    if kind is type(None):
        return None
    if name == "records" or kind is bytes:
        return source.randbytes(16 if name == "topic_id" else source.choice((0, 3, 200)))
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return source.choice(ERRORS if kind is ErrorCode else tuple(kind))
    if kind is str:
        return source.choice(TOPIC_IDS if name == "topic_id" else TEXTS)
    if name == "port":
        return 9092
    return {bool: source.random() < 0.5, int: source.choice((-1, 0, 1, 100)), float: 1.5}[kind]
