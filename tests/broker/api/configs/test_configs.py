"""Settings described and changed through the Kafka listener. The verdicts are Kafka 4.3.1's, looked up there."""

import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.broker.clients import RawClient, Running, batch, running
from tests.broker.kafka_client import KafkaClient, kafka_client
from warmlog.broker.api.configs import configs
from warmlog.broker.settings import kafka_settings
from warmlog.broker.settings.loading import load_settings
from warmlog.broker.settings.types import SettingError
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.messages.cluster.configs import (
    ConfigOperation,
    ConfigResourceType,
    ConfigSource,
    ConfigType,
)

NONE = ErrorCode.NONE
SET, DELETE, APPEND, SUBTRACT = ConfigOperation
TOPIC, BROKER, LOGGER, CLIENT_METRICS, GROUP = ConfigResourceType
NODE = "1"


@pytest.fixture
async def raw(broker: Running) -> RawClient:
    client = await broker.connect()
    await client.create("orders")
    return client


@pytest.fixture
async def client(broker: Running, raw: RawClient) -> AsyncIterator[KafkaClient]:
    async with kafka_client(broker.addresses.kafka) as client:
        yield client


async def described(
    client: KafkaClient, kind: int, name: str, *keys: str, synonyms: bool = True, documentation: bool = False
) -> dict[str, Any]:
    asked = {"resource_type": kind, "resource_name": name, "configuration_keys": keys or None}
    reply = await client.ask(
        "DescribeConfigs", resources=[asked], include_synonyms=synonyms, include_documentation=documentation
    )
    (found,) = reply["results"]
    assert (found["resource_type"], found["resource_name"]) == (kind, name)
    assert found["error_code"] == NONE, found
    return {one["name"]: one for one in found["configs"]}


async def value(client: KafkaClient, kind: int, name: str, key: str) -> tuple[str | None, int]:
    found = (await described(client, kind, name, key))[key]
    return found["value"], found["config_source"]


async def incremental(
    client: KafkaClient, kind: int, name: str, *changes: tuple[str, int, str | None], validate_only: bool = False
) -> int:
    configs = [{"name": key, "config_operation": operation, "value": text} for key, operation, text in changes]
    asked = {"resource_type": kind, "resource_name": name, "configs": configs}
    reply = await client.ask("IncrementalAlterConfigs", resources=[asked], validate_only=validate_only)
    (found,) = reply["responses"]
    assert (found["resource_type"], found["resource_name"]) == (kind, name)
    return int(found["error_code"])


async def anew(
    client: KafkaClient, kind: int, name: str, *configs: tuple[str, str | None], validate_only: bool = False
) -> int:
    asked = {
        "resource_type": kind,
        "resource_name": name,
        "configs": [{"name": key, "value": text} for key, text in configs],
    }
    reply = await client.ask("AlterConfigs", resources=[asked], validate_only=validate_only)
    return int(reply["responses"][0]["error_code"])


def synonyms(entry: dict[str, Any]) -> list[tuple[str, str, int]]:
    return [(one["name"], one["value"], one["source"]) for one in entry["synonyms"]]


# -- describe --


async def test_a_topics_settings_are_told_with_where_they_come_from(client: KafkaClient) -> None:
    assert await incremental(client, TOPIC, "orders", ("flush.ms", SET, "9")) == NONE
    found = await described(client, TOPIC, "orders")
    assert len(found) > 30
    assert list(found) == sorted(found)
    flush, segment = found["flush.ms"], found["segment.bytes"]
    assert (flush["value"], flush["config_source"], flush["config_type"]) == ("9", ConfigSource.TOPIC, ConfigType.LONG)
    assert synonyms(flush)[0] == ("flush.ms", "9", ConfigSource.TOPIC)
    assert synonyms(segment) == [("log.segment.bytes", str(1 << 30), ConfigSource.DEFAULT)]
    assert (segment["config_type"], segment["read_only"], segment["is_sensitive"]) == (ConfigType.INT, False, False)
    assert found["cleanup.policy"]["config_type"] == ConfigType.LIST
    assert found["preallocate"]["config_type"] == ConfigType.BOOLEAN
    assert found["min.cleanable.dirty.ratio"]["config_type"] == ConfigType.DOUBLE
    assert all(entry["documentation"] is None for entry in found.values())


