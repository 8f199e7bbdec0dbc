"""Which of several values of a setting holds. Source: KIP-226, and what Kafka 4.3.1 did."""

import logging

import pytest

from warmlog.broker.settings.documentation import documentation_of
from warmlog.broker.settings.live import DYNAMIC_SETTINGS, STAND_INS, LiveSettings, Overrides, StaticSettingError
from warmlog.broker.settings.loading import load_settings
from warmlog.broker.settings.settings import FIELDS
from warmlog.broker.settings.types import SettingError

WEEK_MS = 7 * 24 * 3_600_000


def live(*assignments: str) -> LiveSettings:
    return LiveSettings(load_settings(assignments=assignments))


def test_later_scopes_win() -> None:
    settings = live("log.retention.hours=1")
    assert settings.current.retention_ms == 3_600_000
    settings.take(Overrides(cluster={"log.retention.ms": "123456"}))
    assert settings.current.retention_ms == 123_456
    settings.take(Overrides(cluster={"log.retention.ms": "123456"}, broker={"log.retention.ms": "777"}))
    assert settings.current.retention_ms == 777
    assert settings.static.retention_ms == 3_600_000
    settings.take(Overrides())
    assert settings.current == settings.static


def test_every_place_that_a_value_may_come_from_is_told_the_one_in_force_first() -> None:
    settings = live("log.retention.minutes=9")
    settings.take(Overrides(cluster={"log.retention.ms": "5"}, broker={"log.retention.ms": "6"}))
    assert settings.sources("log.retention.ms") == [
        ("log.retention.ms", "6", "broker"),
        ("log.retention.ms", "5", "cluster"),
        ("log.retention.minutes", "9", "static"),
        ("log.retention.hours", "168", "default"),
    ]
    assert settings.sources("log.segment.bytes") == [("log.segment.bytes", str(1 << 30), "default")]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("num.partitions", "3", r"num\.partitions cannot be changed while the broker runs"),
        ("log.retention.hours", "3", r"log\.retention\.hours cannot be changed"),
        ("log.retention.mss", "3", r"unknown setting 'log\.retention\.mss'; did you mean 'log\.retention\.ms'\?"),
        ("log.retention.ms", "x", r"broker: log\.retention\.ms: expected int"),
        ("log.retention.ms", "0", r"log\.retention\.ms: expected -1, for ever, or at least 1"),
        ("log.roll.jitter.ms", str(WEEK_MS + 1), r"log\.roll\.jitter\.ms: expected at most"),
    ],
)
@pytest.mark.parametrize("scope", ["cluster", "broker"])
def test_what_cannot_hold_is_refused_and_changes_nothing(name: str, text: str, message: str, scope: str) -> None:
    settings = live()
    settings.take(Overrides(cluster={"log.segment.bytes": "5555"}))
    with pytest.raises(SettingError, match=message):
        settings.take(Overrides(**{scope: {name: text}}))
    assert settings.current.log_segment_bytes == 5555
    assert settings.overrides == Overrides(cluster={"log.segment.bytes": "5555"})


def test_a_static_setting_is_its_own_kind_of_error() -> None:
    with pytest.raises(StaticSettingError):
        live().take(Overrides(cluster={"node.id": "3"}))


def test_what_was_kept_holds_again() -> None:
    overrides = Overrides(cluster={"log.retention.ms": "5"}, broker={"log.retention.ms": "6", "max.connections": "9"})
    settings = live()
    settings.take_kept(overrides.kept(node_id=1))
    assert settings.overrides == overrides
    assert (settings.current.retention_ms, settings.current.max_connections) == (6, 9)


def test_what_was_kept_and_is_not_sound_any_more_is_told_and_left_out(caplog: pytest.LogCaptureFixture) -> None:
    settings = live()
    with caplog.at_level(logging.WARNING):
        settings.take_kept({"/log.retention.ms": "x", "1/gone.setting": "1", "/log.segment.bytes": "5555"})
    assert settings.overrides == Overrides(cluster={"log.segment.bytes": "5555"})
    assert "log.retention.ms" in caplog.text
    assert "gone.setting" in caplog.text


def test_what_was_kept_and_does_not_go_with_the_rest_any_more_is_told_and_left_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    settings = live("log.roll.ms=5")
    settings.take_kept({"/log.roll.jitter.ms": "6"})
    assert settings.current == settings.static
    assert "log.roll.jitter.ms" in caplog.text


def test_the_tables_name_settings_that_there_are() -> None:
    assert set(STAND_INS) | {name for names in STAND_INS.values() for name in names} <= FIELDS.keys()
    assert not DYNAMIC_SETTINGS - FIELDS.keys()


@pytest.mark.parametrize("name", FIELDS)
def test_every_setting_is_described(name: str) -> None:
    assert (documentation_of(name) or "").endswith(".")


def test_settings_of_other_resources_are_kept_beside_those_of_brokers() -> None:
    overrides = Overrides(
        cluster={"num.io.threads": "5"},
        resources={"group:a/b:c": {"consumer.session.timeout.ms": "50000"}, "client-metrics:m": {"match": ""}},
    )
    settings = live()
    settings.take_kept(overrides.kept(node_id=1))
    assert settings.overrides == overrides
    assert settings.current == live().current
    assert settings.kept_settings() == {"num.io.threads": [("num.io.threads", "5", "cluster")]}
    assert overrides.with_resource("client-metrics:m", {}).resources.keys() == {"group:a/b:c"}
