# The compiled version of `record` and `received`; `codec` documents `accept_batch` and `accept_stamped`.

from warmlog.protocol.records.layout import BatchHeader
from warmlog.protocol.records.received import plain_batch_producer as plain_batch_producer
from warmlog.protocol.records.received import stamped_batch as stamped_batch
from warmlog.protocol.records.record import Buffer
from warmlog.protocol.records.record import RecordEncoder as RecordEncoder
from warmlog.protocol.records.record import decode_records as decode_records
from warmlog.protocol.records.record import java_hash as java_hash
from warmlog.protocol.records.record import murmur2 as murmur2
from warmlog.protocol.records.record import rows_by_partition as rows_by_partition
from warmlog.protocol.records.record import scan_records as scan_records
from warmlog.protocol.records.record import walk_records as walk_records

def accept_batch(
    buffer: Buffer,
    walk: bool,
    release_gil: bool,
    now: int = ...,
    before_max: int = ...,
    after_max: int = ...,
    need_keys: bool = ...,
) -> BatchHeader | None: ...
def accept_stamped(
    buffer: Buffer,
    base_offset: int,
    leader_epoch: int,
    walk: bool,
    release_gil: bool,
    now: int,
    before_max: int,
    after_max: int,
    need_keys: bool,
) -> tuple[tuple[Buffer, ...], int, int, BatchHeader | None] | None: ...
