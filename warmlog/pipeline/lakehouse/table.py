"""The interface of a table, independent of its format.

Invariants:
1. A commit adds rows, their receipt and the new positions in one step, and only on top of the version from which
`positions` were read. Any other commit in between makes it fail with ConflictError.
2. `holds` finds the receipt of a commit whose answer was lost.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.lakehouse.arrangement.spec import Arrangement
from warmlog.pipeline.lakehouse.reading import DataFile
from warmlog.pipeline.lakehouse.receipts import Receipt
from warmlog.pipeline.lakehouse.writing import FileStore, NewFile
from warmlog.pipeline.source.offsets import Position
from warmlog.protocol.partitions import TopicPartition


class ConflictError(PipelineError):
    """Another commit came first; this one is not in the table."""


class OutcomeUnknownError(PipelineError):
    """The answer to a commit was lost; the commit may be in the table."""


class RefusedError(PipelineError):
    """The table's store refused a commit, and would refuse it again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """A commit in a table's history. `version`: Delta's version, or Iceberg's snapshot id."""

    version: int
    receipt: Receipt


class Table(Protocol):
    """A table to which rows are appended, or upserted. Methods raise PipelineError, OSError."""

    @property
    def name(self) -> str:
        """The table's directory, URL or identifier."""

    @property
    def version(self) -> int:
        """The last version read: Delta's version, or Iceberg's snapshot id."""

    @property
    def is_upserted(self) -> bool:
        """Whether the version that was read last has one row for each key."""

    @property
    def is_arranged(self) -> bool:
        """Whether partitions or an order of rows were chosen for a new table."""

    def create(self, schema: Any = None) -> None:
        """Create the table unless it exists. `schema`: its columns, by default those to write."""

    def refresh(self) -> None:
        """Read the newest version. Raises PipelineError if rows can no longer be appended to it."""

    def positions(self, keys: Iterable[TopicPartition]) -> dict[TopicPartition, Position]:
        """Return the positions of these partitions in the version that was read last, except unknown ones."""

    def store(self) -> FileStore:
        """Return the store that tasks write files to."""

    def schema(self) -> Any:
        """Return the Arrow schema of files, with Iceberg's field ids if the table has them."""

    def full_schema(self) -> Any:
        """Return `schema` with all columns of the table, also those of other writers."""

    def arrangement(self) -> Arrangement:
        """Return how rows of the planned columns are arranged. Raises PipelineError for partitions it cannot write."""

    def fields(self) -> list[Any]:
        """Return the columns of the version that was read last, with types as files are written."""

    def stored_type(self, kind: Any) -> Any:
        """Return the type that the table has for an Arrow type."""

    def check_change(self, before: Any, after: Any) -> None:
        """Raise SchemaError if the table cannot have this column, or change it so. `before`: None for a new column."""

    def plan_columns(self, schema: Any) -> None:
        """Write files with these columns from now on. Missing columns are added to the table.

        Delta adds them in a separate commit before the first rows with them, Iceberg in the commit of these rows.
        """

    def commit(self, receipt: Receipt, files: Sequence[NewFile], removed: Sequence[DataFile] = ()) -> None:
        """Append files, and remove others. Raises ConflictError, RefusedError, OutcomeUnknownError.

        The commit of a receipt with counts of upserts also marks the table as one with a row for each key.
        """

    def holds(self, receipt: Receipt) -> bool:
        """Return whether the last attempt to commit this receipt is in the last version read."""

    def files(self) -> list[DataFile]:
        """Return the files of the last version read."""

    def commits(self) -> Iterator[Committed]:
        """Yield the commits with receipts in the table's remaining history, newest first."""
