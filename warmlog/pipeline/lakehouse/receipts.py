"""Receipts: descriptions of a commit's offsets, stored in the table as the same text in Delta and Iceberg.

    {"id": "5f0c…", "rows": 3990, "lost": 0, "damaged": [], "files": ["warmlog-77e0….parquet"],
     "topics": {"orders": {"AAAAAAAAAAAAAAAAAAAABw": {"0": [0, 2000, 3], "1": [0, 1990, null]}}},
     "columns": ["key", "value", …], "formats": {"value": ["confluent"]},
     "deadLetters": {"orders": {"0": [[17, 18], [40, 42]]}},
     "damagedOffsets": {"orders": {"1": [[70, 80]]}}, "lostBefore": {"orders": {"0": 10}},
     "proofs": {"orders": {"0": [[0, 2000, 2000, "9d2ab4804c10b581"]], "1": [[0, 1990, 1990, "7b1f…"]]}}}

Offsets are listed by topic, topic id ("" if unknown) and partition: first, end (excluded), leader epoch at the end.
Proofs describe the written rows, so that a table can be checked without its log: first, end, number of rows, and the
digest of the listed columns. Formats describe how keys and values were decoded, with a digest of the schema if it is a
file; they are missing if nothing was decoded. Dead letters are the offsets (end excluded) of records that were stored
in the dead-letter topic instead, damaged offsets those of skipped batches (end excluded). Of the lost offsets,
`lostBefore` counts those just before the first offset of a partition; others are within its span. A table with one row
for each key has the counts of a commit in `upsert`, and no proofs. The receipt is in the same commit as the rows, so a
table has either both or neither.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias
from uuid import uuid4

from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.source.offsets import Position
from warmlog.protocol.partitions import TopicPartition

KEY = "warmlog"  # key of a receipt in the metadata of a commit
UNKNOWN_ID = ""
MAX_RUNS = 100_000  # maximum runs of dead letters in a commit: 2 MB of its metadata

Runs: TypeAlias = tuple[tuple[int, int], ...]  # runs of offsets, ends excluded
PositionsForm: TypeAlias = dict[str, dict[str, dict[str, list[Any]]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Offsets of a partition covered by a commit (`end` excluded), with the topic id and the leader epoch."""

    first: int
    end: Position


class Proof(NamedTuple):
    """Offsets written together (`end` excluded), with the number and the digest of their rows."""

    first: int
    end: int
    rows: int
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """The receipt of a commit. `lost`: number of offsets deleted before they were read. `damaged`: skipped batches.

    `files`: names of its files. `proofs`: proofs of each partition, in order, with digests of these `columns`.
    `formats`: formats of keys and values. `dead_letters`: offsets of records stored in a dead-letter topic instead.
    `lost_before`: of the lost offsets, how many were before the first offset of a partition; None if that is unknown.
    `upsert`: how many rows were inserted, updated and deleted by key; empty if rows are only appended.
    """

    id: str
    spans: Mapping[TopicPartition, Span]
    rows: int = 0
    lost: int = 0
    damaged: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    proofs: Mapping[TopicPartition, tuple[Proof, ...]] = field(default_factory=dict)
    formats: Mapping[str, Any] = field(default_factory=dict)
    dead_letters: Mapping[TopicPartition, Runs] = field(default_factory=dict)
    damaged_offsets: Mapping[TopicPartition, Runs] = field(default_factory=dict)
    upsert: Mapping[str, int] = field(default_factory=dict)
    lost_before: Mapping[TopicPartition, int] | None = None

    def text(self) -> str:
        """Return the receipt as JSON."""
        return json.dumps(self.form(), separators=(",", ":"))

    def form(self) -> dict[str, Any]:
        """Return the receipt as a JSON object."""
        topics: PositionsForm = {}
        for (topic, partition), span in sorted(self.spans.items()):
            ids = topics.setdefault(topic, {})
            listed = ids.setdefault(span.end.topic_id or UNKNOWN_ID, {})
            listed[str(partition)] = [span.first, span.end.offset, span.end.leader_epoch]
        proofs: dict[str, dict[str, list[Proof]]] = {}
        for (topic, partition), listed_proofs in sorted(self.proofs.items()):
            proofs.setdefault(topic, {})[str(partition)] = list(listed_proofs)
        counts = {"id": self.id, "rows": self.rows, "lost": self.lost, "damaged": list(self.damaged)}
        written = {"files": list(self.files), "topics": topics, "columns": list(self.columns)}
        decoded: dict[str, Any] = {"formats": dict(self.formats)} if self.formats else {}
        for name, runs in (("deadLetters", self.dead_letters), ("damagedOffsets", self.damaged_offsets)):
            decoded |= {name: _runs_form(runs)} if runs else {}
        if self.lost and self.lost_before is not None:
            before: dict[str, dict[str, int]] = {}
            for (topic, partition), count in sorted(self.lost_before.items()):
                before.setdefault(topic, {})[str(partition)] = count
            decoded["lostBefore"] = before
        upsert = {"upsert": dict(self.upsert)} if self.upsert else {}
        return {**counts, **written, **decoded, **upsert, "proofs": proofs}

    def positions(self) -> dict[TopicPartition, Position]:
        """Return the positions at which the next commit starts."""
        return {key: span.end for key, span in self.spans.items()}


