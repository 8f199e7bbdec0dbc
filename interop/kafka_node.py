"""Run a real Kafka on the loopback, with one or several nodes, and the small Java programs in kafka/ beside it.

They are built once, with Maven. Nothing here imports warmlog, so that a report about a directory is entirely Kafka's.
Synchronous; every process started here is also ended here.
"""

import fcntl
import json
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import IO, NamedTuple, Self

from interop.nodes import Nodes
from interop.ports import free_ports

PROJECT = Path(__file__).parent / "kafka"
#: The version of the golden files, and of Kafka's tools and applications.
KAFKA_VERSION = "4.3.1"
#: The version whose messages and responses are compared with ours. Its Connect and MirrorMaker are not published.
WIRE_VERSION = "4.4.0"
#: One id for all golden files, so that a second run of the generator changes as little as possible.
CLUSTER_ID = "d2FybWxvZ2dvbGRlbg"
#: A fast start matters more than speed when warm, since the programs run for seconds.
JVM_OPTIONS = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
#: A directory of classes would prevent a JVM from using an archive of classes.
PROGRAMS = PROJECT / "target" / "interop-kafka-1.jar"
START_LIMIT_S = 90
STOP_LIMIT_S = 60

SETTINGS: Mapping[str, object] = {
    "process.roles": "broker,controller",
    "node.id": 1,
    "controller.listener.names": "CONTROLLER",
    "offsets.topic.num.partitions": 1,
    "offsets.topic.replication.factor": 1,
    "transaction.state.log.num.partitions": 1,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
    "share.coordinator.state.topic.num.partitions": 1,
    "share.coordinator.state.topic.replication.factor": 1,
    "group.initial.rebalance.delay.ms": 0,
    "auto.create.topics.enable": "false",
    # The cleaner and the retention check run immediately instead of after seconds and minutes.
    "log.cleaner.backoff.ms": 100,
    "log.cleaner.dedupe.buffer.size": 4_194_304,
    "log.retention.check.interval.ms": 200,
    "log.initial.task.delay.ms": 0,
}


class MissingToolError(Exception):
    """Java or Maven is not installed; the message names what is missing."""


def require_tools() -> None:
    """Raise MissingToolError unless Java and Maven are installed."""
    missing = [tool for tool in ("java", "javac", "mvn") if shutil.which(tool) is None]
    if missing:
        raise MissingToolError(f"not installed: {', '.join(missing)} (Debian: default-jdk-headless and maven)")


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Exclude other threads and processes that lock the same file."""
    with path.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def build() -> str:
    """Compile the programs and fetch Kafka's jars, unless done since their sources changed; return the class path."""
    require_tools()
    stamp = PROJECT / "target" / "built"
    sources = [PROJECT / "pom.xml", *(PROJECT / "src").rglob("*.*")]
    with locked(PROJECT / "pom.xml"):
        if not stamp.exists() or stamp.stat().st_mtime < max(source.stat().st_mtime for source in sources):
            command = ["mvn", "--batch-mode", "--quiet", "-Dstyle.color=never", "package"]
            subprocess.run(command, cwd=PROJECT, check=True)
            stamp.touch()
    return f"{PROGRAMS}:{PROJECT / 'target' / 'lib'}/*"


def class_path(version: str = KAFKA_VERSION) -> str:
    """Return the class path of a version of Kafka; its jars are fetched once, and again after the project changed."""
    built = build()
    if version == KAFKA_VERSION:
        return built
    jars, project = PROJECT / "target" / f"lib-{version}", PROJECT / "pom.xml"
    with locked(project):
        if not jars.exists() or jars.stat().st_mtime < project.stat().st_mtime:
            fetched = jars.with_name(f"{jars.name}.fetched")
            command = ["mvn", "--batch-mode", "--quiet", f"-Dkafka.version={version}"]
            options = ["-DincludeScope=runtime", "-DexcludeArtifactIds=slf4j-reload4j", f"-DoutputDirectory={fetched}"]
            subprocess.run([*command, "dependency:copy-dependencies", *options], cwd=PROJECT, check=True)
            shutil.rmtree(jars, ignore_errors=True)
            fetched.rename(jars)
            os.utime(jars)
    return f"{PROGRAMS}:{jars}/*"


def jar(name: str, version: str = KAFKA_VERSION) -> Path:
    """Return the path of one of Kafka's jars; fetch it if it is missing."""
    libraries = Path(class_path(version).rpartition(":")[2]).parent
    return libraries / f"{name}-{version}.jar"


