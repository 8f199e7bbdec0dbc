"""docs/lakehouse.md: its commands run as written."""

import re
from pathlib import Path

import pytest

from tests.pipeline.lakehouse.documents import printed_by, shown_in
from tests.pipeline.lakehouse.migration.archives import unpacked


@pytest.mark.interop  # takes many seconds
@pytest.mark.timeout(400)
def test_the_commands_run_as_written(tmp_path: Path) -> None:
    (tmp_path / "lake").mkdir()
    unpacked("first", tmp_path / "stored").lake.rename(tmp_path / "lake" / "archive")
    printed, texts = printed_by("docs/lakehouse.md", tmp_path), shown_in("docs/lakehouse.md")
    assert "committed 3,000 records of 3,000 offsets" in printed["delta"]
    assert printed["query"] == "3000\n"
    assert "committed 3,000 records of 3,000 offsets" in printed["iceberg"]
    assert "committed 3,000 records of 3,000 offsets" in printed["partitions"]
    assert sorted(printed["partitions"].splitlines()[-2:]) == ["0 1000", "1 2000"]
    assert printed["audit"].startswith(texts[0])
    assert printed["replay"].startswith(texts[1])
    assert "3,000 records sent to readings-again" in printed["replay"]
    assert "is a Delta table now: 40 rows in 6 files of 3 commits" in printed["migrate"]
    assert "committed 2,000 records of 2,000 offsets" in printed["restore"]
    assert "committed 2,000 records of 2,000 offsets" in printed["rollback"]
    merged = re.sub(r"\S+ KiB", "KiB", printed["maintain"])
    assert merged.endswith(re.sub(r"\S+ KiB", "KiB", texts[2]))
    assert printed["scan"] == texts[3]
    assert len(list((tmp_path / "lake" / "readings").glob("*.parquet"))) == 1
