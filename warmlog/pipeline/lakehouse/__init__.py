"""Delta and Iceberg tables that hold each record of a topic once.

Start with `receipts` (the offsets of a commit), then `table` (the interface of tables), `job` (a batch from its plan to
its commit), `writing` (the work of a task), and `delta/` and `iceberg/` (the two table formats).
`taken_back` says what restores and rollbacks took back, and `rewinding` accepts that.
`maintenance/` merges files and expires versions, and moves their receipts to the `ledger`.
"""
