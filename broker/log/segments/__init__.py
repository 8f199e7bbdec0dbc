"""The segments of a log: their files, the checks of their indexes, the scan of batches, and the search in one segment.

Start with `segment`; `segment_map` holds the segments of a log in order.
"""
