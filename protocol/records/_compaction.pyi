# What the compiled twin of `compaction.OffsetMap` offers; see there for what it means.

from protocol.records.compaction import OffsetMap as OffsetMap
