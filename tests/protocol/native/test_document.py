"""docs/native-protocol.md compared with the code: every field and default, every error, every byte of the example."""

import re
from pathlib import Path
from typing import Any

import crc32c
import msgspec
import pytest
from msgspec import NODEFAULT, inspect

from warmlog.protocol import explanation, groups, request, response, transactions
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.frame import LENGTH_SIZE
from warmlog.protocol.native import explain as native_explain
from warmlog.protocol.native import groups as native_groups
from warmlog.protocol.native import login as native_login
from warmlog.protocol.native import mirrors as native_mirrors
from warmlog.protocol.native import producers as native_producers
from warmlog.protocol.native import share as native_share
from warmlog.protocol.native.codec import decode_request, decode_response, encode_request, encode_response
from warmlog.protocol.native.messages import OPERATIONS, VERSIONS, Operation, ReceivedFetch
from warmlog.protocol.request import ProduceRequest
from warmlog.protocol.response import ErrorResponse

DOCUMENT = (Path(__file__).parents[3] / "docs" / "native-protocol.md").read_text()
# modules that define values
MODULES = (
    request,
    response,
    groups,
    transactions,
    native_groups,
    native_explain,
    explanation,
    native_login,
    native_mirrors,
    native_producers,
    native_share,
)
# Values that the document describes outside of its tables.
ELSEWHERE: dict[str, set[type]] = {
    "alter_topics": {response.TopicResult},
    "offset_delete": {groups.CommittedPartition},
    "describe_mirror": {native_mirrors.DescribeMirrorRequest},  # without fields
}
# Values whose name in the document is shorter than in the code.
NAMES = {"Broker": "BrokerMetadata", "Topic": "TopicMetadata", "Partition": "PartitionMetadata"}
# Names of types in the document: integers by their minimum (None in responses), and the others.
INTEGERS = {
    None: {"int32", "int64", "size"},
    0: {"size"},
    -(1 << 15): {"int16"},
    -(1 << 31): {"int32"},
    -(1 << 63): {"int64"},
}
SCALARS: dict[type, set[str]] = {
    inspect.LiteralType: {"int32"},
    inspect.EnumType: {"int32", "text"},
    inspect.StrType: {"text"},
    inspect.BoolType: {"bool"},
    inspect.MemoryViewType: {"bin"},
    inspect.BytesType: {"bin"},
    inspect.CustomType: {"bin"},
}
OPS = {operation.name: operation for operation in OPERATIONS}
EXAMPLES = [
    "hello",
    "create_topics",
    "produce",
    "fetch",
    "join_consumer_group",
    "heartbeat_consumer_group",
    "offset_commit",
]
every_op = pytest.mark.parametrize("op", OPS)


def hex_block(name: str) -> bytes:
    found = re.search(rf"^```hex {name}\n(.*?)^```", DOCUMENT, re.MULTILINE | re.DOTALL)
    assert found, name
    return bytes.fromhex(re.sub(r"#.*", "", found[1]))


