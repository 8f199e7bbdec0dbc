# The compiled version of `filtering.OffsetMap`.

from protocol.records.compaction.filtering import OffsetMap as OffsetMap
