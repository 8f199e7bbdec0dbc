"""Iceberg tables in a catalog in PostgreSQL, which is killed while jobs write to it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from interop.kafka_node import MissingToolError
from interop.postgresql import PASSWORD, PostgresServer
from tests.requires import lacks
from tests.stacks.catalogs import Trial, keep_up, kill_jobs, kill_server, run_documented, topic

pytestmark = [pytest.mark.stacks, pytest.mark.timeout(600)]


@pytest.fixture
def trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Trial]:
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    try:
        server = PostgresServer()
    except MissingToolError as error:
        lacks(error)
    with server, topic(tmp_path) as broker:
        yield Trial(server=server, kind="sql", broker=broker, warehouse=tmp_path / "warehouse")


def test_each_offset_is_there_once_though_jobs_are_killed(trial: Trial) -> None:
    kill_jobs(trial)


def test_each_offset_is_there_once_though_the_server_is_killed(trial: Trial) -> None:
    kill_server(trial)


def test_a_table_is_maintained_and_rewound(trial: Trial) -> None:
    keep_up(trial)


def test_a_wrong_password_is_an_error_in_a_line(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPASSWORD", "another")
    done = trial.warmlog(*trial.copy)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert "password authentication failed" in done.stderr


def test_the_documented_commands_run_as_written(trial: Trial) -> None:
    run_documented(trial, "postgresql", "CATALOG")
