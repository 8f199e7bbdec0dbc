"""Kafka's own command line tools say of warmlog what they say of Kafka."""

import json
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from interop.java_tools import Call, ToolOutput, call, run
from tests.clients.members import Members
from tests.clients.waiting import LIMIT_S
from tests.interop.clients.tool_output import steady

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

RECORDS = "".join(f"key-{i}:value {i}\n" for i in range(10))
NUMBERED = "--formatter-property print.key=true --formatter-property print.offset=true"
GROUP = "kafka-consumer-groups --group readers"
SHARE_GROUP = "kafka-share-groups --group sharers"


def calls(offsets_file: Path) -> dict[str, Call]:
    """A story that each tool has its part in, in this order. Topics and groups are its own."""
    return {
        # topics
        "create": call("kafka-topics --create --topic orders --partitions 3 --config retention.ms=100000"),
        "create again": call("kafka-topics --create --topic orders --if-not-exists"),
        "create twice": call("kafka-topics --create --topic orders"),
        "create with replicas": call("kafka-topics --create --topic many --replication-factor 3"),
        "create with a bad setting": call("kafka-topics --create --topic bad --config retention.ms=soon"),
        "create by hand": call("kafka-topics --create --topic placed --replica-assignment 1,1"),
        "grow": call("kafka-topics --alter --topic orders --partitions 5"),
        "shrink": call("kafka-topics --alter --topic orders --partitions 2"),
        "describe": call("kafka-topics --describe --topic orders"),
        "describe none": call("kafka-topics --describe --topic no-such"),
        "describe unavailable": call("kafka-topics --describe --unavailable-partitions"),
        # settings
        "set": call(
            "kafka-configs --alter --entity-type topics --entity-name orders "
            "--add-config max.message.bytes=50000,segment.bytes=1048576"
        ),
        "settings": call("kafka-configs --describe --entity-type topics --entity-name orders"),
        "unset": call("kafka-configs --alter --entity-type topics --entity-name orders --delete-config retention.ms"),
        "settings after": call("kafka-configs --describe --entity-type topics --entity-name orders"),
        "set nonsense": call("kafka-configs --alter --entity-type topics --entity-name orders --add-config no.such=1"),
        "all settings": call("kafka-configs --describe --entity-type topics --entity-name orders --all"),
        "set for brokers": call(
            "kafka-configs --alter --entity-type brokers --entity-default --add-config log.retention.ms=777777"
        ),
        "settings of brokers": call("kafka-configs --describe --entity-type brokers --entity-default"),
        "unset for brokers": call(
            "kafka-configs --alter --entity-type brokers --entity-default --delete-config log.retention.ms"
        ),
        # records
        "produce": call(
            "kafka-console-producer --topic lines --reader-property parse.key=true --reader-property key.separator=:",
            text=RECORDS,
        ),
        "produce packed": call("kafka-console-producer --topic packed --compression-codec zstd", text=RECORDS),
        "consume": call(f"kafka-console-consumer --topic lines --from-beginning --max-messages 10 {NUMBERED}"),
        "consume packed": call("kafka-console-consumer --topic packed --from-beginning --max-messages 10"),
        "consume in a group": call(
            "kafka-console-consumer --topic lines --from-beginning --max-messages 10 --group readers"
        ),
        "consume from an offset": call(
            f"kafka-console-consumer --topic lines --partition 0 --offset 7 --max-messages 3 {NUMBERED}"
        ),
        "ends": call("kafka-get-offsets --topic lines"),
        "starts": call("kafka-get-offsets --topic lines --time earliest"),
        "latest times": call("kafka-get-offsets --topic orders --time max-timestamp"),
        "at a time": call("kafka-get-offsets --topic lines --time 1000"),
        "after all": call("kafka-get-offsets --topic lines --time 99999999999999"),
        "ends of partitions": call("kafka-get-offsets --topic-partitions orders:0-2"),
        # groups
        "groups": call("kafka-consumer-groups --list"),
        "groups and states": call("kafka-consumer-groups --list --state"),
        "groups of a type": call("kafka-groups --list --consumer"),
        "lag": call(f"{GROUP} --describe"),
        "no members": call(f"{GROUP} --describe --members --verbose"),
        "state": call(f"{GROUP} --describe --state"),
        "lag of the living": call("kafka-consumer-groups --group living --describe"),
        "the living": call("kafka-consumer-groups --group living --describe --members --verbose"),
        "state of the living": call("kafka-consumer-groups --group living --describe --state"),
        "delete the living": call("kafka-consumer-groups --group living --delete"),
        "describe no group": call("kafka-consumer-groups --group no-such --describe"),
        "reset dry": call(f"{GROUP} --reset-offsets --topic lines --to-earliest --dry-run"),
        "reset": call(f"{GROUP} --reset-offsets --topic lines --shift-by -4 --execute"),
        "lag after reset": call(f"{GROUP} --describe"),
        "reset to a time": call(f"{GROUP} --reset-offsets --topic lines --by-duration P1D --execute"),
        "delete offsets": call(f"{GROUP} --delete-offsets --topic lines"),
        "delete group": call(f"{GROUP} --delete"),
        "delete no group": call(f"{GROUP} --delete"),
        # groups of the consumer protocol (KIP-848)
        "consume in a consumer group": call(
            "kafka-console-consumer --topic lines --from-beginning --group modern "
            "--command-property group.protocol=consumer --max-messages 10 --timeout-ms 30000"
        ),
        "groups with types": call("kafka-groups --list --consumer"),
        "consumer groups by state": call("kafka-consumer-groups --list --type consumer --state"),
        "lag of a consumer group": call("kafka-consumer-groups --group modern --describe"),
        "members of a consumer group": call("kafka-consumer-groups --group modern --describe --members --verbose"),
        "state of a consumer group": call("kafka-consumer-groups --group modern --describe --state"),
        "reset a consumer group": call(
            "kafka-consumer-groups --group modern --reset-offsets --topic lines --to-earliest --execute"
        ),
        "set for a group": call(
            "kafka-configs --alter --entity-type groups --entity-name modern "
            "--add-config consumer.session.timeout.ms=50000"
        ),
        "settings of a group": call("kafka-configs --describe --entity-type groups --entity-name modern"),
        "delete a consumer group": call("kafka-consumer-groups --group modern --delete"),
        # share groups (KIP-932)
        "reset a share group": call(f"{SHARE_GROUP} --reset-offsets --topic lines --to-earliest --execute"),
        "share groups": call("kafka-share-groups --list --state"),
        "share groups by type": call("kafka-groups --list --share"),
        "offsets of a share group": call(f"{SHARE_GROUP} --describe --offsets"),
        "state of a share group": call(f"{SHARE_GROUP} --describe --state"),
        "delete offsets of a share group": call(f"{SHARE_GROUP} --delete-offsets --topic lines"),
        "delete a share group": call(f"{SHARE_GROUP} --delete"),
        # verifying and measuring
        "verifiable producer": call("kafka-verifiable-producer --topic verified --max-messages 50 --acks -1"),
        "verifiable consumer": call(
            "kafka-verifiable-consumer --topic verified --group-id verifiers --max-messages 50 --reset-policy earliest"
        ),
        "producer performance": call(
            "kafka-producer-perf-test --topic measured --num-records 1000 --record-size 100 --throughput -1"
        ),
        "consumer performance": call("kafka-consumer-perf-test --topic measured --num-records 1000"),
        "latency": call("kafka-e2e-latency --topic hurried --num-records 20 --producer-acks all --record-size 100"),
        # the broker
        "delete records": call(f"kafka-delete-records --offset-json-file {offsets_file}"),
        "starts after": call("kafka-get-offsets --topic verified --time earliest"),
        "log directories": call("kafka-log-dirs --describe --topic-list lines"),
        "versions": call("kafka-broker-api-versions"),
        "cluster": call("kafka-cluster cluster-id"),
        "endpoints": call("kafka-cluster list-endpoints"),
        "transactions": call("kafka-transactions list"),
        "transactions by pattern": call("kafka-transactions list --transactional-id-pattern orders.*"),
        "old transactions": call("kafka-transactions list --duration-filter 1000"),
        "hanging transactions": call("kafka-transactions find-hanging --broker-id 1"),
        "open transactions": call("kafka-transactions list"),
        "describe an open transaction": call("kafka-transactions describe --transactional-id purchases"),
        "describe no transaction": call("kafka-transactions describe --transactional-id nobody"),
        "abort an open transaction": call("kafka-transactions abort --topic bought --partition 0 --start-offset 0"),
        "producers after the abort": call("kafka-transactions describe-producers --topic bought --partition 0"),
        "abort at no offset": call("kafka-transactions abort --topic bought --partition 0 --start-offset 77"),
        "force a termination": call("kafka-transactions forceTerminateTransaction --transactional-id purchases"),
        "producers": call("kafka-transactions describe-producers --topic lines --partition 0"),
        "delete": call("kafka-topics --delete --topic orders"),
        "delete none": call("kafka-topics --delete --topic no-such"),
        "list": call("kafka-topics --list --exclude-internal"),
    }


