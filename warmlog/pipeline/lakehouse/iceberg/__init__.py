"""Iceberg tables.

Start with `table` (the table, through the pyiceberg library), then `history` (snapshots and their receipts),
`rollbacks` (commits that were taken back), `entries` (files in manifests), `files` (the data directory) and `catalog`.
"""
