"""Archives: directories of Parquet files that hold each record of a topic once.

Start with `store` (layout and commit), then `job` (what the next batch takes), `files` (what a task writes) and `table`
(reading an archive).
"""
