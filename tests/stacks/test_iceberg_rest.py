"""Iceberg tables in Iceberg's own REST catalog, which is killed again and again while jobs write to it."""

import random
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import NoSuchTableError

from interop.iceberg_rest import RestCatalog
from interop.kafka_node import MissingToolError
from tests.documents import ROOT
from tests.requires import lacks
from warmlog import Client
from warmlog.testing import Broker

pytestmark = [pytest.mark.stacks, pytest.mark.timeout(900)]

PARTITIONS, RECORDS, JOBS, KILLS, ROLLBACKS = 3, 4_000, 2, 8, 4
MOST_COMMITS = 6  # between two kills
EVERY = [(partition, offset) for partition in range(PARTITIONS) for offset in range(RECORDS)]


def warmlog(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "warmlog", "pipeline", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)


def commits(catalog: RestCatalog) -> int:
    """Return the number of snapshots of the table, 0 if it does not exist yet."""
    try:
        table = load_catalog("default", type="rest", uri=catalog.url).load_table("db.orders")
    except NoSuchTableError:
        return 0
    return len(table.metadata.snapshots)


def offsets_in(catalog: RestCatalog) -> list[tuple[int, int]]:
    """Return the partition and offset of each row, as pyiceberg scans them."""
    table = load_catalog("default", type="rest", uri=catalog.url).load_table("db.orders")
    rows = table.scan(selected_fields=("partition", "offset")).to_arrow()
    return sorted(zip(rows["partition"].to_pylist(), rows["offset"].to_pylist(), strict=True))


def test_each_offset_is_there_once_though_the_catalog_is_killed(tmp_path: Path) -> None:
    try:
        catalog = RestCatalog(tmp_path)
    except MissingToolError as error:
        lacks(error)
    values = random.Random(41)
    with Broker(data_dir=tmp_path / "data") as broker, catalog:
        with Client(broker.native) as client:
            client.create_topic("orders", partitions=PARTITIONS)
            for partition in range(PARTITIONS):
                client.produce_many("orders", [b"%d" % at for at in range(RECORDS)], partition=partition)
        where = ("--bootstrap", broker.native, "--catalog", catalog.url)
        copy = ("table", "orders", "db.orders", *where, "--until-end", "-o", "maxOffsetsPerTrigger=200")
        ended: list[subprocess.CompletedProcess[str]] = []

        def run() -> None:
            while (done := warmlog(*copy)).returncode:
                ended.append(done)

        jobs = [threading.Thread(target=run) for _ in range(JOBS)]
        for job in jobs:
            job.start()
        kills = 0
        while kills < KILLS and any(job.is_alive() for job in jobs):
            wanted = commits(catalog) + values.randint(1, MOST_COMMITS)
            while commits(catalog) < wanted and any(job.is_alive() for job in jobs):
                pass
            catalog.kill()
            catalog.start()
            kills += 1
        for job in jobs:
            job.join()
        assert kills > 1
        assert all("Traceback" not in done.stderr for done in ended), ended
        assert ": nothing wrong\n" in warmlog("audit", "orders", "db.orders", *where).stdout
        assert offsets_in(catalog) == EVERY


def test_a_rollback_is_set_back_though_the_catalog_is_killed(tmp_path: Path) -> None:
    try:
        catalog = RestCatalog(tmp_path)
    except MissingToolError as error:
        lacks(error)
    values = random.Random(43)
    with Broker(data_dir=tmp_path / "data") as broker, catalog:
        with Client(broker.native) as client:
            client.create_topic("orders", partitions=PARTITIONS)
            for partition in range(PARTITIONS):
                client.produce_many("orders", [b"%d" % at for at in range(RECORDS)], partition=partition)
        where = ("--bootstrap", broker.native, "--catalog", catalog.url)
        copy = ("table", "orders", "db.orders", *where, "--until-end", "-o", "maxOffsetsPerTrigger=2000")
        rewind = ("table", "rewind", "db.orders", "--catalog", catalog.url)
        assert warmlog(*copy).returncode == 0
        for _ in range(ROLLBACKS):
            table = load_catalog("default", type="rest", uri=catalog.url).load_table("db.orders")
            snapshot = values.choice(table.metadata.snapshots[:-1]).snapshot_id
            table.manage_snapshots().set_current_snapshot(snapshot_id=snapshot).commit()
            ended: list[subprocess.CompletedProcess[str]] = []
            rewinding = threading.Thread(target=lambda: ended.append(warmlog(*rewind)))  # noqa: B023 - joined below
            rewinding.start()
            catalog.kill()
            catalog.start()
            rewinding.join()
            assert "Traceback" not in ended[0].stderr
            again = warmlog(*rewind)
            assert (again.returncode, again.stderr) == (0, "")
            done = warmlog(*copy)
            assert done.returncode == 0, done.stderr
            assert offsets_in(catalog) == EVERY
        assert ": nothing wrong\n" in warmlog("audit", "orders", "db.orders", *where).stdout
