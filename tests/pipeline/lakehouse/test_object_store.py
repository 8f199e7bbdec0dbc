"""Tables in an object store: moto's, which has conditional writes as S3 does."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import boto3
import deltalake
import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyarrow import parquet
from pyarrow.fs import S3FileSystem

from tests.pipeline.conftest import DirectoryWriter
from tests.pipeline.lakehouse.tables import AnyTable, Kind, copied, options_of
from tests.pipeline.lakehouse.test_exactly_once import BOTH, KilledError, Killer, Watched, once
from tests.pipeline.lakehouse.test_maintenance import upkeep_of
from tests.pipeline.lakehouse.upserts.upserted import upserted
from warmlog.cli.pipeline.audit import audit as audit_command
from warmlog.cli.pipeline.rewind import rewind as rewind_command
from warmlog.cli.pipeline.table import table as table_command
from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.job_stats import Reporter
from warmlog.pipeline.jobs.table_audit import AuditState, TableAudit, audit_table
from warmlog.pipeline.lakehouse.arrangement.spec import NOTHING_WANTED, Wanted, wanted_of
from warmlog.pipeline.lakehouse.job import TableJob, TableSettings
from warmlog.pipeline.lakehouse.maintenance.job import MaintenanceJob
from warmlog.pipeline.lakehouse.table import OutcomeUnknownError
from warmlog.pipeline.lakehouse.target import open_table
from warmlog.pipeline.runner import LocalRunner
from warmlog.pipeline.source.options import COLUMNS, ReadOptions

pytestmark = pytest.mark.interop  # a server of S3, and many seconds

KEYS = {"access_key": "testing", "secret_key": "testing", "region": "us-east-1"}


class Bucket:
    """A bucket, and where the tables of a test are in it."""

    def __init__(self, endpoint: str, directory: Path) -> None:
        self.endpoint = endpoint
        self.name = f"lake-{uuid4().hex[:8]}"
        self._directory = directory
        s3 = boto3.client(
            "s3",
            endpoint_url=endpoint,
            aws_access_key_id=KEYS["access_key"],
            aws_secret_access_key=KEYS["secret_key"],
            region_name=KEYS["region"],
        )
        s3.create_bucket(Bucket=self.name)
        s3.close()
        self.files = S3FileSystem(endpoint_override=endpoint, allow_bucket_deletion=True, **KEYS)

    def storage(self, kind: Kind) -> dict[str, str]:
        if kind == "iceberg":
            names = {"access_key": "s3.access-key-id", "secret_key": "s3.secret-access-key", "region": "s3.region"}
            return {"s3.endpoint": self.endpoint, **{names[name]: value for name, value in KEYS.items()}}
        names = {"access_key": "AWS_ACCESS_KEY_ID", "secret_key": "AWS_SECRET_ACCESS_KEY", "region": "AWS_REGION"}
        where = {"AWS_ENDPOINT_URL": self.endpoint, "AWS_ALLOW_HTTP": "true"}
        return {**where, **{names[name]: value for name, value in KEYS.items()}}

    def target(self, kind: Kind) -> tuple[str, dict[str, str]]:
        if kind == "delta":
            return f"s3://{self.name}/orders", {}
        catalog = f"sqlite:///{self._directory}/catalog.db"
        return "db.orders", {"catalog": catalog, "warehouse": f"s3://{self.name}/warehouse"}

    def open(self, kind: Kind, wanted: Wanted = NOTHING_WANTED) -> AnyTable:
        target, where = self.target(kind)
        table = open_table(target, COLUMNS, storage=self.storage(kind), wanted=wanted, **where)
        table.create()
        table.refresh()
        return table

    def rows(self, kind: Kind) -> list[tuple[int, int]]:
        """(partition, offset) of each row in the files of the newest version."""
        table = pa.concat_tables(
            parquet.read_table(file.path.removeprefix("s3://"), filesystem=self.files, columns=["partition", "offset"])
            for file in self.open(kind).files()
        )
        return sorted(zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True))


class GlueBucket(Bucket):
    """A bucket with Iceberg tables in a Glue catalog, which has a database `db` for each server."""

    def storage(self, kind: Kind) -> dict[str, str]:
        return {**super().storage(kind), "type": "glue", "glue.endpoint": self.endpoint, **_of_glue(KEYS)}

    def target(self, kind: Kind) -> tuple[str, dict[str, str]]:
        assert kind == "iceberg"
        return f"db.{self.name.replace('-', '_')}", {"catalog": "glue", "warehouse": f"s3://{self.name}/warehouse"}


def _of_glue(keys: dict[str, str]) -> dict[str, str]:
    names = {"access_key": "glue.access-key-id", "secret_key": "glue.secret-access-key", "region": "glue.region"}
    return {names[name]: value for name, value in keys.items()}


# A process of its own: deltalake holds the interpreter's lock while it waits for some answers.
SERVER = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(*server.get_host_and_port(), sep=":", flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    command = [sys.executable, "-c", SERVER]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:
        assert server.stdout is not None
        yield f"http://{server.stdout.readline().strip()}"
        server.terminate()


@pytest.fixture
def bucket(endpoint: str, tmp_path: Path) -> Bucket:
    return Bucket(endpoint, tmp_path)


@pytest.fixture
def glue(endpoint: str, tmp_path: Path) -> Bucket:
    return GlueBucket(endpoint, tmp_path)


def audited(bucket: Bucket, kind: Kind, options: ReadOptions) -> TableAudit:
    return audit_table(LocalRunner(), options, bucket.open(kind), Reporter("audit"))


def test_a_state_does_not_hide_objects_that_are_gone(writer: DirectoryWriter, bucket: Bucket, kind: Kind) -> None:
    options = options_of(writer, maxOffsetsPerTrigger=20)
    copied(bucket.open(kind), options)
    state = AuditState(table=bucket.open(kind).name)
    for _ in range(2):
        result = audit_table(LocalRunner(), options, bucket.open(kind), Reporter("audit"), state)
        assert result.findings == []
    assert sum(each.audited_before for each in result.partitions) == 90
    path = bucket.open(kind).files()[0].path
    bucket.files.delete_file(path.removeprefix("s3://"))
    result = audit_table(LocalRunner(), options, bucket.open(kind), Reporter("audit"), state)
    assert {finding.path for finding in result.findings if finding.what.startswith("cannot be read: ")} == {path}


def test_a_topic_becomes_a_table_that_its_audit_proves(writer: DirectoryWriter, kind: Kind, bucket: Bucket) -> None:
    assert [each.rows for each in copied(bucket.open(kind), options_of(writer, maxOffsetsPerTrigger=50))] == [50, 40]
    assert copied(bucket.open(kind), options_of(writer)) == []
    assert bucket.rows(kind) == BOTH
    result = audited(bucket, kind, options_of(writer))
    assert (sum(each.proved.in_log for each in result.partitions), result.findings) == (90, [])
    file = bucket.open(kind).files()[0]
    key = file.path.removeprefix("s3://")
    rows = parquet.read_table(key, filesystem=bucket.files)
    parquet.write_table(rows.slice(1), key, filesystem=bucket.files)
    (finding,) = audited(bucket, kind, options_of(writer)).findings
    gone = rows["offset"][0].as_py()
    assert (finding.what, finding.path) == (f"offset {gone} is in the log, but not in the table", file.path)


def test_a_partitioned_and_sorted_table_is_written_merged_and_proved(
    writer: DirectoryWriter, kind: Kind, bucket: Bucket
) -> None:
    wanted = wanted_of(["partition, day(timestamp)"], ["value,key"])
    assert len(copied(bucket.open(kind, wanted), options_of(writer, maxOffsetsPerTrigger=20))) == 5
    assert len(bucket.open(kind).files()) == 10
    MaintenanceJob(upkeep_of(bucket.open(kind)), pause=lambda _: None).run()
    assert len(bucket.open(kind).files()) == 2
    assert bucket.rows(kind) == BOTH
    result = audited(bucket, kind, options_of(writer))
    assert (sum(each.proved.in_log for each in result.partitions), result.findings) == (90, [])


def test_two_writers_at_once_add_each_offset_once(writer: DirectoryWriter, kind: Kind, bucket: Bucket) -> None:
    step = once("before commit", lambda: copied(bucket.open(kind), options_of(writer)))
    assert copied(Watched(bucket.open(kind), step), options_of(writer)) == []
    assert bucket.rows(kind) == BOTH
    everything = bucket.files.get_file_info(pa.fs.FileSelector(bucket.name, recursive=True))
    assert len([info for info in everything if info.path.endswith(".parquet")]) == len(bucket.open(kind).files())


def lose() -> None:
    raise OutcomeUnknownError("the connection was closed")


def test_a_lost_answer_is_neither_loss_nor_double(writer: DirectoryWriter, kind: Kind, bucket: Bucket) -> None:
    assert len(copied(Watched(bucket.open(kind), once("after commit", lose)), options_of(writer))) == 1
    assert bucket.rows(kind) == BOTH


def test_killed_again_and_again_it_neither_loses_nor_doubles(
    writer: DirectoryWriter, kind: Kind, bucket: Bucket
) -> None:
    for steps in range(6, 36, 6):
        try:
            copied(Watched(bucket.open(kind), Killer(steps)), options_of(writer, maxOffsetsPerTrigger=40))
        except KilledError:
            continue
    copied(bucket.open(kind), options_of(writer))
    assert bucket.rows(kind) == BOTH


def test_glue_fences_writers_and_loses_nothing_with_an_answer(writer: DirectoryWriter, glue: Bucket) -> None:
    options = options_of(writer, maxOffsetsPerTrigger=30)
    other = TableJob(options, glue.open("iceberg"), TableSettings())
    acts: dict[str, Callable[[], Any]] = {"before commit": lambda: other.step(LocalRunner()), "after commit": lose}

    def step(at: str) -> None:
        acts.pop(at, lambda: None)()

    copied(Watched(glue.open("iceberg"), step), options)
    assert (acts, glue.rows("iceberg")) == ({}, BOTH)
    result = audited(glue, "iceberg", options)
    assert (sum(each.proved.in_log for each in result.partitions), result.findings) == (90, [])


def test_a_table_in_glue_is_merged_and_continued_through_kills(writer: DirectoryWriter, glue: Bucket) -> None:
    for steps in range(6, 36, 6):
        with suppress(KilledError):
            copied(Watched(glue.open("iceberg"), Killer(steps)), options_of(writer, maxOffsetsPerTrigger=10))
    copied(glue.open("iceberg"), options_of(writer))
    MaintenanceJob(upkeep_of(glue.open("iceberg")), pause=lambda _: None).run()
    assert len(glue.open("iceberg").files()) == 1
    assert glue.rows("iceberg") == BOTH


def test_a_store_that_cannot_be_reached_is_an_error(writer: DirectoryWriter, tmp_path: Path) -> None:
    storage = {"AWS_ENDPOINT_URL": "http://127.0.0.1:1", "AWS_ALLOW_HTTP": "true", "max_retries": "0"}
    arguments = ["orders", "s3://lake/orders", "--path", str(writer.directory.parent), "--until-end"]
    result = CliRunner().invoke(table_command, [*arguments, *_options({**storage, **_keys()})])
    (line,) = result.output.splitlines()
    assert (result.exit_code, line.startswith("Error: s3://lake/orders: Generic S3 error: ")) == (1, True)


def _keys() -> dict[str, str]:
    return {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", "AWS_REGION": "us-east-1"}


def _options(storage: dict[str, str]) -> list[str]:
    return [part for name, value in storage.items() for part in ("--storage", f"{name}={value}")]


def test_the_commands_take_the_options_of_the_store(writer: DirectoryWriter, kind: Kind, bucket: Bucket) -> None:
    target, where = bucket.target(kind)
    options = [*_options(bucket.storage(kind)), *(part for name in where for part in (f"--{name}", where[name]))]
    arguments: list[Any] = ["orders", target, "--path", str(writer.directory.parent), *options]
    result = CliRunner().invoke(table_command, [*arguments, "--until-end"])
    assert "committed 90 records" in result.output
    result = CliRunner().invoke(audit_command, arguments)
    assert "2 partitions, 90 rows: nothing wrong" in result.output


def test_maintenance_merges_expires_and_deletes(writer: DirectoryWriter, kind: Kind, bucket: Bucket) -> None:
    copied(bucket.open(kind), options_of(writer, maxOffsetsPerTrigger=30))
    orphan = bucket.open(kind).store().create("warmlog-orphan.parquet")
    parquet.write_table(pa.table({"left": ["by a killed run"]}), orphan)
    orphan.close()
    young = upkeep_of(bucket.open(kind))
    assert (MaintenanceJob(young).run().new_files, len(bucket.open(kind).files())) == (1, 1)
    old = upkeep_of(bucket.open(kind), snapshots=timedelta(), files=timedelta())
    done = MaintenanceJob(old).run()
    assert (done.versions, done.deleted_files >= 4) == (0 if kind == "delta" else 3, True)
    everything = bucket.files.get_file_info(pa.fs.FileSelector(bucket.name, recursive=True))
    assert len([info for info in everything if info.path.endswith(".parquet")]) == 1
    assert bucket.rows(kind) == BOTH
    assert audited(bucket, kind, options_of(writer)).findings == []
    assert copied(bucket.open(kind), options_of(writer)) == []


def test_rows_are_replaced_by_key(writer: DirectoryWriter, kind: Kind, bucket: Bucket) -> None:
    for end in (35, 60):
        upserted(bucket.open(kind), writer, endingOffsets=f'{{"orders":{{"0":{end},"1":{end // 2}}}}}')
    assert bucket.rows(kind) == [(0, offset) for offset in range(50, 60)] + [(1, offset) for offset in range(20, 30)]
    MaintenanceJob(upkeep_of(bucket.open(kind))).run()
    audit = audited(bucket, kind, options_of(writer))
    assert (audit.findings, [each.superseded for each in audit.partitions]) == ([], [50, 20])


def test_a_bucket_that_is_gone_ends_the_job_at_once(writer: DirectoryWriter, bucket: Bucket) -> None:
    pauses: list[float] = []

    def remove() -> None:
        bucket.files.delete_dir_contents(bucket.name)
        bucket.files.delete_dir(bucket.name)

    table = Watched(bucket.open("delta"), once("before commit", remove))
    with pytest.raises(PipelineError, match="NoSuchBucket"):
        copied(table, options_of(writer), pause=pauses.append)
    assert pauses == []


def test_a_restore_is_noticed_and_copied_again(writer: DirectoryWriter, bucket: Bucket) -> None:
    copied(bucket.open("delta"), options_of(writer, maxOffsetsPerTrigger=20))
    target, _ = bucket.target("delta")
    deltalake.DeltaTable(target, storage_options=bucket.storage("delta")).restore(2)
    with pytest.raises(PipelineError, match="took back rows of orders-0"):
        copied(bucket.open("delta"), options_of(writer))
    result = CliRunner().invoke(rewind_command, [target, *_options(bucket.storage("delta"))])
    assert (result.exit_code, len(result.output.splitlines())) == (0, 3)
    copied(bucket.open("delta"), options_of(writer))
    assert bucket.rows("delta") == BOTH
    assert audited(bucket, "delta", options_of(writer)).findings == []


def test_a_new_table_inside_a_table_of_the_bucket_or_around_it_is_refused(
    writer: DirectoryWriter, kind: Kind, bucket: Bucket
) -> None:
    copied(bucket.open(kind), options_of(writer))
    inside = "warehouse/db/orders/data/sub" if kind == "iceberg" else "orders/hour=3/sub"
    around = "warehouse" if kind == "iceberg" else ""
    storage = bucket.storage("delta")
    with pytest.raises(PipelineError, match="would be inside the table in "):
        open_table(f"s3://{bucket.name}/{inside}", COLUMNS, storage=storage).create()
    with pytest.raises(PipelineError, match="would contain the table in "):
        open_table(f"s3://{bucket.name}/{around}", COLUMNS, storage=storage).create()
    open_table(f"s3://{bucket.name}/beside", COLUMNS, storage=storage).create()


def test_maintenance_leaves_a_table_inside_and_what_is_of_no_table(
    writer: DirectoryWriter, kind: Kind, bucket: Bucket
) -> None:
    copied(bucket.open(kind), options_of(writer))
    root = f"{bucket.name}/warehouse/db/orders/data" if kind == "iceberg" else f"{bucket.name}/orders"
    kept = [f"{root}/sub/part-0.parquet", f"{root}/sub/_delta_log/{0:020d}.json", f"{root}/notes.txt"]
    for path in (*kept, f"{root}/part-0.parquet"):
        with bucket.files.open_output_stream(path) as stream:
            stream.write(b"?")
    done = MaintenanceJob(upkeep_of(bucket.open(kind), files=timedelta())).run()
    assert done.deleted_files == 1
    assert all(info.is_file for info in bucket.files.get_file_info(kept))
    assert not bucket.files.get_file_info(f"{root}/part-0.parquet").is_file
