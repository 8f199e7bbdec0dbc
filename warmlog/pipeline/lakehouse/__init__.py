"""Delta and Iceberg tables that hold each record of a topic once.

Start with `receipts` (what a commit says about offsets), then `table` (what a table must do), `job` (a batch from its
plan to its commit), `writing` (what a task does), and `delta` and `iceberg` (the two kinds of tables).
`maintenance/` merges files and expires versions, whose receipts go to the `ledger`.
"""
