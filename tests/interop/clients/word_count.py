"""A word count by Kafka Streams: its lines, its instances, and whether every count is there once."""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from interop.kafka_node import WIRE_VERSION, launch
from tests.clients.waiting import until
from tests.interop.clients.exactly_once import LIMIT_S, Member, members, records

WORDS = 5  # of a line
#: As a program's virtual machine; several of them run at once.
JVM = ("-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")


def line(number: int) -> bytes:
    """Return five words of twenty-three, some of them much more often than others."""
    return b" ".join(b"w%d" % (number * factor % 23) for factor in range(WORDS))


def check(bootstrap: str, target: str, lines: Sequence[bytes]) -> None:
    """Each word was counted as often as it was written, and each count is there once."""
    counted: Counter[bytes | None] = Counter()
    for word, count in records(bootstrap, target):
        counted[word] += 1
        assert int(count) == counted[word], f"count {count!r} of {word!r} came as number {counted[word]}"
    expected = Counter(word for each in lines for word in each.split())
    assert counted == expected, f"too often {counted - expected}, too seldom {expected - counted}"


def printed(instance: Member, key: str) -> list[Any]:
    """Return what an instance printed under a key, in order."""
    lines = [json.loads(line) for line in list(instance.lines) if line.startswith("{")]
    return [line[key] for line in lines if key in line]


def tasks(instance: Member, kind: str = "active") -> set[str]:
    """Return the tasks of an instance."""
    every = printed(instance, kind)
    return set(every[-1]) if every else set()


def wait_for_tasks(instances: Sequence[Member], kind: str, wanted: int) -> None:
    """Wait until the instances have so many different tasks, and each instance has one."""

    def is_done() -> bool:
        having = [tasks(instance, kind) for instance in instances]
        return len(set().union(*having)) == wanted and sum(map(len, having)) == wanted and all(having)

    def step() -> None:
        for instance in instances:
            instance.wait_for_output()

    until(is_done, step, f"{wanted} {kind} tasks", limit_s=LIMIT_S)


@contextmanager
def instances(
    bootstrap: str, name: str, directory: Path, *settings: str, version: str = WIRE_VERSION
) -> Iterator[Callable[..., Member]]:
    """Start instances of the streams protocol. Each has a number, by which it finds its directory, and settings."""

    def command(number: int, *more: str) -> Sequence[str]:
        main = [*launch(version, JVM), "warmlog.interop.WordCount", bootstrap, name, str(directory / f"{number}")]
        return [*main, "group.protocol=streams", *settings, *more]

    with members(command) as start:
        yield start
