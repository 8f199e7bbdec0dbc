"""What the broker knows of topics beside their data: names, ids, partition counts, settings, and where partitions live.

`topic.py` and `assignment.py` are pure; `store.py` is the interface to whatever keeps the metadata, `sqlite.py` the
embedded one.
"""
