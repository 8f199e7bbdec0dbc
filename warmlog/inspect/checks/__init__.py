"""Checks of data directories and partitions: every batch, index, snapshot and checkpoint. Nothing is written.

Start with `directories`, which runs all of them: `directory_files`, then for each partition `partition`, `segment`,
`indexes` and `history`.
"""
