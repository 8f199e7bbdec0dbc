"""Import the compiled record codec if it was built, otherwise the pure Python one.

WARMLOG_PURE=1 in the environment selects the pure Python codec, for tests and comparisons.
"""

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from warmlog.protocol.records.layout import BatchHeader
from warmlog.protocol.records.record import Buffer, Record

__all__ = [
    "Record",
    "RecordEncoder",
    "accept_batch",
    "accept_stamped",
    "compiled",
    "decode_records",
    "java_hash",
    "missing",
    "murmur2",
    "plain_batch_producer",
    "rows_by_partition",
    "scan_records",
    "stamped_batch",
    "walk_records",
]


def _load_compiled() -> tuple[bool, ImportError | None]:
    if os.environ.get("WARMLOG_PURE", "") not in {"", "0"}:
        return False, None
    try:
        import warmlog.protocol.records._codec  # noqa: F401 - only checks that it exists
    except ImportError as error:
        return False, error.with_traceback(None)
    return True, None


# Whether the compiled codec is in use, and the reason why it cannot be imported.
compiled, missing = _load_compiled()

# Validate a buffer that holds one plain batch (uncompressed, no unusual attributes) in one call: header, CRC and, if
# `walk`, its records. Further arguments: whether to release the GIL for the CRC, the current time, the allowed distance
# of timestamps before and after it (ms), whether keys are required. Returns the header, or None if anything is invalid
# or has to be corrected, which `validation` then handles. Only the compiled codec has it.
accept_batch: Callable[[Buffer, bool, bool, int, int, int, bool], BatchHeader | None] | None = None

# `accept_batch` and `stamped_batch` in one call, for a batch with base offset 0: returns the buffers to write, the last
# offset, the largest timestamp (ms) and, if it has a producer id, its header; or None. The base offset and the leader
# epoch to stamp are the second and third argument. Only the compiled codec has it.
accept_stamped: (
    Callable[
        [Buffer, int, int, bool, bool, int, int, int, bool],
        tuple[tuple[Buffer, ...], int, int, BatchHeader | None] | None,
    ]
    | None
) = None

if TYPE_CHECKING or not compiled:
    from warmlog.protocol.records.received import plain_batch_producer, stamped_batch
    from warmlog.protocol.records.record import (
        RecordEncoder,
        decode_records,
        java_hash,
        murmur2,
        rows_by_partition,
        scan_records,
        walk_records,
    )
else:
    from warmlog.protocol.records._codec import (
        RecordEncoder,
        accept_batch,
        accept_stamped,
        decode_records,
        java_hash,
        murmur2,
        plain_batch_producer,
        rows_by_partition,
        scan_records,
        stamped_batch,
        walk_records,
    )
