"""Settings of topics: what is kept, what is refused, and what a log is told."""

import pytest

from warmlog.broker.log.config import LogConfig
from warmlog.broker.settings.documentation import documentation_of
from warmlog.broker.settings.live import LiveSettings, Overrides
from warmlog.broker.settings.loading import load_settings
from warmlog.broker.settings.settings import Settings
from warmlog.broker.settings.topics import (
    FIXED_SETTINGS,
    SETTING_NAMES,
    TOPIC_SETTINGS,
    check_topic_configs,
    effective_settings,
    log_config,
    names_replica,
)
from warmlog.broker.settings.types import SettingError


def test_values_are_kept_as_they_are_meant() -> None:
    given = {"retention.ms": " 7 ", "preallocate": "TRUE", "cleanup.policy": "compact, delete"}
    assert check_topic_configs(given, Settings()) == {
        "retention.ms": "7",
        "preallocate": "true",
        "cleanup.policy": "compact,delete",
    }


@pytest.mark.parametrize(
    ("configs", "message"),
    [
        ({"retention.mss": "5"}, r"unknown topic setting 'retention\.mss'; did you mean 'retention\.ms'\?"),
        ({"retention.ms": "x"}, r"topic: retention\.ms: expected int"),
        ({"cleanup.policy": "squash"}, r"topic: cleanup\.policy: expected one of"),
        ({"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "5"}, r"min\.compaction\.lag\.ms \(10\) is larger"),
        ({"remote.storage.enable": "true"}, r"expected 'false' \(there is no remote storage\), not 'true'"),
        ({"leader.replication.throttled.replicas": "0:1,x"}, r"expected PARTITION:BROKER,.* or \*, not '0:1,x'"),
        ({"follower.replication.throttled.replicas": "*,0:1"}, r"expected PARTITION:BROKER"),
        ({"message.format.version": "3.0"}, r"unknown topic setting"),
    ],
)
def test_what_cannot_hold_is_refused_by_name(configs: dict[str, str], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        check_topic_configs(configs, Settings())


def test_a_lag_is_held_against_that_of_the_broker() -> None:
    settings = load_settings(assignments=["log.cleaner.max.compaction.lag.ms=5"])
    with pytest.raises(SettingError, match=r"is larger than max\.compaction\.lag\.ms \(5\)"):
        check_topic_configs({"min.compaction.lag.ms": "10"}, settings)


@pytest.mark.parametrize("name", FIXED_SETTINGS)
def test_the_one_value_that_is_true_is_accepted(name: str) -> None:
    value = FIXED_SETTINGS[name].value
    assert check_topic_configs({name: f" {value.upper()} "}, Settings()) == {name: value}


def test_replicas_are_named_by_partition_and_broker() -> None:
    for text, normal, named in (("", "", set()), (" * ", "*", {0, 1}), ("0:1, 11:1, 1:2, 0:1", "0:1,11:1,1:2", {0})):
        name = "follower.replication.throttled.replicas"
        assert check_topic_configs({name: text}, Settings()) == {name: normal}
        assert {index for index in (0, 1) if names_replica(normal, index, 1)} == named


def test_every_setting_reaches_the_log() -> None:
    """A setting that is accepted is real: none is missing where logs get theirs."""
    own = log_config(dict.fromkeys(("retention.ms", "max.message.bytes"), "77"), Settings())
    assert (own.retention_ms, own.max_message_bytes) == (77, 77)
    assert {name.replace(".", "_") for name in TOPIC_SETTINGS} <= set(LogConfig.__slots__)


def test_where_a_value_comes_from() -> None:
    settings = LiveSettings(load_settings(assignments=["log.roll.hours=1"]))
    settings.take(Overrides(cluster={"log.retention.ms": "5"}))
    found = {one.name: (one.value, one.source) for one in effective_settings({"flush.ms": "9"}, settings)}
    assert list(found) == list(SETTING_NAMES)
    assert found["flush.ms"] == ("9", "topic")
    assert found["retention.ms"] == ("5", "cluster")
    assert found["segment.ms"] == ("3600000", "static")
    assert found["cleanup.policy"] == ("delete", "default")
    assert found["remote.storage.enable"] == ("false", "default")


@pytest.mark.parametrize("name", SETTING_NAMES)
def test_every_setting_is_described(name: str) -> None:
    assert (documentation_of(name) or "").endswith(".")