async def test_only_what_is_asked_for_is_told(client: KafkaClient) -> None:
    found = await described(client, TOPIC, "orders", "flush.ms", "nonsense", "retention.ms", synonyms=False)
    assert list(found) == ["flush.ms", "retention.ms"]
    assert found["flush.ms"]["synonyms"] == ()


async def test_every_setting_is_explained_to_who_asks(client: KafkaClient) -> None:
    for kind, name in ((TOPIC, "orders"), (BROKER, NODE)):
        found = await described(client, kind, name, documentation=True)
        assert all(entry["documentation"] for entry in found.values())


async def test_the_brokers_settings_say_which_can_be_changed(client: KafkaClient) -> None:
    found = await described(client, BROKER, NODE)
    assert (found["node.id"]["value"], found["node.id"]["read_only"]) == (NODE, True)
    assert found["log.dirs"]["config_source"] == ConfigSource.STATIC_BROKER
    unset = found["log.retention.ms"]
    assert (unset["value"], unset["config_source"], unset["read_only"]) == (None, ConfigSource.DEFAULT, False)
    assert synonyms(unset) == []
    assert (found["log.retention.hours"]["value"], found["log.retention.hours"]["read_only"]) == ("168", True)


@pytest.mark.parametrize(
    ("kind", "name", "error"),
    [
        (TOPIC, "none", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "a b", ErrorCode.INVALID_TOPIC_EXCEPTION),
        (TOPIC, "", ErrorCode.INVALID_TOPIC_EXCEPTION),
        (BROKER, "77", ErrorCode.INVALID_REQUEST),
        (BROKER, "-1", ErrorCode.INVALID_REQUEST),
        (BROKER, "x", ErrorCode.INVALID_REQUEST),
        (BROKER, "\u00b2", ErrorCode.INVALID_REQUEST),
        (BROKER, "9" * 5000, ErrorCode.INVALID_REQUEST),
        (LOGGER, "77", ErrorCode.INVALID_REQUEST),
        (LOGGER, "", ErrorCode.INVALID_REQUEST),
        (GROUP, "", ErrorCode.INVALID_REQUEST),
        (CLIENT_METRICS, "", ErrorCode.INVALID_REQUEST),
        (77, "x", ErrorCode.INVALID_REQUEST),
    ],
)
async def test_what_has_no_settings_is_refused(client: KafkaClient, kind: int, name: str, error: ErrorCode) -> None:
    asked = {"resource_type": kind, "resource_name": name, "configuration_keys": None}
    good = {"resource_type": TOPIC, "resource_name": "orders", "configuration_keys": ["flush.ms"]}
    refused, found = (await client.ask("DescribeConfigs", resources=[asked, good]))["results"]
    assert (refused["error_code"], refused["configs"]) == (error, ())
    assert refused["error_message"]
    assert (found["error_code"], len(found["configs"])) == (NONE, 1)
    assert await incremental(client, kind, name, ("flush.ms", SET, "1")) == (
        ErrorCode.INVALID_REQUEST if (kind, name) == (TOPIC, "") else error
    )


async def test_settings_of_metrics_and_groups_have_each_their_error(client: KafkaClient) -> None:
    assert await incremental(client, CLIENT_METRICS, "m", ("no.such", SET, "1")) == ErrorCode.INVALID_REQUEST
    assert await incremental(client, GROUP, "g", ("no.such", SET, "1")) == ErrorCode.INVALID_CONFIG


# -- alter --


async def test_changes_take_effect_at_once(client: KafkaClient, raw: RawClient) -> None:
    assert (await raw.produce("orders", batch(b"x" * 1000))).error is NONE
    assert await incremental(client, TOPIC, "orders", ("max.message.bytes", SET, "500")) == NONE
    assert (await raw.produce("orders", batch(b"x" * 1000))).error is ErrorCode.MESSAGE_TOO_LARGE
    assert await incremental(client, TOPIC, "orders", ("max.message.bytes", DELETE, None)) == NONE
    assert (await raw.produce("orders", batch(b"x" * 1000))).error is NONE


