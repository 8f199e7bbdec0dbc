from pathlib import Path

import pytest
from msgspec.structs import replace

from warmlog.broker.settings.documentation import durability_sentence
from warmlog.broker.settings.listeners import advertised_addresses
from warmlog.broker.settings.loading import load_settings
from warmlog.broker.settings.mirrors import source_addresses
from warmlog.broker.settings.settings import FIELDS, Settings
from warmlog.broker.settings.types import SettingError, as_text


def test_later_sources_win(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text("log.segment.bytes = 2000\nnum.partitions = 2\n[log.index]\ninterval.bytes = 100\n")
    settings = load_settings(file, {"WARMLOG_NUM_PARTITIONS": "3", "PATH": "/bin"}, ["num.partitions=4"])
    assert (settings.log_segment_bytes, settings.num_partitions, settings.log_index_interval_bytes) == (2000, 4, 100)
    assert load_settings(file, {"WARMLOG_NUM_PARTITIONS": "3"}).num_partitions == 3


def test_own_settings_are_named_once_in_the_environment() -> None:
    assert load_settings(environ={"WARMLOG_OPEN_FILES": "77"}).warmlog_open_files == 77


@pytest.mark.parametrize(
    ("assignments", "paths"),
    [
        ([], ["mine"]),
        (["log.dir=a"], ["mine"]),
        (["log.dirs=a, b,c"], ["mine", "b", "c"]),
        (["log.dir=x", "log.dirs=mine,b"], ["mine", "b"]),
    ],
)
def test_the_data_directory_is_the_first_of_several(assignments: list[str], paths: list[str]) -> None:
    assert list(map(str, load_settings(assignments=assignments, data_dir="mine").data_paths)) == paths


def test_log_dir_stands_in_for_log_dirs() -> None:
    assert load_settings(assignments=["log.dir=a,b"]).data_paths == (Path("a"), Path("b"))
    assert load_settings(assignments=["log.dir=a", "log.dirs=b"]).data_paths == (Path("b"),)


@pytest.mark.parametrize("name", ["warmlog.mirror.topics", "warmlog.mirror.groups"])
def test_a_pattern_that_is_none_is_named(name: str) -> None:
    with pytest.raises(SettingError, match=rf"{name}: expected a regular expression \(RE2\), not '\(a'"):
        load_settings(assignments=["warmlog.mirror.from=a:1", f"{name}=(a"])


def test_the_source_of_a_mirror_has_several_addresses() -> None:
    assert source_addresses(" a:1, [::1]:2,b:3") == [("a", 1), ("::1", 2), ("b", 3)]
    assert source_addresses("") == []


def test_a_broker_of_a_cluster_must_be_given_an_id() -> None:
    member = ["warmlog.cluster.etcd=http://127.0.0.1:2379"]
    with pytest.raises(SettingError, match=r"^node\.id: a broker of a cluster"):
        load_settings(assignments=member)
    assert load_settings(assignments=[*member, "node.id=1"]).node_id == 1
    assert load_settings().node_id == 1


@pytest.mark.parametrize(
    ("etcd", "given", "message"),
    [
        ("https://a", ["certificate.file=x"], r"certificate\.file: needs warmlog\.cluster\.etcd\.key\.file as well"),
        ("https://a", ["key.file=x"], r"key\.file: needs warmlog\.cluster\.etcd\.certificate\.file as well"),
        ("http://a", ["user=x"], r"user: needs warmlog\.cluster\.etcd\.password\.file as well"),
        ("http://a", ["password.file=x"], r"password\.file: needs warmlog\.cluster\.etcd\.user as well"),
        ("http://a", ["ca.file=x"], r"ca\.file: needs https:// endpoints in warmlog\.cluster\.etcd"),
        ("http://a", ["certificate.file=x", "key.file=y"], r"certificate\.file: needs https:// endpoints"),
        ("", ["ca.file=x"], r"ca\.file: needs https:// endpoints"),
        ("", ["user=x", "password.file=y"], r"user: needs endpoints in warmlog\.cluster\.etcd"),
    ],
)
def test_settings_of_the_connection_to_etcd_need_each_other(etcd: str, given: list[str], message: str) -> None:
    cluster = ["node.id=1", f"warmlog.cluster.etcd={etcd}"]
    with pytest.raises(SettingError, match=rf"^warmlog\.cluster\.etcd\.{message}"):
        load_settings(assignments=[*cluster, *(f"warmlog.cluster.etcd.{each}" for each in given)])


def test_variables_that_others_set_are_left_alone() -> None:
    environ = {"WARMLOG_NATIVE": "x:1", "WARMLOG_PORT_9092_TCP_ADDR": "10.0.0.1", "WARMLOG_SERVICE_HOST": "10.0.0.1"}
    assert load_settings(environ=environ) == Settings()


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("log.segment.byte=3", r"--set: unknown setting 'log\.segment\.byte'; did you mean 'log\.segment\.bytes'\?"),
        ("log.segment.bytes=3", r"--set: log\.segment\.bytes: expected int >= 14, not '3'"),
        ("num.partitions=many", r"--set: num\.partitions: expected int, not 'many'"),
        ("auto.create.topics.enable=maybe", r"auto\.create\.topics\.enable: expected bool, not 'maybe'"),
        ("warmlog.index.search=hot", r"warmlog\.index\.search: expected one of 'warm', 'plain', not 'hot'"),
        ("log.segment.bytes", r"expected KEY=VALUE"),
        ("advertised.listeners=native://nowhere", r"advertised\.listeners: expected NAME://HOST:PORT"),
        ("warmlog.mirror.from=somewhere", r"warmlog\.mirror\.from: expected HOST:PORT, .* not 'somewhere'"),
        ("warmlog.mirror.user=me", r"warmlog\.mirror\.user: needs warmlog\.mirror\.security\.protocol=SASL_SSL or .*"),
        (
            "warmlog.mirror.ca.file=ca",
            r"warmlog\.mirror\.ca\.file: needs warmlog\.mirror\.security\.protocol=SSL or .*",
        ),
        ("warmlog.mirror.security.protocol=SASL_SSL", r".*: SASL_SSL needs warmlog\.mirror\.user and .*password\.file"),
        ("warmlog.mirror.token.file=t", r"warmlog\.mirror\.token\.file: needs .*SASL_SSL or SASL_PLAINTEXT"),
        ("warmlog.mirror.from=a:1,b:99999", r"warmlog\.mirror\.from: expected HOST:PORT, .* not 'b:99999'"),
        ("log.dirs= , ", r"log\.dirs: expected a directory, not ','"),
        ("log.retention.ms=0", r"log\.retention\.ms: expected -1, for ever, or at least 1, not 0"),
        ("log.cleanup.policy=compact,squash", r"log\.cleanup\.policy: expected one of 'delete', 'compact', "),
        ("log.cleaner.min.cleanable.ratio=1.5", r"log\.cleaner\.min\.cleanable\.ratio: expected float <= 1\.0"),
    ],
)
def test_bad_settings_are_named_with_what_would_do(assignment: str, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        load_settings(assignments=[assignment])


def test_an_unknown_variable_is_named() -> None:
    with pytest.raises(SettingError, match=r"environment WARMLOG_LOG_SEGMENT_BITES: unknown setting"):
        load_settings(environ={"WARMLOG_LOG_SEGMENT_BITES": "3"})


@pytest.mark.parametrize("text", ["log.segment.bytes = ", "\xff\xfe"])
def test_a_file_that_is_no_toml_is_named(tmp_path: Path, text: str) -> None:
    file = tmp_path / "broker.toml"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(SettingError, match=r"broker\.toml: not TOML"):
        load_settings(file)


def test_a_nul_character_in_a_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text('"log.dirs" = "logs\\u0000"')
    with pytest.raises(SettingError, match=r"broker\.toml: log\.dirs: expected text without NUL characters"):
        load_settings(file)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"none\.toml: No such file or directory"):
        load_settings(tmp_path / "none.toml")


