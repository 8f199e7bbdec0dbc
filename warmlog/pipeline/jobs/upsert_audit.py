"""Audit a table with one row for each key: each row is the newest record of its key, and each key has its row.

1. The log is read once: the newest record of each key below the table's position is compared with the key's row, and
   each row with the record at its offset. DuckDB holds the keys, on disk if they exceed its memory.
2. A row that is no longer in the log was compacted if a newer record of its key explains that. A row below the start
   of the log cannot be proved.
3. A key belongs to its partition, as for the job.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.job_stats import Reporter
from warmlog.pipeline.jobs.audit_segment import AuditFinding
from warmlog.pipeline.jobs.log_ranges import LogExtent, log_extents, splits_of
from warmlog.pipeline.jobs.table_proof import arrangement_to_check, runs
from warmlog.pipeline.jobs.table_stretches import PartitionProof, find_strays
from warmlog.pipeline.jobs.upsert_log import Differences, LogReader, Segment, segments_of
from warmlog.pipeline.lakehouse.maintenance.history import is_whole
from warmlog.pipeline.lakehouse.reading import DataFile, TableReader
from warmlog.pipeline.lakehouse.receipts import Receipt
from warmlog.pipeline.lakehouse.schemas.auditing import ReceiptSchemas, SchemaSources
from warmlog.pipeline.lakehouse.schemas.types import normal
from warmlog.pipeline.lakehouse.table import Table
from warmlog.pipeline.lakehouse.upserts.changes import Changes, ChangeWriter
from warmlog.pipeline.lakehouse.upserts.keys import database_errors, open_database, rows_of
from warmlog.pipeline.lakehouse.upserts.scratch import scratch_directory
from warmlog.pipeline.lakehouse.writing import LocalFiles
from warmlog.pipeline.source.input import rules_of
from warmlog.pipeline.source.options import ReadOptions
from warmlog.pipeline.source.ranges import Range
from warmlog.protocol.partitions import TopicPartition

SHOWN = 20  # maximum findings of a kind in a partition
BINARY_UPSERT = {"upsert": True}  # formats without a receipt

NEWEST = """
CREATE TABLE log AS
SELECT topic, "partition", key, max("offset") AS last, count(*) FILTER ("offset" < position) AS records,
    max("offset") FILTER ("offset" < position) AS newest,
    arg_max(deleted, "offset") FILTER ("offset" < position) AS deleted
FROM changes JOIN partitions USING (topic, "partition") GROUP BY ALL
"""
ROWS = 'CREATE TABLE rows AS SELECT file, topic, "partition", key, "offset" FROM stored'
JUDGED = """
CREATE TABLE judged AS
SELECT topic, "partition", key, file, "offset", newest, last, CASE
    WHEN "offset" IS NULL THEN CASE WHEN newest IS NOT NULL AND NOT deleted THEN 'missing' END
    WHEN "offset" >= position THEN 'foreign'
    WHEN newest > "offset" AND deleted THEN 'undead'
    WHEN newest > "offset" THEN 'stale'
    WHEN newest = "offset" AND deleted THEN 'undead'
    WHEN newest = "offset" THEN 'in_log'
    WHEN "offset" < log_start OR last >= position OR is_explained THEN 'unproved'
    ELSE 'foreign' END AS verdict
FROM log FULL OUTER JOIN rows USING (topic, "partition", key) JOIN partitions USING (topic, "partition")
"""
LISTED = """
SELECT * FROM judged WHERE verdict IN ('missing', 'foreign', 'undead', 'stale')
QUALIFY row_number() OVER (PARTITION BY topic, "partition", verdict ORDER BY coalesce("offset", newest)) <= ?
ORDER BY topic, "partition", verdict, coalesce("offset", newest)
"""
TWICE = """
SELECT topic, "partition", key, list("offset" ORDER BY "offset", file), list(DISTINCT file) FROM rows
GROUP BY topic, "partition", key HAVING count(*) > 1
QUALIFY row_number() OVER (PARTITION BY topic, "partition" ORDER BY min("offset")) <= ?
"""
COUNTS = 'SELECT topic, "partition", verdict, count(*) FROM judged WHERE verdict IS NOT NULL GROUP BY ALL'
TOTALS = """
SELECT topic, "partition", sum(records), count(newest), count(newest) FILTER (deleted) FROM log GROUP BY ALL
"""
DOUBLED = """
SELECT topic, "partition", count(*), sum(rows) FROM
    (SELECT topic, "partition", key, count(*) AS rows FROM rows GROUP BY ALL) GROUP BY ALL