#: What is looked at by a test of its own, or tells times and nothing else.
ONE_BY_ONE = {
    "all settings",
    "log directories",
    "versions",
    "verifiable producer",  # tells of as many acknowledgements as came before it ended
    "verifiable consumer",
    "producer performance",
    "consumer performance",
    "latency",
}
#: What we say in words of our own.
OWN_WORDS = {
    "create twice": "topic 'orders' already exists",
    "create with replicas": "replication factor 3: must be -1 (default), or 1 to the number of registered brokers",
    "shrink": "topic 'orders' has 5 partitions; the number can only grow, not be 2",
    "set nonsense": "unknown topic setting 'no.such'",
}
NAMES = tuple(calls(Path()))

Answers = Mapping[str, ToolOutput]


def story(bootstrap: str, directory: Path) -> Answers:
    """All calls in one JVM, beside a group that lives."""
    offsets_file = directory / "offsets.json"
    offsets_file.write_text('{"partitions": [{"topic": "verified", "partition": 0, "offset": 10}], "version": 1}')
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic("watched", 2, 1)])["watched"].result()
    admin.create_topics([NewTopic("bought", 1, 1)])["bought"].result()
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "purchases", "log_level": 2})
    producer.init_transactions(LIMIT_S)
    producer.begin_transaction()  # left open
    producer.produce("bought", b"value")
    producer.flush(LIMIT_S)
    with Members(bootstrap, "living", "watched") as members:
        members.until_shared(range(2), [members.join("confluent")])
        return run(bootstrap, calls(offsets_file))


