"""Delta tables.

Start with `table` (the table, through the deltalake library), then `actions` (the content of a commit), `log` (what
commits say), `restores` (commits that were taken back), and `storage` (options of stores).
"""
