"""Partitions as the broker's tasks use them: appends queue, fetches wait, topics come and go.

Start with `partition`.
"""