@pytest.fixture(scope="module")
def kafkas(fresh_kafka: str, tmp_path_factory: pytest.TempPathFactory) -> Answers:
    return story(fresh_kafka, tmp_path_factory.mktemp("kafkas"))


@pytest.fixture(scope="module")
def ours(fresh_warmlog: str, java_tools: None, tmp_path_factory: pytest.TempPathFactory) -> Answers:
    return story(fresh_warmlog, tmp_path_factory.mktemp("ours"))


@pytest.mark.parametrize("name", sorted({*NAMES} - ONE_BY_ONE - {*OWN_WORDS}))
def test_a_tool_says_the_same_of_both(kafkas: Answers, ours: Answers, name: str) -> None:
    assert steady(ours[name]) == steady(kafkas[name])


@pytest.mark.parametrize("name", OWN_WORDS)
def test_what_is_refused_is_refused_in_plain_words(kafkas: Answers, ours: Answers, name: str) -> None:
    assert ours[name].status == kafkas[name].status == 1
    assert OWN_WORDS[name] in ours[name].output + ours[name].complaints


def test_the_story_is_the_one_that_was_meant(kafkas: Answers) -> None:
    """Two brokers that fail alike would say the same, too."""
    failing = {name for name, said in kafkas.items() if said.status != 0}
    assert failing == {
        "create twice",
        "create with replicas",
        "create with a bad setting",
        "shrink",
        "describe none",
        "set nonsense",
        "delete none",
        "describe no transaction",
        "abort at no offset",
        "force a termination",
    }
    assert [line.split("\t")[2] for line in kafkas["consume"].output.splitlines()] == [f"value {i}" for i in range(10)]
    assert "PartitionCount: 5" in kafkas["describe"].output


def listed_settings(said: ToolOutput) -> dict[str, str]:
    """Name and value of each line of kafka-configs --all."""
    return dict(re.findall(r"^  ([\w.]+)=(\S*) sensitive=", said.output, re.MULTILINE))


def test_every_setting_of_a_topic_is_one_of_kafkas_with_the_same_value(kafkas: Answers, ours: Answers) -> None:
    theirs, own = listed_settings(kafkas["all settings"]), listed_settings(ours["all settings"])
    known = {name: value for name, value in own.items() if not name.startswith("warmlog.")}
    assert known == {name: theirs[name] for name in known}
    assert {"cleanup.policy", "max.message.bytes", "retention.bytes", "segment.bytes"} <= known.keys()


def test_apis_are_served_in_the_versions_of_kafka(kafkas: Answers, ours: Answers) -> None:
    theirs, own = (
        set(re.findall(r"\t(\w+\(\d+\): .*?),?$", said.output, re.MULTILINE))
        for said in (kafkas["versions"], ours["versions"])
    )
    served = {line for line in own if "UNSUPPORTED" not in line}
    assert len(served) >= 29
    assert served <= theirs


def test_log_directories_hold_what_was_written(kafkas: Answers, ours: Answers) -> None:
    def partitions(said: ToolOutput) -> tuple[list[str], int]:
        (line,) = [line for line in said.output.splitlines() if line.startswith("{")]
        (broker,) = json.loads(line)["brokers"]
        (directory,) = broker["logDirs"]
        assert (directory["error"], broker["broker"]) == (None, 1)
        assert {one["offsetLag"] for one in directory["partitions"]} == {0}
        assert not any(one["isFuture"] for one in directory["partitions"])
        return [one["partition"] for one in directory["partitions"]], directory["partitions"][0]["size"]

    (theirs, size), (own, own_size) = partitions(kafkas["log directories"]), partitions(ours["log directories"])
    assert own == theirs == ["lines-0"]
    assert abs(own_size - size) <= len(RECORDS.splitlines()), "a timestamp takes a byte more when the producer was slow"


@pytest.mark.parametrize("answers", ["kafkas", "ours"])
def test_everything_that_was_produced_is_consumed_and_measured(answers: str, request: pytest.FixtureRequest) -> None:
    said: Answers = request.getfixturevalue(answers)
    events = [json.loads(line) for line in said["verifiable consumer"].output.splitlines() if line.startswith("{")]
    assert sum(each["count"] for each in events if each["name"] == "records_consumed") == 50
    assert "1000 records sent" in said["producer performance"].output
    assert "1000," in said["consumer performance"].output
    assert "Avg latency" in said["latency"].output
    assert {said[name].status for name in ONE_BY_ONE} == {0}
