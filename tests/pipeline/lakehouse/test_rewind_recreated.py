"""Rows of a topic are taken back, and those of a deleted topic of the same name remain."""

from pathlib import Path

import pytest

from tests.pipeline.conftest import DirectoryWriter
from tests.pipeline.lakehouse.delta.restored import delta
from tests.pipeline.lakehouse.iceberg.rolled import make_current, snapshots
from tests.pipeline.lakehouse.tables import Kind, copied, offsets_in, open_in, options_of
from tests.pipeline.lakehouse.test_audit import audited, messages
from tests.pipeline.lakehouse.test_audit_recreated import again, first, overwrite
from tests.pipeline.lakehouse.test_rewinding import rewound
from warmlog.pipeline.errors import PipelineError

__all__ = ["first"]


def current(directory: Path, kind: Kind) -> int:
    return delta(directory).version() if kind == "delta" else snapshots(directory)[-1]


def take_back(directory: Path, kind: Kind, version: int) -> None:
    if kind == "delta":
        delta(directory).restore(version)
    else:
        make_current(directory, version)


def test_rows_of_the_present_topic_are_copied_again(first: DirectoryWriter, kind: Kind, tmp_path: Path) -> None:
    before = current(tmp_path, kind)
    again(first, tmp_path, kind, batches=6)  # as many offsets as the earlier topic has
    take_back(tmp_path, kind, before)
    with pytest.raises(PipelineError) as caught:
        copied(open_in(tmp_path, kind), options_of(first))
    assert "took back rows of orders-0 from offset 0 (the remaining rows are of an earlier topic orders)" in str(
        caught.value
    )
    assert rewound(tmp_path, kind) == [(0, 60, 0)]
    assert sum(receipt.rows for receipt in copied(open_in(tmp_path, kind), options_of(first))) == 60
    assert len(offsets_in(tmp_path, kind)) == 150
    assert messages(audited(tmp_path, kind, options_of(first))) == []


def test_rows_of_either_topic_are_not_taken_for_the_others(first: DirectoryWriter, kind: Kind, tmp_path: Path) -> None:
    """Rows of the earlier topic were rewritten, and have the offsets of the rows that were taken back."""
    overwrite(tmp_path, kind)
    before = current(tmp_path, kind)
    again(first, tmp_path, kind, batches=6)
    take_back(tmp_path, kind, before)
    for act in (
        lambda: copied(open_in(tmp_path, kind), options_of(first)),
        lambda: rewound(tmp_path, kind),
    ):
        with pytest.raises(PipelineError, match="rewritten those of an earlier topic of this name"):
            act()