async def test_lists_are_added_to_and_taken_from(client: KafkaClient) -> None:
    policy = [
        (APPEND, "compact,delete", "delete,compact"),
        (SUBTRACT, "nonsense,delete", "compact"),
        (SUBTRACT, "compact", ""),
        (APPEND, "delete", "delete"),
    ]
    for operation, text, found in policy:
        assert await incremental(client, TOPIC, "orders", ("cleanup.policy", operation, text)) == NONE
        assert await value(client, TOPIC, "orders", "cleanup.policy") == (found, ConfigSource.TOPIC)
    assert await incremental(client, TOPIC, "orders", ("cleanup.policy", DELETE, None)) == NONE
    assert await value(client, TOPIC, "orders", "cleanup.policy") == ("delete", ConfigSource.DEFAULT)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ([("retention.mss", SET, "5")], ErrorCode.INVALID_CONFIG),
        ([("retention.ms", SET, "x")], ErrorCode.INVALID_CONFIG),
        ([("retention.ms", SET, None)], ErrorCode.INVALID_REQUEST),
        ([("retention.ms", APPEND, None)], ErrorCode.INVALID_REQUEST),
        ([("retention.ms", SET, "1"), ("retention.ms", SET, "2")], ErrorCode.INVALID_REQUEST),
        ([("retention.ms", 9, "1")], ErrorCode.INVALID_REQUEST),
        ([("retention.ms", APPEND, "5")], ErrorCode.INVALID_CONFIG),
        ([("nonsense", SUBTRACT, "5")], ErrorCode.INVALID_CONFIG),
        ([("cleanup.policy", APPEND, "squash")], ErrorCode.INVALID_CONFIG),
        ([("flush.ms", SET, "3"), ("retention.ms", SET, "x")], ErrorCode.INVALID_CONFIG),
    ],
)
async def test_changes_are_made_all_or_none(
    client: KafkaClient, changes: Sequence[tuple[str, int, str | None]], error: ErrorCode
) -> None:
    before = await described(client, TOPIC, "orders")
    assert await incremental(client, TOPIC, "orders", *changes) == error
    assert await described(client, TOPIC, "orders") == before


async def test_what_is_only_validated_is_judged_and_not_made(client: KafkaClient) -> None:
    for kind, name, key in ((TOPIC, "orders", "retention.ms"), (BROKER, "", "log.retention.ms")):
        before = await described(client, TOPIC, "orders")
        assert await incremental(client, kind, name, (key, SET, "5"), validate_only=True) == NONE
        assert await incremental(client, kind, name, (key, SET, "x"), validate_only=True) != NONE
        assert await anew(client, kind, name, (key, "5"), validate_only=True) == NONE
        assert await described(client, TOPIC, "orders") == before


async def test_settings_given_anew_reset_those_that_are_not_named(client: KafkaClient) -> None:
    assert await anew(client, TOPIC, "orders", ("retention.ms", "5"), ("flush.ms", "7")) == NONE
    assert await anew(client, TOPIC, "orders", ("flush.ms", "8")) == NONE
    assert await value(client, TOPIC, "orders", "retention.ms") == ("604800000", ConfigSource.DEFAULT)
    assert await value(client, TOPIC, "orders", "flush.ms") == ("8", ConfigSource.TOPIC)
    assert await anew(client, TOPIC, "orders", ("flush.ms", None)) == ErrorCode.INVALID_REQUEST
    assert await anew(client, TOPIC, "none") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_a_resource_that_is_named_twice_is_left_alone(client: KafkaClient) -> None:
    asked = {
        "resource_type": TOPIC,
        "resource_name": "orders",
        "configs": [{"name": "flush.ms", "config_operation": SET, "value": "5"}],
    }
    reply = await client.ask("IncrementalAlterConfigs", resources=[asked, asked], validate_only=False)
    assert [one["error_code"] for one in reply["responses"]] == [ErrorCode.INVALID_REQUEST] * 2
    assert (await value(client, TOPIC, "orders", "flush.ms"))[1] == ConfigSource.DEFAULT


# -- the broker's --


async def test_the_brokers_settings_hold_for_every_topic_that_has_not_its_own(
    client: KafkaClient, raw: RawClient
) -> None:
    await raw.create("own", max_message_bytes="100000")
    assert await incremental(client, BROKER, "", ("message.max.bytes", SET, "500")) == NONE
    assert (await raw.produce("orders", batch(b"x" * 1000))).error is ErrorCode.MESSAGE_TOO_LARGE
    assert (await raw.produce("own", batch(b"x" * 1000))).error is NONE
    await raw.create("later")
    assert (await raw.produce("later", batch(b"x" * 1000))).error is ErrorCode.MESSAGE_TOO_LARGE
    assert await incremental(client, BROKER, NODE, ("message.max.bytes", SET, "5000")) == NONE
    assert (await raw.produce("orders", batch(b"x" * 1000))).error is NONE


