"""Where does the server's time go under a load? Flame graphs of a running broker, Python and C, recorded by py-spy.

    python -m benchmarks.questions.flames [--directory DIR] LOAD...

It writes LOAD.svg into the directory (docs/figures) for each load. Build everything first (`make setup`), and install
py-spy; recording another process may need root.
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

RATE = 100  # samples per second: each stops the broker for a moment
SECONDS = 10
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
        command = ["py-spy", "record", "--native", "--rate", str(RATE), "--duration", str(SECONDS)]
        command += ["--pid", str(server.pid), "--output", str(path)]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as recorder:
            directory = Path(home)
            conditions = Conditions(
                seconds=SECONDS + WARMUP_S, warmup_s=WARMUP_S, scale=1.0, directory=directory, kept=directory
            )
            figures = LOADS[name](_broker(server), conditions)
            _, errors = recorder.communicate()
    if recorder.returncode:
        sys.exit(f"py-spy: {errors.strip()}")
    path.write_text(path.read_text().replace(str(path), path.name))  # it has the command in its title
    print(f"{path}: {', '.join(f'{name} {value:.1f}' for name, value in figures.items())}")


def _broker(server: Running) -> KafkaBroker:
    standing = Standing("warmlog", start_warmlog_for_kafka, _running=server, is_warm=True)
    return KafkaBroker(name="warmlog", start=standing.start, wire=KafkaWire(), standing=standing)


def main() -> None:
    """Record what is asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.questions.flames", description=__doc__.splitlines()[0])
    parser.add_argument("loads", metavar="LOAD", nargs="+", choices=LOADS, help=", ".join(LOADS))
    parser.add_argument("--directory", type=Path, default=Path("docs/figures"), help="where to write (docs/figures)")
    chosen = parser.parse_args()
    if shutil.which("py-spy") is None:
        parser.error("not installed: py-spy (pip install py-spy)")
    for name in chosen.loads:
        record(name, chosen.directory / f"flames-{name}.svg")


if __name__ == "__main__":
    main()
