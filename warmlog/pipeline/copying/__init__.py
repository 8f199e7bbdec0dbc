"""Parts shared by the jobs that copy topics into tables.

Start with `progress` (choosing batches) and `metrics`, then `parquet` (a file that is written in row groups).
"""
