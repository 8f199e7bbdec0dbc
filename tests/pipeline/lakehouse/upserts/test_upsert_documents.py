"""docs/lakehouse-upserts.md: its commands run as written."""

from pathlib import Path

import pytest

from tests.pipeline.lakehouse.documents import printed_by, shown_in

DOCUMENT = "docs/lakehouse-upserts.md"


@pytest.mark.interop  # takes many seconds
@pytest.mark.timeout(400)
def test_the_commands_run_as_written(tmp_path: Path) -> None:
    printed, texts = printed_by(DOCUMENT, tmp_path), shown_in(DOCUMENT)
    assert "3 rows inserted, 0 rows updated, 0 rows deleted" in printed["upsert"]
    assert "1 row inserted, 1 row updated, 0 rows deleted" in printed["upsert"]
    assert printed["query"] == texts[0]
    assert texts[1] in printed["envelope"]
    assert "1 partition, 1 row: nothing wrong" in printed["envelope"]
    assert printed["audit"].startswith(texts[2])
