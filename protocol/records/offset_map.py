"""Chooses the twin of the offset map: the compiled one where it was built, else the pure one.

Everybody imports it from here. Owns: the choice, which follows that of the record codec (`codec.compiled`).
"""

from typing import TYPE_CHECKING

from protocol.records.codec import compiled

__all__ = ["OffsetMap"]

if TYPE_CHECKING or not compiled:
    from protocol.records.compaction import OffsetMap
else:
    try:
        from protocol.records._compaction import OffsetMap
    except ImportError:  # built one by one, each may be missing
        from protocol.records.compaction import OffsetMap
