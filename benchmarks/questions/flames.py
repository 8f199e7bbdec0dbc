"""Show where the server's time goes under a load: flame graphs of a running broker (compiled modules, Python, kernel).

    python -m benchmarks.questions.flames [--directory DIR] LOAD...

It writes flames-LOAD.svg into the directory (docs/figures) for each load. Build everything first (`make setup`), and
install perf and inferno (`cargo install inferno`); recording another process and the kernel may need root. perf samples
by a timer: a profiler that stops the process, like py-spy, overstates the time in system calls.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.harness import Conditions, Figures
from benchmarks.load.kafka_wire import KafkaWire
from benchmarks.servers.contestants import Fetch, Running
from benchmarks.servers.kafka import KafkaBroker, Standing, start_warmlog_for_kafka
from benchmarks.serving.loads import Crowd
from benchmarks.workloads.native import STORED, STORED_RECORDS

RATE = 499  # samples per second, each with a copy of STACK_BYTES
STACK_BYTES = 16 << 10
SECONDS = 8
WARMUP_S = 2.0
LOADS: Mapping[str, Callable[[KafkaBroker, Conditions], Figures]] = {
    "produce-200x1": Crowd(connections=200, version=11).measure,
    "produce-8x1x20": Crowd(connections=8, version=11, partitions=20).measure,
    "produce-1x1": Crowd(connections=1, version=11).measure,
    "fetch-4": lambda broker, conditions: broker.fetch(
        Fetch(connections=4, depth=1, batch=STORED, records=STORED_RECORDS), conditions
    ),
}


def record(name: str, path: Path) -> None:
    """Run a load against a new broker, and write a flame graph of its busiest seconds."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as home, start_warmlog_for_kafka(Path(home)) as server:
        directory = Path(home)
        samples = directory / "perf.data"
        command = ["perf", "record", "--quiet", "-e", "cpu-clock", "-F", str(RATE), "-p", str(server.pid)]
        command += ["--call-graph", f"dwarf,{STACK_BYTES}", "--delay", str(int(1000 * WARMUP_S)), "-o", str(samples)]
        with subprocess.Popen(
            [*command, "--", "sleep", str(SECONDS + WARMUP_S)], stderr=subprocess.DEVNULL
        ) as recorder:
            conditions = Conditions(
                seconds=SECONDS + WARMUP_S, warmup_s=WARMUP_S, scale=1.0, directory=directory, kept=directory
            )
            figures = LOADS[name](_broker(server), conditions)
        if recorder.returncode:
            sys.exit(f"perf record ended with status {recorder.returncode}")
        stacks = subprocess.run(
            ["perf", "script", "-i", str(samples)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True
        ).stdout
    folded = subprocess.run(["inferno-collapse-perf"], input=stacks, stdout=subprocess.PIPE, check=True).stdout
    drawing = ["inferno-flamegraph", "--title", name, "--minwidth", "0.3", "--hash"]
    path.write_bytes(subprocess.run(drawing, input=folded, stdout=subprocess.PIPE, check=True).stdout)
    print(f"{path}: {', '.join(f'{name} {value:.1f}' for name, value in figures.items())}")


def _broker(server: Running) -> KafkaBroker:
    standing = Standing("warmlog", start_warmlog_for_kafka, _running=server, is_warm=True)
    return KafkaBroker(name="warmlog", start=standing.start, wire=KafkaWire(), standing=standing)


def main() -> None:
    """Record the requested loads."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.questions.flames", description=__doc__.splitlines()[0])
    parser.add_argument("loads", metavar="LOAD", nargs="+", choices=LOADS, help=", ".join(LOADS))
    parser.add_argument("--directory", type=Path, default=Path("docs/figures"), help="output directory (docs/figures)")
    chosen = parser.parse_args()
    for tool in ("perf", "inferno-collapse-perf", "inferno-flamegraph"):
        if shutil.which(tool) is None:
            parser.error(f"not installed: {tool}")
    for name in chosen.loads:
        record(name, chosen.directory / f"flames-{name}.svg")


if __name__ == "__main__":
    main()
