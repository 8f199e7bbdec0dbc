"""The sparse indexes of a segment: offset, time and transaction.

Start with `mapped`.
"""
