"""Requests about security on a broker that has none. The verdicts are Kafka 4.3.1's, except where said."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.broker.clients import Running
from tests.broker.kafka_client import KafkaClient, kafka_client
from warmlog.protocol.errors import ErrorCode

WHO = {"principal": "User:alice", "host": "*"}
ACL = {"resource_type": 2, "resource_name": "orders", **WHO, "operation": 3, "permission_type": 3}
ANY_ACL = {"resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1, "permission_type": 1}
NO_NAMES = {"resource_name_filter": None, "principal_filter": None, "host_filter": None}
USER = {"entity_type": "user", "entity_name": "alice"}
RATE = {"key": "producer_byte_rate", "value": 1024.0, "remove": False}


@pytest.fixture
async def client(broker: Running) -> AsyncIterator[KafkaClient]:
    async with kafka_client(broker.addresses.kafka) as client:
        yield client


@pytest.mark.parametrize("version", [1, 2, 3])
async def test_acls_are_disabled(client: KafkaClient, version: int) -> None:
    described = await client.ask("DescribeAcls", version, **ANY_ACL, **NO_NAMES)
    assert (described["error_code"], described["resources"]) == (ErrorCode.SECURITY_DISABLED, ())
    assert "no authorizer" in described["error_message"]
    created = await client.ask("CreateAcls", version, creations=[ACL, ACL])
    assert [one["error_code"] for one in created["results"]] == [ErrorCode.SECURITY_DISABLED] * 2
    deleted = await client.ask("DeleteAcls", version, filters=[ANY_ACL | NO_NAMES])
    (result,) = deleted["filter_results"]
    assert (result["error_code"], result["matching_acls"]) == (ErrorCode.SECURITY_DISABLED, ())


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize(
    ("components", "error"),
    [
        ([], ErrorCode.NONE),
        ([("user", 2, None), ("client-id", 2, None)], ErrorCode.NONE),
        ([("user", 0, "alice")], ErrorCode.NONE),
        ([("ip", 1, None)], ErrorCode.NONE),
        ([("user", 0, None)], ErrorCode.INVALID_REQUEST),
        ([("user", 2, "alice")], ErrorCode.INVALID_REQUEST),
        ([("user", 7, "alice")], ErrorCode.INVALID_REQUEST),
        ([("", 2, None)], ErrorCode.INVALID_REQUEST),
        ([("user", 2, None), ("user", 1, None)], ErrorCode.INVALID_REQUEST),
        ([("user", 2, None), ("ip", 2, None)], ErrorCode.INVALID_REQUEST),
        ([("planet", 2, None)], ErrorCode.UNSUPPORTED_VERSION),
    ],
)
async def test_filters_of_quotas_are_checked(
    client: KafkaClient, version: int, components: list[tuple[str, int, str | None]], error: ErrorCode
) -> None:
    asked = [{"entity_type": kind, "match_type": match, "match": name} for kind, match, name in components]
    reply = await client.ask("DescribeClientQuotas", version, components=asked, strict=False)
    assert reply["error_code"] == error
    assert reply["entries"] == (None if error else ())


async def test_sasl_and_tokens_are_refused_on_a_plain_listener(client: KafkaClient) -> None:
    reply = await client.ask("SaslHandshake", mechanism="PLAIN")
    assert (reply["error_code"], reply["mechanisms"]) == (ErrorCode.ILLEGAL_SASL_STATE, ())
    reply = await client.ask("SaslAuthenticate", auth_bytes=b"\0alice\0secret")
    assert reply["error_code"] == ErrorCode.ILLEGAL_SASL_STATE
    asks: list[tuple[str, dict[str, Any]]] = [
        ("CreateDelegationToken", {"renewers": (), "max_lifetime_ms": -1}),
        ("RenewDelegationToken", {"hmac": b"h", "renew_period_ms": 1}),
        ("ExpireDelegationToken", {"hmac": b"h", "expiry_time_period_ms": 1}),
        ("DescribeDelegationToken", {"owners": None}),
    ]
    for api, fields in asks:
        assert (await client.ask(api, **fields))["error_code"] == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, api


async def test_long_names_are_told_in_messages_of_bounded_length(client: KafkaClient) -> None:
    reply = await client.ask("DescribeUserScramCredentials", users=[{"name": "x" * 30_000}])
    assert len(reply["results"][0]["error_message"]) < 600
    entries = [{"entity": [USER], "ops": [RATE | {"key": "k" * 30_000}]}]
    reply = await client.ask("AlterClientQuotas", 0, entries=entries)
    assert len(reply["entries"][0]["error_message"]) < 600
