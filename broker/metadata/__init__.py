"""Topic metadata: names, ids, partition counts, settings and replica placement.

Start with `topic.py`. `database.py` is a SQLite file with a layout; `broker.cluster` stores topics in it, or in etcd.
"""
