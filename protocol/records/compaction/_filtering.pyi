# The compiled version of `filtering.OffsetMap`.

from warmlog.protocol.records.compaction.filtering import OffsetMap as OffsetMap