async def test_the_brokers_own_value_wins_over_that_of_all_brokers(client: KafkaClient) -> None:
    default, own = ConfigSource.DYNAMIC_DEFAULT_BROKER, ConfigSource.DYNAMIC_BROKER
    assert await incremental(client, BROKER, "", ("log.retention.ms", SET, "123456")) == NONE
    assert await value(client, TOPIC, "orders", "retention.ms") == ("123456", default)
    assert await incremental(client, BROKER, NODE, ("log.retention.ms", SET, "777")) == NONE
    found = await described(client, TOPIC, "orders", "retention.ms")
    assert synonyms(found["retention.ms"]) == [
        ("log.retention.ms", "777", own),
        ("log.retention.ms", "123456", default),
        ("log.retention.hours", "168", ConfigSource.DEFAULT),
    ]
    assert await value(client, BROKER, NODE, "log.retention.ms") == ("777", own)
    assert await described(client, BROKER, "") == await described(client, BROKER, "", "log.retention.ms")
    assert await value(client, BROKER, "", "log.retention.ms") == ("123456", default)
    assert await anew(client, BROKER, NODE) == NONE
    assert await value(client, BROKER, NODE, "log.retention.ms") == ("123456", default)
    assert await incremental(client, BROKER, "", ("log.retention.ms", DELETE, None)) == NONE
    assert await described(client, BROKER, "") == {}
    assert await value(client, TOPIC, "orders", "retention.ms") == ("604800000", ConfigSource.DEFAULT)


@pytest.mark.parametrize("name", ["", NODE])
@pytest.mark.parametrize(
    ("change", "error"),
    [
        (("num.partitions", SET, "3"), ErrorCode.INVALID_REQUEST),
        (("log.retention.hours", SET, "3"), ErrorCode.INVALID_REQUEST),
        (("nonsense", SET, "3"), ErrorCode.INVALID_REQUEST),
        (("log.retention.ms", SET, "x"), ErrorCode.INVALID_REQUEST),
        (("log.retention.ms", SET, "0"), ErrorCode.INVALID_REQUEST),
        (("log.retention.ms", APPEND, "3"), ErrorCode.INVALID_CONFIG),
        (("nonsense", APPEND, "3"), ErrorCode.INVALID_CONFIG),
        (("num.partitions", DELETE, None), NONE),
    ],
)
async def test_what_the_broker_cannot_change_is_refused(
    client: KafkaClient, name: str, change: tuple[str, int, str | None], error: ErrorCode
) -> None:
    assert await incremental(client, BROKER, name, change) == error
    assert await described(client, BROKER, "") == {}


async def test_lists_of_the_broker_are_added_to(client: KafkaClient) -> None:
    assert await incremental(client, BROKER, "", ("log.cleanup.policy", APPEND, "compact")) == NONE
    assert await value(client, TOPIC, "orders", "cleanup.policy") == (
        "delete,compact",
        ConfigSource.DYNAMIC_DEFAULT_BROKER,
    )


async def test_a_smaller_max_connections_refuses_who_comes_next(broker: Running, client: KafkaClient) -> None:
    assert await incremental(client, BROKER, "", ("max.connections", SET, "1")) == NONE
    async with kafka_client(broker.addresses.kafka) as second:
        assert await second.stream.receive_some() == b""
    assert await incremental(client, BROKER, "", ("max.connections", SET, "2")) == NONE
    async with kafka_client(broker.addresses.kafka) as third:
        assert (await third.ask("Metadata", topics=()))["topics"] == ()


async def test_an_address_has_a_number_of_connections(broker: Running, client: KafkaClient) -> None:
    assert await incremental(client, BROKER, "", ("max.connections.per.ip", SET, "1")) == NONE
    async with kafka_client(broker.addresses.kafka) as second:
        assert await second.stream.receive_some() == b""
    host, _, port = broker.addresses.kafka.rpartition(":")
    async with await trio.open_tcp_stream(host, int(port), local_address="127.0.0.2") as other:
        assert (await KafkaClient(other).ask("Metadata", topics=()))["topics"] == ()
    assert await incremental(client, BROKER, "", ("max.connections.per.ip", SET, "100")) == NONE
    async with kafka_client(broker.addresses.kafka) as third:
        assert (await third.ask("Metadata", topics=()))["topics"] == ()


