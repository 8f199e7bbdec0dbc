"""Maintenance of tables: small files become large ones, old versions expire, files without a commit go.

Start with `job` (the steps and what holds across them), then `ledger` (receipts that outlive their commits), `planning`
(which files go together), `merging` (how they are rewritten), and `delta` and `iceberg` (what differs).
"""
