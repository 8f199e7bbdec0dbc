"""Tables with one row for each key: the newest record of the key in its partition, unless that deletes it.

Start with `job` (a batch from its records to its commit), then `changes` (the work of a task), `keys` (which rows a
batch replaces) and `rewriting` (files without these rows).
"""
