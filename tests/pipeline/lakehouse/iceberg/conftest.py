"""A table to roll back."""

from pathlib import Path

import pytest

from tests.pipeline.conftest import DirectoryWriter
from tests.pipeline.lakehouse.tables import copied, open_in, options_of


@pytest.fixture
def five_commits(writer: DirectoryWriter, tmp_path: Path) -> DirectoryWriter:
    """Snapshots 0 to 4, of which 0 to 3 have 20 offsets each, of both partitions, and the last 10."""
    copied(open_in(tmp_path, "iceberg"), options_of(writer, maxOffsetsPerTrigger=20))
    return writer
