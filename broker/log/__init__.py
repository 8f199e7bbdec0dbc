"""The storage engine: a partition is a directory of segments, a segment is a log file with two sparse indexes.

Synchronous: it knows neither trio nor metrics nor wire formats. It returns facts, callers count them. `partition_log`
is the face; read in the order `disk`, `files`, `mapped_index`, `offset_index`, `time_index`, `segment`, `segments`,
`append`, `partition_log`, `recovery`.
"""
