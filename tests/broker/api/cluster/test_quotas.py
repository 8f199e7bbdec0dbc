"""Quotas are set, described and removed. The verdicts are Kafka's (ClientQuotaControlManager, ClientQuotasImage)."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.broker.clients import Running, running
from tests.broker.kafka_client import KafkaClient, kafka_client
from warmlog.protocol.errors import ErrorCode

Pairs = tuple[tuple[str, str | None], ...]

ALICE: Pairs = (("user", "alice"),)
EVERY_USER: Pairs = (("user", None),)
APP: Pairs = (("client-id", "app"),)
ALICES_APP: Pairs = (*ALICE, *APP)


@pytest.fixture
async def client(broker: Running) -> AsyncIterator[KafkaClient]:
    async with kafka_client(broker.addresses.kafka) as client:
        yield client


def entity(pairs: Pairs) -> list[dict[str, str | None]]:
    return [{"entity_type": kind, "entity_name": name} for kind, name in pairs]


async def alter(client: KafkaClient, *changes: tuple[Pairs, dict[str, float | None]], **fields: Any) -> list[ErrorCode]:
    entries = [
        {
            "entity": entity(pairs),
            "ops": [{"key": key, "value": value or 0.0, "remove": value is None} for key, value in ops.items()],
        }
        for pairs, ops in changes
    ]
    reply = await client.ask("AlterClientQuotas", entries=entries, **fields)
    assert [list(each["entity"]) for each in reply["entries"]] == [entity(pairs) for pairs, _ in changes]
    return [ErrorCode(each["error_code"]) for each in reply["entries"]]


async def described(
    client: KafkaClient, *filters: tuple[str, int, str | None], strict: bool = False
) -> dict[Pairs, dict[str, float]]:
    components = [{"entity_type": kind, "match_type": match, "match": name} for kind, match, name in filters]
    reply = await client.ask("DescribeClientQuotas", components=components, strict=strict)
    assert reply["error_code"] == ErrorCode.NONE
    return {
        tuple([(part["entity_type"], part["entity_name"]) for part in each["entity"]]): {
            quota["key"]: quota["value"] for quota in each["values"]
        }
        for each in reply["entries"]
    }


async def test_quotas_are_set_described_and_removed(client: KafkaClient) -> None:
    assert await described(client) == {}
    rate = {"producer_byte_rate": 1024.0}
    both = {"consumer_byte_rate": 2048.0, "request_percentage": 12.5}
    assert await alter(client, (ALICE, rate), (EVERY_USER, both), (ALICES_APP, rate), (APP, rate)) == [0] * 4
    everything = {ALICE: rate, EVERY_USER: both, ALICES_APP: rate, APP: rate}
    assert await described(client) == everything
    assert await described(client, ("user", 2, None)) == {ALICE: rate, EVERY_USER: both, ALICES_APP: rate}
    assert await described(client, ("user", 2, None), strict=True) == {ALICE: rate, EVERY_USER: both}
    assert await described(client, ("user", 0, "alice"), ("client-id", 2, None), strict=True) == {ALICES_APP: rate}
    assert await described(client, ("user", 1, None)) == {EVERY_USER: both}
    assert await described(client, ("client-id", 0, "app"), strict=True) == {APP: rate}
    assert await described(client, strict=True) == {}
    assert await described(client, ("ip", 2, None)) == {}
    assert await alter(client, (EVERY_USER, {"consumer_byte_rate": None, "producer_byte_rate": 1.0})) == [0]
    assert await described(client, ("user", 1, None)) == {
        EVERY_USER: {"request_percentage": 12.5, "producer_byte_rate": 1.0}
    }
    removed = {"producer_byte_rate": None, "no_such_quota": None}
    assert await alter(client, (ALICE, removed), (ALICES_APP, removed), (APP, removed)) == [0] * 3
    assert (await described(client)).keys() == {EVERY_USER}


@pytest.mark.parametrize(
    ("pairs", "ops", "expected"),
    [
        ((), {}, "the entity is empty"),
        ((("planet", "mars"),), {}, "unknown entity type planet"),
        ((("user", ""),), {}, "the name of the user is empty"),
        ((("user", "a"), ("ip", "10.0.0.1")), {}, "cannot be combined"),
        ((("ip", "no.such.host"),), {}, "not an IP address"),
        (ALICE, {"speed": 1.0}, "unknown quota speed"),
        (ALICE, {"producer_byte_rate": 0.0}, "must be greater than 0"),
        (ALICE, {"producer_byte_rate": 0.5}, "must be a whole number"),
    ],
)
async def test_what_cannot_be_is_refused_and_named(
    client: KafkaClient, pairs: Pairs, ops: dict[str, float], expected: str
) -> None:
    changes = [{"key": key, "value": value, "remove": False} for key, value in ops.items()]
    for version in (0, 1):
        reply = await client.ask("AlterClientQuotas", version, entries=[{"entity": entity(pairs), "ops": changes}])
        (result,) = reply["entries"]
        assert result["error_code"] == ErrorCode.INVALID_REQUEST
        assert expected in result["error_message"]
    assert await described(client) == {}


async def test_an_entity_or_quota_that_occurs_twice_is_refused(client: KafkaClient) -> None:
    rate = {"producer_byte_rate": 1024.0}
    assert await alter(client, (ALICE, rate), (ALICE, {"producer_byte_rate": 1.0}), (APP, rate)) == [
        ErrorCode.NONE,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NONE,
    ]
    assert await described(client) == {ALICE: rate, APP: rate}
    twice = [{"key": "producer_byte_rate", "value": value, "remove": False} for value in (1.0, 2.0)]
    reply = await client.ask("AlterClientQuotas", entries=[{"entity": entity(ALICE), "ops": twice}])
    assert reply["entries"][0]["error_code"] == ErrorCode.INVALID_REQUEST


async def test_nothing_is_changed_by_a_request_that_only_validates(client: KafkaClient) -> None:
    good, bad = {"producer_byte_rate": 1024.0}, {"producer_byte_rate": -1.0}
    assert await alter(client, (ALICE, good), (APP, bad), validate_only=True) == [0, ErrorCode.INVALID_REQUEST]
    assert await described(client) == {}


async def test_quotas_are_there_after_a_restart(tmp_path: Path) -> None:
    name = (("user", "a/b=c,ü"), ("client-id", None))
    async with running(tmp_path) as broker, kafka_client(broker.addresses.kafka) as client:
        assert await alter(client, (name, {"request_percentage": 0.1})) == [0]
    async with running(tmp_path) as broker, kafka_client(broker.addresses.kafka) as client:
        assert await described(client) == {name: {"request_percentage": 0.1}}
