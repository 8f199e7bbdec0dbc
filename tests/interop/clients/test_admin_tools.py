"""Kafka's tools for administrators say of warmlog what they say of a single Kafka node without security."""

import json
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from interop.java_tools import Call, ToolOutput, call, run
from tests.clients.members import Members
from tests.interop.clients.tool_output import steady

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

TOPIC = "administered"
VOTER = "--controller-id 1 --controller-directory-id AAAAAAAAAAAAAAAAAAAAAQ"


def calls(files: Path) -> dict[str, Call]:
    """Calls in order; `files` is where those lie that they read."""
    moves = f"--reassignment-json-file {files / 'moves.json'}"
    return {
        "describe": call(f"kafka-topics --describe --topic {TOPIC}"),
        # security
        "acls": call("kafka-acls --list"),
        "add an acl": call(f"kafka-acls --add --allow-principal User:a --operation Read --topic {TOPIC}"),
        "remove acls": call(f"kafka-acls --remove --force --topic {TOPIC}"),
        "users": call("kafka-configs --describe --entity-type users"),
        "a user": call("kafka-configs --describe --entity-type users --entity-name alice"),
        "remove credentials": call(
            "kafka-configs --alter --entity-type users --entity-name alice --delete-config SCRAM-SHA-256"
        ),
        "quotas of clients": call("kafka-configs --describe --entity-type clients"),
        "default quotas": call("kafka-configs --describe --entity-type clients --entity-default"),
        "quotas of addresses": call("kafka-configs --describe --entity-type ips"),
        "set credentials": call(
            "kafka-configs --alter --entity-type users --entity-name bob --add-config SCRAM-SHA-256=[password=x]"
        ),
        "set a quota": call(
            "kafka-configs --alter --entity-type clients --entity-name c --add-config producer_byte_rate=1000000000"
        ),
        "set quotas of a user's client": call(
            "kafka-configs --alter --entity-type users --entity-name a/b --entity-type clients --entity-default "
            "--add-config consumer_byte_rate=2000000000,request_percentage=900.5"
        ),
        "set default quotas": call(
            "kafka-configs --alter --entity-type users --entity-default --add-config request_percentage=800"
        ),
        "set no quota": call(
            "kafka-configs --alter --entity-type users --entity-default --add-config request_percentage=-1"
        ),
        "the quota": call("kafka-configs --describe --entity-type clients --entity-name c"),
        "quotas of the user's clients": call(
            "kafka-configs --describe --entity-type users --entity-name a/b --entity-type clients"
        ),
        "the default quotas": call("kafka-configs --describe --entity-type users --entity-default"),
        "all quotas of users": call("kafka-configs --describe --entity-type users"),
        "set a rate of connections": call(
            "kafka-configs --alter --entity-type ips --entity-name 10.1.2.3 --add-config connection_creation_rate=100"
        ),
        "the rate of connections": call("kafka-configs --describe --entity-type ips"),
        "remove a quota": call(
            "kafka-configs --alter --entity-type clients --entity-name c --delete-config producer_byte_rate"
        ),
        "the removed quota": call("kafka-configs --describe --entity-type clients --entity-name c"),
        # resources with settings
        "groups": call("kafka-configs --describe --entity-type groups"),
        "a group": call("kafka-configs --describe --entity-type groups --entity-name living"),
        "client metrics": call("kafka-configs --describe --entity-type client-metrics"),
        "list client metrics": call("kafka-client-metrics --list"),
        "describe client metrics": call("kafka-client-metrics --describe --name none"),
        "alter client metrics": call("kafka-client-metrics --alter --name ours --metrics org.apache. --interval 5000"),
        "brokers": call("kafka-configs --describe --entity-type brokers"),
        "list groups": call("kafka-groups --list"),
        # the controller
        "features": call("kafka-features describe"),
        "upgrade to the same": call("kafka-features upgrade --feature metadata.version=33"),
        "downgrade": call("kafka-features downgrade --feature metadata.version=6"),
        "upgrade nothing": call("kafka-features upgrade --feature no.such.version=1"),
        "quorum": call("kafka-metadata-quorum describe --status"),
        "replication": call("kafka-metadata-quorum describe --replication"),
        "remove a voter": call(f"kafka-metadata-quorum remove-controller {VOTER}"),
        "unregister": call("kafka-cluster unregister --id 7"),
        # leaders and replicas
        "elect all": call("kafka-leader-election --election-type preferred --all-topic-partitions"),
        "elect one": call(f"kafka-leader-election --election-type preferred --topic {TOPIC} --partition 0"),
        "elect uncleanly": call(
            f"kafka-leader-election --election-type unclean --path-to-json-file {files / 'elected.json'}"
        ),
        "elect none": call("kafka-leader-election --election-type preferred --topic nope --partition 0"),
        "propose": call(
            f"kafka-reassign-partitions --generate --broker-list 1 --topics-to-move-json-file {files / 'topics.json'}"
        ),
        "reassign": call(f"kafka-reassign-partitions --execute {moves}"),
        "verify": call(f"kafka-reassign-partitions --verify {moves}"),
        "cancel": call(f"kafka-reassign-partitions --cancel {moves}"),
        "reassignments": call("kafka-reassign-partitions --list"),
        "reassign to nobody": call(
            f"kafka-reassign-partitions --execute --reassignment-json-file {files / 'nobody.json'}"
        ),
    }


