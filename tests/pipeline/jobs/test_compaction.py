"""What compaction would save, compared with a model: the last record of each key stays."""

import json
from collections.abc import Callable
from random import Random

import pytest
from click.testing import CliRunner

from tests.pipeline.conftest import NOW_MS, DirectoryWriter
from warmlog.broker.log.directory.checkpoint import CLEANER_POINTS, write_offsets
from warmlog.broker.log.io.disk import Disk
from warmlog.cli.pipeline.audit import compact_report as command
from warmlog.pipeline.jobs import compaction
from warmlog.pipeline.jobs.compaction import dirty_ratio
from warmlog.protocol.records.builder import build_batch

WritePartition = Callable[..., DirectoryWriter]


def test_the_report_is_that_of_a_model(write_partition: WritePartition, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "MERGE_ROWS", 100)
    random = Random(7)
    rows = [
        (
            NOW_MS + at,
            random.choice([None, *(b"key-%d" % key for key in range(9)), b"\xff"]),
            random.choice([None, bytes(random.randrange(90))]),
            (),
        )
        for at in range(400)
    ]
    directory = write_partition().directory
    (directory / f"{0:020d}.log").write_bytes(build_batch(rows[:300], base_offset=0))
    (directory / f"{300:020d}.log").write_bytes(build_batch(rows[300:], base_offset=300))
    write_offsets(Disk(), str(directory.parent / CLEANER_POINTS), {("orders", 0): 300})
    arguments = ["--path", str(directory.parent), "--topic", "orders", "--top", "2"]
    result = CliRunner().invoke(command, [*arguments, "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)

    sizes = [len(key or b"") + len(value or b"") for _, key, value, _ in rows]
    last = {key: at for at, (_, key, _, _) in enumerate(rows) if key is not None}
    by_key = {key: [at for at, row in enumerate(rows) if row[1] == key] for key in last}
    gone = [at for key, places in by_key.items() for at in places if at != last[key]]
    assert (found["records"], found["keys"]) == (400, len(last))
    assert found["tombstones"] == sum(row[2] is None for row in rows)
    assert found["keyless"] == sum(row[1] is None for row in rows)
    assert (found["saved_records"], found["saved_bytes"]) == (len(gone), sum(sizes[at] for at in gone))
    assert found["stored_bytes"] == sum(path.stat().st_size for path in directory.glob("*.log"))
    assert found["dirty_ratio"] == 0.0
    largest = sorted(by_key, key=lambda key: (-sum(sizes[at] for at in by_key[key]), key))[:2]
    assert [key["text"] for key in found["top"]] == [key.hex() if key == b"\xff" else key.decode() for key in largest]
    text = CliRunner().invoke(command, arguments)
    assert "records without a key, not counted" in text.stdout, text.output


@pytest.mark.parametrize(("until", "ratio"), [(0, 1.0), (10, 2 / 3), (30, 0.0)])
def test_the_dirty_ratio_is_the_cleaners(until: int, ratio: float) -> None:
    assert dirty_ratio({0: 100, 10: 100, 20: 100, 30: 5000}, until) == ratio
    assert dirty_ratio({0: 100}, until) == 0.0


def test_more_keys_than_fit_into_memory_are_an_error_that_names_a_query(
    write_partition: WritePartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "MAX_KEYS_BYTES", 100)
    writer = write_partition()
    writer.segment([b"x"] * 200)
    failed = CliRunner().invoke(command, ["--path", str(writer.directory.parent), "--topic", "orders"])
    assert failed.exit_code == 1
    assert "orders-0 has more than 0 MiB of distinct keys" in failed.stderr
    assert "docs/pipeline/jobs.md has a query for Spark" in failed.stderr