async def test_some_addresses_have_another_number_of_connections(tmp_path: Path) -> None:
    settings = {"max.connections.per.ip": 1, "max.connections.per.ip.overrides": "127.0.0.3:0, [::ffff:127.0.0.1]:2"}
    async with running(tmp_path, settings) as broker, kafka_client(broker.addresses.kafka) as first:
        wrong = ("max.connections.per.ip.overrides", SET, "h:1")
        assert await incremental(first, BROKER, "", wrong) == ErrorCode.INVALID_REQUEST
        async with kafka_client(broker.addresses.kafka) as second:
            assert (await second.ask("Metadata", topics=()))["topics"] == ()
            async with kafka_client(broker.addresses.kafka) as third:
                assert await third.stream.receive_some() == b""
        host, _, port = broker.addresses.kafka.rpartition(":")
        async with await trio.open_tcp_stream(host, int(port), local_address="127.0.0.3") as shut_out:
            assert await shut_out.receive_some() == b""
        assert await incremental(first, BROKER, "", ("max.connections.per.ip.overrides", SET, "127.0.0.3:1")) == NONE
        async with await trio.open_tcp_stream(host, int(port), local_address="127.0.0.3") as let_in:
            assert (await KafkaClient(let_in).ask("Metadata", topics=()))["topics"] == ()


async def test_a_listener_has_a_number_of_connections(tmp_path: Path) -> None:
    settings = {
        "listeners": "FEW://127.0.0.1:0,MANY://127.0.0.1:0",
        "listener.security.protocol.map": "FEW:PLAINTEXT,MANY:PLAINTEXT",
        "listener.name.few.max.connections": 1,
    }
    async with running(tmp_path, settings) as broker, kafka_client(broker.addresses.named["few"]):
        async with kafka_client(broker.addresses.named["few"]) as second:
            assert await second.stream.receive_some() == b""
        async with kafka_client(broker.addresses.named["many"]), kafka_client(broker.addresses.named["many"]) as other:
            assert (await other.ask("Metadata", topics=()))["topics"] == ()


@pytest.mark.parametrize("text", ["10.0.0.1", "10.0.0.1:x", "host:3", "10.0.0.1:-1", "10.0.0.1:9999999999"])
def test_overrides_that_are_none(text: str) -> None:
    with pytest.raises(SettingError, match=r"max\.connections\.per\.ip\.overrides: expected"):
        load_settings(assignments=[f"max.connections.per.ip.overrides={text}"])


async def test_what_was_changed_holds_after_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, kafka_client(broker.addresses.kafka) as client:
        await (await broker.connect()).create("orders")
        assert await incremental(client, BROKER, "", ("message.max.bytes", SET, "500")) == NONE
        assert await incremental(client, BROKER, NODE, ("log.retention.ms", SET, "777")) == NONE
    async with running(tmp_path) as broker, kafka_client(broker.addresses.kafka) as client:
        raw = await broker.connect()
        assert (await raw.produce("orders", batch(b"x" * 1000))).error is ErrorCode.MESSAGE_TOO_LARGE
        assert await value(client, BROKER, NODE, "log.retention.ms") == ("777", ConfigSource.DYNAMIC_BROKER)
        assert await value(client, TOPIC, "orders", "max.message.bytes") == (
            "500",
            ConfigSource.DYNAMIC_DEFAULT_BROKER,
        )


# -- the broker's loggers --


@pytest.fixture
def quiet_again() -> Iterator[logging.Logger]:
    logger = logging.getLogger("warmlog.broker.partitions.availability")
    yield logger
    logger.setLevel(logging.NOTSET)


