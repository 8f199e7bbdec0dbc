"""Trials of a catalog's server, which is killed: what `warmlog pipeline table` promises, seen by pyiceberg alone."""

import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import NoSuchTableError

from tests.documents import ROOT, add_command, command_directory, run_block, shell_blocks
from warmlog import Client
from warmlog.testing import Broker

PARTITIONS, RECORDS, JOBS, KILLS = 3, 3_000, 2, 4
MOST_COMMITS = 4  # between two kills
EVERY = [(partition, offset) for partition in range(PARTITIONS) for offset in range(RECORDS)]


class Server(Protocol):
    """A catalog's server, which keeps its address and its state over restarts."""

    @property
    def url(self) -> str:
        """What `--catalog` is given."""

    def start(self) -> None:
        """Start it, and wait until it answers."""

    def kill(self) -> None:
        """Kill it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A topic beside a catalog. `kind`: as pyiceberg names it. `variables`: of jobs' environment."""

    server: Server
    kind: str
    broker: Broker
    warehouse: Path
    variables: Mapping[str, str] = field(default_factory=dict)

    def warmlog(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run `warmlog pipeline` to its end."""
        return subprocess.run(
            command(*arguments), capture_output=True, text=True, check=False, cwd=ROOT, env=self.environment
        )

    def started(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start `warmlog pipeline`, and leave its output."""
        silent = subprocess.DEVNULL
        return subprocess.Popen(command(*arguments), stdout=silent, stderr=silent, cwd=ROOT, env=self.environment)

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, **self.variables}

    @property
    def catalog(self) -> tuple[str, ...]:
        """The options that name the catalog."""
        return "--catalog", self.server.url, "--warehouse", f"file://{self.warehouse}"

    @property
    def copy(self) -> tuple[str, ...]:
        """The command that copies the topic, in small commits."""
        source = ("--bootstrap", self.broker.native, "--until-end", "-o", "maxOffsetsPerTrigger=200")
        return "table", "orders", "db.orders", *self.catalog, *source

    @contextmanager
    def table(self) -> Iterator[Any]:
        """Open the table as another program does."""
        with load_catalog("default", type=self.kind, uri=self.server.url) as catalog:
            yield catalog.load_table("db.orders")

    def commits(self) -> int:
        """Return the number of snapshots of the table, 0 if it does not exist yet."""
        try:
            with self.table() as table:
                return len(table.metadata.snapshots)
        except NoSuchTableError:
            return 0

    def offsets(self) -> list[tuple[int, int]]:
        """Return the partition and offset of each row."""
        with self.table() as table:
            rows = table.scan(selected_fields=("partition", "offset")).to_arrow()
        return sorted(zip(rows["partition"].to_pylist(), rows["offset"].to_pylist(), strict=True))

    def await_commits(self, count: int, *jobs: subprocess.Popen[bytes]) -> None:
        """Wait until the table has that many snapshots, or the jobs have ended."""
        while self.commits() < count and any(job.poll() is None for job in jobs):
            pass

    def check(self) -> None:
        """Fail unless each offset is in the table once, and the audit says so."""
        assert self.offsets() == EVERY
        audit = self.warmlog("audit", "orders", "db.orders", "--bootstrap", self.broker.native, *self.catalog)
        assert ": nothing wrong\n" in audit.stdout, audit


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "warmlog", "pipeline", *arguments]


@contextmanager
def topic(directory: Path) -> Iterator[Broker]:
    """A broker with the topic that is copied."""
    with Broker(data_dir=directory / "data") as broker:
        with Client(broker.native) as client:
            client.create_topic("orders", partitions=PARTITIONS)
            for partition in range(PARTITIONS):
                client.produce_many("orders", [b"%d" % at for at in range(RECORDS)], partition=partition)
        yield broker


def kill_jobs(trial: Trial) -> None:
    """Kill a job twice, then run two at once to their ends."""
    values = random.Random(47)
    for _ in range(2):
        job = trial.started(*trial.copy)
        trial.await_commits(trial.commits() + values.randint(1, MOST_COMMITS), job)
        job.kill()
        assert job.wait() == -9
    ended = run_jobs(trial)
    assert [done.returncode for done in ended] == [0] * JOBS, ended
    trial.check()


def run_jobs(trial: Trial) -> list[subprocess.CompletedProcess[str]]:
    """Run several jobs at once; return how they ended."""
    ended: list[subprocess.CompletedProcess[str]] = []
    jobs = [threading.Thread(target=lambda: ended.append(trial.warmlog(*trial.copy))) for _ in range(JOBS)]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()
    return ended


def kill_server(trial: Trial) -> None:
    """Kill the server while jobs write; each job that gives up says why in a line, and is started again."""
    values = random.Random(41)
    ended: list[subprocess.CompletedProcess[str]] = []

    def run() -> None:
        while (done := trial.warmlog(*trial.copy)).returncode:
            ended.append(done)

    jobs = [threading.Thread(target=run) for _ in range(JOBS)]
    for job in jobs:
        job.start()
    kills = 0
    while kills < KILLS and any(job.is_alive() for job in jobs):
        wanted = trial.commits() + values.randint(1, MOST_COMMITS)
        while trial.commits() < wanted and any(job.is_alive() for job in jobs):
            pass
        trial.server.kill()
        trial.server.start()
        kills += 1
    for job in jobs:
        job.join()
    assert kills > 1
    assert all("Traceback" not in done.stderr for done in ended), ended
    trial.check()


def keep_up(trial: Trial) -> None:
    """Maintain a table that two jobs have begun at once, roll it back, and copy again what that took back."""
    ended = run_jobs(trial)
    assert [done.returncode for done in ended] == [0] * JOBS, ended
    done = trial.warmlog("table", "maintain", "db.orders", *trial.catalog)
    assert done.returncode == 0, done.stderr
    trial.check()
    with trial.table() as table:
        early = table.metadata.snapshots[3].snapshot_id
        table.manage_snapshots().set_current_snapshot(snapshot_id=early).commit()
    refused = trial.warmlog(*trial.copy)
    assert refused.returncode == 1
    assert "warmlog pipeline table rewind" in refused.stderr, refused.stderr
    assert len(refused.stderr.splitlines()) == 1
    done = trial.warmlog("table", "rewind", "db.orders", *trial.catalog)
    assert done.returncode == 0, done.stderr
    done = trial.warmlog(*trial.copy)
    assert done.returncode == 0, done.stderr
    trial.check()


def run_documented(trial: Trial, name: str, variable: str) -> None:
    """Run the commands of a catalog in docs/lakehouse-catalogs.md, with its URL in a variable, as written."""
    with Client(trial.broker.native) as client:
        client.create_topic("readings", partitions=3)
        for partition in range(3):
            client.produce_many("readings", [b"%d" % at for at in range(1000)], partition=partition)
    directory = trial.warehouse.parent
    variables = {"WARMLOG_NATIVE": trial.broker.native, variable: trial.server.url}
    commands = command_directory(directory)
    add_command(commands, "python", sys.executable)
    (directory / "lake").mkdir()
    printed = run_block(shell_blocks("docs/lakehouse-catalogs.md")[name], commands, directory, variables)
    assert "committed 3,000 records of 3,000 offsets" in printed
    assert "3 partitions, 3,000 rows: nothing wrong" in printed
    assert (directory / "lake" / "warehouse").is_dir()
