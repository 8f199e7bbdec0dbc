"""The table of APIs, headers, and unsupported requests."""

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol.kafka.messages import TABLES, VERSIONS, body, drawn, frame, parsed, reply_body
from warmlog.protocol.errors import ErrorCode, ProtocolError
from warmlog.protocol.groups import CommittedPartition
from warmlog.protocol.kafka.api import APIS, Api, Call, Codec, RefusedError, UnservedError
from warmlog.protocol.kafka.codec.bounds import MalformedError
from warmlog.protocol.kafka.codec.schema import Array, Field, Primitive
from warmlog.protocol.kafka.messages.cluster.discovery import ApiVersionsRequest, ApiVersionsResponse
from warmlog.protocol.response import ErrorResponse
from warmlog.protocol.transactions import TxnOffsetCommitResponse

API_VERSIONS = next(api for api in APIS if api.name == "ApiVersions")
PRODUCE, FETCH = APIS[0], APIS[1]


def minimal(api: Api, version: int) -> dict[str, Any]:
    """Encode the shortest request, with all arrays empty."""
    zero = {"boolean": False, "string": "x", "uuid": bytes(16), "data": b""}

    def least(field: Field) -> Any:
        kind = field.kind
        if isinstance(kind, Primitive):
            return zero.get(kind.layout, 0)
        if isinstance(kind, Array):
            return ()
        return None if field.is_nullable(version) else {each.name: least(each) for each in kind.fields}

    fields = [field for field in TABLES[f"{api.name}Request"].fields if field.is_in(version) and field.tag is None]
    return {field.name: least(field) for field in fields}


def shortest(api: Api, version: int, **fields: Any) -> memoryview:
    return frame(api, version, body(f"{api.name}Request", api, version, minimal(api, version) | fields))


def test_every_key_stands_once_in_the_table_in_order() -> None:
    keys = [api.key for api in APIS]
    assert keys == sorted(set(keys))
    assert all(0 <= api.first <= api.last for api in APIS)


@pytest.mark.parametrize(("api", "version"), VERSIONS)
def test_a_call_has_the_client_id(api: Api, version: int) -> None:
    message = body(f"{api.name}Request", api, version, minimal(api, version))
    for name, seen in ((None, ""), (b"", ""), ("größe".encode(), "größe")):
        call = Codec().decode(frame(api, version, message, correlation_id=-5, client=name))
        assert (call.api, call.version, call.correlation_id, call.client_id) == (api, version, -5, seen)


@pytest.mark.parametrize(("api", "version"), VERSIONS)
def test_a_request_that_failed_as_a_whole_has_a_reply(api: Api, version: int) -> None:
    codec = Codec()
    call = codec.decode(shortest(api, version))
    pieces = codec.encode(call, ErrorResponse(error=ErrorCode.UNKNOWN_SERVER_ERROR, message="oh"))
    parsed(f"{api.name}Response", api, version, reply_body(api, version, pieces))


@pytest.mark.parametrize("version", range(API_VERSIONS.first, API_VERSIONS.last + 1))
def test_the_answer_to_api_versions_is_the_table(version: int) -> None:
    codec = Codec()
    call = codec.decode(shortest(API_VERSIONS, version))
    pieces = codec.encode(call, codec.api_versions(call.request))
    answer = parsed("ApiVersionsResponse", API_VERSIONS, version, reply_body(API_VERSIONS, version, pieces))
    assert answer["error_code"] == ErrorCode.NONE
    told = {one["api_key"]: (one["min_version"], one["max_version"]) for one in answer["api_keys"]}
    # KAFKA-18659: librdkafka expects Produce from version 0
    assert told == {api.key: (0 if api.name == "Produce" else api.first, api.last) for api in APIS}


@pytest.mark.parametrize("key", [4, 95, -1, 32767])
def test_an_api_outside_the_table_is_neither_advertised_nor_decoded(key: int) -> None:
    codec = Codec()
    assert key not in [one.key for one in codec.api_versions(ApiVersionsRequest()).apis]
    with pytest.raises(UnservedError, match=f"API {key} is not supported"):
        codec.decode(memoryview(key.to_bytes(2, signed=True) + bytes(shortest(FETCH, 12))[2:]))


