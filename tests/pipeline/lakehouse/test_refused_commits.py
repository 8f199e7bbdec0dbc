"""Commits that would fail again end the job at once; others are repeated."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyiceberg import exceptions

from tests.pipeline.conftest import DirectoryWriter
from tests.pipeline.lakehouse.tables import Kind, copied, files_of, offsets_in, open_in, options_of
from tests.pipeline.lakehouse.test_exactly_once import BOTH, Watched
from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.lakehouse.delta.errors import is_permanent as is_permanent_of_delta
from warmlog.pipeline.lakehouse.delta.errors import one_line
from warmlog.pipeline.lakehouse.iceberg.errors import first_line
from warmlog.pipeline.lakehouse.iceberg.errors import is_permanent as is_permanent_of_iceberg
from warmlog.pipeline.lakehouse.table import RefusedError


@pytest.mark.parametrize(
    ("error", "permanent"),
    [
        (OSError("The operation lacked the necessary privileges to complete for path orders/_delta_log/1.json"), True),
        (OSError("The operation lacked valid authentication credentials for path orders/_delta_log/1.json"), True),
        (FileNotFoundError("Object at location orders/_delta_log/1.json not found: NoSuchBucket"), True),
        (OSError("Generic LocalFileSystem error\n  ↳ Unable to create\n  ↳ Read-only file system (os error 30)"), True),
        (OSError("Generic LocalFileSystem error: Unable to create file: Permission denied (os error 13)"), True),
        (Exception("Unsupported table features required: [ColumnMapping]"), True),
        (OSError("Generic LocalFileSystem error: No space left on device (os error 28)"), False),
        (OSError("Generic LocalFileSystem error: Stale file handle (os error 116)"), False),
        (OSError("Generic S3 error: Error performing PUT: 503 Service Unavailable"), False),
        (OSError("Generic S3 error: error sending request: connection closed before message completed"), False),
        (Exception("Failed to commit transaction: 0"), False),
    ],
)  # fmt: skip
def test_errors_of_delta_that_would_come_again_are_known(error: Exception, permanent: bool) -> None:
    assert is_permanent_of_delta(error) == permanent


@pytest.mark.parametrize(
    ("error", "permanent"),
    [
        (exceptions.ForbiddenError("NotAuthorizedException: Not authorized: UPDATE_TABLE"), True),
        (exceptions.UnauthorizedError("token"), True),
        (exceptions.BadRequestError("IllegalArgumentException: Cannot set the property"), True),
        (exceptions.NoSuchTableError("Table does not exist: db.orders"), True),
        (PermissionError("Cannot create file, access denied: s3://lake/orders/metadata/1.avro"), True),
        (OSError("When completing multiple part upload: AWS Error ACCESS_DENIED during PutObject operation"), True),
        (OSError("When initiating multiple part upload: AWS Error NO_SUCH_BUCKET during operation"), True),
        (OSError(30, "Read-only file system"), True),
        (Exception("(sqlite3.OperationalError) attempt to write a readonly database\n[SQL: UPDATE …]"), True),
        (OSError(28, "No space left on device"), False),
        (FileNotFoundError(2, "a manifest that another commit expired"), False),
        (exceptions.AuthorizationExpiredError("the token is renewed before the next attempt"), False),
        (exceptions.CommitStateUnknownException("500"), False),
        (exceptions.ServiceUnavailableError("503"), False),
        (exceptions.TooManyRequestsError("429"), False),
        (Exception("(sqlite3.OperationalError) database is locked"), False),
        (ConnectionError("connection refused"), False),
    ],
)  # fmt: skip
def test_errors_of_iceberg_that_would_come_again_are_known(error: Exception, permanent: bool) -> None:
    assert is_permanent_of_iceberg(error) == permanent


def test_messages_are_a_line_without_colours() -> None:
    error = OSError("Generic error\n  \x1b[31m↳\x1b[0m Unable to create\n")
    assert one_line(error) == "Generic error: Unable to create"
    assert first_line(Exception("readonly database\n[SQL: UPDATE …]")) == "readonly database"
    assert first_line(PermissionError()) == "PermissionError"


SCRIPT = """
import sys
from pathlib import Path
from tests.pipeline.conftest import DirectoryWriter
from tests.pipeline.lakehouse.tables import copied, open_in, options_of
from tests.pipeline.lakehouse.test_maintenance import upkeep_of
from warmlog.pipeline.lakehouse.maintenance.job import MaintenanceJob
from warmlog.pipeline.lakehouse.table import RefusedError

