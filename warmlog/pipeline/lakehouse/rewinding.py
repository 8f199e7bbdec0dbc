"""Accept that another program took rows of a table back, so that the next job copies them again.

Positions of a Delta table cannot be removed, and those of an Iceberg table are a property that a rollback leaves as it
is. One commit without files therefore stores the positions that the remaining rows have, and a receipt of no offsets at
each of them, which continues the receipts that count. It goes on top of the version that was judged, or not at all.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from warmlog.pipeline.errors import PipelineError, UnavailableError
from warmlog.pipeline.lakehouse.committing import PAUSES_S
from warmlog.pipeline.lakehouse.receipts import Receipt, Span, new_id
from warmlog.pipeline.lakehouse.table import ConflictError, OutcomeUnknownError, RefusedError
from warmlog.pipeline.lakehouse.taken_back import TakenBack


class RewindableTable(Protocol):
    """A table of which other programs may take rows back."""

    def refresh(self) -> None:
        """Read the newest version. Raises PipelineError."""

    def taken_back(self) -> TakenBack | None:
        """Return what was taken back in the version that was read last. Raises PipelineError."""

    def accept(self, taken: TakenBack, receipt: Receipt) -> None:
        """Store the positions of the remaining rows, with a receipt of them, on top of the version that was read last.

        Raises ConflictError, RefusedError, OutcomeUnknownError.
        """

    def holds(self, receipt: Receipt) -> bool:
        """Return whether the last attempt to commit this receipt is in the version that was read last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewound:
    """A partition whose next record to copy is at another offset now. `after`: None for the first offset to copy."""

    topic: str
    partition: int
    before: int
    after: int | None


def rewind(
    table: RewindableTable, *, dry_run: bool = False, pause: Callable[[float], Any] = time.sleep
) -> list[Rewound]:
    """Set positions back to the rows that remain in a table; return the changes. Raises PipelineError.

    `dry_run`: change nothing. `pause`: waits the given number of seconds before a retry.
    """
    failure: PipelineError | None = None
    receipt: Receipt | None = None
    done: list[Rewound] = []
    for pause_s in PAUSES_S:
        try:
            table.refresh()
            if receipt is not None and table.holds(receipt):
                return done
            taken = table.taken_back()
            if taken is None:
                return []
            done = _changes(taken)
            if dry_run:
                return done
            receipt = _receipt(taken)
            _commit(table, taken, receipt)
        except UnavailableError as error:
            if receipt is None:  # nothing was tried yet
                raise
            failure = error
        except (ConflictError, OutcomeUnknownError) as error:
            failure = error
        else:
            return done
        pause(pause_s)
    raise PipelineError(f"{failure}; gave up after {len(PAUSES_S)} attempts") from failure


def _commit(table: RewindableTable, taken: TakenBack, receipt: Receipt) -> None:
    """Commit the receipt. Raises as `accept` does, except if the commit is there all the same."""
    try:
        table.accept(taken, receipt)
    except RefusedError:
        table.refresh()
        if not table.holds(receipt):  # else only its checkpoint could not be written
            raise


def _changes(taken: TakenBack) -> list[Rewound]:
    return [
        Rewound(
            topic=key[0],
            partition=key[1],
            before=taken.before[key].offset,
            after=None if after is None else after.offset,
        )
        for key, after in sorted(taken.positions.items(), key=lambda item: item[0])
    ]


def _receipt(taken: TakenBack) -> Receipt:
    """Return a receipt of no offsets, with the columns and formats of the receipts that it continues."""
    spans = {key: Span(first=at.offset, end=at) for key, at in taken.positions.items() if at is not None}
    unknown = {key[0] for key, at in taken.positions.items() if at is None}
    spans |= {key: Span(first=at.offset, end=at) for key, at in taken.kept.items() if key[0] in unknown}
    return Receipt(id=new_id(), spans=spans, columns=taken.newest.columns, formats=taken.newest.formats)
