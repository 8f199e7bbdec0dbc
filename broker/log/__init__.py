"""The storage engine: a partition is a directory of segments, a segment is a log file with two sparse indexes.

Synchronous: it knows neither trio nor metrics nor wire formats. It returns facts, callers count them. `partition_log`
is the face. Read in this order: `disk`, `residency`, `files`; `index_search`, `mapped_index`, `offset_index`,
`time_index`;
`append`, `segment`, `segments`; `active_writer`, `appender`, `reading`, `time_search`, `flush`; `partition_log`; then
`index_rebuild`, `recovery`, `truncation`, and what lies around the logs: `data_directory`, `checkpoint`.
"""