directory, pauses = Path(sys.argv[1]), []
writer = DirectoryWriter.__new__(DirectoryWriter)
writer.directory = directory / "data" / "orders-0"
try:
    if sys.argv[3:]:
        MaintenanceJob(upkeep_of(open_in(directory, sys.argv[2], ())), pause=pauses.append).run()
    else:
        copied(open_in(directory, sys.argv[2]), options_of(writer), pause=pauses.append)
except RefusedError as error:
    print(len(pauses), error)
"""


def refusal(directory: Path, kind: Kind, refusing: Path, mode: int, *job: str) -> str:
    """The line with which a job ends that may not write a file or directory; it does not wait.

    Root may write everything unless it lacks that capability.
    """
    before = refusing.stat().st_mode
    refusing.chmod(mode)
    command = [sys.executable, "-c", SCRIPT, str(directory), kind, *job]
    if os.geteuid() == 0:
        command = ["setpriv", "--bounding-set=-dac_override", *command]
    root = Path(__file__).parents[3]
    done = subprocess.run(
        command, cwd=root, env={**os.environ, "PYTHONPATH": str(root)}, capture_output=True, text=True, check=True
    )
    refusing.chmod(before)
    count, _, message = done.stdout.strip().partition(" ")
    assert (count, len(done.stdout.splitlines())) == ("0", 1), done.stdout
    return message


@pytest.mark.interop  # takes many seconds
def test_a_log_that_cannot_be_written_ends_the_job(writer: DirectoryWriter, tmp_path: Path) -> None:
    open_in(tmp_path, "delta")
    message = refusal(tmp_path, "delta", tmp_path / "delta" / "_delta_log", 0o555)
    assert message.startswith(f"{tmp_path / 'delta'}: cannot commit version 1: ")
    assert "Permission denied" in message
    assert list(tmp_path.rglob("*.parquet")) == []


@pytest.mark.interop  # takes many seconds
def test_metadata_that_cannot_be_written_ends_the_job(writer: DirectoryWriter, tmp_path: Path) -> None:
    open_in(tmp_path, "iceberg")
    (metadata,) = tmp_path.rglob("metadata")
    message = refusal(tmp_path, "iceberg", metadata, 0o555)
    assert message.startswith("db.orders: cannot commit: ")
    assert "Permission denied" in message
    assert list(tmp_path.rglob("*.parquet")) == []


@pytest.mark.interop  # takes many seconds
def test_a_catalog_that_cannot_be_written_ends_the_job(writer: DirectoryWriter, tmp_path: Path) -> None:
    open_in(tmp_path, "iceberg")
    message = refusal(tmp_path, "iceberg", tmp_path / "catalog.db", 0o444)
    assert message == "db.orders: cannot commit: (sqlite3.OperationalError) attempt to write a readonly database"
    assert list(tmp_path.rglob("*.parquet")) == []


@pytest.mark.interop  # takes many seconds
def test_maintenance_ends_as_jobs_do(writer: DirectoryWriter, kind: Kind, tmp_path: Path) -> None:
    copied(open_in(tmp_path, kind), options_of(writer, maxOffsetsPerTrigger=20))
    refusing, mode = (tmp_path / "catalog.db", 0o444) if kind == "iceberg" else (tmp_path / "delta/_delta_log", 0o555)
    assert ": cannot commit" in refusal(tmp_path, kind, refusing, mode, "maintain")
    assert offsets_in(tmp_path, kind) == BOTH


class Refusing(Watched):
    """A table whose store refuses commits. `landed`: only after they are there."""

    def __init__(self, *arguments: Any, landed: bool) -> None:
        super().__init__(*arguments)
        self.landed = landed

    def commit(self, *arguments: Any) -> None:
        if self.landed:
            super().commit(*arguments)
        raise RefusedError("no permission")


def test_files_of_a_refused_commit_are_deleted(writer: DirectoryWriter, kind: Kind, tmp_path: Path) -> None:
    pauses: list[float] = []
    table = Refusing(open_in(tmp_path, kind), lambda _: None, landed=False)
    with pytest.raises(PipelineError, match="no permission"):
        copied(table, options_of(writer), pause=pauses.append)
    assert (pauses, list(tmp_path.rglob("*.parquet"))) == ([], [])


def test_unless_the_commit_is_there_all_the_same(writer: DirectoryWriter, kind: Kind, tmp_path: Path) -> None:
    """As when Delta's commit is there, and only a checkpoint after it could not be written."""
    table = Refusing(open_in(tmp_path, kind), lambda _: None, landed=True)
    assert len(copied(table, options_of(writer))) == 1
    assert offsets_in(tmp_path, kind) == BOTH
    assert len(files_of(tmp_path, kind)) == 1
