"""Topic metadata: names, ids, partition counts, settings and replica placement.

Start with `topic.py`. `store.py` is the storage interface and `sqlite.py` its embedded implementation.
"""
