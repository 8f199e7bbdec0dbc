"""Maintenance of tables: merges small files, expires old versions, and deletes files without a commit.

Start with `job` (the steps and their invariants), then `ledger` (receipts that outlive their commits), `planning`
(which files are merged), `merging` (how they are rewritten), and `delta` and `iceberg` (the steps that differ).
"""
