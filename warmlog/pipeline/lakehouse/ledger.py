"""The ledger of a table: receipts that outlive their commits.

Delta's log entries and Iceberg's snapshots expire together with the receipts in them. Maintenance therefore stores the
receipts of all commits up to a version in one place, the ledger, which replaces them:

1. Consecutive receipts without a gap are joined to one. Receipts of different eras stay separate: an era ends where the
offsets of a partition restart (its topic was recreated, or its log truncated).
2. Proofs of adjacent offsets are merged only after their rows were read again, matched each proof, and were hashed as a
whole (`merging`). A proof that did not match stays as it was written, so an audit still reports it.
3. A receipt names the files that contain its rows now: compacted files in place of the files merged into them.

A Delta table has the ledger in `userMetadata` of the last maintenance commit, an Iceberg table in a property.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.lakehouse.receipts import Proof, Receipt, Span, joined_runs, new_id, parse_receipt
from warmlog.pipeline.source.offsets import Position
from warmlog.protocol.partitions import TopicPartition

LEDGER_KEY = "warmlog-receipts"  # key in the metadata of a commit, or name of a table property
WHOLE = "whole"  # mark of a ledger that has the receipts of all commits


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedProof:
    """Adjacent proofs of a partition (`before`), and one proof that covers all their rows (`after`)."""

    key: TopicPartition
    before: tuple[Proof, ...]
    after: Proof


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewrite:
    """Changes that compaction makes to receipts: names of removed and added files, and merged proofs."""

    removed: frozenset[str] = frozenset()
    added: tuple[str, ...] = ()
    proofs: tuple[MergedProof, ...] = field(default=())


def eras(receipts: Iterable[Receipt]) -> Iterator[int]:
    """Yield the era of each receipt, oldest to newest: how often the offsets of any partition have restarted so far."""
    era, ends = 0, dict[TopicPartition, Position]()
    for receipt in receipts:
        era += any(key in ends and begins_again(ends[key], span) for key, span in receipt.spans.items())
        ends |= receipt.positions()
        yield era


def lives_of(spans: Iterable[Span]) -> Iterator[int]:
    """Yield for each span of a partition, oldest to newest, how often the offsets have restarted so far."""
    life, before = 0, None
    for span in spans:
        life += before is not None and begins_again(before, span)
        before = span.end
        yield life


def begins_again(before: Position, span: Span) -> bool:
    """Return whether a span after a position is of another topic of the same name, or of a truncated log."""
    other = None not in {before.topic_id, span.end.topic_id} and before.topic_id != span.end.topic_id
    return other or span.first < before.offset


def fold(receipts: Sequence[Receipt], rewrite: Rewrite, live: Iterable[str]) -> tuple[Receipt, ...]:
    """Return the receipts of a ledger, from oldest to newest.

    `receipts`: receipts of all commits, including those of the last ledger. `live`: names of the table's files.
    """
    names = set(live)
    folded: list[Receipt] = []
    last_era = -1
    for receipt, era in zip(receipts, eras(receipts), strict=True):
        if folded and era == last_era and _continues(folded[-1], receipt):
            folded[-1] = _joined(folded[-1], receipt)
        else:
            folded.append(receipt)
        last_era = era
    return tuple(_rewritten(receipt, rewrite, names) for receipt in folded)


def _continues(first: Receipt, second: Receipt) -> bool:
    """Return whether two receipts can be joined: no gap between them, and the same columns and formats."""
    return (first.columns, first.formats) == (second.columns, second.formats) and all(
        (first.spans[key].end.offset, first.spans[key].end.topic_id) == (span.first, span.end.topic_id)
        for key, span in second.spans.items()
        if key in first.spans
    )


def _joined(first: Receipt, second: Receipt) -> Receipt:
    spans, proofs = dict(first.spans), dict(first.proofs)
    for key, span in second.spans.items():
        spans[key] = Span(first=spans[key].first if key in spans else span.first, end=span.end)
        proofs[key] = (*proofs.get(key, ()), *sorted(second.proofs.get(key, ())))
    return replace(
        second,
        id=new_id(),
        spans=spans,
        rows=first.rows + second.rows,
        lost=first.lost + second.lost,
        lost_before=_lost_before(first, second),
        damaged=(*first.damaged, *second.damaged),
        damaged_offsets=joined_runs((*first.damaged_offsets.items(), *second.damaged_offsets.items())),
        files=tuple(dict.fromkeys((*first.files, *second.files))),
        proofs=proofs,
        dead_letters=joined_runs((*first.dead_letters.items(), *second.dead_letters.items())),
        upsert={name: first.upsert.get(name, 0) + count for name, count in second.upsert.items()},
    )


def _lost_before(first: Receipt, second: Receipt) -> dict[TopicPartition, int] | None:
    """Return how many offsets were lost before the spans of two receipts that are joined; None if that is unknown."""
    parts = [each.lost_before if each.lost else {} for each in (first, second)]
    before, after = parts
    if before is None or after is None:
        return None
    return {key: count for key, count in after.items() if key not in first.spans} | dict(before)


def _rewritten(receipt: Receipt, rewrite: Rewrite, live: set[str]) -> Receipt:
    files = [name for name in receipt.files if name in live or name in rewrite.added]
    if rewrite.removed.intersection(receipt.files):
        files = [name for name in files if name not in rewrite.removed]
        files += [name for name in rewrite.added if name not in files]
    proofs = dict(receipt.proofs)
    for merged in rewrite.proofs:
        if merged.key in proofs:
            proofs[merged.key] = _with(proofs[merged.key], merged)
    return replace(receipt, files=tuple(files), proofs=proofs)


def _with(proofs: tuple[Proof, ...], merged: MergedProof) -> tuple[Proof, ...]:
    """Replace the proofs that a merged proof covers, provided that all of them are present and consecutive."""
    listed = sorted(proofs)
    if merged.before[0] not in listed:
        return proofs
    at = listed.index(merged.before[0])
    end = at + len(merged.before)
    if tuple(listed[at:end]) != merged.before:
        return proofs
    return (*listed[:at], merged.after, *listed[end:])


def ledger_text(receipts: Sequence[Receipt], **marks: int) -> str:
    """Return a ledger as JSON. `marks`: the version or snapshot up to which it has receipts."""
    return json.dumps({**marks, "receipts": [receipt.form() for receipt in receipts]}, separators=(",", ":"))


def parse_ledger(text: str, source: str) -> tuple[tuple[Receipt, ...], Mapping[str, int]]:
    """Parse a ledger: its receipts from oldest to newest, and its marks. Raises PipelineError."""
    try:
        form = json.loads(text)
        marks = {name: int(value) for name, value in form.items() if name != "receipts"}
        return tuple(parse_receipt(json.dumps(each), source) for each in form["receipts"]), marks
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise PipelineError(
            f"{source}: the ledger {LEDGER_KEY} is damaged ({error!r}): in Iceberg, set the property as an earlier"
            " metadata file has it; in Delta, restore the version before the last maintenance"
        ) from error