def test_milliseconds_win_over_hours() -> None:
    assert load_settings(assignments=["log.roll.hours=2"]).segment_ms == 7_200_000
    assert load_settings(assignments=["log.roll.hours=2", "log.roll.ms=5"]).segment_ms == 5


def test_every_default_lies_in_its_own_range() -> None:
    for name, field in FIELDS.items():
        if field.default is not None:
            load_settings(assignments=[f"{name}={as_text(field.default)}"])


def test_advertised_listeners_are_found_by_name() -> None:
    settings = load_settings(assignments=["advertised.listeners=PLAINTEXT://[::1]:9, NATIVE://broker.example:10"])
    assert advertised_addresses(settings).get("native") == ("broker.example", 10)
    assert advertised_addresses(settings).get("kafka") == ("::1", 9)
    assert advertised_addresses(Settings()).get("native") is None


@pytest.mark.parametrize(
    ("assignments", "words"),
    [
        ([], "usually the last 30 s"),
        (["log.flush.interval.messages=1"], "loses nothing acknowledged"),
        (["log.flush.interval.messages=100"], "100 records a partition"),
        (["log.flush.interval.ms=2000"], "lose 3 s of appends; a"),  # looked at every second
        (["log.flush.interval.ms=2000", "log.flush.scheduler.interval.ms=5000"], "7 s of appends"),
        (["log.flush.scheduler.interval.ms=5000"], "10 s of appends"),
        (["log.flush.interval.ms=10"], "0.06 s of appends"),
        (
            ["log.flush.interval.ms=500", "log.flush.interval.messages=9"],
            "9 records a partition or 1 s of appends, whichever",
        ),
    ],
)
def test_what_a_power_cut_can_take_is_said_as_configured(assignments: list[str], words: str) -> None:
    assert words in durability_sentence(load_settings(assignments=assignments))


