"""Kill instances of a word count of Kafka Streams, brokers and coordinators again and again, and check every count.

    python -m tests.cluster.streams_kills [--brokers N] [--instances I] [--kills N] [--seed SEED]

One broker, or three on etcd, with a producer of lines and instances that count their words with `exactly_once_v2` as a
streams group, with standby tasks. Each kill with SIGKILL hits an instance, the leader of a partition (of a source, a
repartition topic, a changelog or the results), a transaction coordinator, the group coordinator, all brokers, or a
broker and again while it recovers; or an instance is frozen for longer than its session lasts. Afterwards each word of
each line must have been counted once, in order. The exit status is 1 if anything is wrong.
"""

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any, Self

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from interop.kafka_node import WIRE_VERSION, launch
from interop.nodes import Nodes
from interop.warmlog_nodes import WarmlogNode
from tests.cluster.broker_kills import LIMIT_S, BrokerKiller, running
from tests.cluster.report import conclude

APPLICATION = "words"
SOURCE, RESULTS = "words-in", "words-out"
TOPICS = (SOURCE, RESULTS, "words-counts-repartition", "words-counts-changelog")
PARTITIONS = 4
LINES_PER_S = 60.0
WORDS = 5  # of a line
FROZEN_S = 6.0  # longer than sessions last
GROUP_KEYS = 0
#: What to kill, and how often in relation to each other.
WEIGHTS = {
    "instance": 6,
    "leader": 4,
    "group coordinator": 3,
    "transaction coordinator": 2,
    "recovering broker": 1,
    "all brokers": 1,
    "frozen instance": 1,
}
JVM = ("-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
SETTINGS = {
    "offsets.topic.num.partitions": 2,
    "transaction.state.log.num.partitions": 3,
    "group.streams.initial.rebalance.delay.ms": 0,
    "group.streams.min.session.timeout.ms": 1000,
    "group.streams.session.timeout.ms": 4000,
    "group.streams.min.heartbeat.interval.ms": 100,
    "group.streams.heartbeat.interval.ms": 500,
}


def line(number: int) -> bytes:
    """Return five words of twenty-three, some of them much more often than others."""
    return b" ".join(b"w%d" % (number * factor % 23) for factor in range(WORDS))


class Instance:
    """An instance of the application, which is started at once. A number has its own directory of states."""

    def __init__(self, number: int, bootstrap: str, directory: Path) -> None:
        self.number = number
        self.lines: list[dict[str, Any]] = []
        store = "memory" if number % 2 else "rocksdb"
        main = ["warmlog.interop.WordCount", bootstrap, APPLICATION, str(directory / f"states-{number}")]
        self._errors = (directory / f"instance-{number}.log").open("a")
        self._process = subprocess.Popen(
            [*launch(WIRE_VERSION, JVM), *main, "group.protocol=streams", f"store={store}"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True,
        )  # fmt: skip
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for printed in self._process.stdout:
            with suppress(ValueError):
                self.lines.append(json.loads(printed))

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended by itself."""
        return self._process.poll() is not None

    @property
    def errors(self) -> Sequence[str]:
        """What Streams gave up for."""
        return [each["error"] for each in list(self.lines) if "error" in each]

    def freeze(self) -> None:
        """Let the process stand still for some time."""
        self._process.send_signal(signal.SIGSTOP)
        try:
            time.sleep(FROZEN_S)
        finally:
            self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill the process."""
        self._process.kill()
        self._end()

    def stop(self) -> None:
        """Let the instance leave."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._end()

    def _end(self) -> None:
        try:
            self._process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._thread.join()
        self._errors.close()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()


class Producing:
    """A producer of lines at a rate, until the context ends; `produced` counts the acknowledged ones."""

    def __init__(self, bootstrap: str) -> None:
        self.produced = 0
        self.failed: list[str] = []
        self._stop = threading.Event()
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0})
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        began_s, sent = time.monotonic(), 0
        while not self._stop.is_set():
            if sent <= (time.monotonic() - began_s) * LINES_PER_S:
                with suppress(BufferError):
                    self._producer.produce(SOURCE, line(sent), partition=sent % PARTITIONS, on_delivery=self._done)
                    sent += 1
                self._producer.poll(0)
            else:
                self._producer.poll(0.01)
        self._producer.flush(LIMIT_S)

    def _done(self, error: KafkaError | None, _: Message) -> None:
        if error is None:
            self.produced += 1
        else:
            self.failed.append(str(error))


class Counts:
    """Reads the results, as they are committed, until the context ends; `wrong` has what is not as it must be."""

    def __init__(self, bootstrap: str) -> None:
        self.counted: Counter[str] = Counter()
        self.wrong: list[str] = []
        self._stop = threading.Event()
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "reader",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "log_level": 0,
            }
        )
        self._consumer.assign([TopicPartition(RESULTS, number, OFFSET_BEGINNING) for number in range(PARTITIONS)])
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        self._consumer.close()

    def _run(self) -> None:
        while not self._stop.is_set():
            for message in self._consumer.consume(1000, 0.1):
                key, value = message.key(), message.value()
                if message.error() is None and key is not None and value is not None:
                    self._take(key.decode(), int(value), message)

    def _take(self, word: str, count: int, message: Message) -> None:
        self.counted[word] += 1
        if count != self.counted[word]:
            where = f"{message.partition()}/{message.offset()}"
            self.wrong.append(f"{where}: count {count} of {word} came as number {self.counted[word]}")
            self.counted[word] = count


class Killer(BrokerKiller):
    """Kills instances and brokers, and starts them again."""

    def __init__(
        self, nodes: Nodes[WarmlogNode], instances: int, directory: Path, counts: Counts, random: Random
    ) -> None:
        super().__init__(nodes, random)
        self.errors: Counter[str] = Counter()
        self._directory, self._counts = directory, counts
        self._running = [self._start(number) for number in range(instances)]

    def _start(self, number: int) -> Instance:
        return Instance(number, self._nodes.bootstrap, self._directory)

    def round(self, kind: str) -> None:
        """Kill something, and wait until more words are counted than before."""
        {
            "instance": self._instance,
            "leader": lambda: self.leader("leader", self._random.choice(TOPICS)),
            "group coordinator": lambda: self.coordinator("group coordinator", GROUP_KEYS, APPLICATION),
            "transaction coordinator": lambda: self.leader("transaction coordinator", "__transaction_state"),
            "recovering broker": self.recovering,
            "all brokers": self.all,
            "frozen instance": self._freeze,
        }[kind]()
        self.wait_for(self._counts.counted.total() + 1)
        time.sleep(self._random.uniform(0.0, 1.0))

    def wait_for(self, count: int) -> None:
        """Wait until so many words are counted; instances that gave up are replaced. Raises TimeoutError."""
        ends_s = time.monotonic() + LIMIT_S
        while (counted := self._counts.counted.total()) < count:
            if time.monotonic() > ends_s:
                raise TimeoutError(f"{counted} of {count} counts in {LIMIT_S:.0f} s after {dict(self.kills)}")
            for index, instance in enumerate(self._running):
                if instance.has_ended:
                    self._replace(index)
            time.sleep(0.05)

    def _instance(self) -> None:
        self.kills["instance"] += 1
        self._replace(self._random.randrange(len(self._running)))

    def _replace(self, index: int) -> None:
        """Kill an instance unless it has ended, and start it again."""
        instance = self._running[index]
        instance.kill()
        self.errors.update(instance.errors)
        self._running[index] = self._start(instance.number)

    def _freeze(self) -> None:
        self._random.choice(self._running).freeze()
        self.kills["frozen instance"] += 1

    def stop(self) -> None:
        """Let all instances leave."""
        for instance in self._running:
            instance.stop()
            self.errors.update(instance.errors)
        self._running.clear()

    def kill(self) -> None:
        """Kill all instances."""
        for instance in self._running:
            instance.kill()
            self.errors.update(instance.errors)


def prepare(bootstrap: str, replicas: int) -> None:
    """Create the topics, and give tasks with a state a replica."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    for created in admin.create_topics([NewTopic(name, PARTITIONS, replicas) for name in (SOURCE, RESULTS)]).values():
        created.result(LIMIT_S)
    entry = ConfigEntry("streams.num.standby.replicas", "1", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.GROUP, APPLICATION, incremental_configs=[entry])
    for altered in admin.incremental_alter_configs([resource]).values():
        altered.result(LIMIT_S)


def run(
    directory: Path,
    *,
    brokers: int,
    instances: int,
    kills: int,
    seconds: float,
    seed: int,
    kinds: Iterable[str] = (),
) -> dict[str, Any]:
    """Run until so many kills, or seconds, have passed; return the report. `kinds`: what to kill first."""
    wrong: list[str] = []
    with running(directory, brokers, SETTINGS) as nodes:
        prepare(nodes.bootstrap, brokers)
        began_s = time.monotonic()
        with Counts(nodes.bootstrap) as counts:
            killer = Killer(nodes, instances, directory, counts, Random(seed))
            first = iter(kinds)
            try:
                with Producing(nodes.bootstrap) as producing:
                    killer.wait_for(1)
                    while killer.kills.total() < kills and time.monotonic() < began_s + seconds:
                        killer.round(next(first, None) or killer.any_kind(WEIGHTS))
                killer.wait_for(producing.produced * WORDS)
                killer.stop()
            except TimeoutError as error:
                wrong.append(str(error))
            finally:
                killer.kill()
    expected = Counter(word.decode() for number in range(producing.produced) for word in line(number).split())
    if counts.counted != expected:
        wrong.append(f"counted too often {counts.counted - expected}, too seldom {expected - counts.counted}")
    return {
        "seed": seed,
        "kills": dict(killer.kills),
        "seconds": round(time.monotonic() - began_s),
        "lines": producing.produced,
        "counts": counts.counted.total(),
        "wrong": [*wrong, *counts.wrong, *(f"not produced: {error}" for error in producing.failed)],
        "errors": dict(killer.errors.most_common(12)),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, and print the report."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.streams_kills", description=__doc__.splitlines()[0])
    parser.add_argument("--brokers", type=int, choices=(1, 3), default=3)
    parser.add_argument("--instances", type=int, default=3)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=600.0, help="no kill begins after that")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="append the report to this file, one object per line")
    asked = parser.parse_args(arguments)
    directory = Path(tempfile.mkdtemp(prefix="streams-kills-"))
    report = run(
        directory,
        brokers=asked.brokers,
        instances=asked.instances,
        kills=asked.kills,
        seconds=asked.seconds,
        seed=asked.seed,
    )
    return conclude(report, directory, asked.json)


if __name__ == "__main__":
    sys.exit(main())
