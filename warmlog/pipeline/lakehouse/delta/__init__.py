"""Delta tables.

Start with `table` (the table, through the deltalake library), then `actions` (the content of a commit) and `storage`
(the names of options of object stores).
"""