"""
DOUBLED_KEYS = """
SELECT topic, "partition", count(*) FROM
    (SELECT topic, "partition" FROM rows GROUP BY topic, "partition", key HAVING count(*) > 1) GROUP BY ALL
"""
ELSEWHERE = """
SELECT topic, "partition", count(*) FROM rows SEMI JOIN
    (SELECT topic, key FROM rows GROUP BY ALL HAVING count(DISTINCT "partition") > 1) USING (topic, key) GROUP BY ALL
"""
WHAT = {
    "missing": "the newest record is at offset {newest}, and the table has no row",
    "foreign": "the row of offset {offset} is in the table, but not in the log",
    "undead": "the row of offset {offset} was deleted by the record at offset {newest}",
    "stale": "the row of offset {offset} is not the newest record, which is at offset {newest}",
}


class UpsertAudit:
    """Audits one table. `findings`: the differences so far."""

    def __init__(self, options: ReadOptions, table: Table, sources: SchemaSources, reporter: Reporter) -> None:
        self._options = options
        self._table = table
        self._schemas = ReceiptSchemas(sources, table)
        self._reporter = reporter
        self._files = sorted(table.files(), key=lambda file: (file.bounds.get("offset", (0, 0)), file.path))
        self._key_type = next((normal(each.type) for each in table.fields() if each.name == "key"), None)
        self._partitions: dict[TopicPartition, PartitionProof] = {}
        self.findings: list[AuditFinding] = []

    def run(self) -> list[PartitionProof]:
        """Return the audit of each partition. Raises PipelineError, InspectError, OSError."""
        if self._key_type is None:
            raise PipelineError(f"{self._table.name} has no column key, by which its rows were upserted")
        receipts = [commit.receipt for commit in self._table.commits()][::-1]
        logs = log_extents(self._options)
        wanted = {
            key for receipt in receipts for key in receipt.spans if self._options.topics.wants(*key)
        } | logs.keys()
        if not wanted:
            raise PipelineError(f"{self._table.name} has no rows of {', '.join(self._options.topics.named)}")
        self._note_files(wanted)
        with scratch_directory() as scratch:
            extents = self._extents(sorted(wanted), logs, receipts)
            changes, differences = self._read(scratch, extents, receipts or [self._unknown_receipt()])
            self._judge(scratch, changes, extents)
        for key, different in differences:
            self._note_values(key, different)
        partitions = [self._partitions[key] for key in sorted(self._partitions)]
        find_strays(partitions, self._files, self._options, TableReader(self._table.store()))
        self.findings += [finding for each in partitions for finding in each.proved.findings]
        self._reporter.set_details(findings=len(self.findings), version=self._table.version)
        return partitions

    def _unknown_receipt(self) -> Receipt:
        """Return what describes rows whose receipts have expired. Raises PipelineError if these were decoded."""
        import pyarrow as pa

        names = [field.name for field in self._table.fields()]
        plain = tuple(name for name in self._options.columns if name in names)
        if self._key_type != pa.binary() or "value" not in plain:
            raise PipelineError(
                f"{self._table.name}: the receipts that say how its keys and values were decoded have expired;"
                " maintenance keeps them"
            )
        return Receipt(id="", spans={}, columns=plain, formats=BINARY_UPSERT)

    def _extents(
        self, keys: Sequence[TopicPartition], logs: dict[TopicPartition, LogExtent], receipts: Sequence[Receipt]
    ) -> dict[TopicPartition, Range]:
        """Describe each partition, and return the offsets of its log to read."""
        positions = self._table.positions(keys)
        whole = is_whole(self._table)
        extents = {}
        for key in keys:
            log, at = logs.get(key), positions.get(key)
            firsts = [receipt.spans[key].first for receipt in receipts if key in receipt.spans]
            end = 0 if at is None else at.offset
            first = min(firsts, default=end) if whole else 0
            is_other = log is not None and at is not None and None not in {log.topic_id, at.topic_id}
            is_other = is_other and log is not None and at is not None and log.topic_id != at.topic_id
            partition = PartitionProof(
                topic=key[0], partition=key[1], topic_id=None if at is None else at.topic_id, first_offset=first,
                end_offset=end,
            )  # fmt: skip
            letters = (run for receipt in receipts for run in receipt.dead_letters.get(key, ()))
            partition.dead_letters = sum(end - first for first, end in letters)
            self._partitions[key] = partition
            if log is None or is_other:
                partition.behind = 0 if log is None else log.end - log.start
                partition.unaccounted = end - first
                extents[key] = Range(start=end, end=end)
                continue
            partition.behind = max(log.end - max(end, log.start), 0)
            start = min(max(first, log.start), max(end, log.end))
            partition.unaccounted = max(min(start, end) - first, 0)
            damaged = (run for receipt in receipts for run in receipt.damaged_offsets.get(key, ()))
            begin = first + partition.unaccounted
            partition.damaged = sum(max(min(run[1], end) - max(run[0], begin), 0) for run in damaged)
            extents[key] = Range(start=start, end=max(log.end, start))
        return extents

    def _read(
        self, scratch: Path, extents: dict[TopicPartition, Range], receipts: Sequence[Receipt]
    ) -> tuple[Changes, list[tuple[TopicPartition, Differences]]]:
        """Read the logs; return their changes, and the differences of rows. Repeats for unknown schemas."""
        segments = [
            segment
            for key, extent in extents.items()
            if extent.end > extent.start
            for segment in segments_of(key, receipts, extent.start, extent.end)
        ]
        ranges = [(segment.key, Range(start=segment.first, end=segment.end)) for segment in segments]
        logs = splits_of(self._options, ranges)
        rules = replace(rules_of(self._options), on_corrupt="skip", fail_on_data_loss=False)
        store, arrangement = LocalFiles(str(scratch)), arrangement_to_check(self._table)
        while True:
            with ChangeWriter(store, self._key_type) as changes:
                reader = LogReader(TableReader(self._table.store()), rules, arrangement, changes)
                differences = [
                    (segment.key, reader.read(segment, self._decode(segment), log, self._files))
                    for segment, log in zip(segments, logs, strict=True)
                ]
            if not reader.unknown:
                self._reporter.add(reader.stats)
                return Changes(store=store, names=(changes.name,), key_type=self._key_type), differences
            store.delete(changes.name)
            self._schemas.learn(reader.unknown)

    def _decode(self, segment: Segment) -> Any:
        return self._schemas.rules(segment.formats, segment.columns)

    # -- keys --

    def _judge(self, scratch: Path, changes: Changes, extents: dict[TopicPartition, Range]) -> None:
        import pyarrow as pa

        with database_errors(), open_database(scratch) as database:
            partitions = [
                {
                    "topic": key[0], "partition": key[1], "position": self._partitions[key].end_offset,
                    "log_start": extents[key].start,
                    "is_explained": bool(self._partitions[key].behind or self._partitions[key].dead_letters),
                }
                for key in extents
            ]  # fmt: skip
            kinds = [("topic", pa.string()), ("partition", pa.int32()), ("position", pa.int64())]
            schema = pa.schema([*kinds, ("log_start", pa.int64()), ("is_explained", pa.bool_())])
            database.register("partitions", pa.Table.from_pylist(partitions, schema))
            database.register("changes", changes.reader())
            database.execute(NEWEST)
            topic = None if len(self._options.topics.named) != 1 else self._options.topics.named[0]
            stored = rows_of(self._table.store(), self._files, topic, self._key_type, unreadable=self._unreadable)
            database.register("stored", stored)
            database.execute(ROWS)
            database.execute(JUDGED)
            self._count(database)
            self._list(database)

    def _unreadable(self, file: DataFile, reason: str) -> None:
        self._note(next(iter(self._partitions)), f"cannot be read: {reason}", file.path)

    def _count(self, database: Any) -> None:
        for topic, partition, verdict, count in database.execute(COUNTS).fetchall():
            setattr(self._partitions[topic, partition].proved, verdict, count)
        for topic, partition, records, keys, deletes in database.execute(TOTALS).fetchall():
            proof = self._partitions[topic, partition]
            proof.superseded, proof.deletes = int(records) - keys, deletes
            covered = proof.end_offset - proof.first_offset - proof.unaccounted
            without = max(covered - int(records) - proof.dead_letters, 0)
            proof.damaged = min(proof.damaged, without)
            proof.empty = without - proof.damaged
        for topic, partition, _, rows in self._known(database.execute(DOUBLED).fetchall()):
            self._partitions[topic, partition].proved.rows = int(rows)
        for topic, partition, count in self._known(database.execute(DOUBLED_KEYS).fetchall()):
            self._partitions[topic, partition].proved.twice = count
        for topic, partition, count in self._known(database.execute(ELSEWHERE).fetchall()):
            self._partitions[topic, partition].elsewhere = count

    def _known(self, rows: Iterable[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
        """Yield the results for the partitions of the audit; a table may have rows of other topics."""
        return (row for row in rows if (row[0], row[1]) in self._partitions)

    def _list(self, database: Any) -> None:
        for topic, partition, key, file, offset, newest, _, verdict in database.execute(LISTED, [SHOWN]).fetchall():
            what = WHAT[verdict].format(offset=offset, newest=newest)
            path = "no file" if file is None else self._files[file].path
            self._note((topic, partition), f"key {shown(key)}: {what}", path)
        for topic, partition, key, offsets, files in self._known(database.execute(TWICE, [SHOWN]).fetchall()):
            listed = ", ".join(map(str, offsets[:SHOWN]))
            paths = ", ".join(sorted(self._files[file].path for file in files))
            self._note((topic, partition), f"key {shown(key)}: has {len(offsets)} rows, of offsets {listed}", paths)
        for key, proof in self._partitions.items():
            for kind in (*WHAT, "twice"):
                more = getattr(proof.proved, kind) - SHOWN
                if more > 0:
                    self._note(key, f"and {more:,} more keys ({kind})", self._table.name)

    # -- rows and files --

    def _note_files(self, keys: Iterable[TopicPartition]) -> None:
        for file in self._files:
            if file.hides_rows:
                self._note(min(keys), f"rows of {file.name} were deleted by another program", file.path)

    def _note_values(self, key: TopicPartition, different: Differences) -> None:
        import numpy as np

        for path, offsets in different.altered.items():
            distinct = np.unique(np.array(offsets))
            proof = self._partitions[key].proved
            proof.altered += len(distinct)
            proof.in_log = max(proof.in_log - len(distinct), 0)
            self._note(key, f"{runs(distinct)} {'is' if len(distinct) == 1 else 'are'} not as in the log", path)

    def _note(self, key: TopicPartition, what: str, path: str) -> None:
        finding = AuditFinding(topic=key[0], partition=key[1], kind="table", what=what, path=path)
        if finding not in self.findings:
            self.findings.append(finding)


def shown(key: Any) -> str:
    """Return a key for a message: text if it is, else bytes in hexadecimal digits, other values as Python does."""
    if not isinstance(key, bytes | bytearray | memoryview):
        return repr(key)
    try:
        text = bytes(key).decode()
    except UnicodeDecodeError:
        return f"0x{bytes(key).hex()}"
    return repr(text) if text.isprintable() else f"0x{bytes(key).hex()}"
