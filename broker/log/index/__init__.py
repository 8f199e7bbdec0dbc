"""The sparse indexes of a segment: offset, time and transaction.

Start with `mapped`, the table both mapped indexes share, and `search`, the lookup with a warm section.
"""
