"""Iceberg tables in a Hive metastore, which is killed while jobs write to it."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hive_metastore.ttypes import HeartbeatRequest, UnlockRequest
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.hive import HiveCatalog

from interop.hive_metastore import HiveMetastore
from interop.kafka_node import MissingToolError
from tests.requires import lacks
from tests.stacks.catalogs import EVERY, Trial, keep_up, kill_jobs, kill_server, run_documented, topic
from warmlog.pipeline.lakehouse.job import TableJob, TableSettings
from warmlog.pipeline.lakehouse.target import open_table
from warmlog.pipeline.runner import LocalRunner
from warmlog.pipeline.source.options import COLUMNS, read_options

pytestmark = [pytest.mark.stacks, pytest.mark.timeout(900)]


@pytest.fixture
def trial(tmp_path: Path) -> Iterator[Trial]:
    try:
        server = HiveMetastore(tmp_path)
    except MissingToolError as error:
        lacks(error)
    with server, topic(tmp_path) as broker:
        yield Trial(server=server, kind="hive", broker=broker, warehouse=tmp_path / "warehouse")


def test_each_offset_is_there_once_though_jobs_are_killed(trial: Trial) -> None:
    kill_jobs(trial)


def test_each_offset_is_there_once_though_the_metastore_is_killed(trial: Trial) -> None:
    kill_server(trial)


def test_a_table_is_maintained_and_rewound(trial: Trial) -> None:
    keep_up(trial)


@contextmanager
def locked(trial: Trial) -> Iterator[tuple[Any, int]]:
    """Lock the table as pyiceberg does for a commit; the lock stays. Yields a client of the metastore, and its id."""
    catalog: Any = load_catalog("default", type="hive", uri=trial.server.url)
    with catalog._client as client:
        lock = client.lock(catalog._create_lock_request("db", "orders"))
        yield client, lock.lockid


def test_a_lock_that_a_killed_program_has_left_ends(trial: Trial) -> None:
    first = trial.started(*trial.copy)
    trial.await_commits(2, first)
    first.kill()
    first.wait()
    with locked(trial):
        pass
    done = trial.warmlog(*trial.copy)
    assert done.returncode == 0, done.stderr
    trial.check()


def test_a_lock_that_is_not_had_is_an_error_that_loses_nothing(trial: Trial) -> None:
    first = trial.started(*trial.copy)
    trial.await_commits(2, first)
    first.kill()
    first.wait()
    is_over = threading.Event()
    with locked(trial) as (client, lock):

        def renew() -> None:
            while not is_over.wait(2):
                client.heartbeat(HeartbeatRequest(lockid=lock))

        renewing = threading.Thread(target=renew)
        renewing.start()
        try:
            before = trial.commits()
            done = trial.warmlog(*trial.copy, "--storage", "lock-check-retries=1")
            assert trial.commits() == before
        finally:
            is_over.set()
            renewing.join()
        client.unlock(UnlockRequest(lockid=lock))
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "metastore.txn.timeout" in done.stderr.splitlines()[-1]
    done = trial.warmlog(*trial.copy)
    assert done.returncode == 0, done.stderr
    trial.check()


def test_a_commit_whose_lock_has_ended_loses_no_offset(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another job copies all while a commit is interrupted, which then replaces what that job has committed."""
    table = open_table("db.orders", COLUMNS, catalog=trial.server.url, warehouse=f"file://{trial.warehouse}")
    table.create()
    source = {"path": str(trial.broker.data_dir), "topic": "orders", "maxOffsetsPerTrigger": "200"}
    source |= {"includeHeaders": "true", "isolationLevel": "read_committed"}
    job = TableJob(read_options(source), table, TableSettings())
    others: list[int] = []
    write = HiveCatalog._write_metadata

    def write_late(**given: Any) -> None:
        monkeypatch.undo()
        others.append(trial.warmlog(*trial.copy).returncode)
        assert trial.offsets() == EVERY
        write(**given)

    monkeypatch.setattr(HiveCatalog, "_write_metadata", staticmethod(write_late))
    assert job.step(LocalRunner()) is not None
    assert others == [0]
    assert len(trial.offsets()) == 200
    done = trial.warmlog(*trial.copy)
    assert done.returncode == 0, done.stderr
    trial.check()


def test_the_documented_commands_run_as_written(trial: Trial) -> None:
    run_documented(trial, "hive", "METASTORE")
