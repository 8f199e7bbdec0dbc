"""The tables of fields and Kafka's definitions of its messages: names, kinds, versions, nulls, tags and defaults."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.protocol.kafka.definitions import Definition, definitions
from tests.protocol.kafka.messages import DATA_TABLES, TABLES
from warmlog.protocol.kafka.api import APIS, Api
from warmlog.protocol.kafka.codec.schema import REQUIRED, Array, Field, Primitive, Struct
from warmlog.protocol.kafka.consumer_protocol import LAST_VERSION

SERVED = {f"{api.name}{kind}": range(api.first, api.last + 1) for api in APIS for kind in ("Request", "Response")}
SERVED |= {name: range(LAST_VERSION + 1) for name in DATA_TABLES}
KINDS = {"boolean": "bool", "data": "bytes"}
ZEROS: dict[str, Any] = {"bool": False, "string": "", "bytes": b"", "records": None, "uuid": bytes(16), "float64": 0.0}
#: Versions that Kafka has in its definitions and does not serve, unless unstable versions are enabled.
UNSTABLE = {"InitProducerId": 6}


def described(table: Struct, version: int, place: str = "") -> Iterator[str]:
    """Yield a line for each field of a table in one version."""
    for field in table.fields:
        if field.is_in(version):
            where = f"{place}{field.name.replace('_', '')}"
            inner = inner_of(field)
            kind = kind_of(field.kind, version, field)
            yield line(where, kind, field.is_nullable(version), field.tag, absent(field))
            if inner is not None:
                yield from described(inner, version, f"{where}.")


def absent(field: Field) -> Any:
    """Return the value of a field that is absent, of a struct that of its fields."""
    if isinstance(field.kind, Struct) and field.default is REQUIRED:
        return {one.name: absent(one) for one in field.kind.fields}
    return field.absent


def inner_of(field: Field) -> Struct | None:
    kind = field.kind.of if isinstance(field.kind, Array) else field.kind
    return kind if isinstance(kind, Struct) else None


def kind_of(kind: Primitive | Array | Struct, version: int, field: Field) -> str:
    if isinstance(kind, Array):
        return "[]" + kind_of(kind.of, version, field)
    return "struct" if isinstance(kind, Struct) else KINDS.get(kind.layout, kind.layout)


def defined(definition: Definition, version: int, place: str = "") -> Iterator[str]:
    """Yield the same lines from Kafka's definition."""
    for field in definition.fields:
        if version in field.versions:
            where = f"{place}{field.name.lower()}"
            array, element = "[]" if field.kind.startswith("[]") else "", field.kind.removeprefix("[]")
            kind = array + ("struct" if element[0].isupper() else {"records": "bytes"}.get(element, element))
            yield line(where, kind, version in field.nullable, field.tag, default_of(field, kind))
            yield from defined(field, version, f"{where}.")


def default_of(field: Definition, kind: str) -> Any:
    """Return the value of a field that is absent."""
    if field.default == "null":
        return None
    if kind.startswith("[]"):
        return ()
    if kind == "struct":
        return {snake(one.name): default_of(one, one.kind) for one in field.fields}
    if field.default is None:
        return ZEROS.get(kind, 0)
    if kind == "bool":
        return field.default == "true"
    return field.default if kind == "string" else int(field.default, 0)


def line(where: str, kind: str, nullable: bool, tag: int | None, default: Any) -> str:
    return f"{where} {kind}{' nullable' if nullable else ''}{'' if tag is None else f' tag {tag}'} default {default!r}"


def snake(name: str) -> str:
    return "".join(f"_{one.lower()}" if one.isupper() else one for one in name).lstrip("_")


@pytest.mark.parametrize("api", APIS, ids=[api.name for api in APIS])
def test_every_version_of_a_served_api_is_served(api: Api) -> None:
    request, response = (definitions()[f"{api.name}{kind}"] for kind in ("Request", "Response"))
    last = UNSTABLE.get(api.name, response.versions.stop) - 1
    assert (api.first, api.last) == (request.versions.start, last)
    assert request.versions == response.versions
    for version in SERVED[request.name]:
        assert api.is_flexible(version) == (version in request.flexible) == (version in response.flexible)


@pytest.mark.parametrize("name", [*TABLES, *DATA_TABLES])
def test_every_message_is_described_as_kafka_defines_it(name: str) -> None:
    table = (TABLES | DATA_TABLES)[name]
    for version in SERVED[name]:
        assert list(described(table, version)) == list(defined(definitions()[name], version)), f"version {version}"
