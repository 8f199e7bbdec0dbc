"""Kill a broker and start it on the same data, again and again.

    python -m tests.crash.starts [--starts N] [--logs N] [--threads N] [--directories N] [--json FILE]

A broker that is killed recovers its logs in several threads when it starts, and a fault between these threads shows
once in a thousand starts. Each round appends a few records to every log, kills the broker and starts it. Afterwards
everything that was acknowledged must be there once and in order. The exit status is 1 if a start fails or a record is
missing.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from statistics import quantiles

from interop.warmlog_nodes import WarmlogNode
from tests.cluster.report import conclude
from warmlog import Client, WarmlogError

TOPIC = "logs"
RECORDS = 3  # a round and log


def main(arguments: Sequence[str]) -> int:
    """Run the rounds, and return the exit status."""
    parser = argparse.ArgumentParser(prog="tests.crash.starts", description=__doc__)
    parser.add_argument("--starts", type=int, default=2000)
    parser.add_argument("--logs", type=int, default=8)
    parser.add_argument("--threads", type=int, default=4, help="recovery threads of each data directory")
    parser.add_argument("--directories", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    directory = Path(tempfile.mkdtemp(prefix="warmlog-starts-"))
    broker = WarmlogNode(1, directory, settings(directory, options))
    acknowledged: list[list[int]] = [[] for _ in range(options.logs)]
    seconds: list[float] = []
    wrong: list[str] = []
    broker.start()
    with Client(broker.addresses["native"]) as client:
        client.create_topic(TOPIC, partitions=options.logs)
    while len(seconds) < options.starts and not wrong:
        append(broker, acknowledged)
        broker.kill()
        began = time.monotonic()
        try:
            broker.start()
        except RuntimeError as error:
            wrong.append(f"start {len(seconds) + 1}: {error}")
        seconds.append(time.monotonic() - began)
        if sys.stderr.isatty():
            print(f"\r{len(seconds)} of {options.starts} starts", end="", file=sys.stderr)
    if not wrong:
        wrong = list(differences(broker, acknowledged))
        broker.stop()
    steps = quantiles(seconds, n=100)
    report = {"starts": len(seconds), "records": sum(map(len, acknowledged)), "p50_s": steps[49], "p99_s": steps[98]}
    return conclude({**report, "wrong": wrong}, directory, options.json)


def settings(directory: Path, options: argparse.Namespace) -> dict[str, object]:
    """Return settings that make every start scan all logs: indexes for each record, and segments that roll."""
    others = [str(directory / f"disk-{number}") for number in range(1, options.directories)]
    return {
        "log.dirs": ",".join([str(directory / "node-1"), *others]),
        "num.recovery.threads.per.data.dir": options.threads,
        "log.index.interval.bytes": 0,
        "log.segment.bytes": 1 << 20,
    }


def append(broker: WarmlogNode, acknowledged: list[list[int]]) -> None:
    """Append numbered records to every log."""
    with Client(broker.addresses["native"]) as client:
        for partition, numbers in enumerate(acknowledged):
            for _ in range(RECORDS):
                number = len(numbers)
                client.produce(TOPIC, value=b"%d" % number, partition=partition)
                numbers.append(number)


def differences(broker: WarmlogNode, acknowledged: list[list[int]]) -> Sequence[str]:
    """Return what the logs hold besides the acknowledged records, or lack of them."""
    found: list[list[int]] = [[] for _ in acknowledged]
    with suppress(WarmlogError), Client(broker.addresses["native"]) as client:
        for record in client.consume(TOPIC, start="beginning", until_end=True):
            found[record.partition].append(int(record.value or b"-1"))
    return [
        f"partition {partition}: {len(numbers)} records acknowledged, {len(found[partition])} found"
        for partition, numbers in enumerate(acknowledged)
        if found[partition] != numbers
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