def archive_path(version: str) -> Path:
    """Return the path of the archive of a version's classes, which `class_archive` writes."""
    return PROJECT / "target" / f"classes-{version}.jsa"


def launch(version: str = KAFKA_VERSION, options: Sequence[str] = JVM_OPTIONS) -> list[str]:
    """Return a Java command up to its class path, to be followed by the main class and its arguments."""
    archive = archive_path(version)
    shared = [f"-XX:SharedArchiveFile={archive}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"] if archive.exists() else []
    return ["java", *options, *shared, "-cp", class_path(version)]


def java(
    main: str,
    *arguments: str,
    text: str | None = None,
    version: str = KAFKA_VERSION,
    options: Sequence[str] = (),
) -> str:
    """Run a Java program to completion with `text` as its standard input; return its standard output."""
    command = [*launch(version, (*JVM_OPTIONS, *options)), main, *arguments]
    return subprocess.run(command, input=text, stdout=subprocess.PIPE, text=True, check=True).stdout


@dataclass(frozen=True, slots=True, kw_only=True)
class Dump:
    """The output of DumpLogSegments for one file: its report, and the errors it found (empty if none)."""

    arguments: str
    output: str
    complaints: str
    exception: str | None

    def findings(self) -> list[str]:
        """Return the errors it found, one per line, without headings of empty lists.

        For every segment except a log's first, this version reports that -1 is followed by the first offset: not a
        finding.
        """
        lines = [line for line in self.complaints.splitlines() if not re.fullmatch(r"\s+-1 is followed by \d+", line)]
        kept = [line for line, following in pairwise([*lines, ""]) if not is_bare_heading(line, following)]
        return [*kept, *([self.exception] if self.exception else [])]


def is_bare_heading(line: str, following: str) -> bool:
    """Return whether a line is the heading of a list whose findings were all removed."""
    return line.startswith("Non-consecutive offsets in") and not following.startswith(" ")


def dump(commands: Iterable[Sequence[str | Path]]) -> list[Dump]:
    """Run DumpLogSegments once for each list of arguments, all in one JVM."""
    lines = "".join("\t".join(map(str, command)) + "\n" for command in commands)
    return [Dump(**json.loads(line)) for line in java("warmlog.interop.Dump", text=lines).splitlines()]


def consume(bootstrap: str, *topics: str, isolation: str = "read_uncommitted") -> list[dict[str, object]]:
    """Read every partition with the Java consumer; return log_start_offset, end_offset, records (bytes in base64)."""
    return [json.loads(line) for line in java("warmlog.interop.Consume", bootstrap, isolation, *topics).splitlines()]


def create_topics(bootstrap: str, topics: Mapping[str, Mapping[str, object]]) -> None:
    """Create topics of one partition, each with its settings by Kafka's names."""
    specified = [f"{name}:1:" + ",".join(f"{key}={value}" for key, value in topics[name].items()) for name in topics]
    java("warmlog.interop.CreateTopics", bootstrap, *specified)


class Seat(NamedTuple):
    """The addresses of a node in a quorum of brokers that are also controllers, and all voters in Kafka's format."""

    broker: str
    controller: str
    voters: str


