"""A table to restore."""

from pathlib import Path

import pytest

from tests.pipeline.conftest import DirectoryWriter
from tests.pipeline.lakehouse.delta.restored import delta
from tests.pipeline.lakehouse.tables import copied, open_in, options_of


@pytest.fixture
def five_commits(writer: DirectoryWriter, tmp_path: Path) -> DirectoryWriter:
    """Versions 1 to 5 have 20 offsets each, of both partitions, and version 5 the last 10."""
    copied(open_in(tmp_path, "delta"), options_of(writer, maxOffsetsPerTrigger=20))
    assert delta(tmp_path).version() == 5
    return writer