def section(heading: str) -> str:
    return re.split(r"^#{2,3} ", DOCUMENT.split(f"\n### {heading}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]


def tables(op: str) -> dict[str, list[list[str]]]:
    """Return the rows of each table of an operation, by the line above it."""
    found = re.findall(r"^(\w+):\n\n((?:\|.*\n)+)", section(op), re.MULTILINE)
    return {name: [[c.strip() for c in row.split("|")[1:-1]] for row in rows.splitlines()[2:]] for name, rows in found}


def type_named(name: str, operation: Operation) -> Any:
    if name in {"Request", "Reply"}:
        return operation.request if name == "Request" else operation.response
    return value_named(NAMES.get(name, name))


def value_named(name: str) -> Any:
    return next((found for module in MODULES if (found := getattr(module, name, None)) is not None), None)


def value_types(kind: type) -> set[type]:
    """Return a value type and all value types nested in it."""
    found = {kind}
    for field in msgspec.structs.fields(kind):
        for part in re.findall(r"\w+", str(field.type)):
            inner = value_named(part)
            if isinstance(inner, type) and issubclass(inner, msgspec.Struct):
                found |= value_types(inner)
    return found


def written(kind: inspect.Type) -> set[str]:
    """Return the names that the document may use for a type."""
    match kind:
        case inspect.IntType():
            return INTEGERS[kind.ge]
        case inspect.StructType(cls=cls):
            return {next((short for short, name in NAMES.items() if name == cls.__name__), cls.__name__)}
        case inspect.VarTupleType(item_type=item):
            return {f"[{name}]" for name in written(item)}
        case inspect.DictType(value_type=value):
            return {f"{{text: {name}}}" for name in written(value)}
        case inspect.UnionType(types=(part, inspect.NoneType()) | (inspect.NoneType(), part)):
            return {f"{name} or nil" for name in written(part)}
    return SCALARS[type(kind)]


def default_of(field: inspect.Field) -> str:
    """Format a default as the document does."""
    if field.default_factory is not NODEFAULT:
        return "{}"
    if field.default is NODEFAULT:
        return ""
    if isinstance(field.default, str):
        return f'`"{field.default}"`'
    return msgspec.json.encode(field.default).decode().replace("null", "nil")


@every_op
def test_every_value_of_an_operation_has_its_table(op: str) -> None:
    needed = value_types(OPS[op].request) | value_types(OPS[op].response)
    described = {type_named(name, OPS[op]) for name in tables(op)}
    assert described | ELSEWHERE.get(op, set()) == needed


@every_op
def test_every_field_is_described_in_its_order_with_type_and_default(op: str) -> None:
    for name, rows in tables(op).items():
        info = inspect.type_info(type_named(name, OPS[op]))
        assert isinstance(info, inspect.StructType)
        assert [row[0] for row in rows] == [f"`{field.name}`" for field in info.fields]
        for row, field in zip(rows, info.fields, strict=True):
            assert row[1] in written(field.type), (name, row)
            if len(row) == 4:
                assert row[2] == default_of(field), (name, row)


def test_the_table_of_errors_has_kafkas_numbers() -> None:
    rows = re.findall(r"^\| (-?\d+) \| ([A-Z_]+) \|", DOCUMENT, re.MULTILINE)
    assert len(rows) > 15
    assert {name: int(code) for code, name in rows} == {name: ErrorCode[name] for _, name in rows}


def test_every_error_that_is_named_is_in_the_table() -> None:
    listed = set(re.findall(r"^\| -?\d+ \| ([A-Z_]+) \|", DOCUMENT, re.MULTILINE))
    named = set(re.findall(r"\b[A-Z]+(?:_[A-Z]+)+\b", DOCUMENT))
    assert named <= listed


def test_the_version_is_the_current_one() -> None:
    assert f"Version of the protocol: **{VERSIONS[-1]}**" in DOCUMENT


@pytest.mark.parametrize("op", EXAMPLES)
def test_the_bytes_of_an_example_request_are_encoded_and_decoded(op: str) -> None:
    frame = hex_block(f"request {op}")
    request_id, decoded = decode_request(frame[LENGTH_SIZE:])
    assert isinstance(decoded, OPS[op].request)
    asked = OPS[op].request(**{name: getattr(decoded, name) for name in OPS[op].request.__struct_fields__})
    assert encode_request(request_id, asked) == frame


@pytest.mark.parametrize("op", EXAMPLES)
def test_the_bytes_of_an_example_response_are_encoded_and_decoded(op: str) -> None:
    frame = hex_block(f"reply {op}")
    request_id, decoded = decode_response(frame[LENGTH_SIZE:], OPS[op].received)
    assert not isinstance(decoded, ErrorResponse)
    assert b"".join(bytes(piece) for piece in encode_response(request_id, decoded)) == frame  # type: ignore[arg-type]


def test_the_example_stores_the_batch_that_is_explained_and_gets_it_back_stamped() -> None:
    batch = hex_block("batch")
    assert len(batch) == 75
    assert int.from_bytes(batch[17:21], "big") == crc32c.crc32c(batch[21:])
    _, produced = decode_request(hex_block("request produce")[LENGTH_SIZE:])
    assert isinstance(produced, ProduceRequest)
    assert produced.partitions[0].records == batch
    _, fetched = decode_response(hex_block("reply fetch")[LENGTH_SIZE:], ReceivedFetch)
    assert isinstance(fetched, ReceivedFetch)
    stored = bytes(fetched.partitions[0].records)
    assert stored[:12] + batch[12:16] + stored[16:] == batch
    assert stored[12:16] == bytes(4)


def test_the_varints_of_the_explanation() -> None:
    text = " ".join(DOCUMENT.split())
    for number, written_as in re.findall(r"(-?\d+) is `([0-9a-f ]+)`", text):
        value, n = int(number), 0
        for place, byte in enumerate(bytes.fromhex(written_as)):
            n |= (byte & 0x7F) << (7 * place)
        assert (n >> 1) ^ -(n & 1) == value


def test_links_lead_to_headings() -> None:
    headings = {
        re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-")
        for heading in re.findall(r"^##+ (.*)$", DOCUMENT, re.MULTILINE)
    }
    assert set(re.findall(r"\]\(#([^)]+)\)", DOCUMENT)) <= headings
