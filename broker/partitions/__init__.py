"""The topics and partitions that the broker serves: opening, appends, waiting fetches, topic changes.

Start with `partitions`, the entry point for all others; `partition` is one log as the event loop uses it.
"""