def runs_of(offsets: Iterable[int]) -> Runs:
    """Return sorted offsets as runs."""
    runs: list[tuple[int, int]] = []
    for offset in offsets:
        if runs and runs[-1][1] == offset:
            runs[-1] = runs[-1][0], offset + 1
        else:
            runs.append((offset, offset + 1))
    return tuple(runs)


def joined_runs(parts: Iterable[tuple[TopicPartition, Runs]]) -> dict[TopicPartition, Runs]:
    """Return the runs of each partition that has any, in order."""
    listed: dict[TopicPartition, list[tuple[int, int]]] = {}
    for key, runs in parts:
        if runs:
            listed.setdefault(key, []).extend(runs)
    return {key: tuple(sorted(runs)) for key, runs in listed.items()}


def all_runs(parts: Iterable[tuple[TopicPartition, Runs]]) -> dict[TopicPartition, Runs]:
    """Return the dead letters of each partition, in order. Raises PipelineError if there are too many for a receipt."""
    joined = joined_runs(parts)
    count = sum(map(len, joined.values()))
    if count > MAX_RUNS:
        raise PipelineError(
            f"{count:,} runs of offsets are dead letters, and a receipt has at most {MAX_RUNS:,}: check the format, or"
            " commit fewer rows at a time (--commit-rows)"
        )
    return joined


def _runs_form(runs: Mapping[TopicPartition, Runs]) -> dict[str, dict[str, Runs]]:
    form: dict[str, dict[str, Runs]] = {}
    for (topic, partition), listed in sorted(runs.items()):
        form.setdefault(topic, {})[str(partition)] = listed
    return form


def _parse_runs(form: Mapping[str, Any]) -> dict[TopicPartition, Runs]:
    return {
        (topic, int(partition)): tuple((int(first), int(end)) for first, end in runs)
        for topic, partitions in form.items()
        for partition, runs in partitions.items()
    }


def _parse_lost(form: Mapping[str, Any] | None) -> dict[TopicPartition, int] | None:
    if form is None:
        return None
    return {
        (topic, int(partition)): int(count)
        for topic, partitions in form.items()
        for partition, count in partitions.items()
    }


def new_id() -> str:
    """Return a unique id for a receipt."""
    return uuid4().hex


def parse_receipt(text: str, source: str) -> Receipt:
    """Parse a receipt. `source`: its origin, for error messages. Raises PipelineError."""
    try:
        form = json.loads(text)
        spans = {
            (topic, int(partition)): Span(
                first=int(first), end=Position(offset=int(end), topic_id=topic_id or None, leader_epoch=epoch)
            )
            for topic, ids in form["topics"].items()
            for topic_id, listed in ids.items()
            for partition, (first, end, epoch) in listed.items()
        }
        proofs = {
            (topic, int(partition)): tuple(
                Proof(int(first), int(end), int(rows), str(digest)) for first, end, rows, digest in listed
            )
            for topic, partitions in form["proofs"].items()
            for partition, listed in partitions.items()
        }
        return Receipt(
            id=form["id"],
            spans=spans,
            rows=form["rows"],
            lost=form["lost"],
            damaged=tuple(form["damaged"]),
            files=tuple(form["files"]),
            columns=tuple(form["columns"]),
            proofs=proofs,
            formats=dict(form.get("formats", {})),
            upsert={str(name): int(count) for name, count in form.get("upsert", {}).items()},
            dead_letters=_parse_runs(form.get("deadLetters", {})),
            damaged_offsets=_parse_runs(form.get("damagedOffsets", {})),
            lost_before=_parse_lost(form.get("lostBefore", None if form["lost"] else {})),
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise PipelineError(f"{source}: its receipt cannot be read: {error!r}") from error
