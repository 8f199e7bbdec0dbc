"""Run Kafka's own command line tools, many in one JVM, and return their output."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from interop.kafka_node import KAFKA_VERSION, java

# The tools' classes by the names of Kafka's scripts.
CLASSES: Mapping[str, str] = {
    "kafka-acls": "org.apache.kafka.tools.AclCommand",
    "kafka-broker-api-versions": "org.apache.kafka.tools.BrokerApiVersionsCommand",
    "kafka-client-metrics": "org.apache.kafka.tools.ClientMetricsCommand",
    "kafka-cluster": "org.apache.kafka.tools.ClusterTool",
    "kafka-configs": "kafka.admin.ConfigCommand",
    "kafka-console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "kafka-console-producer": "org.apache.kafka.tools.ConsoleProducer",
    "kafka-consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "kafka-consumer-perf-test": "org.apache.kafka.tools.ConsumerPerformance",
    "kafka-delegation-tokens": "org.apache.kafka.tools.DelegationTokenCommand",
    "kafka-delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "kafka-e2e-latency": "org.apache.kafka.tools.EndToEndLatency",
    "kafka-features": "org.apache.kafka.tools.FeatureCommand",
    "kafka-get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "kafka-groups": "org.apache.kafka.tools.GroupsCommand",
    "kafka-leader-election": "org.apache.kafka.tools.LeaderElectionCommand",
    "kafka-log-dirs": "org.apache.kafka.tools.LogDirsCommand",
    "kafka-metadata-quorum": "org.apache.kafka.tools.MetadataQuorumCommand",
    "kafka-producer-perf-test": "org.apache.kafka.tools.ProducerPerformance",
    "kafka-reassign-partitions": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    "kafka-share-groups": "org.apache.kafka.tools.consumer.group.ShareGroupCommand",
    "kafka-streams-groups": "org.apache.kafka.tools.streams.StreamsGroupCommand",
    "kafka-topics": "org.apache.kafka.tools.TopicCommand",
    "kafka-transactions": "org.apache.kafka.tools.TransactionsCommand",
    "kafka-verifiable-consumer": "org.apache.kafka.tools.VerifiableConsumer",
    "kafka-verifiable-producer": "org.apache.kafka.tools.VerifiableProducer",
}
# Tools whose address comes before the subcommand.
ADDRESS_FIRST = {"kafka-features", "kafka-metadata-quorum", "kafka-transactions"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A command line without the address, and the text for the tool's standard input."""

    tool: str
    arguments: tuple[str, ...]
    text: str = ""

    def line(self, bootstrap: str) -> str:
        """Return the call in the Java program's format."""
        address = ("--bootstrap-server", bootstrap)
        parts = (address, self.arguments) if self.tool in ADDRESS_FIRST else (self.arguments, address)
        call = {"tool": CLASSES[self.tool], "arguments": [*parts[0], *parts[1]], "text": self.text}
        return json.dumps(call) + "\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOutput:
    """The output of a tool (both streams) and its exit status."""

    status: int
    output: str
    complaints: str


def call(command: str, text: str = "") -> Call:
    """Parse a command line without quotes into a call."""
    tool, *arguments = command.split()
    return Call(tool=tool, arguments=tuple(arguments), text=text)


def run(
    bootstrap: str, calls: Mapping[str, Call], *properties: str, version: str = KAFKA_VERSION
) -> dict[str, ToolOutput]:
    """Run the calls in order against one broker; return their outputs by name.

    `properties` are options of the JVM, such as -Dname=value. `version`: version of the tools.
    """
    text = "".join(each.line(bootstrap) for each in calls.values())
    answers = java("warmlog.interop.Tools", text=text, options=properties, version=version)
    lines = [line for line in answers.splitlines() if line.startswith('{"status":')]  # other threads are shutdown hooks
    return {name: ToolOutput(**json.loads(line)) for name, line in zip(calls, lines, strict=True)}
