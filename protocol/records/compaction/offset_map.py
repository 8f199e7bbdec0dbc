"""Import the compiled `OffsetMap` if it was built and `codec.compiled` is set, otherwise the pure Python one."""

from typing import TYPE_CHECKING

from warmlog.protocol.records.codec import compiled

__all__ = ["OffsetMap"]

if TYPE_CHECKING or not compiled:
    from warmlog.protocol.records.compaction.filtering import OffsetMap
else:
    try:
        from warmlog.protocol.records.compaction._filtering import OffsetMap
    except ImportError:  # extensions are built separately, so any of them may be missing
        from warmlog.protocol.records.compaction.filtering import OffsetMap
