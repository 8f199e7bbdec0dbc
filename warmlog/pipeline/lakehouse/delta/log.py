"""The log of a Delta table: what its commits say of themselves, and the files that they add and remove.

The library reads the descriptions of many commits at a time, but neither their actions nor their version numbers:
it counts down from the version that was read, although it includes commits that came since. Both matter only where a
`RESTORE` takes commits back, and are then read from the files of the log, one by one.

Source: the Delta protocol, "Delta Log Entries", "Commit Provenance Information".
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from warmlog.pipeline.errors import PipelineError, UnavailableError
from warmlog.pipeline.lakehouse.delta.errors import delta_errors
from warmlog.pipeline.lakehouse.ledger import LEDGER_KEY, parse_ledger
from warmlog.pipeline.lakehouse.receipts import KEY, Receipt, parse_receipt
from warmlog.pipeline.lakehouse.writing import FileStore

USER_METADATA = "userMetadata"
LOG = "_delta_log"
RESTORE = "RESTORE"
FIRST_ENTRIES = 16  # log entries read first; more are read if the caller needs them


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEntry:
    """A commit. `info`: its description. `source`: table and version, for messages.

    `added`, `removed`: its files, with their deletion vectors; None if they were not read.
    """

    version: int
    info: Mapping[str, Any]
    source: str
    added: frozenset[str] | None = None
    removed: frozenset[str] | None = None

    @property
    def time_ms(self) -> int:
        """The time of the commit in milliseconds since 1970."""
        return int(self.info["timestamp"])

    @property
    def is_restore(self) -> bool:
        """Whether the commit restores the files of an earlier version."""
        return self.info.get("operation") == RESTORE

    @property
    def restored_version(self) -> int | None:
        """The version that a restore names; None if it names a time.

        Spark writes numbers and nulls; deltalake writes text, and leaves out what is null.
        """
        parameters = self.info.get("operationParameters")
        version: Any = parameters.get("version") if isinstance(parameters, dict) else None
        try:
            return int(version)
        except (TypeError, ValueError):
            return None

    def receipt(self) -> Receipt | None:
        """Return the receipt of the commit. Raises PipelineError."""
        text = self._text(KEY)
        return None if text is None else parse_receipt(text, self.source)

    def ledger(self) -> tuple[tuple[Receipt, ...], Mapping[str, int]] | None:
        """Return the ledger of the commit and its marks. Raises PipelineError."""
        text = self._text(LEDGER_KEY)
        return None if text is None else parse_ledger(text, self.source)

    @property
    def has_receipt(self) -> bool:
        """Whether the commit has a receipt."""
        return self._text(KEY) is not None

    @property
    def has_ledger(self) -> bool:
        """Whether the commit has a ledger."""
        return self._text(LEDGER_KEY) is not None

    def _text(self, key: str) -> str | None:
        """Return a text in the metadata of the commit, which another program may have made."""
        try:
            form = json.loads(self.info[USER_METADATA])
        except (TypeError, ValueError, KeyError):
            return None
        return form.get(key) if isinstance(form, dict) else None


class DeltaLog:
    """The log up to a version that was read. `handle`: the library's table. `store`: opens files of the table.

    Methods raise PipelineError.
    """

    def __init__(self, uri: str, handle: Any, store: FileStore) -> None:
        self._uri = uri
        self._handle = handle
        self._store = store

    @property
    def table(self) -> str:
        """The directory or URL of the table."""
        return self._uri

    def newest(self, count: int) -> list[LogEntry]:
        """Return the last commits, newest first, fewer if the log was cleaned, and those since the version was read.

        If there are any since, the numbers of versions are too low.
        """
        with delta_errors(self._uri):
            listed = self._handle.history(count)
        return [self._entry(int(info["version"]), info) for info in listed]

    def entries(self) -> Iterator[LogEntry]:
        """Yield the commits up to the version, newest first, as far as the log still has them."""
        limit, done = FIRST_ENTRIES, 0
        while True:
            listed = self._last(limit)
            yield from listed[done:]
            if len(listed) < limit:
                return
            done, limit = len(listed), limit * 4

    def _last(self, count: int) -> list[LogEntry]:
        """Return the last commits up to the version."""
        version = int(self._handle.version())
        since = -1
        while (now := max(len(self.newest(1)) - 1, 0)) != since:  # commits since the version was read
            since, listed = now, self.newest(count)
        return [self._entry(version - number, each.info) for number, each in enumerate(listed[since:])]

    def _entry(self, version: int, info: Mapping[str, Any], **files: frozenset[str]) -> LogEntry:
        return LogEntry(version=version, info=info, source=f"{self._uri}, version {version}", **files)

    def read(self, version: int) -> LogEntry | None:
        """Return a commit with its files, or None if the log no longer has it."""
        path = self._store.path_of(f"{LOG}/{version:020d}.json")
        try:
            with delta_errors(self._uri), self._store.open(path) as stream:
                actions = [json.loads(line) for line in stream.read().splitlines() if line.strip()]
        except UnavailableError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return None
            raise
        except ValueError as error:
            raise PipelineError(f"{path} cannot be read: {error}") from error
        info: dict[str, Any] = next((action["commitInfo"] for action in actions if action.get("commitInfo")), {})
        names = {
            kind: frozenset(_name(action[kind]) for action in actions if action.get(kind)) for kind in ("add", "remove")
        }
        return self._entry(version, info, added=names["add"], removed=names["remove"])


def _name(action: Mapping[str, Any]) -> str:
    """Return what identifies a file of the table: its path, and which of its rows are deleted."""
    return json.dumps([unquote(action["path"]), action.get("deletionVector")], sort_keys=True)
