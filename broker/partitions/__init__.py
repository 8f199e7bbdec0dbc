"""The topics and partitions that the broker serves: opening, appends, waiting fetches, topic changes.

Start with `partitions`, the entry point for other packages; `partition` is one log as the event loop uses it.
"""
