"""Entities, values and precedence of quotas. Source: ClientQuotaManagerTest, ClientQuotaControlManagerTest."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmlog.broker.security.quotas.entities import (
    DEFAULT,
    MAX_LIMITS,
    InvalidQuotaError,
    Limit,
    QuotaEntity,
    QuotaIndex,
    check_quota,
)

KIND = "producer_byte_rate"
NAMES = st.text(min_size=1, max_size=20).filter(lambda text: text.isprintable())
PARTS = st.dictionaries(st.sampled_from(["user", "client-id"]), st.none() | NAMES, min_size=1).map(
    lambda parts: tuple(parts.items())
)
# From the first that applies to the last, and who shares it.
PRECEDENCE = [
    (QuotaEntity("alice", "app"), ("alice", "app")),
    (QuotaEntity("alice", DEFAULT), ("alice", "app")),
    (QuotaEntity("alice"), ("alice", None)),
    (QuotaEntity(DEFAULT, "app"), ("alice", "app")),
    (QuotaEntity(DEFAULT, DEFAULT), ("alice", "app")),
    (QuotaEntity(DEFAULT), ("alice", None)),
    (QuotaEntity(None, "app"), (None, "app")),
    (QuotaEntity(None, DEFAULT), (None, "app")),
]


def test_the_first_quota_in_kafkas_order_applies() -> None:
    index = QuotaIndex()
    for others in (QuotaEntity("bob", "app"), QuotaEntity("bob"), QuotaEntity(None, "other")):
        index.set(others, {KIND: 1.0})
    index.set(QuotaEntity("alice", "app"), {"consumer_byte_rate": 7.0})
    assert index.limit(KIND, "alice", "app") is None
    for number, (entity, shared_by) in reversed(list(enumerate(PRECEDENCE, 2))):
        index.set(entity, {KIND: float(number)})
        assert index.limit(KIND, "alice", "app") == Limit(number, *shared_by)
        assert index.limits_clients
    for entity, _ in PRECEDENCE:
        index.set(entity, {})
    assert index.limit(KIND, "alice", "app") is None
    assert index.limit(KIND, "bob", "app") == Limit(1.0, "bob", "app")
    assert len(index) == 3


def test_limits_of_strangers_are_found_and_not_all_kept() -> None:
    index = QuotaIndex()
    index.set(QuotaEntity(None, DEFAULT), {KIND: 1.0})
    for number in range(3 * MAX_LIMITS):
        assert index.limit(KIND, "u", f"c{number}") == Limit(1.0, None, f"c{number}")
        assert index.limit(KIND, "u", "c" * 2_000) == Limit(1.0, None, "c" * 2_000)
    index.set(QuotaEntity("u"), {KIND: 2.0})
    assert index.limit(KIND, "u", "c0") == Limit(2.0, "u", None)


def test_quotas_of_addresses_do_not_limit_clients() -> None:
    index = QuotaIndex()
    index.set(QuotaEntity(ip=DEFAULT), {"connection_creation_rate": 5.0})
    index.set(QuotaEntity(ip="10.0.0.1"), {"connection_creation_rate": 50.0})
    assert not index.limits_clients
    assert index.connection_rate("10.0.0.1") == index.connection_rate("::ffff:10.0.0.1") == 50.0
    assert index.connection_rate("10.0.0.2") == 5.0
    index.set(QuotaEntity(ip=DEFAULT), {})
    assert index.connection_rate("10.0.0.2") is None


@given(PARTS)
def test_an_entity_is_read_from_its_text(parts: tuple[tuple[str, str | None], ...]) -> None:
    entity = QuotaEntity.of(parts)
    assert QuotaEntity.parse(entity.text) == entity
    assert dict(entity.parts) == dict(parts)


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ((), "empty"),
        ((("planet", "x"),), "unknown entity type planet"),
        ((("user", "x"), ("user", "y")), "occurs twice"),
        ((("user", ""),), "name of the user is empty"),
        ((("client-id", "x" * 1025),), "more than 1,024"),
        ((("user", "x"), ("ip", "10.0.0.1")), "cannot be combined"),
        ((("client-id", None), ("ip", None)), "cannot be combined"),
        ((("ip", "localhost"),), "not an IP address"),
        ((("ip", "10.0.0.0/8"),), "not an IP address"),
    ],
)
def test_entities_that_cannot_be_are_refused(parts: tuple[tuple[str, str | None], ...], expected: str) -> None:
    with pytest.raises(InvalidQuotaError, match=expected):
        QuotaEntity.of(parts)


def test_an_address_is_the_same_however_it_is_written() -> None:
    expected = QuotaEntity.of((("ip", "::1"),))
    assert QuotaEntity.of((("ip", "0:0:0:0:0:0:0:1"),)) == expected
    assert QuotaEntity.of((("ip", None),)) == QuotaEntity(ip=DEFAULT)


@pytest.mark.parametrize(
    ("entity", "key", "value", "expected"),
    [
        (QuotaEntity("u"), "producer_byte_rate", 1.0, None),
        (QuotaEntity("u"), "consumer_byte_rate", 2.0**63, None),
        (QuotaEntity("u"), "producer_byte_rate", 2.0**64, "at most"),
        (QuotaEntity("u"), "producer_byte_rate", 1.5, "whole number"),
        (QuotaEntity(None, "c"), "request_percentage", 0.25, None),
        (QuotaEntity("u"), "request_percentage", 0.0, "greater than 0"),
        (QuotaEntity("u"), "request_percentage", -1.0, "greater than 0"),
        (QuotaEntity("u"), "request_percentage", math.nan, "greater than 0"),
        (QuotaEntity("u"), "request_percentage", math.inf, "greater than 0"),
        (QuotaEntity("u"), "connection_creation_rate", 1.0, "unknown quota"),
        (QuotaEntity("u"), "speed", 1.0, "unknown quota speed"),
        (QuotaEntity(ip=DEFAULT), "producer_byte_rate", 1.0, "unknown quota"),
    ],
)
def test_values_are_checked_as_by_kafka(entity: QuotaEntity, key: str, value: float, expected: str | None) -> None:
    if expected is None:
        check_quota(entity, key, value)
        return
    with pytest.raises(InvalidQuotaError, match=expected):
        check_quota(entity, key, value)