def write_files(directory: Path) -> None:
    """Write the files that the calls name."""
    partition = {"topic": TOPIC, "partition": 0}
    contents = {
        "topics": {"version": 1, "topics": [{"topic": TOPIC}]},
        "elected": {"partitions": [partition]},
        "moves": {"version": 1, "partitions": [partition | {"replicas": [1]}]},
        "nobody": {"version": 1, "partitions": [partition | {"replicas": [2]}]},
    }
    for name, content in contents.items():
        (directory / f"{name}.json").write_text(json.dumps(content))


#: Refused here and there, each in its own words.
OWN_WORDS = {
    "acls": "SecurityDisabledException",
    "add an acl": "SecurityDisabledException",
    "remove acls": "SecurityDisabledException",
    "remove credentials": "ResourceNotFoundException",
    "set no quota": "must be greater than 0",
    "downgrade": "metadata.version",
    "upgrade nothing": "no.such.version",
    "remove a voter": "UnsupportedVersionException",
    "unregister": "BrokerIdNotRegisteredException",
    "elect none": "UnknownTopicOrPartitionException",
}
#: With ids, paths and offsets of their own, or with the groups of other tests.
ONE_BY_ONE = {"features", "quorum", "replication", "propose", "reassign", "groups", "list groups"}
NAMES = tuple(calls(Path()))

Answers = Mapping[str, ToolOutput]


def story(bootstrap: str, directory: Path) -> Answers:
    """Run all calls in one JVM, beside a group that lives."""
    write_files(directory)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(TOPIC, 2, 1)])[TOPIC].result()
    with Members(bootstrap, "living", TOPIC) as members:
        members.until_shared(range(2), [members.join("confluent")])
        return run(bootstrap, calls(directory))


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
def test_what_kafka_refuses_is_refused_by_the_same_error(kafkas: Answers, ours: Answers, name: str) -> None:
    for said in (kafkas[name], ours[name]):
        assert said.status == 1
        assert OWN_WORDS[name] in said.output + said.complaints


def test_the_story_is_the_one_that_was_meant(kafkas: Answers) -> None:
    """Two brokers that fail alike would say the same, too."""
    failing = {name for name, said in kafkas.items() if said.status != 0}
    assert failing == {*OWN_WORDS, "reassign to nobody"}


@pytest.mark.parametrize("answers", ["kafkas", "ours"])
def test_features_and_the_quorum_are_told(answers: str, request: pytest.FixtureRequest) -> None:
    said: Answers = request.getfixturevalue(answers)
    (feature,) = re.findall(r"Feature: metadata.version\s+(.*)", said["features"].output)
    assert "FinalizedVersionLevel: UNKNOWN 33" in feature  # 4.4-IV0, which these tools do not know
    quorum = dict(re.findall(r"(\w+):\s+(\S+)", said["quorum"].output))
    assert (quorum["LeaderId"], quorum["MaxFollowerLag"]) == ("1", "0")
    assert int(quorum["HighWatermark"]) > 0
    _, leader = said["replication"].output.splitlines()[:2]
    assert leader.split()[0] == "1"
    assert leader.split()[-1] == "Leader"


@pytest.mark.parametrize("answers", ["kafkas", "ours"])
def test_a_group_that_lives_is_listed_and_its_settings_described(answers: str, request: pytest.FixtureRequest) -> None:
    said: Answers = request.getfixturevalue(answers)
    assert "Dynamic configs for group living are:" in said["groups"].output
    assert re.search(r"(?m)^living\s+Classic\s+consumer", said["list groups"].output)


@pytest.mark.parametrize("answers", ["kafkas", "ours"])
def test_a_reassignment_to_where_a_partition_is_changes_nothing(answers: str, request: pytest.FixtureRequest) -> None:
    said: Answers = request.getfixturevalue(answers)
    assert f"Successfully started partition reassignment for {TOPIC}-0" in said["reassign"].output
    assert '"replicas":[1]' in said["propose"].output
    assert {said[name].status for name in ONE_BY_ONE} == {0}
