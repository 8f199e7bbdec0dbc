"""Delta's RESTORE by delta-spark: jobs notice it, `rewind` accepts it, and each offset is in the table once."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark
import pytest
from click.testing import CliRunner

from interop.delta_spark import RELEASES, delta_jars
from interop.kafka_node import MissingToolError
from tests.pipeline.conftest import DirectoryWriter
from tests.pipeline.lakehouse.tables import copied, open_in, options_of
from tests.pipeline.lakehouse.test_audit import audited
from tests.pipeline.lakehouse.test_exactly_once import BOTH
from tests.pipeline.session import program_environment
from tests.requires import lacks
from warmlog.cli.root import root
from warmlog.pipeline.errors import PipelineError

SPARK = ".".join(pyspark.__version__.split(".")[:2])
Sql = Callable[[str], list[list[Any]]]

pytestmark = pytest.mark.skipif(SPARK not in RELEASES, reason=f"Delta has no release for Spark {SPARK}")


@pytest.fixture
def jars() -> str:
    try:
        return delta_jars(SPARK)
    except MissingToolError as error:
        lacks(error)


@contextmanager
def spark_sql(jars: str, directory: Path) -> Iterator[Sql]:
    """Run SQL in another process: the Spark of the other tests has no jars."""
    command = [sys.executable, "-m", "tests.pipeline.lakehouse.delta.spark_sql", jars, str(directory)]
    with (
        (directory / "spark.log").open("w") as log,
        subprocess.Popen(
            command, env=program_environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None

        def answer(statement: str) -> list[list[Any]]:
            print(json.dumps(statement), file=process.stdin, flush=True)
            line = process.stdout.readline()  # type: ignore[union-attr]
            assert line, (directory / "spark.log").read_text()[-6000:]
            rows: list[list[Any]] = json.loads(line)
            return rows

        try:
            yield answer
        finally:
            process.stdin.close()


def test_what_spark_took_back_or_brought_back_is_there_once(
    can_run_spark: None, jars: str, five_commits: DirectoryWriter, tmp_path: Path
) -> None:
    table, options = tmp_path / "delta", options_of(five_commits)
    rows = f"SELECT partition, offset FROM delta.`{table}` ORDER BY ALL"

    def rewind() -> None:
        done = CliRunner().invoke(root, ["pipeline", "table", "rewind", str(table)])
        assert done.exit_code == 0, done.output

    with spark_sql(jars, tmp_path) as sql:
        sql(f"RESTORE TABLE delta.`{table}` TO VERSION AS OF 2")
        assert len(sql(rows)) == 40
        with pytest.raises(PipelineError, match=r"took back rows of orders-0 .* \(version 6\)"):
            copied(open_in(tmp_path, "delta"), options)
        rewind()
        copied(open_in(tmp_path, "delta"), options)
        assert sql(rows) == [list(row) for row in BOTH]

        sql(f"RESTORE TABLE delta.`{table}` TO VERSION AS OF 2")
        rewind()
        sql(f"RESTORE TABLE delta.`{table}` TO VERSION AS OF 5")
        with pytest.raises(PipelineError, match="brought back rows of orders-0"):
            copied(open_in(tmp_path, "delta"), options)
        rewind()
        five_commits.segment([b"z"] * 5)
        copied(open_in(tmp_path, "delta"), options)
        assert sql(rows) == sorted([list(row) for row in BOTH] + [[0, at] for at in range(60, 65)])
        restores = [row for row in sql(f"DESCRIBE HISTORY delta.`{table}`") if "RESTORE" in row]
        assert len(restores) == 3
        assert all("Delta-Lake" in str(row) for row in restores)
    assert audited(tmp_path, "delta", options).findings == []
