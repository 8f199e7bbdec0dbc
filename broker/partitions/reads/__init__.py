"""Fetches that wait for records, and reads of data that is not in memory.

Start with `waiters` and `read_ahead`.
"""
