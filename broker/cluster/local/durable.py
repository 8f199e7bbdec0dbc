"""The contents of a local store, whose changes are on the disk before anybody learns of them.

A transaction is decided in memory at once, and its answer waits for the disk. Transactions that were decided during a
write are written together by the next one. Reads and watches wait for what they have seen in the same way.
"""

from collections.abc import AsyncGenerator

import trio

from warmlog.broker.cluster.local.journal import Journal
from warmlog.broker.cluster.memory import MemoryCluster
from warmlog.broker.cluster.store import Changes

KEPT_REVISIONS = 10_000  # for watches that resume


class DurableCluster:
    """A MemoryCluster and its journal. `run` must run."""

    def __init__(self, journal: Journal) -> None:
        _, revision, openings, items = journal.contents
        # No lease of an earlier process may be taken for one of this process.
        self.memory = MemoryCluster(items, revision=revision, compacted=revision, first_lease=(openings << 32) + 1)
        self.revision = revision  # on the disk
        self._journal = journal
        self._advanced = trio.Event()

    async def run(self) -> None:
        """Write changes to the journal until cancelled. Raises StoreError: nothing is answered any more."""
        while True:
            changes = self.memory.changes_after(self.revision)
            if not changes:
                await self.memory.changed()
                continue
            await trio.to_thread.run_sync(self._journal.write, changes)
            self.revision = changes[-1].revision
            self._advanced.set()
            self._advanced = trio.Event()
            if self.revision - self.memory.compacted > 2 * KEPT_REVISIONS:
                self.memory.compact(self.revision - KEPT_REVISIONS)

    async def until_durable(self) -> None:
        """Wait until everything that is in memory now is on the disk."""
        revision = self.memory.revision
        while self.revision < revision:
            await self._advanced.wait()

    async def changes(self, revision: int) -> AsyncGenerator[Changes, None]:
        """Iterate over the changes after a revision. Raises CompactedError."""
        while True:
            advanced = self._advanced
            for each in self.memory.changes_after(revision):
                if each.revision > self.revision:
                    break
                yield each
                revision = each.revision
            else:
                if revision < self.revision:
                    continue
            await advanced.wait()