async def test_the_level_of_a_logger_is_changed_until_the_broker_stops(
    client: KafkaClient, quiet_again: logging.Logger
) -> None:
    root = (await value(client, LOGGER, NODE, "root"))[0]
    assert await value(client, LOGGER, NODE, "warmlog.broker.partitions.availability") == (
        root,
        ConfigSource.DYNAMIC_BROKER_LOGGER,
    )
    assert (
        await incremental(
            client, LOGGER, NODE, ("warmlog.broker.partitions.availability", SET, "DEBUG"), validate_only=True
        )
        == NONE
    )
    assert not quiet_again.level
    assert await incremental(client, LOGGER, NODE, ("warmlog.broker.partitions.availability", SET, "DEBUG")) == NONE
    assert quiet_again.isEnabledFor(logging.DEBUG)
    assert (await value(client, LOGGER, NODE, "warmlog.broker.partitions.availability"))[0] == "DEBUG"
    assert await incremental(client, LOGGER, NODE, ("warmlog.broker.partitions.availability", DELETE, None)) == NONE
    assert (await value(client, LOGGER, NODE, "warmlog.broker.partitions.availability"))[0] == root


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (("nonsense", SET, "DEBUG"), ErrorCode.INVALID_CONFIG),
        (("nonsense", DELETE, None), ErrorCode.INVALID_CONFIG),
        (("warmlog.broker.partitions.availability", SET, "LOUD"), ErrorCode.INVALID_CONFIG),
        (("warmlog.broker.partitions.availability", SET, "TRACE"), ErrorCode.INVALID_CONFIG),
        (("warmlog.broker.partitions.availability", APPEND, "DEBUG"), ErrorCode.INVALID_REQUEST),
        (("root", DELETE, None), ErrorCode.INVALID_REQUEST),
    ],
)
async def test_what_is_no_level_is_refused(
    client: KafkaClient, quiet_again: logging.Logger, change: tuple[str, int, str | None], error: ErrorCode
) -> None:
    good = ("warmlog.broker.partitions.availability", SET, "ERROR")
    changes = [change] if change[0] == good[0] else [good, change]
    assert await incremental(client, LOGGER, NODE, *changes) == error
    assert not quiet_again.level


async def test_levels_cannot_be_given_anew(client: KafkaClient, quiet_again: logging.Logger) -> None:
    assert (
        await anew(client, LOGGER, NODE, ("warmlog.broker.partitions.availability", "DEBUG"))
        == ErrorCode.INVALID_REQUEST
    )
    assert not quiet_again.level


# -- list --


async def test_what_has_settings_is_listed_by_type(client: KafkaClient) -> None:
    async def listed(*types: int, version: int = 1) -> list[tuple[int, str]]:
        reply = await client.ask("ListConfigResources", version, resource_types=types)
        assert reply["error_code"] == NONE
        return [(one["resource_type"], one["resource_name"]) for one in reply["config_resources"]]

    assert await listed() == [(LOGGER, NODE), (BROKER, NODE), (TOPIC, "orders")]
    assert await listed(TOPIC) == [(TOPIC, "orders")]
    assert await listed(BROKER, LOGGER) == [(LOGGER, NODE), (BROKER, NODE)]
    assert await listed(GROUP, CLIENT_METRICS) == []
    assert await listed(version=0) == []
    reply = await client.ask("ListConfigResources", resource_types=[77])
    assert (reply["error_code"], reply["config_resources"]) == (ErrorCode.UNSUPPORTED_VERSION, ())


# -- what only Kafka has --

KEPT = [
    (GROUP, "readers", "consumer.session.timeout.ms", "50000", 8),
    (GROUP, "a/b", "streams.heartbeat.interval.ms", "6000", 8),
    (CLIENT_METRICS, "all", "interval.ms", "10000", 7),
    (BROKER, "", "num.io.threads", "16", 3),
    (BROKER, NODE, "num.io.threads", "16", 2),
    (BROKER, NODE, "sasl.kerberos.kinit.cmd", "/usr/bin/kinit", 2),
    (BROKER, NODE, "listener.name.internal.sasl.kerberos.kinit.cmd", "/bin/k", 2),
    (BROKER, NODE, "listener.name.internal.plain.sasl.server.callback.handler.class", "a.B", 2),
]


@pytest.mark.parametrize(("kind", "name", "key", "text", "source"), KEPT)
async def test_settings_that_only_kafka_has_are_kept_over_a_restart(
    tmp_path: Path, kind: int, name: str, key: str, text: str, source: int
) -> None:
    async with running(tmp_path) as broker, kafka_client(broker.addresses.kafka) as client:
        assert await incremental(client, kind, name, (key, SET, text), validate_only=True) == NONE
        assert key not in await described(client, kind, name)
        assert await incremental(client, kind, name, (key, SET, text)) == NONE
    async with running(tmp_path) as broker, kafka_client(broker.addresses.kafka) as client:
        assert await value(client, kind, name, key) == (text, source)
        assert await incremental(client, kind, name, (key, DELETE, None)) == NONE
        assert key not in await described(client, kind, name)


