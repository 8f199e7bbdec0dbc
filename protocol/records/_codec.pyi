# What the compiled twin of `record` offers: the same names; see there for what they mean.

from protocol.records.record import RecordEncoder as RecordEncoder
from protocol.records.record import decode_records as decode_records
from protocol.records.record import murmur2 as murmur2
from protocol.records.record import walk_records as walk_records
