"""What `log dump` prints of the files of a segment, as one object an item.

Owns: the names and order of the fields. Must not know: how items are laid out in bytes (`protocol.records`,
`broker.log`), or whether they become JSON or a table.

Every form has a `type`: batch, record, offset_index_entry, time_index_entry, aborted_transaction, producer; padding for
zeros up to the end of a file that is preallocated; damage where a file stops making sense. What is not set (-1 on the
disk) is None.
"""

import os
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeAlias

from broker.log.errors import CorruptSnapshotError
from broker.log.index.offset import OffsetIndex
from broker.log.index.time import TimeIndex
from broker.log.index.transaction import ENTRY, AbortedTransaction
from broker.log.io.directory_names import (
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
)
from broker.log.producers.snapshot import decode_snapshot
from protocol.errors import ProtocolError
from protocol.records.batch import verify_crc
from protocol.records.codec import Record
from protocol.records.layout import CODEC_MASK, Codec
from protocol.records.markers import end_marker
from protocol.records.reader import decode_batch
from warmlog.cli.group_forms import group_forms
from warmlog.cli.record_json import record_form
from warmlog.inspect.paths import SegmentFile
from warmlog.inspect.scan import DamageError, StoredBatch, opened, scan_batches
from warmlog.inspect.segment import IndexEntries, index_entries

Form: TypeAlias = dict[str, Any]


def is_damage(form: Form) -> bool:
    """Whether the form tells of something broken."""
    return form["type"] == "damage" or form.get("crc_valid") is False


class Shown(NamedTuple):
    """What of a log file is to be told: `records` of each batch, and what they mean in `__consumer_offsets`."""

    records: bool = False
    decodes_offsets: bool = False


def log_forms(file: SegmentFile, shown: Shown) -> Iterator[Form]:
    """The batches of a log file, each followed by its records if they are asked for."""
    with opened(file.path) as descriptor:
        try:
            for batch in scan_batches(descriptor, os.fstat(descriptor).st_size):
                form = batch_form(batch)
                yield form
                if shown.records and form["crc_valid"]:
                    yield from record_forms(batch, decodes_offsets=shown.decodes_offsets)
        except DamageError as damage:
            kind = "padding" if damage.zeros else "damage"
            yield {"type": kind, "position": damage.position, "reason": str(damage)}


def batch_form(batch: StoredBatch) -> Form:
    """A batch's header."""
    header = batch.header
    return {
        "type": "batch",
        "position": batch.position,
        "size": header.size,
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "record_count": header.record_count,
        "codec": codec_name(header.attributes & CODEC_MASK),
        "timestamp_type": header.timestamp_type.name.lower(),
        "base_timestamp": header.base_timestamp,
        "max_timestamp": header.max_timestamp,
        "leader_epoch": header.leader_epoch,
        "producer_id": unless_negative(header.producer_id),
        "producer_epoch": unless_negative(header.producer_epoch),
        "base_sequence": unless_negative(header.base_sequence),
        "transactional": header.is_transactional,
        "control": header.is_control,
        "delete_horizon": header.delete_horizon_ms,
        "crc": header.crc,
        "crc_valid": has_valid_crc(batch),
    }


def codec_name(number: int) -> str:
    """A codec's name, or its number where it is none."""
    return Codec(number).name.lower() if number in Codec.__members__.values() else f"unknown ({number})"


def unless_negative(number: int) -> int | None:
    """The number, None where it stands for none."""
    return None if number < 0 else number


def has_valid_crc(batch: StoredBatch) -> bool:
    """Whether the batch is what was written."""
    try:
        verify_crc(batch.data, batch.start, batch.header)
    except ProtocolError:
        return False
    return True


def record_forms(batch: StoredBatch, *, decodes_offsets: bool) -> Iterator[Form]:
    """The records of a batch; of a control batch, what its marker says."""
    try:
        records = decode_batch(batch.data, batch.start, batch.header)
    except ProtocolError as error:
        yield {"type": "damage", "position": batch.position, "reason": str(error)}
        return
    for record in records:
        form = {"type": "record", "position": batch.position, **record_form(record)}
        if batch.header.is_control:
            form |= marker_form(record)
        elif decodes_offsets:
            form |= group_forms(record)
        yield form


def marker_form(record: Record) -> Form:
    """The end of a transaction; nothing for control records of other kinds."""
    marker = end_marker([record])
    if marker is None:
        return {}
    return {"marker": marker.outcome.name.lower(), "coordinator_epoch": marker.coordinator_epoch}


def offset_index_forms(file: SegmentFile, _: Shown) -> Iterator[Form]:
    """The entries of an offset index."""
    found = index_entries(file.path, OffsetIndex)
    for slot, (relative, position) in enumerate(found.entries):
        yield {"type": "offset_index_entry", "slot": slot, "offset": file.base_offset + relative, "position": position}
    yield from index_end_forms(found)


def time_index_forms(file: SegmentFile, _: Shown) -> Iterator[Form]:
    """The entries of a time index."""
    found = index_entries(file.path, TimeIndex)
    for slot, (timestamp, relative) in enumerate(found.entries):
        yield {"type": "time_index_entry", "slot": slot, "timestamp": timestamp, "offset": file.base_offset + relative}
    yield from index_end_forms(found)


def index_end_forms(found: IndexEntries) -> Iterator[Form]:
    """What follows the entries."""
    if found.padding:
        yield {"type": "padding", "slot": len(found.entries), "reason": f"{found.padding} zero entries to the end"}
    if found.rest:
        slot = len(found.entries) + found.padding
        yield {"type": "damage", "slot": slot, "reason": f"{found.rest} bytes at the end are no whole entry"}


def transaction_index_forms(file: SegmentFile, _: Shown) -> Iterator[Form]:
    """The aborted transactions whose markers lie in the segment."""
    data = file.path.read_bytes()
    whole = len(data) // ENTRY.size * ENTRY.size
    for slot, (version, *fields) in enumerate(ENTRY.iter_unpack(data[:whole])):
        entry = AbortedTransaction(*fields)
        yield {"type": "aborted_transaction", "slot": slot, "version": version, **entry._asdict()}
    if whole < len(data):
        reason = f"{len(data) - whole} bytes at the end are no whole entry"
        yield {"type": "damage", "slot": whole // ENTRY.size, "reason": reason}


def snapshot_forms(file: SegmentFile, _: Shown) -> Iterator[Form]:
    """The producers as they were at an offset."""
    try:
        states = decode_snapshot(file.path.read_bytes())
    except CorruptSnapshotError as error:
        yield {"type": "damage", "slot": 0, "reason": str(error)}
        return
    for slot, state in enumerate(states):
        last = state.batches[-1] if state.batches else None
        yield {
            "type": "producer",
            "slot": slot,
            "producer_id": state.producer_id,
            "producer_epoch": state.epoch,
            "coordinator_epoch": unless_negative(state.coordinator_epoch),
            "transaction_first_offset": unless_negative(state.transaction_first_offset),
            "last_timestamp": state.last_timestamp,
            "first_sequence": None if last is None else last.base_sequence,
            "last_sequence": None if last is None else last.last_sequence,
            "last_offset": None if last is None else last.last_offset,
            "offset_delta": None if last is None else last.offset_delta,
        }


READERS: dict[str, Callable[..., Iterator[Form]]] = {
    LOG_SUFFIX: log_forms,
    OFFSET_INDEX_SUFFIX: offset_index_forms,
    TIME_INDEX_SUFFIX: time_index_forms,
    TRANSACTION_INDEX_SUFFIX: transaction_index_forms,
    SNAPSHOT_SUFFIX: snapshot_forms,
}
