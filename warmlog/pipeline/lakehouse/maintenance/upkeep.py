"""What maintenance needs of a table, whichever its format."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from warmlog.pipeline.lakehouse.reading import DataFile
from warmlog.pipeline.lakehouse.receipts import Receipt
from warmlog.pipeline.lakehouse.table import Table
from warmlog.pipeline.lakehouse.writing import NewFile


@dataclass(frozen=True, slots=True, kw_only=True)
class Expired:
    """Versions that expire. `kept`: those that remain. `moves_ledger`: whether receipts go to the ledger before."""

    versions: tuple[int, ...]
    kept: int
    moves_ledger: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Unneeded:
    """Files that no version needs any more. `size`: bytes of those whose size is known."""

    paths: tuple[str, ...]
    size: int


class Upkeep(Protocol):
    """The steps of maintenance that differ. Methods raise PipelineError, OSError."""

    @property
    def table(self) -> Table:
        """The table."""

    def replace(self, removed: Sequence[DataFile], added: Sequence[NewFile], ledger: Sequence[Receipt]) -> None:
        """Put files in place of others with the same rows, and the ledger, on top of the version that was read.

        Raises ConflictError, OutcomeUnknownError.
        """

    def to_expire(self) -> Expired:
        """Return the versions that are old enough."""

    def expire(self, expired: Expired, ledger: Sequence[Receipt]) -> None:
        """Remove old versions, and commit the ledger with or before them. Raises ConflictError, OutcomeUnknownError."""

    def unneeded(self) -> Unneeded:
        """Return the files that no version needs, and that are older than any that a job may still commit."""

    def delete(self, unneeded: Unneeded) -> None:
        """Delete these files."""
