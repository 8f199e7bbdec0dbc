"""The items that `log dump` prints: JSON objects with the fields of batches, records and entries.

Every item has a `type`: batch, record, offset_index_entry, time_index_entry, aborted_transaction, producer; padding for
zeros up to the end of a preallocated file; damage if the rest of a file cannot be read. Unset fields (-1 on disk) are
None.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeAlias

from warmlog.broker.log.errors import CorruptSnapshotError
from warmlog.broker.log.index.offset import OffsetIndex
from warmlog.broker.log.index.time import TimeIndex
from warmlog.broker.log.index.transaction import ENTRY, AbortedTransaction
from warmlog.broker.log.io.directory_names import (
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
)
from warmlog.broker.log.producers.snapshot import decode_snapshot
from warmlog.cli.records.record_json import record_fields
from warmlog.inspect.index_files import IndexEntries, index_entries
from warmlog.inspect.log_file import DamageError, LogFile, StoredBatch
from warmlog.inspect.paths import SegmentFile
from warmlog.protocol.errors import ProtocolError
from warmlog.protocol.records.batch import verify_crc
from warmlog.protocol.records.codec import Record
from warmlog.protocol.records.layout import CODEC_MASK, Codec
from warmlog.protocol.records.markers import end_marker
from warmlog.protocol.records.reader import decode_batch

Item: TypeAlias = dict[str, Any]


def is_damage(item: Item) -> bool:
    """Return whether an item reports damage."""
    return item["type"] == "damage" or item.get("crc_valid") is False


class DumpOptions(NamedTuple):
    """`records`: whether to list records. `decoder`: returns further fields of a coordinator topic's records."""

    records: bool = False
    decoder: Callable[[Record], Item] | None = None


def log_items(file: SegmentFile, options: DumpOptions) -> Iterator[Item]:
    """Yield the batches of a log file, each followed by its records if requested."""
    with LogFile(str(file.path)) as log:
        try:
            for batch in log.scan():
                item = batch_item(batch)
                yield item
                if options.records and item["crc_valid"]:
                    yield from record_items(batch, options.decoder)
        except DamageError as damage:
            kind = "padding" if damage.zeros else "damage"
            yield {"type": kind, "position": damage.position, "reason": str(damage)}


def batch_item(batch: StoredBatch) -> Item:
    """Return the header of a batch."""
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
    """Return the name of a codec, or the number of an unknown one."""
    return Codec(number).name.lower() if number in Codec.__members__.values() else f"unknown ({number})"


def unless_negative(number: int) -> int | None:
    """Return a number, or None for -1 (unset)."""
    return None if number < 0 else number


def has_valid_crc(batch: StoredBatch) -> bool:
    """Return whether the CRC of a batch matches its bytes."""
    try:
        verify_crc(batch.data, batch.start, batch.header)
    except ProtocolError:
        return False
    return True


def record_items(batch: StoredBatch, decoder: Callable[[Record], Item] | None) -> Iterator[Item]:
    """Yield the records of a batch, with the marker's fields for control records."""
    try:
        records = decode_batch(batch.data, batch.start, batch.header)
    except ProtocolError as error:
        yield {"type": "damage", "position": batch.position, "reason": str(error)}
        return
    for record in records:
        item = {"type": "record", "position": batch.position, **record_fields(record)}
        if batch.header.is_control:
            item |= marker_fields(record)
        elif decoder is not None:
            item |= decoder(record)
        yield item


def marker_fields(record: Record) -> Item:
    """Return the fields of an end-of-transaction marker; empty for other control records."""
    marker = end_marker([record])
    if marker is None:
        return {}
    return {"marker": marker.outcome.name.lower(), "coordinator_epoch": marker.coordinator_epoch}


def offset_index_items(file: SegmentFile, _: DumpOptions) -> Iterator[Item]:
    """Yield the entries of an offset index."""
    entries = index_entries(file.path, OffsetIndex)
    for slot, (relative, position) in enumerate(entries.entries):
        yield {"type": "offset_index_entry", "slot": slot, "offset": file.base_offset + relative, "position": position}
    yield from index_end_items(entries)


def time_index_items(file: SegmentFile, _: DumpOptions) -> Iterator[Item]:
    """Yield the entries of a time index."""
    entries = index_entries(file.path, TimeIndex)
    for slot, (timestamp, relative) in enumerate(entries.entries):
        yield {"type": "time_index_entry", "slot": slot, "timestamp": timestamp, "offset": file.base_offset + relative}
    yield from index_end_items(entries)


def index_end_items(index: IndexEntries) -> Iterator[Item]:
    """Yield padding and damage after the entries."""
    if index.padding:
        yield {"type": "padding", "slot": len(index.entries), "reason": f"{index.padding} zero entries to the end"}
    if index.rest:
        slot = len(index.entries) + index.padding
        yield {"type": "damage", "slot": slot, "reason": f"{index.rest} bytes at the end are not a whole entry"}


def transaction_index_items(file: SegmentFile, _: DumpOptions) -> Iterator[Item]:
    """Yield the aborted transactions whose markers are in the segment."""
    data = file.path.read_bytes()
    whole = len(data) // ENTRY.size * ENTRY.size
    for slot, (version, *fields) in enumerate(ENTRY.iter_unpack(data[:whole])):
        entry = AbortedTransaction(*fields)
        yield {"type": "aborted_transaction", "slot": slot, "version": version, **entry._asdict()}
    if whole < len(data):
        reason = f"{len(data) - whole} bytes at the end are not a whole entry"
        yield {"type": "damage", "slot": whole // ENTRY.size, "reason": reason}


def snapshot_items(file: SegmentFile, _: DumpOptions) -> Iterator[Item]:
    """Yield the producers of a snapshot."""
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


READERS: dict[str, Callable[..., Iterator[Item]]] = {
    LOG_SUFFIX: log_items,
    OFFSET_INDEX_SUFFIX: offset_index_items,
    TIME_INDEX_SUFFIX: time_index_items,
    TRANSACTION_INDEX_SUFFIX: transaction_index_items,
    SNAPSHOT_SUFFIX: snapshot_items,
}
