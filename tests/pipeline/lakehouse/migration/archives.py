"""Archives that versions 0.1 and 0.2 wrote, with the logs that they read."""

import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.documents import ROOT
from warmlog.pipeline.job_stats import Reporter
from warmlog.pipeline.jobs.table_audit import TableAudit, audit_table
from warmlog.pipeline.lakehouse.delta.table import DeltaTable
from warmlog.pipeline.lakehouse.target import open_table
from warmlog.pipeline.runner import LocalRunner
from warmlog.pipeline.source.options import ReadOptions, read_options

ARCHIVES = ROOT / "tests" / "fixtures" / "archives"


@dataclass(frozen=True, slots=True)
class StoredArchive:
    """An archive's directory, and the data directory of its topics."""

    lake: Path
    data: Path
    topics: str

    def options(self, **options: Any) -> ReadOptions:
        given = {"path": str(self.data), "topic": self.topics, **options}
        return read_options({name: str(value) for name, value in given.items()})

    def table(self, columns: tuple[str, ...] = ()) -> DeltaTable:
        table = open_table(str(self.lake), columns)
        assert isinstance(table, DeltaTable)
        table.refresh()
        return table

    def audited(self) -> TableAudit:
        return audit_table(LocalRunner(), self.options(), self.table(), Reporter("audit"))

    def offsets(self) -> list[tuple[str, int, int]]:
        """(topic, partition, offset) of each row, as readers of Delta tables see them."""
        import deltalake

        columns = ["topic", "partition", "offset"]
        rows = deltalake.DeltaTable(str(self.lake)).to_pyarrow_dataset().to_table(columns=columns).to_pylist()
        return sorted((row["topic"], row["partition"], row["offset"]) for row in rows)

    def files(self) -> dict[str, bytes]:
        """The files of batches, and what is in them."""
        return {str(path): path.read_bytes() for path in self.lake.glob("batch=*/**/*") if path.is_file()}


def unpacked(name: str, directory: Path) -> StoredArchive:
    """Unpack an archive into a directory."""
    with tarfile.open(ARCHIVES / f"{name}.tar.gz") as packed:
        packed.extractall(directory, filter="data")
    topics = "orders,payments" if name == "hours" else "orders"
    return StoredArchive(directory / "lake", directory / "data", topics)