@pytest.mark.parametrize("version", [-1, 6, 99, 32767])
def test_an_unknown_version_of_api_versions_is_answered_in_version_0_with_the_table(version: int) -> None:
    codec = Codec()
    asked = memoryview(
        API_VERSIONS.key.to_bytes(2) + version.to_bytes(2, signed=True) + b"\0\0\0\x07 and what it likes"
    )
    call = codec.decode(asked)
    pieces = codec.encode(call, codec.api_versions(call.request))
    answer = parsed("ApiVersionsResponse", API_VERSIONS, 0, reply_body(API_VERSIONS, 0, pieces))
    assert answer["error_code"] == ErrorCode.UNSUPPORTED_VERSION
    assert len(answer["api_keys"]) == len(APIS)


def test_a_client_software_name_that_is_none_is_answered_with_an_error() -> None:
    codec = Codec()
    call = codec.decode(shortest(API_VERSIONS, 3, client_software_name="no spaces, please"))
    assert codec.api_versions(call.request) == ApiVersionsResponse(apis=(), error=ErrorCode.INVALID_REQUEST)


@pytest.mark.parametrize("api", [api for api in APIS if api is not API_VERSIONS], ids=lambda api: api.name)
def test_versions_outside_of_the_table_are_refused_by_name(api: Api) -> None:
    for version in (-1, api.first - 1, api.last + 1, 32767):
        with pytest.raises(UnservedError, match=f"{api.name} version {version} is not supported") as refused:
            Codec().decode(frame(api, version, b""))
        assert refused.value.code is ErrorCode.UNSUPPORTED_VERSION


@pytest.mark.parametrize("version", range(PRODUCE.first, PRODUCE.last + 1))
def test_impossible_acks_are_answered_by_partition(version: int) -> None:
    partition = {"index": 4, "records": b"r"}
    topic = {"name": "t", "topic_id": b"i" * 16, "partition_data": (partition,)}
    codec = Codec(topic_names=lambda _: "t")
    with pytest.raises(RefusedError, match="acks must be -1, 0 or 1, not 2") as refused:
        codec.decode(shortest(PRODUCE, version, acks=2, topic_data=(topic,)))
    pieces = codec.encode(refused.value.call, refused.value.response)
    answer = parsed("ProduceResponse", PRODUCE, version, reply_body(PRODUCE, version, pieces))
    (told,) = answer["responses"][0]["partition_responses"]
    assert (told["index"], told["error_code"]) == (4, ErrorCode.INVALID_REQUIRED_ACKS)


@given(garbage=st.binary(max_size=40))
def test_no_bytes_at_all_do_anything_but_raise_a_protocol_error(garbage: bytes) -> None:
    for start in (b"", *(api.key.to_bytes(2) + version.to_bytes(2) for api, version in VERSIONS)):
        with contextlib.suppress(ProtocolError):
            assert isinstance(Codec().decode(memoryview(start + garbage)), Call)


@given(data=st.data(), api_and_version=st.sampled_from(VERSIONS))
def test_every_cut_of_a_request_is_malformed(data: st.DataObject, api_and_version: tuple[Api, int]) -> None:
    api, version = api_and_version
    whole = frame(
        api, version, body(f"{api.name}Request", api, version, drawn(TABLES[f"{api.name}Request"], version, data))
    )
    cuts = range(len(whole)) if len(whole) < 300 else data.draw(st.lists(st.integers(0, len(whole) - 1), max_size=20))
    for cut in cuts:
        with pytest.raises(MalformedError):
            Codec().decode(whole[:cut])


@given(data=st.data(), api_and_version=st.sampled_from(VERSIONS))
def test_a_flipped_byte_is_read_or_refused(data: st.DataObject, api_and_version: tuple[Api, int]) -> None:
    api, version = api_and_version
    whole = frame(
        api, version, body(f"{api.name}Request", api, version, drawn(TABLES[f"{api.name}Request"], version, data))
    )
    changed = bytearray(whole)
    changed[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(ProtocolError):
        Codec().decode(memoryview(changed))


@pytest.mark.parametrize(
    ("version", "error"), [(1, ErrorCode.COORDINATOR_NOT_AVAILABLE), (2, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)]
)
def test_old_producers_retry_offsets_while_the_coordinator_is_loading(version: int, error: ErrorCode) -> None:
    api, codec = next(api for api in APIS if api.name == "TxnOffsetCommit"), Codec()
    partition = CommittedPartition(topic="words", partition=0, error=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    pieces = codec.encode(codec.decode(shortest(api, version)), TxnOffsetCommitResponse(partitions=(partition,)))
    answer = parsed("TxnOffsetCommitResponse", api, version, reply_body(api, version, pieces))
    assert answer["topics"][0]["partitions"][0]["error_code"] == error
