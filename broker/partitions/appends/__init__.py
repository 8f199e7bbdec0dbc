"""Appends of one partition, queued and written together with those of others.

Start with `append_queue`; `append` is one pending append, and `writer` writes for all partitions.
"""
