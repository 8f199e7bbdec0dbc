"""Work that nobody asked for: flushing by time, retention, compaction, and care for failed disks and logs.

Start with `schedule`.
"""
