"""Chooses the twin of the record codec: the compiled one where it was built, else the pure one.

Everybody imports the codec from here. Owns: the choice, and the one log line that tells of the slower one.
WARMLOG_PURE=1 in the environment chooses the pure twin (for tests and to compare).
"""

import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from protocol.records.layout import BatchHeader
from protocol.records.record import Buffer, Record

__all__ = [
    "Record",
    "RecordEncoder",
    "accept_batch",
    "compiled",
    "decode_records",
    "murmur2",
    "scan_records",
    "walk_records",
]


def _load_compiled() -> bool:
    if os.environ.get("WARMLOG_PURE", "") not in {"", "0"}:
        return False
    try:
        import protocol.records._codec  # noqa: F401 - only whether it is there is asked
    except ImportError as error:
        logging.getLogger(__name__).warning(
            "the compiled record codec is missing, the pure one serves and is slower: %s", error
        )
        return False
    return True


# Whether the compiled twin serves.
compiled = _load_compiled()

# Checks bytes that are one plain batch (uncompressed, nothing unusual in it) in one call, whole: header, CRC, records
# if `walk`. Further arguments: whether to give up the GIL for the CRC, the time now, how far before and after it times
# may lie (ms), whether keys are asked for. Gives the header, or None where there is anything to be said or put right,
# which the reference in `validation` then does. Only the compiled twin has it: it is a short cut, not another opinion.
accept_batch: Callable[[Buffer, bool, bool, int, int, int, bool], BatchHeader | None] | None = None

if TYPE_CHECKING or not compiled:
    from protocol.records.record import RecordEncoder, decode_records, murmur2, scan_records, walk_records
else:
    from protocol.records._codec import RecordEncoder, accept_batch, decode_records, murmur2, scan_records, walk_records
