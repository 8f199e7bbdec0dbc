"""Metrics of a job that copies a topic to a table, as Prometheus reads them."""

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families

from tests.pipeline.conftest import DirectoryWriter
from tests.pipeline.lakehouse.tables import Kind, arguments_of, copied, open_in, options_of
from tests.pipeline.lakehouse.test_exactly_once import Watched, once
from warmlog.cli.pipeline.table import table as command
from warmlog.pipeline.copying.metrics import served
from warmlog.pipeline.lakehouse.job import TableJob, TableSettings
from warmlog.pipeline.runner import LocalRunner


def scraped(port: int) -> dict[str, float]:
    """The values of `warmlog_table_…`, by the rest of their names and by partition."""
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    return {
        ".".join(
            [sample.name.removeprefix("warmlog_table_"), *sorted(sample.labels.values(), reverse=True)]
        ): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith("warmlog_table_")
    }


def test_rows_commits_and_lag(writer: DirectoryWriter, kind: Kind, tmp_path: Path) -> None:
    job = TableJob(options_of(writer, maxOffsetsPerTrigger=30), open_in(tmp_path, kind), TableSettings())
    with served(job.metrics, "127.0.0.1", 0) as port:
        assert (scraped(port)["rows_total"], scraped(port)["last_commit_timestamp_seconds"]) == (0, 0)
        receipt = job.step(LocalRunner())
        assert receipt is not None
        first = scraped(port)
        assert (first["rows_total"], first["commits_total"], first["files_total"]) == (30, 1, 1)
        assert (first["file_bytes_total"] > 0, first["commit_seconds_total"] > 0) == (True, True)
        lags = {key: end for key, end in first.items() if key.startswith("lag_offsets")}
        ends = {key[1]: span.end.offset for key, span in receipt.spans.items()}
        assert lags == {"lag_offsets.orders.0": 60 - ends[0], "lag_offsets.orders.1": 30 - ends[1]}
        assert first["position_offset.orders.0"] == ends[0]
        while job.step(LocalRunner()) is not None:
            pass
        writer.segment([b"z"] * 5)
        last = scraped(port)
        assert (last["rows_total"], last["lag_offsets.orders.0"], last["lag_offsets.orders.1"]) == (90, 0, 0)
        assert last["last_check_timestamp_seconds"] >= last["last_commit_timestamp_seconds"] > 0


def test_a_batch_that_another_job_was_faster_with_is_counted(
    writer: DirectoryWriter, kind: Kind, tmp_path: Path
) -> None:
    step = once("before commit", lambda: copied(open_in(tmp_path, kind), options_of(writer)))
    job = TableJob(options_of(writer), Watched(open_in(tmp_path, kind), step), TableSettings(), pause=lambda _: None)
    assert job.step(LocalRunner()) is None
    assert (job.metrics.dropped_batches, job.metrics.rows, set(job.metrics.lag_offsets.values())) == (1, 0, {0})


def test_the_command_serves_them_while_it_runs(writer: DirectoryWriter, tmp_path: Path) -> None:
    source = ["--path", str(writer.directory.parent), "--every", "20ms", "--metrics", "0", "--json"]
    arguments = ["pipeline", "table", "orders", *arguments_of(tmp_path, "delta"), *source]
    with subprocess.Popen(
        [sys.executable, "-m", "warmlog", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        assert process.stdout is not None
        found = re.search(r"metrics at http://127\.0\.0\.1:(\d+)/metrics", process.stderr.readline())
        assert found is not None
        process.stdout.readline()  # the commit
        assert scraped(int(found[1]))["rows_total"] == 90
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait() == 0


def test_an_address_that_cannot_be_served_at_is_an_error(writer: DirectoryWriter, tmp_path: Path) -> None:
    arguments = ["orders", str(tmp_path / "delta"), "--path", str(writer.directory.parent), "--until-end"]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = CliRunner().invoke(command, [*arguments, "--metrics", str(port)])
    assert result.exit_code == 1
    (line,) = result.output.splitlines()
    assert f"metrics cannot be served at 127.0.0.1:{port}: " in line


@pytest.mark.parametrize("address", ["host", "127.0.0.1:", "70000", "a:b"])
def test_what_is_no_address_is_refused(address: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(command, ["orders", str(tmp_path / "delta"), "--metrics", address])
    assert (result.exit_code, "is not a port such as 9464, or HOST:PORT" in result.output) == (2, True)
