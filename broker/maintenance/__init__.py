"""Periodic work beside the requests: flushing, retention, compaction, rebuilding of failed logs, disk checks.

Start with `schedule`, which runs all of it; each other module is one kind of work.
"""
