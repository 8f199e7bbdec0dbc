# The compiled version of `compaction.OffsetMap`.

from protocol.records.compaction import OffsetMap as OffsetMap
