"""Listeners by name: what `listeners` and the settings that go with it mean, and what is refused."""

import pytest

from warmlog.broker.settings.listeners import inter_broker_listener, plan_listeners
from warmlog.broker.settings.loading import load_settings
from warmlog.broker.settings.settings import Settings
from warmlog.broker.settings.types import SettingError

NAMED = "listeners=INTERNAL://:9092,Outside://[::1]:9094,NATIVE://127.0.0.1:9091"
MAP = "listener.security.protocol.map=INTERNAL:PLAINTEXT, outside:plaintext"


def planned(*assignments: str, kafka: str = "a:1", native: str = "a:2") -> list[tuple[str, str, str, int]]:
    plans = plan_listeners(load_settings(assignments=assignments), kafka=kafka, native=native)
    return [(plan.name, plan.protocol, plan.host, plan.port) for plan in plans]


def test_without_the_setting_there_are_two_listeners_at_the_addresses_of_the_command_line() -> None:
    assert planned() == [("kafka", "kafka", "a", 1), ("native", "native", "a", 2)]
    assert planned(kafka="none", native="[::1]:3") == [("native", "native", "::1", 3)]


def test_named_listeners_replace_both() -> None:
    assert planned(NAMED, MAP) == [
        ("internal", "kafka", "", 9092),
        ("outside", "kafka", "::1", 9094),
        ("native", "native", "127.0.0.1", 9091),
    ]


def test_any_listener_can_speak_the_native_protocol() -> None:
    found = planned("listeners=PLAINTEXT://:1,B://:2", "warmlog.native.listener.names=b")
    assert [(name, protocol) for name, protocol, _, _ in found] == [("plaintext", "kafka"), ("b", "native")]


def test_brokers_use_the_first_kafka_listener_or_the_one_that_is_named() -> None:
    assert inter_broker_listener(Settings()) == "kafka"
    assert inter_broker_listener(load_settings(assignments=[NAMED, MAP])) == "internal"
    chosen = load_settings(assignments=[NAMED, MAP, "inter.broker.listener.name=OUTSIDE"])
    assert inter_broker_listener(chosen) == "outside"


@pytest.mark.parametrize(
    ("assignments", "message"),
    [
        (["listeners=9092"], r"listeners: expected NAME://HOST:PORT, not '9092'"),
        (["listeners=A://:65536"], r"listeners: expected NAME://HOST:PORT"),
        (["listeners=PLAINTEXT://:1,plaintext://:2"], r"listeners: plaintext occurs twice"),
        (["listeners=PLAINTEXT://:1,NATIVE://:1"], r"has the address of another listener"),
        (["listeners=HTTP://:1"], r"HTTP cannot be the name"),
        (["listeners=,"], r"listeners: expected NAME://HOST:PORT"),
        (["listeners=A://:1"], r"listeners: A has no security protocol in listener\.security\.protocol\.map"),
        (
            ["listener.security.protocol.map=kafka:SASL_PLAINTEXT", "sasl.enabled.mechanisms=PLAIN"],
            r"sasl\.enabled\.mechanisms: PLAIN would send passwords in clear",
        ),
        (
            ["listener.security.protocol.map=kafka:SASL_SSL", "listener.name.kafka.sasl.enabled.mechanisms=GSSAPI"],
            r"listener\.name\.kafka\.sasl\.enabled\.mechanisms: expected some of SCRAM-SHA-256.* not GSSAPI",
        ),
        (["listener.security.protocol.map=kafka:SASL_SSL", "sasl.enabled.mechanisms="], r"not none"),
        (["listener.security.protocol.map=kafka"], r"expected NAME:PROTOCOL"),
        (["listener.security.protocol.map=kafka:TLS"], r"expected NAME:PROTOCOL"),
        (["advertised.listeners=OTHER://a:1"], r"other is not a listener: expected one of kafka, native"),
        (["advertised.listeners=native://:1"], r"native: clients need a host and a port"),
        ([NAMED, MAP, "advertised.listeners=kafka://a:1"], r"kafka is not a listener: expected one of internal"),
        (["listener.name.kafka.max.connection.creation.rate=0"], r"max\.connection\.creation\.rate"),
        (["listener.name.kafka.max.connection.creation.rate=many"], r"max\.connection\.creation\.rate"),
        ([NAMED, MAP, "inter.broker.listener.name=native"], r"no listener for Kafka's protocol"),
    ],
)
def test_invalid_listeners_are_refused(assignments: list[str], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        load_settings(assignments=assignments)


def test_a_name_of_the_command_line_is_an_address() -> None:
    with pytest.raises(SettingError, match="nowhere: expected HOST:PORT"):
        planned(kafka="nowhere")
