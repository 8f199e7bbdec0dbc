"""Archives: directories of Parquet files that hold each record of a topic once.

Start with `store` (layout and commit), then `job` (choosing batches), `files` (the files of a task) and `table`
(reading an archive).
"""