class KafkaNode:
    """Kafka with one data directory. A context manager: starts on entering, stops cleanly on leaving."""

    def __init__(
        self,
        data: Path,
        *,
        jvm_options: Sequence[str] = JVM_OPTIONS,
        settings: Mapping[str, object] = SETTINGS,
        advertised: str = "",
        version: str = KAFKA_VERSION,
        controller: Self | None = None,
        seat: Seat | None = None,
        secured: str = "",
    ) -> None:
        """Prepare a node.

        `controller`: a running node whose cluster this one joins (give it a `node.id`). `seat`: its addresses in a
        quorum. `secured`: the security protocol of another listener, at `secured_bootstrap`.
        """
        self.data = data
        self.controller_address = ""
        self._version = version
        self._controller = controller
        self._seat = seat
        self._jvm_options = jvm_options
        self._given = settings
        self._advertised = advertised
        self._secured = secured
        self.bootstrap = self.secured_bootstrap = ""
        self._process: subprocess.Popen[str] | None = None
        self._started = threading.Event()
        self._follower: threading.Thread | None = None
        self._settings = data.with_name(data.name + ".properties")
        self._log = data.with_name(data.name + ".kafka.log")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """The process id."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Format the directory if it is new, start, and wait until Kafka reports that it has started."""
        self.begin()
        self.wait_until_started()

    def begin(self) -> None:
        """Format the directory if it is new, and start the process."""
        self._write_settings()
        if not (self.data / "meta.properties").exists():
            format_it = ("format", "-t", CLUSTER_ID, "-c", str(self._settings))
            java("kafka.tools.StorageTool", *format_it, version=self._version)
        command = [*launch(self._version, self._jvm_options), "kafka.Kafka", str(self._settings)]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self._started = threading.Event()
        arguments = (self._process.stderr, self._started)
        self._follower = threading.Thread(target=self._follow, args=arguments, daemon=True)
        self._follower.start()

    def wait_until_started(self) -> None:
        """Wait until Kafka reports that it has started."""
        assert self._process is not None
        started = self._started
        started.wait(START_LIMIT_S)
        if not started.is_set() or self._process.poll() is not None:
            self.kill()
            raise RuntimeError(f"Kafka did not start: {self._log.read_text()[-2000:]}")

    def stop(self) -> None:
        """Stop cleanly: indexes trimmed, checkpoints and the clean-shutdown marker written."""
        if self._process is not None:
            self._process.terminate()
            self._wait()

    def kill(self) -> None:
        """Kill the process; the kernel keeps what it has written."""
        if self._process is not None:
            self._process.kill()
            self._wait()

    def log(self) -> str:
        """Return Kafka's log so far: warnings and errors, over all starts."""
        return self._log.read_text() if self._log.exists() else ""

    def _wait(self) -> None:
        assert self._process is not None
        assert self._follower is not None
        self._process.wait(STOP_LIMIT_S)
        self._process = None
        self._follower.join()

    def _write_settings(self) -> None:
        if self._seat is None:
            self.bootstrap, self.controller_address = (f"127.0.0.1:{port}" for port in free_ports(2))
        else:
            self.bootstrap, self.controller_address = self._seat.broker, self._seat.controller
        if self._controller is None:
            roles = {"listeners": f"PLAINTEXT://{self.bootstrap},CONTROLLER://{self.controller_address}"}
        else:
            self.controller_address = self._controller.controller_address
            roles = {"listeners": f"PLAINTEXT://{self.bootstrap}", "process.roles": "broker"}
        advertised = f"PLAINTEXT://{self._advertised or self.bootstrap}"
        if self._secured:
            self.secured_bootstrap = f"127.0.0.1:{free_ports(1)[0]}"
            listener = f",{self._secured}://{self.secured_bootstrap}"
            roles["listeners"] += listener
            protocols = {"PLAINTEXT": "PLAINTEXT", "CONTROLLER": "PLAINTEXT", self._secured: self._secured}
            roles["listener.security.protocol.map"] = ",".join(map(":".join, protocols.items()))
            advertised += listener
        settings = {
            "log.dirs": self.data,  # unless others are given, of which it is the first
            **self._given,
            **roles,
            "advertised.listeners": advertised,
            "controller.quorum.voters": self._seat.voters if self._seat else f"1@{self.controller_address}",
        }
        self._settings.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))

    def _follow(self, lines: IO[str] | None, started: threading.Event) -> None:
        assert lines is not None
        with lines, self._log.open("a") as log:
            for line in lines:
                log.write(line)
                log.flush()
                if "Kafka Server started" in line:
                    started.set()
        started.set()  # it ended; waiting callers check the process


class KafkaNodes(Nodes[KafkaNode]):
    """Nodes 1 to `count`, each a broker and a controller.

    A node keeps its ports over restarts. The data of node N is in DIRECTORY/node-N.
    """

    def __init__(
        self,
        directory: Path,
        *,
        count: int = 3,
        jvm_options: Sequence[str] = JVM_OPTIONS,
        settings: Mapping[str, object] = SETTINGS,
    ) -> None:
        ports = iter(free_ports(2 * count))
        pairs = {number: (f"127.0.0.1:{next(ports)}", f"127.0.0.1:{next(ports)}") for number in range(1, count + 1)}
        voters = ",".join(f"{number}@{controller}" for number, (_, controller) in pairs.items())
        nodes = {
            number: KafkaNode(
                directory / f"node-{number}",
                jvm_options=jvm_options,
                settings={**settings, "node.id": number},
                seat=Seat(broker, controller, voters),
            )
            for number, (broker, controller) in pairs.items()
        }
        super().__init__(nodes)

    def start(self) -> None:
        """Start all nodes, and wait until they are ready."""
        with ThreadPoolExecutor(len(self.nodes)) as pool:
            list(pool.map(KafkaNode.begin, self.nodes.values()))
        for node in self.nodes.values():
            node.wait_until_started()


def in_ci() -> bool:
    """Return whether a missing tool is a failure (CI=true) instead of a reason to skip."""
    return os.environ.get("CI", "") == "true"
