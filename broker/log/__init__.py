"""The storage engine: a partition is a directory of segments, a segment is a log file with two sparse indexes.

Synchronous: it uses neither trio nor metrics nor wire formats. It returns values, which callers count. `partition_log`
is the entry module. Read in this order: `io.disk`, `io.residency`, `io.files`; `index.search`, `index.mapped`,
`index.offset`, `index.time`; `segments.tail`, `segments.segment`, `segments.segment_map`; `log_state`;
`appends.appender`, `appends.log_appends`, `appends.durability`; `reads.reading`, `reads.time_search`; `partition_log`;
then `recovery.rebuild`, `recovery.load`, `recovery.truncate`, and the data directories around the logs:
`directory.data_directory`, `directory.checkpoint`.
"""
