"""The ledger of a table: receipts that outlive the commits they came with.

Delta's log and Iceberg's snapshots expire, and receipts with them. Maintenance therefore keeps the receipts of all
commits up to a version in one place, the ledger, which replaces them:

1. Receipts that follow each other without a gap are one receipt. Receipts of different eras stay apart: an era ends
   where offsets of a partition begin again (its topic was recreated, or its log truncated).
2. Proofs of neighbouring offsets are one proof only after their rows were read again, agreed with each of them, and
   were hashed as a whole (`merging`). What did not agree stays as it was written, so an audit reports it as before.
3. A receipt names the files that have its rows now: those of compaction in place of those that went into them.

In Delta the ledger is in `userMetadata` of the last commit of maintenance, in Iceberg in a property of the table.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.lakehouse.receipts import Proof, Receipt, Span, new_id, parse_receipt
from warmlog.pipeline.source.offsets import Position
from warmlog.protocol.partitions import TopicPartition

LEDGER_KEY = "warmlog-receipts"  # in the metadata of a commit, or among the properties of a table


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedProof:
    """Neighbouring proofs of a partition (`before`) whose rows are covered by one."""

    key: TopicPartition
    before: tuple[Proof, ...]
    after: Proof


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewrite:
    """What compaction changes in receipts: names of files, and proofs that were merged."""

    removed: frozenset[str] = frozenset()
    added: tuple[str, ...] = ()
    proofs: tuple[MergedProof, ...] = field(default=())


def eras(receipts: Iterable[Receipt]) -> Iterator[int]:
    """Yield the era of each receipt, from oldest to newest: how often offsets of any partition had begun again."""
    era, ends = 0, dict[TopicPartition, Position]()
    for receipt in receipts:
        era += any(key in ends and _begins_again(ends[key], span) for key, span in receipt.spans.items())
        ends |= receipt.positions()
        yield era


def lives_of(spans: Iterable[Span]) -> Iterator[int]:
    """Yield for each span of a partition, from oldest to newest, how often offsets had begun again before it."""
    life, before = 0, None
    for span in spans:
        life += before is not None and _begins_again(before, span)
        before = span.end
        yield life


def _begins_again(before: Position, span: Span) -> bool:
    other = None not in {before.topic_id, span.end.topic_id} and before.topic_id != span.end.topic_id
    return other or span.first < before.offset


def fold(receipts: Sequence[Receipt], rewrite: Rewrite, live: Iterable[str]) -> tuple[Receipt, ...]:
    """Return the receipts of a ledger, from oldest to newest.

    `receipts`: those of all commits, the last ledger's included. `live`: names of the files of the table.
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
    """Return whether two receipts can be one: no gap between them, and the same columns and formats."""
    return (first.columns, first.formats) == (second.columns, second.formats) and all(
        (first.spans[key].end.offset, first.spans[key].end.topic_id) == (span.first, span.end.topic_id)
        for key, span in second.spans.items()
        if key in first.spans
    )


def _joined(first: Receipt, second: Receipt) -> Receipt:
    spans, proofs, letters = dict(first.spans), dict(first.proofs), dict(first.dead_letters)
    for key, runs in second.dead_letters.items():
        letters[key] = (*letters.get(key, ()), *runs)
    for key, span in second.spans.items():
        spans[key] = Span(first=spans[key].first if key in spans else span.first, end=span.end)
        proofs[key] = (*proofs.get(key, ()), *sorted(second.proofs.get(key, ())))
    return replace(
        second,
        id=new_id(),
        spans=spans,
        rows=first.rows + second.rows,
        lost=first.lost + second.lost,
        damaged=(*first.damaged, *second.damaged),
        files=tuple(dict.fromkeys((*first.files, *second.files))),
        proofs=proofs,
        dead_letters=letters,
    )


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
    """Put a merged proof in place of those that it covers, if they are all there, one after the other."""
    listed = sorted(proofs)
    if merged.before[0] not in listed:
        return proofs
    at = listed.index(merged.before[0])
    end = at + len(merged.before)
    if tuple(listed[at:end]) != merged.before:
        return proofs
    return (*listed[:at], merged.after, *listed[end:])


def ledger_text(receipts: Sequence[Receipt], **marks: int) -> str:
    """Return a ledger as JSON. `marks`: what says up to where it goes."""
    return json.dumps({**marks, "receipts": [receipt.form() for receipt in receipts]}, separators=(",", ":"))


def parse_ledger(text: str, source: str) -> tuple[tuple[Receipt, ...], Mapping[str, int]]:
    """Parse a ledger: its receipts from oldest to newest, and its marks. Raises PipelineError."""
    try:
        form = json.loads(text)
        marks = {name: int(value) for name, value in form.items() if name != "receipts"}
        return tuple(parse_receipt(json.dumps(each), source) for each in form["receipts"]), marks
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise PipelineError(f"{source}: its ledger cannot be read: {error!r}") from error
