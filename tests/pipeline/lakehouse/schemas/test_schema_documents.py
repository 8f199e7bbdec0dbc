"""docs/lakehouse-schemas.md: its commands run as written."""

from pathlib import Path

import pytest

from tests.documents import ROOT
from tests.pipeline.lakehouse.documents import printed_by, shown_in

DOCUMENT = "docs/lakehouse-schemas.md"


@pytest.mark.timeout(400)
def test_the_commands_run_as_written(tmp_path: Path) -> None:
    printed = printed_by(DOCUMENT, tmp_path)
    assert "committed 2 records of 2 offsets" in printed["file"]
    assert printed["query"] == shown_in(DOCUMENT)[0]
    assert "2 rows: nothing wrong" in printed["audit"]


def test_the_arguments_of_the_sink_are_those_of_the_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("order.json").write_text('{"type": "object", "properties": {"id": {"type": "integer"}}}')
    text = (ROOT / DOCUMENT).read_text()
    exec(text.split("```python\n")[1].split("```")[0], {})
