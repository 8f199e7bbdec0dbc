"""Import the compiled `OffsetMap` if it was built and `codec.compiled` is set, otherwise the pure Python one."""

from typing import TYPE_CHECKING

from protocol.records.codec import compiled

__all__ = ["OffsetMap"]

if TYPE_CHECKING or not compiled:
    from protocol.records.compaction.filtering import OffsetMap
else:
    try:
        from protocol.records.compaction._filtering import OffsetMap
    except ImportError:  # extensions are built separately, so each may be missing
        from protocol.records.compaction.filtering import OffsetMap