@pytest.mark.parametrize(
    ("assignments", "retention_ms"),
    [
        ([], 7 * 24 * 3600 * 1000),
        (["log.retention.hours=2"], 7_200_000),
        (["log.retention.hours=2", "log.retention.minutes=5"], 300_000),
        (["log.retention.hours=2", "log.retention.minutes=5", "log.retention.ms=7"], 7),
        (["log.retention.hours=2", "log.retention.minutes=-1"], -1),
    ],
)
def test_of_the_names_of_retention_the_finest_one_wins(assignments: list[str], retention_ms: int) -> None:
    assert load_settings(assignments=assignments).retention_ms == retention_ms


def test_settings_that_only_kafka_has_are_accepted_and_have_no_effect(tmp_path: Path) -> None:
    file = tmp_path / "warmlog.toml"
    file.write_text('"sasl.kerberos.service.name" = "kafka"\n[metric]\nreporters = ["a.B", "c.D"]\n')
    settings = load_settings(file, {"WARMLOG_NUM_IO_THREADS": "8"})
    assert settings.without_effect == {
        "sasl.kerberos.service.name": "kafka",
        "metric.reporters": "a.B,c.D",
        "num.io.threads": "8",
    }
    assert replace(settings, without_effect={}) == Settings()


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("num.io.threads=many", r"--set: num\.io\.threads: expected int"),
        ("num.io.thread=8", r"unknown setting 'num\.io\.thread'"),
        ("authorizer.class.name=a.B", r"authorizer\.class\.name: expected one of .*StandardAuthorizer"),
        ("security.inter.broker.protocol=SSL", r"security\.inter\.broker\.protocol is not supported"),
    ],
)
def test_settings_of_kafka_that_are_misspelled_or_protect_the_broker_are_refused(assignment: str, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        load_settings(assignments=[assignment])
