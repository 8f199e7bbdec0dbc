"""Create an archive of Kafka's classes, which a JVM maps instead of reading, parsing and verifying jars at every start.

It holds the classes loaded by a node, its tools and Java clients (JEP 310, application class-data sharing). A JVM
ignores an archive that does not match its version, its class path or the jars.
"""

import subprocess
import tempfile
from pathlib import Path

from interop.java_tools import call, run
from interop.kafka_node import (
    JVM_OPTIONS,
    KAFKA_VERSION,
    WIRE_VERSION,
    KafkaNode,
    archive_path,
    class_path,
    consume,
    create_topics,
    java,
    locked,
)

TOPIC = "archived"


def archive_classes(version: str = KAFKA_VERSION) -> None:
    """Write the archive of a version of Kafka, unless one exists for its jars."""
    path = archive_path(version)
    programs, _, jars = class_path(version).partition(":")
    with locked(Path(programs)):
        newest = max(Path(programs).stat().st_mtime, Path(jars).parent.stat().st_mtime)
        if not path.exists() or path.stat().st_mtime < newest:
            path.unlink(missing_ok=True)
            _write(path, version)


def _write(path: Path, version: str) -> None:
    with tempfile.TemporaryDirectory() as directory:
        classes = Path(directory) / "classes"
        classes.write_text("".join(sorted(_loaded(Path(directory), version))))
        written = path.with_suffix(".new")
        options = [f"-XX:SharedClassListFile={classes}", f"-XX:SharedArchiveFile={written}", "-Xlog:disable"]
        command = ["java", *JVM_OPTIONS, "-Xshare:dump", *options, "-cp", class_path(version)]
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        written.rename(path)


def archive_all() -> None:
    """Write the archives of the most often started versions."""
    for version in (KAFKA_VERSION, WIRE_VERSION):
        archive_classes(version)


def _loaded(directory: Path, version: str) -> set[str]:
    """Return the lines of the class lists of a node, its formatting, tools and clients."""

    def listing(name: str) -> tuple[str, ...]:
        return (f"-XX:DumpLoadedClassList={directory / name}.classes",)

    java("kafka.tools.StorageTool", "random-uuid", version=version, options=listing("format"))
    with KafkaNode(directory / "data", version=version, jvm_options=(*JVM_OPTIONS, *listing("node"))) as node:
        create_topics(node.bootstrap, {TOPIC: {}})
        calls = [f"kafka-verifiable-producer --topic {TOPIC} --max-messages 10 --acks -1"]
        calls += [f"kafka-console-consumer --topic {TOPIC} --from-beginning --max-messages 10 --group readers"]
        calls += [f"kafka-topics --describe --topic {TOPIC}"]
        run(node.bootstrap, {each: call(each) for each in calls}, *listing("tools"))
        consume(node.bootstrap, TOPIC)
    return {
        line
        for path in directory.glob("*.classes")
        for line in path.read_text().splitlines(keepends=True)
        if not line.startswith("#")
    }