@pytest.mark.parametrize(
    ("kind", "name", "key", "text", "error"),
    [
        (GROUP, "g", "consumer.session.timeoutms", "50000", ErrorCode.INVALID_CONFIG),
        (GROUP, "g", "consumer.session.timeout.ms", "long", ErrorCode.INVALID_CONFIG),
        (CLIENT_METRICS, "m", "interval", "1", ErrorCode.INVALID_REQUEST),
        (BROKER, NODE, "num.io.thread", "16", ErrorCode.INVALID_REQUEST),
        (BROKER, NODE, "num.io.threads", "many", ErrorCode.INVALID_REQUEST),
        (BROKER, NODE, "listener.name.internal.no.such", "1", ErrorCode.INVALID_REQUEST),
        (BROKER, NODE, "security.inter.broker.protocol", "SSL", ErrorCode.INVALID_REQUEST),  # at startup only
        (BROKER, "", "sasl.kerberos.kinit.cmd", "x", ErrorCode.INVALID_REQUEST),  # of one broker only
        (BROKER, NODE, "ssl.keystore.password", "x", ErrorCode.INVALID_REQUEST),  # of a listener only
        (BROKER, NODE, "listener.name.kafka.ssl.key.password", "x", ErrorCode.INVALID_REQUEST),  # at startup only
    ],
)
async def test_misspelled_and_misplaced_settings_of_kafka_are_refused(
    client: KafkaClient, kind: int, name: str, key: str, text: str, error: ErrorCode
) -> None:
    assert await incremental(client, kind, name, (key, SET, text)) == error
    assert key not in await described(client, kind, name)


async def test_lists_that_only_kafka_has_grow_and_shrink(client: KafkaClient) -> None:
    assert await incremental(client, CLIENT_METRICS, "m", ("metrics", APPEND, "a,b")) == NONE
    assert await incremental(client, CLIENT_METRICS, "m", ("metrics", SUBTRACT, "a")) == NONE
    assert await value(client, CLIENT_METRICS, "m", "metrics") == ("b", 7)


async def test_a_password_is_kept_and_not_told(client: KafkaClient) -> None:
    key = "listener.name.internal.sasl.jaas.config"
    assert await incremental(client, BROKER, NODE, (key, SET, "secret")) == NONE
    found = (await described(client, BROKER, NODE))[key]
    assert (found["value"], found["is_sensitive"]) == (None, True)
    assert [one["value"] for one in found["synonyms"]] == [None]


async def test_secrets_of_the_configuration_are_not_described(tmp_path: Path) -> None:
    secrets = {"ssl.key.password": "sesame", "listener.name.kafka.ssl.key.password": "sesame"}
    async with running(tmp_path, secrets) as broker, kafka_client(broker.addresses.kafka) as client:
        found = await described(client, BROKER, NODE)
        for key in secrets:
            assert (found[key]["value"], found[key]["is_sensitive"]) == (None, True)
        assert "sesame" not in str(found)


async def test_resources_with_kept_settings_are_listed_and_bounded(
    client: KafkaClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(configs, "MAX_KEPT", 2)
    session = ("consumer.session.timeout.ms", SET, "50000")
    assert await incremental(client, GROUP, "one", session) == NONE
    assert await incremental(client, CLIENT_METRICS, "all", ("match", SET, "")) == NONE
    assert await incremental(client, GROUP, "two", session) == ErrorCode.POLICY_VIOLATION
    assert await incremental(client, GROUP, "one", ("consumer.heartbeat.interval.ms", SET, "5000")) == NONE
    reply = await client.ask("ListConfigResources", resource_types=[GROUP, CLIENT_METRICS])
    listed = [(one["resource_type"], one["resource_name"]) for one in reply["config_resources"]]
    assert listed == [(CLIENT_METRICS, "all"), (GROUP, "one")]
    reply = await client.ask("ListConfigResources", 0)
    assert [one["resource_name"] for one in reply["config_resources"]] == ["all"]


async def test_a_setting_without_effect_is_logged_once(client: KafkaClient, caplog: pytest.LogCaptureFixture) -> None:
    kafka_settings._reported.clear()
    for text in ("1", "2", "3"):
        assert await incremental(client, BROKER, NODE, ("background.threads", SET, text)) == NONE
    assert [record.getMessage() for record in caplog.records] == [
        "broker: background.threads is a setting of Kafka that has no effect here"
    ]
