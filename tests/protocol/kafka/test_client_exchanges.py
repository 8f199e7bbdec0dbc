"""Requests of real clients and Kafka's responses, recorded by interop/generate_client_exchanges.py."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.protocol.kafka.far_side import only, received
from tests.protocol.kafka.messages import body, flexible, parsed
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka import peer_apis
from warmlog.protocol.kafka.api import API_BY_KEY, Api, Codec
from warmlog.protocol.kafka.peer import PeerProtocol, SentRequest

FIXTURES = Path(__file__).parents[2] / "fixtures" / "kafka" / "clients"
API_VERSIONS = 18
PEER_APIS = {
    one.api.key: one
    for one in (
        peer_apis.API_VERSIONS,
        peer_apis.FETCH,
        peer_apis.LIST_OFFSETS,
        peer_apis.METADATA,
        peer_apis.OFFSET_FOR_LEADER_EPOCH,
        peer_apis.DESCRIBE_CONFIGS,
        peer_apis.FIND_COORDINATOR,
        peer_apis.LIST_GROUPS,
        peer_apis.OFFSET_FETCH,
    )
}


class Exchange(NamedTuple):
    """A request frame and its response frame, without their lengths."""

    api: Api
    version: int
    request: bytes
    reply: bytes


def exchanges() -> list[Any]:
    """Return the exchanges of supported APIs as named parameters."""
    found = []
    for path in sorted(FIXTURES.glob("*.jsonl")):
        for number, line in enumerate(map(json.loads, path.read_text("ascii").splitlines())):
            api = API_BY_KEY.get(line["api"])
            if api is not None:
                exchange = Exchange(api, line["version"], bytes.fromhex(line["request"]), bytes.fromhex(line["reply"]))
                found.append(pytest.param(exchange, id=f"{path.stem}-{api.name}-{exchange.version}-{number}"))
    return found


EXCHANGES = exchanges()
REFUSED_VERSION = 5  # of ApiVersions, by the Kafka that was recorded
NEWER = [each for each in EXCHANGES if each.values[0][:2] == (API_BY_KEY[API_VERSIONS], REFUSED_VERSION)]
SERVED = [each for each in EXCHANGES if each not in NEWER]
ASKED = [
    each
    for each in SERVED
    if (api := PEER_APIS.get(each.values[0].api.key)) and api.first <= each.values[0].version <= api.last
]


def request_body(exchange: Exchange) -> bytes:
    """Return the bytes after the header."""
    size = int.from_bytes(exchange.request[8:10], signed=True)
    at = 10 + max(size, 0)
    if flexible(exchange.api, exchange.version):
        assert exchange.request[at] == 0  # clients send no tagged fields in headers
        at += 1
    return exchange.request[at:]


def reply_body(exchange: Exchange) -> bytes:
    assert exchange.reply[:4] == exchange.request[4:8]
    if not flexible(exchange.api, exchange.version) or exchange.api.key == API_VERSIONS:
        return exchange.reply[4:]
    assert exchange.reply[4] == 0
    return exchange.reply[5:]


def test_clients_of_every_kind_were_recorded() -> None:
    assert len(list(FIXTURES.glob("*.jsonl"))) >= 9
    assert {each.values[0].api.key for each in EXCHANGES} >= {0, 1, 2, 3, 8, 9, 10, 11, 12, 13, 14, 18, 22}


@pytest.mark.parametrize("exchange", SERVED)
def test_client_requests_are_decoded(exchange: Exchange) -> None:
    call = Codec(topic_names=bytes.hex).decode(memoryview(exchange.request))
    assert (call.api, call.version) == (exchange.api, exchange.version)
    name = f"{exchange.api.name}Request"
    data = request_body(exchange)
    assert body(name, exchange.api, exchange.version, parsed(name, exchange.api, exchange.version, data)) == data


@pytest.mark.parametrize("exchange", [each for each in SERVED if each.values[0].reply])
def test_responses_are_encoded_as_kafka_did(exchange: Exchange) -> None:
    name = f"{exchange.api.name}Response"
    data = reply_body(exchange)
    values = parsed(name, exchange.api, exchange.version, data)
    ours = body(name, exchange.api, exchange.version, values)
    if has_another_leader(values):  # Kafka names it in tagged fields (KIP-951), which are not supported here
        assert parsed(name, exchange.api, exchange.version, ours) == values
    else:
        assert ours == data


@pytest.mark.parametrize("exchange", ASKED)
def test_responses_of_kafka_are_decoded_as_a_peer_gets_them(exchange: Exchange) -> None:
    """The header is skipped, and the same table reads the values; test_peer.py has what they are."""
    api = PEER_APIS[exchange.api.key]
    sent = SentRequest(api, exchange.version, 0, request=None)
    response = PeerProtocol("test").decode(sent, memoryview(exchange.reply))
    assert type(response) is exchange.api.response.into


@pytest.mark.parametrize("exchange", [each for each in ASKED if each.values[0].api.key != API_VERSIONS])
def test_requests_of_clients_are_encoded_as_a_peer_sends_them(exchange: Exchange) -> None:
    codec = Codec(topic_names=bytes.hex)
    request = codec.decode(memoryview(exchange.request)).request
    _, frame = only(PEER_APIS[exchange.api.key], exchange.version).send(PEER_APIS[exchange.api.key], request)
    assert received(frame, codec).request == request


def has_another_leader(values: dict[str, Any]) -> bool:
    """Return whether a Produce or Fetch response refers the client to another leader."""
    partitions = [
        partition
        for topic in values.get("responses", ())
        for partition in topic.get("partition_responses", topic.get("partitions", ()))
    ]
    return any(each["error_code"] == ErrorCode.NOT_LEADER_OR_FOLLOWER for each in partitions)


@pytest.mark.parametrize("exchange", NEWER)
def test_a_version_that_is_too_new_is_answered_as_kafka_answers_it(exchange: Exchange) -> None:
    """Only ApiVersions has a response that such a client can read: version 0 with the error and its own versions."""
    codec = Codec()
    request = exchange.request[:2] + (exchange.api.last + 1).to_bytes(2) + exchange.request[4:]
    call = codec.decode(memoryview(request))
    pieces = codec.encode(call, codec.api_versions(call.request))
    ours = parsed("ApiVersionsResponse", exchange.api, 0, b"".join(map(bytes, pieces))[8:])
    kafkas = parsed("ApiVersionsResponse", exchange.api, 0, reply_body(exchange))
    assert ours["error_code"] == kafkas["error_code"] == ErrorCode.UNSUPPORTED_VERSION
    assert {each["api_key"] for each in kafkas["api_keys"]} <= {each["api_key"] for each in ours["api_keys"]}
