"""The interface of a table for maintenance, independent of its format."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from warmlog.pipeline.lakehouse.reading import DataFile
from warmlog.pipeline.lakehouse.receipts import Receipt
from warmlog.pipeline.lakehouse.table import Table
from warmlog.pipeline.lakehouse.writing import NewFile


@dataclass(frozen=True, slots=True, kw_only=True)
class Expired:
    """Versions to expire. `kept`: retained versions. `moves_ledger`: whether receipts move to the ledger first."""

    versions: tuple[int, ...]
    kept: int
    moves_ledger: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Unneeded:
    """Files that no version needs any more. `size`: total bytes of the files whose size is known."""

    paths: tuple[str, ...]
    size: int


class Upkeep(Protocol):
    """The steps of maintenance that depend on the format. Methods raise PipelineError, OSError."""

    @property
    def table(self) -> Table:
        """The table."""

    def check(self) -> None:
        """Raise PipelineError if rows were taken back by a restore or a rollback: a ledger would settle that."""

    def replace(self, removed: Sequence[DataFile], added: Sequence[NewFile], ledger: Sequence[Receipt]) -> None:
        """Commit files that replace others with the same rows, and the ledger, on top of the version that was read.

        Raises ConflictError, RefusedError, OutcomeUnknownError.
        """

    def to_expire(self) -> Expired:
        """Return the versions that are old enough."""

    def expire(self, expired: Expired, ledger: Sequence[Receipt]) -> None:
        """Remove old versions, and commit the ledger with or before them. Raises as `replace` does."""

    def unneeded(self) -> Unneeded:
        """Return the files that no version needs and that are too old for a running job to commit them."""

    def delete(self, unneeded: Unneeded) -> None:
        """Delete these files."""
